// SPDX-License-Identifier: Apache-2.0
#include "reference/dot.h"

#include <array>
#include <cmath>
#include <cstddef>

namespace moekit::reference {

DotSums dot(const double* x, const double* w, std::int64_t size) noexcept {
  // 8 lanes: extents are multiples of 8, and two accumulator arrays fill eight SSE2 registers.
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  std::array<double, kLanes> magnitudes{};
  for (std::int64_t k = 0; k < size; k += static_cast<std::int64_t>(kLanes)) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double term =
          x[k + static_cast<std::int64_t>(lane)] * w[k + static_cast<std::int64_t>(lane)];
      sums[lane] += term;
      magnitudes[lane] += std::fabs(term);
    }
  }
  DotSums result;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    result.sum += sums[lane];
    result.magnitude += magnitudes[lane];
  }
  return result;
}

double sum_of_magnitudes(const double* v, std::int64_t size) noexcept {
  double sum = 0.0;
  for (std::int64_t k = 0; k < size; ++k) {
    sum += std::fabs(v[k]);
  }
  return sum;
}

}  // namespace moekit::reference
