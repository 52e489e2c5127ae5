// SPDX-License-Identifier: Apache-2.0
#pragma once

// The weighted sum over a token's routes, with shared input, scaling and the one rounding.

#include <cstdint>

#include "panels/body.h"
#include "panels/routes.h"
#include "plan/family.h"

namespace moekit::panels {

/// Route sums r of output rows [row_begin, row_end), [num_routes, stride]; the rows are padded to a
/// multiple of 16.
struct RouteSums {
  const float* sums = nullptr;
  std::int64_t stride = 0;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
};

/// out[token, row_begin..row_end) = io(Σ p * r [* scaling] [+ shared]) for every token of the call.
/// A token without active routes gets exact zeros (plus shared).
void combine_rows(const plan::CpuCall& call,
                  const Body& body,
                  const Routes& routes,
                  const RouteSums& sums) noexcept;

}  // namespace moekit::panels
