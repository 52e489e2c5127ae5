// SPDX-License-Identifier: Apache-2.0
#pragma once

// How much, of what: everything about one MoE layer that does not depend on a device. Every
// semantic named here is served or refused by the planner, never dropped.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "moekit/dtype.h"
#include "moekit/recipe.h"
#include "moekit/routing.h"
#include "moekit/status.h"

#pragma GCC visibility push(default)

namespace moekit {

/// Order of the rows of a fused gate_up tensor.
enum class RowOrder : std::uint8_t {
  kGateUp,       // rows 0..I-1 gate, I..2I-1 up
  kUpGate,       // rows 0..I-1 up, I..2I-1 gate
  kInterleaved,  // g0 u0 g1 u1 ... (gpt-oss)
};

/// Order in which the routes of a token are summed in f32.
enum class CombineOrder : std::uint8_t {
  kSlot,    // of top-k; renumbering experts changes no bit
  kExpert,  // ascending local ids; an expert named more than once: its slots ascending
};

/// What routed_scaling multiplies, in f32: each router weight, or the sum before `shared` is added.
enum class ScalingPlace : std::uint8_t { kWeights, kSum };

/// An optional precomputed [num_tokens, hidden] tensor that is added before the one rounding.
enum class SharedInput : std::uint8_t { kNone, kIo, kF32 };

[[nodiscard]] std::string_view row_order_name(RowOrder order) noexcept;
[[nodiscard]] std::optional<RowOrder> row_order_from_name(std::string_view name) noexcept;
[[nodiscard]] std::string_view combine_order_name(CombineOrder order) noexcept;
[[nodiscard]] std::optional<CombineOrder> combine_order_from_name(std::string_view name) noexcept;
[[nodiscard]] std::string_view scaling_place_name(ScalingPlace place) noexcept;
[[nodiscard]] std::optional<ScalingPlace> scaling_place_from_name(std::string_view name) noexcept;
[[nodiscard]] std::string_view shared_input_name(SharedInput shared) noexcept;
[[nodiscard]] std::optional<SharedInput> shared_input_from_name(std::string_view name) noexcept;

struct Problem {
  std::int64_t num_tokens = 0;   // capacity: the plan serves every 0 <= M <= num_tokens
  std::int64_t num_experts = 0;  // experts whose weights live here
  std::int64_t top_k = 0;
  std::int64_t hidden_size = 0;        // H, a multiple of 8
  std::int64_t intermediate_size = 0;  // I of this shard, a multiple of 8
  Recipe recipe = Recipe::kW16a16;
  Activation activation{};
  RowOrder row_order = RowOrder::kGateUp;
  bool gate_up_bias = false;
  bool down_bias = false;
  float routed_scaling = 1.0F;
  ScalingPlace routed_scaling_place = ScalingPlace::kWeights;
  bool router_weight_on_input = false;  // h = p * (x . w * G) + bias, and the sum has weights 1
  DType io_dtype = DType::kBf16;        // of x and of the output: bf16, f16 or f32
  std::optional<DType> out_dtype{};     // of the output where it differs: a rank's partial sum
  SharedInput shared = SharedInput::kNone;
  CombineOrder combine_order = CombineOrder::kSlot;
  std::int64_t router_experts = 0;      // the ids' namespace; 0 means num_experts
  bool expert_map = false;              // bind takes a map router id -> local expert or -1
  std::int64_t down_group_offset = 0;   // columns of down's first scale group before this TP shard
  std::int64_t gate_up_row_offset = 0;  // rows of gate's and up's first scale block before it
  std::int64_t weight_group_size = 0;   // of a format that has several (int4); 0: its own
  std::optional<Routing> routing{};     // set: bind takes logits, the plan begins with a route step
  std::int64_t max_workspace_bytes = 0;  // 0: no limit; else large M is cut into token chunks
  bool allow_atomics = false;            // opt-in to an unordered combine
  bool batch_invariant = false;          // a token's row depends on that token alone

  friend bool operator==(const Problem&, const Problem&) = default;
};

/// The ids' namespace.
[[nodiscard]] constexpr std::int64_t num_router_experts(const Problem& problem) noexcept {
  return problem.router_experts != 0 ? problem.router_experts : problem.num_experts;
}

/// What out is written as.
[[nodiscard]] constexpr DType output_dtype(const Problem& problem) noexcept {
  return problem.out_dtype.value_or(problem.io_dtype);
}

/// Rows of gate_up: 2 * intermediate_size, or intermediate_size where the activation has no gate.
[[nodiscard]] constexpr std::int64_t num_gate_up_rows(const Problem& problem) noexcept {
  return activation_is_gated(problem.activation.kind) ? 2 * problem.intermediate_size
                                                      : problem.intermediate_size;
}

/// Checks everything that needs no device: ranges, extents, activation parameters, dtypes.
///
/// Errors  kInvalidArgument  a value outside its range, named with the rule
///         kUnsupported      num_experts or router_experts > 1024, top_k > 32
[[nodiscard]] Status validate_problem(const Problem& problem) noexcept;

/// Columns [begin, end) of a layer's intermediate.
struct ColumnRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const ColumnRange&, const ColumnRange&) = default;
};

/// Which experts an expert-parallel rank holds: a contiguous share, or every ep_size-th.
enum class ExpertPlacement : std::uint8_t { kLinear, kRoundRobin };

/// One rank of a layer that is split by columns of the intermediate (TP) and by experts (EP).
struct Shard {
  std::int64_t tp_rank = 0;
  std::int64_t tp_size = 1;
  std::int64_t ep_rank = 0;
  std::int64_t ep_size = 1;
  ExpertPlacement placement = ExpertPlacement::kLinear;
  std::optional<ColumnRange> columns{};          // empty: an even share in multiples of 8
  std::vector<std::int64_t> experts{};           // global ids held here; empty: by placement
  std::optional<DType> out_dtype = DType::kF32;  // of the partial sum; empty: io_dtype
  friend bool operator==(const Shard&, const Shard&) = default;
};

/// Columns that the rank owns: rows of gate and up, columns of down. May begin inside a scale
/// group.
///
/// Errors  kInvalidArgument  a rank outside its size; given columns off a multiple of 8 or outside
///         kUnsupported      a rank would be empty, with the legal sizes
[[nodiscard]] Result<ColumnRange> shard_columns(const Problem& layer, const Shard& shard) noexcept;

/// Global ids of the experts that the rank holds, in local order.
///
/// Errors  kInvalidArgument  a rank outside its size; given ids out of range or twice
///         kUnsupported      a rank would be empty, with the legal sizes
[[nodiscard]] Result<std::vector<std::int64_t>> shard_experts(const Problem& layer,
                                                              const Shard& shard) noexcept;

/// The expert map of bind: router id -> local expert or -1, [num_experts of the layer].
[[nodiscard]] Result<std::vector<std::int32_t>> shard_expert_map(const Problem& layer,
                                                                 const Shard& shard) noexcept;

/// The problem that the rank plans: local extents, the layer's router namespace, the bias of down
/// on TP rank 0 and `shared` on rank 0 of both, so that the ranks' outputs sum to the layer.
///
/// Errors  those of shard_columns and shard_experts; kInvalidArgument for a layer that is itself
///         sharded (an expert_map or a down_group_offset)
[[nodiscard]] Result<Problem> local_problem(const Problem& layer, const Shard& shard) noexcept;

}  // namespace moekit

#pragma GCC visibility pop
