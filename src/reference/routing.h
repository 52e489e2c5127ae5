// SPDX-License-Identifier: Apache-2.0
#pragma once

// The oracle of routing (spec section 4) in double. An f32 router may order near ties differently,
// so the judge asks what any f32 evaluation must satisfy, and insists on exact rules where no
// rounding is involved: equal logits go to the lowest id, and what is not finite is never chosen.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "moekit/dtype.h"
#include "moekit/routing.h"

namespace moekit::reference {

/// One token's logits as the rules read them: NaN is -infinity, +infinity the largest finite f32.
///
/// Shapes  logits [num_tokens, num_experts] f32, bf16 or f16
[[nodiscard]] std::vector<double> read_logits(const TensorView& logits, std::int64_t token);

/// What a router chose for one token.
struct Selection {
  std::vector<std::int32_t> ids{};
  std::vector<double> weights{};
};

/// What a routing may ask for beside a correction bias.
struct RoutingExtras {
  const float* expert_scale = nullptr;       // [num_experts]
  const std::int32_t* hashed_ids = nullptr;  // [top_k]: the token's row of the hash table
};

/// The rules evaluated in double; ties go to the lowest id.
///
/// Shapes  logits [num_experts] from read_logits; bias null or [num_experts]
[[nodiscard]] Selection select_experts(const Routing& routing,
                                       std::span<const double> logits,
                                       const float* bias);

/// Empty when `selection` is one that an f32 evaluation of the rules can give; else what is wrong.
[[nodiscard]] std::string judge_selection(const Routing& routing,
                                          std::span<const double> logits,
                                          const float* bias,
                                          const Selection& selection,
                                          const RoutingExtras& extras = {});

}  // namespace moekit::reference
