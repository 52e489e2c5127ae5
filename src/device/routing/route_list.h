// SPDX-License-Identifier: Apache-2.0
#pragma once

// From router ids to the list of routes per expert: what an id means, and the stable counting sort.

#include "device/portable.h"

namespace moekit::device {
inline namespace MOEKIT_ISA {

/// The local expert of a router id, or -1 where the route is inactive. The id is compared before
/// anything narrows it: 2^32 + e must not become e.
///
/// `map` [router_experts] gives local ids or -1; null where ids are local already.
constexpr i32 local_expert(i64 id, i64 router_experts, i64 num_experts, const i32* map) {
  if (id < 0 || id >= router_experts) {
    return -1;
  }
  const i64 local = map != nullptr ? static_cast<i64>(map[id]) : id;
  return local < 0 || local >= num_experts ? -1 : static_cast<i32>(local);
}

/// Stable counting sort: order[offsets[e] .. offsets[e + 1]) are the routes of expert e, ascending,
/// so token-major and slots ascending within a token.
///
/// Shapes  experts [num_routes] local ids or -1; offsets [num_experts + 1]; order [num_routes],
///         of which the first offsets[num_experts] are written
constexpr void sort_routes(
    const i32* experts, i64 num_routes, i64 num_experts, i32* offsets, i32* order) {
  for (i64 expert = 0; expert <= num_experts; ++expert) {
    offsets[expert] = 0;
  }
  for (i64 route = 0; route < num_routes; ++route) {
    if (experts[route] >= 0) {
      ++offsets[experts[route] + 1];
    }
  }
  for (i64 expert = 0; expert < num_experts; ++expert) {
    offsets[expert + 1] += offsets[expert];
  }
  // offsets[e] serves as the cursor of expert e and ends as offsets[e + 1]; shifting it back by one
  // place restores the prefix sum without a second array.
  for (i64 route = 0; route < num_routes; ++route) {
    if (experts[route] >= 0) {
      order[offsets[experts[route]]++] = static_cast<i32>(route);
    }
  }
  for (i64 expert = num_experts; expert > 0; --expert) {
    offsets[expert] = offsets[expert - 1];
  }
  offsets[0] = 0;
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
