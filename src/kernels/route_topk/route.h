// SPDX-License-Identifier: Apache-2.0
#pragma once

// The router's per-token loop on the CPU, shared by the stand-alone route() and the plan's first
// step.

#include <cstdint>

#include "moekit/routing.h"

#include "device/routing/topk.h"

namespace moekit::kernels::route_topk {

[[nodiscard]] device::RoutingParams routing_params(const Routing& routing) noexcept;

/// Tokens [begin, end) of `logits`; ids and weights are [tokens, top_k] without gaps, token `begin`
/// first.
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int32_t* ids = nullptr;
  std::int64_t ids_stride = 0;
  float* weights = nullptr;
  std::int64_t weights_stride = 0;
};

/// Vectors and tables that a routing may ask for; null where it does not.
struct RouterTables {
  const float* correction_bias = nullptr;
  const float* expert_scale = nullptr;
  const HashTable* hash_table = nullptr;
};

void route_tokens(const device::RoutingParams& params,
                  const TensorView& logits,
                  const RouterTables& tables,
                  const TokenRange& range) noexcept;

}  // namespace moekit::kernels::route_topk
