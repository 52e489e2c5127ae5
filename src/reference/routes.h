// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which expert each route of a call goes to, and with what weight, read from the caller's tensors
// by the rules of spec section 4.

#include <cstdint>
#include <vector>

#include "moekit/problem.h"
#include "moekit/runtime.h"

namespace moekit::reference {

/// One active route.
struct Route {
  std::int64_t token = 0;  // in the call
  std::int64_t slot = 0;
  std::int64_t expert = 0;  // local
  double weight = 0.0;      // as the caller gave it
};

/// The local expert of id [token, slot], or -1 where the route is inactive: an id < 0 or >= the
/// router's namespace (an int64 id is compared before anything narrows it), or one that the map
/// sends away.
[[nodiscard]] std::int64_t local_expert(const Problem& problem,
                                        const RunArguments& arguments,
                                        std::int64_t token,
                                        std::int64_t slot) noexcept;

/// The active routes of `tokens`, token-major, slots ascending.
[[nodiscard]] std::vector<Route> active_routes(const Problem& problem,
                                               const RunArguments& arguments,
                                               const std::vector<std::int64_t>& tokens);

}  // namespace moekit::reference
