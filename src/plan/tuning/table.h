// SPDX-License-Identifier: Apache-2.0
#pragma once

// Policy as data: where an architecture's execution families change over, how routes are cut into
// blocks, how large a resident grid is. One table per architecture, one file per class of them;
// every row names the committed measurement, the document or the derivation that it comes from.
// Code here only looks rows up.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "moekit/plan.h"

namespace moekit::plan {

inline constexpr std::int64_t kNoLimit = std::int64_t{1} << 40;

/// Activations that a row is about.
enum class ActivationSet : std::uint8_t { kAny, kSilu, kNotSitu, kGated, kNotGated };

/// What a row asks of a problem. Members left alone ask for nothing.
struct RowFilter {
  std::string_view recipe{};  // beginning of a recipe's name: `w4a16` is every w4a16 recipe
  ActivationSet activations = ActivationSet::kAny;
  std::int64_t hidden_multiple = 1;
  std::int64_t max_hidden = kNoLimit;
  std::int64_t intermediate_multiple = 1;
  std::int64_t max_intermediate = kNoLimit;
  std::int64_t experts = 0;              // exactly
  std::int64_t padded_intermediate = 0;  // exactly, rounded up to 128
  std::optional<bool> expert_map{};
  std::optional<bool> weight_on_input{};
  std::optional<bool> bf16_io{};
};

/// The direct family serves M <= max_tokens while M * top_k <= max_routes and 10 * M * top_k <=
/// tenths_per_expert * router experts. The first row whose filter holds decides; without one,
/// grouped serves every M.
struct DirectRow {
  RowFilter filter{};
  std::int64_t max_tokens = 0;
  std::int64_t max_routes = kNoLimit;
  std::int64_t tenths_per_expert = kNoLimit;
  bool atomic = false;  // a combine by atomics: considered with allow_atomics only
  std::string_view source{};
};

/// Routes of an expert are packed in blocks of `rows`. The first row that holds decides: the
/// filter, min_routes <= routes <= max_routes, and 10 * routes <= tenths_per_expert * router
/// experts (`<` where `below`).
struct BlockRow {
  RowFilter filter{};
  std::int64_t rows = 0;
  std::int64_t min_routes = 0;
  std::int64_t max_routes = kNoLimit;
  std::int64_t tenths_per_expert = kNoLimit;
  bool below = false;
  std::string_view source{};
};

/// A candidate tile of the grouped family for blocks of at most max_block_rows; of those that fit
/// in shared memory the one with most blocks per SM is taken, the first of equals.
struct TileRow {
  std::int64_t max_block_rows = 0;
  std::int32_t tile_n = 0;
  std::int32_t tile_k = 0;
  std::int32_t num_warps = 0;
  std::string_view source{};
};

/// Blocks of the one cooperative launch of the pin `resident`, for up to max_routes routes; never
/// more than the device holds at once.
struct GridRow {
  ExecutionFamily family = ExecutionFamily::kDirect;
  std::int64_t max_routes = kNoLimit;
  std::int64_t blocks = kNoLimit;
  std::string_view source{};
};

/// Where allow_atomics lets the grouped family combine by atomics.
struct AtomicRow {
  RowFilter filter{};
  std::string_view source{};
};

struct TuningTable {
  Arch arch = Arch::kCpu;
  std::span<const DirectRow> direct{};
  std::span<const BlockRow> blocks{};
  std::span<const TileRow> tiles{};
  std::span<const GridRow> grids{};
  std::span<const AtomicRow> atomics{};
};

extern const TuningTable kCpuTable;
extern const TuningTable kSm80Table;
extern const TuningTable kSm86Table;
extern const TuningTable kSm89Table;
extern const TuningTable kSm90aTable;
extern const TuningTable kSm100aTable;
extern const TuningTable kSm120aTable;
extern const TuningTable kSm121aTable;

/// Null for an architecture without a table.
[[nodiscard]] const TuningTable* tuning_table(Arch arch) noexcept;

[[nodiscard]] bool holds(const RowFilter& filter, const Problem& problem) noexcept;

/// The row that decides about the direct family; null: no direct rung.
[[nodiscard]] const DirectRow* direct_row(const TuningTable& table,
                                          const Problem& problem) noexcept;

/// Last M of the direct family; -1 without a row.
[[nodiscard]] std::int64_t last_direct(const DirectRow* row, const Problem& problem) noexcept;

/// Rows of a route block at `num_tokens`; 0 where the table has no blocks.
[[nodiscard]] std::int64_t route_block_rows(const TuningTable& table,
                                            const Problem& problem,
                                            std::int64_t num_tokens) noexcept;

/// Every M up to `last` after which the route block may change, ascending.
[[nodiscard]] std::vector<std::int64_t> block_ends(const TuningTable& table,
                                                   const Problem& problem,
                                                   std::int64_t last);

/// The row of a resident launch; null where the table has none.
[[nodiscard]] const GridRow* grid_row(const TuningTable& table,
                                      ExecutionFamily family,
                                      std::int64_t num_routes) noexcept;

[[nodiscard]] bool may_combine_by_atomics(const TuningTable& table,
                                          const Problem& problem) noexcept;

}  // namespace moekit::plan
