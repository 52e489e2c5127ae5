// SPDX-License-Identifier: Apache-2.0
#pragma once

// From router logits to expert ids and router weights. `route` is the stand-alone call; a Problem
// that carries a Routing gets the same thing as the first step of its plan.

#include <cstdint>
#include <optional>
#include <string_view>

#include "moekit/dtype.h"
#include "moekit/status.h"

#pragma GCC visibility push(default)

namespace moekit {

inline constexpr std::int64_t kMaxExperts = 1024;
inline constexpr std::int64_t kMaxTopK = 32;

enum class Scoring : std::uint8_t {
  kSoftmax,          // over all experts
  kSigmoid,          // per expert
  kSoftmaxSelected,  // select by logit, then softmax over the selected (gpt-oss)
  kNone,             // the logit itself
  kSqrtSoftplus,     // sqrt(log(1 + e^logit)) per expert
};

[[nodiscard]] std::string_view scoring_name(Scoring scoring) noexcept;
[[nodiscard]] std::optional<Scoring> scoring_from_name(std::string_view name) noexcept;

/// Selection runs over score + correction bias; weights are the unbiased scores of the selected
/// ids.
struct Routing {
  Scoring scoring = Scoring::kSoftmax;
  std::int64_t num_experts = 0;  // the router's namespace: columns of the logits
  std::int64_t top_k = 0;
  std::int64_t num_groups =
      1;  // experts in equal consecutive groups; group score = sum of its best two
  std::int64_t top_groups = 1;  // groups that stay eligible
  bool renormalize =
      false;           // divide by the sum of the selected weights + 1e-20; a zero sum gives 0
  float scale = 1.0F;  // multiplies the weights last
  bool correction_bias = false;  // an f32 vector [num_experts] is given to the call
  bool expert_scale = false;     // an f32 vector [num_experts]: multiplies the weights last of all
  bool hash_table = false;       // ids come from a table by token id; weights as for selected ids

  friend bool operator==(const Routing&, const Routing&) = default;
};

/// Checks ranges, and that a hash table comes without groups and correction bias: 1 <= num_experts
/// <= 1024, 1 <= top_k <= min(32, num_experts), groups divide experts, 1 <= top_groups <=
/// num_groups, finite scale, and top_k <= experts in the eligible groups.
[[nodiscard]] Status validate_routing(const Routing& routing) noexcept;

/// Expert ids by token id. A token id outside the table, and an entry outside the experts or with a
/// logit that is not finite, give id -1 and weight 0.
struct HashTable {
  const std::int32_t* expert_ids = nullptr;  // [num_rows, top_k]
  std::int64_t num_rows = 0;                 // the vocabulary
  TensorView token_ids{};                    // [num_tokens] i32 or i64
};

struct RouteArguments {
  TensorView logits;  // [num_tokens, num_experts] f32, bf16 or f16; row stride free
  const float* correction_bias = nullptr;  // [num_experts]
  const float* expert_scale = nullptr;     // [num_experts] where the routing asks for it
  HashTable hash_table{};                  // where the routing asks for it
  MutableTensorView topk_ids;              // [num_tokens, top_k] i32
  MutableTensorView topk_weights;          // [num_tokens, top_k] f32
};

/// Selects top_k experts per token, best first.
///
/// Shapes    logits [num_tokens, num_experts], topk_ids and topk_weights [num_tokens, top_k]; host
///           memory
/// Numerics  f32; +infinity counts as the largest finite value, NaN as -infinity
/// Order     ties go to the lowest id; fewer than top_k finite logits: remaining slots id -1,
///           weight 0
/// Errors    kInvalidArgument  shapes, dtypes, missing bias, ranges of validate_routing
/// Effects   no allocation
[[nodiscard]] Status route(const Routing& routing, const RouteArguments& arguments) noexcept;

/// logits = x . weight^T (+ bias) in f32, for callers whose router is a plain linear layer.
///
/// Shapes    x [num_tokens, hidden] bf16, f16 or f32; weight [num_experts, hidden] bf16, f16 or
///           f32; bias null or f32 [num_experts]; logits [num_tokens, num_experts] f32; host memory
/// Numerics  exact f64 products of the widened operands, f64 accumulation, one rounding to f32
/// Errors    kInvalidArgument  shapes or dtypes
[[nodiscard]] Status router_logits(const TensorView& x,
                                   const TensorView& weight,
                                   const float* bias,
                                   const MutableTensorView& logits) noexcept;

}  // namespace moekit

#pragma GCC visibility pop
