// SPDX-License-Identifier: Apache-2.0
#pragma once

// How much, of what: everything about one MoE layer that does not depend on a device. Every
// semantic named here is served or refused by the planner, never dropped.

#include <cstdint>
#include <optional>
#include <string_view>

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

/// Order in which the routes of a token are summed.
enum class CombineOrder : std::uint8_t { kSlot, kExpert };

/// Where routed_scaling stands.
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
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  Recipe recipe = Recipe::kW16a16;
  Activation activation{};
  RowOrder row_order = RowOrder::kGateUp;
  bool gate_up_bias = false;
  bool down_bias = false;
  float routed_scaling = 1.0F;
  ScalingPlace routed_scaling_place = ScalingPlace::kWeights;
  bool router_weight_on_input = false;  // h = p * (x . w * G) + bias, step 4 uses weight 1
  DType io_dtype = DType::kBf16;        // of x and of the output: bf16, f16 or f32
  SharedInput shared = SharedInput::kNone;
  CombineOrder combine_order = CombineOrder::kSlot;
  std::int64_t router_experts = 0;   // the ids' namespace; 0 means num_experts
  bool expert_map = false;           // bind takes a map router id -> local expert or -1
  std::optional<Routing> routing{};  // set: bind takes logits, the plan begins with a route step
  std::int64_t max_workspace_bytes = 0;  // 0: unbounded; else large M is cut into token chunks
  bool allow_atomics = false;            // opt-in to an unordered combine
  bool batch_invariant = false;          // a token's row depends on that token alone

  friend bool operator==(const Problem&, const Problem&) = default;
};

/// The ids' namespace.
[[nodiscard]] constexpr std::int64_t num_router_experts(const Problem& problem) noexcept {
  return problem.router_experts != 0 ? problem.router_experts : problem.num_experts;
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

}  // namespace moekit

#pragma GCC visibility pop
