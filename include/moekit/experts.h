// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expert weights: as they come (ExpertsSource, FusedExperts) and as kernels read them
// (PackedExperts).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/format.h"
#include "moekit/plan.h"
#include "moekit/problem.h"
#include "moekit/status.h"

#pragma GCC visibility push(default)

namespace moekit {

/// A bias vector as stored: bf16, f16 or f32, stride in elements.
struct BiasView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t size = 0;
  std::int64_t stride = 1;
};

/// One expert. `gate` is unused where the activation has none.
struct ExpertWeights {
  WeightMatrix gate{};  // [intermediate, hidden]
  WeightMatrix up{};    // [intermediate, hidden]
  WeightMatrix down{};  // [hidden, intermediate]
  BiasView gate_bias{};
  BiasView up_bias{};
  BiasView down_bias{};
};

/// Views of every expert of one layer, gate and up apart whatever the storage order was. The memory
/// behind the views must live as long as the source is used.
struct ExpertsSource {
  std::vector<ExpertWeights> experts{};
};

/// An engine's fused tensors in host memory: w13 = gate_up [E, rows, K], w2 = down [E, H, I],
/// without gaps. Bytes, order of codes and scales as WeightMatrix has them.
struct FusedExperts {
  Format format = Format::kBf16;
  const void* gate_up_codes = nullptr;    // [E, num_gate_up_rows, code_row_bytes(hidden)]
  const void* gate_up_scales = nullptr;   // [E, num_gate_up_rows, ceil(hidden / group)]
  const void* down_codes = nullptr;       // [E, hidden, code_row_bytes(intermediate)]
  const void* down_scales = nullptr;      // [E, hidden, ceil((offset + intermediate) / group)],
                                          // offset: problem.down_group_offset
  std::span<const float> gate_globals{};  // [E], empty: 1 (only for formats without a global)
  std::span<const float> up_globals{};    // [E]
  std::span<const float> down_globals{};  // [E]
  BiasView gate_up_bias{};                // [E * num_gate_up_rows], data null: none
  BiasView down_bias{};                   // [E * hidden]
  std::optional<DType> scale_dtype{};     // as WeightMatrix has it
  std::int64_t group_size = 0;            // as WeightMatrix has it
  const std::uint8_t* gate_up_zero_points = nullptr;  // int4: [E, num_gate_up_rows, groups]
  const std::uint8_t* down_zero_points = nullptr;     // int4: [E, hidden, groups]
  std::span<const float> gate_input_scales{};         // [E], or empty: none
  std::span<const float> up_input_scales{};           // [E]
  std::span<const float> down_input_scales{};         // [E]
};

/// Splits fused tensors into per-expert views by `problem.row_order`. Scales of blocks of rows
/// stand per projection: [E, 2 * ceil(intermediate / 128), ...], gate's or up's blocks first as the
/// rows.
///
/// Errors  kInvalidArgument  interleaved rows of a format whose scales span rows
///         kInvalidArgument  null pointers, wrong span sizes, a missing global of a format that has
///                           one (a default of 1 would inflate the layer), a bias the problem does
///                           not name
[[nodiscard]] Result<ExpertsSource> split_fused(const Problem& problem,
                                                const FusedExperts& fused) noexcept;

/// The rank's part of a whole layer's weights: views, nothing is copied. A shard that begins inside
/// a scale group shares that group's scale with its neighbour.
///
/// Errors  those of shard_columns and shard_experts
///         kInvalidArgument  a source whose shapes are not the layer's
[[nodiscard]] Result<ExpertsSource> shard_source(const Problem& layer,
                                                 const Shard& shard,
                                                 const ExpertsSource& source) noexcept;

struct PrepareProgress {
  std::int64_t experts_done = 0;
  std::int64_t num_experts = 0;
};

struct PrepareOptions {
  /// Where to pack; empty: the library allocates. Must be aligned to kPackedAlignment and hold
  /// plan->prepare.packed_bytes.
  std::span<std::byte> destination{};
  /// Called after each expert; returning false cancels with kFailedPrecondition, an exception ends
  /// the call with kInternal. The destination then holds part of the layer.
  std::function<bool(const PrepareProgress&)> progress{};
  int num_threads = 0;  // 0: all
};

inline constexpr std::size_t kPackedAlignment = 256;

/// Weights of one layer in the layout `layout_id` names; serves every plan with that layout_id.
/// Cheap to copy (shared ownership of the buffer, or a view of the caller's).
class PackedExperts {
 public:
  PackedExperts() noexcept = default;

  /// Empty where nothing was prepared, as are bytes().
  [[nodiscard]] const std::string& layout_id() const noexcept;

  /// After upload, device memory: not to be read by the host.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept;

  /// Largest memory that prepare held beyond source and destination, in bytes, as measured.
  [[nodiscard]] std::int64_t peak_extra_bytes() const noexcept;

  struct State;

  explicit PackedExperts(std::shared_ptr<const State> state) noexcept : state_(std::move(state)) {}

  [[nodiscard]] const State* state() const noexcept { return state_.get(); }

 private:
  std::shared_ptr<const State> state_;
};

/// Validates every scale and packs, expert by expert, in at most 64 MiB beyond source and
/// destination.
///
/// Errors  kInvalidArgument    shapes or a scale group offset that do not fit the plan's problem,
///                             mixed formats, bad scales (naming expert, projection, row and
///                             group), a bias missing or unasked for
///         kInvalidArgument    destination too small or misaligned, naming have and need
///         kFailedPrecondition cancelled by the progress callback
///         kOutOfMemory        the library could not allocate
[[nodiscard]] Result<PackedExperts> prepare(const Plan& plan,
                                            const ExpertsSource& source,
                                            const PrepareOptions& options = {}) noexcept;

/// Writes packed experts to a file that map_packed_experts takes: temporary file, fsync, rename.
///
/// Errors  kInvalidArgument  nothing prepared, or memory of a device
///         kIo               the folder or disk refused
[[nodiscard]] Status save_packed_experts(const PackedExperts& packed,
                                         std::string_view path) noexcept;

/// Whether mapping reads every byte once to compare the file's checksum.
enum class PackedFileCheck : std::uint8_t { kHeader, kHeaderAndBytes };

/// Maps a saved file read-only; nothing is copied, and processes share the pages. The bytes are as
/// stable as the file: whoever truncates it while it is mapped makes later reads fault.
///
/// Errors  kInvalidArgument    not such a file, another schema, truncated, a checksum that differs
///         kFailedPrecondition another layout_id, number of experts or set of biases than the
///                             plan's, naming both
///         kIo                 a path that cannot be opened or mapped
[[nodiscard]] Result<PackedExperts> map_packed_experts(
    const Plan& plan,
    std::string_view path,
    PackedFileCheck check = PackedFileCheck::kHeaderAndBytes) noexcept;

/// Reads one expert back out of the packed layout, codes and scales without gaps: the inverse of
/// prepare. The matrices view `storage`, which is filled.
///
/// Errors  kInvalidArgument  nothing prepared, memory of a device, no such expert
[[nodiscard]] Result<ExpertWeights> unpack_expert(const PackedExperts& packed,
                                                  std::int64_t expert,
                                                  std::vector<std::byte>& storage) noexcept;

}  // namespace moekit

#pragma GCC visibility pop
