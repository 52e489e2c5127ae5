// SPDX-License-Identifier: Apache-2.0
#pragma once

// The routes of one call as the steps see them: who goes where, with what weight.

#include <cstdint>
#include <span>

#include "plan/family.h"

namespace moekit::panels {

struct Routes {
  std::int64_t num_tokens = 0;
  std::int64_t top_k = 0;
  std::int64_t num_experts = 0;
  const std::int32_t* experts = nullptr;  // [num_tokens * top_k] local expert or -1
  const std::int32_t* offsets = nullptr;  // [num_experts + 1]
  const std::int32_t* order = nullptr;    // routes by expert
  const float* weights = nullptr;         // first token of the call; row stride below
  std::int64_t weights_stride = 0;
  float weight_scale = 1.0F;  // routed scaling where it stands on the weights

  [[nodiscard]] std::int64_t num_routes() const { return num_tokens * top_k; }

  /// `count` routes from the `first` on in the order of experts.
  [[nodiscard]] std::span<const std::int32_t> ordered(std::int64_t first,
                                                      std::int64_t count) const {
    return {order + first, static_cast<std::size_t>(count)};
  }

  /// The router weight p of a route, scaled.
  [[nodiscard]] float weight(std::int64_t route) const {
    return weights[route / top_k * weights_stride + route % top_k] * weight_scale;
  }
};

/// Resolves ids, sorts routes by expert and writes the three route slices.
[[nodiscard]] Routes resolve_routes(const plan::CpuCall& call) noexcept;

/// The same view of slices that an earlier step wrote.
[[nodiscard]] Routes resolved_routes(const plan::CpuCall& call) noexcept;

}  // namespace moekit::panels
