// SPDX-License-Identifier: Apache-2.0
#pragma once

// The oracle's inner loop and how its rows are spread over threads.

#include <cstdint>

#include "base/thread_pool.h"

namespace moekit::reference {

/// A dot product and the sum of the magnitudes of its terms.
struct DotSums {
  double sum = 0.0;
  double magnitude = 0.0;
};

/// Shapes    x, w [size], size % 8 == 0
/// Numerics  products of two f32 are exact in double; eight partial sums, so that the loop
///           vectorises without reassociation; relative error below (size + 1) * 2^-53
[[nodiscard]] DotSums dot(const double* x, const double* w, std::int64_t size) noexcept;

/// Sum of |v|.
[[nodiscard]] double sum_of_magnitudes(const double* v, std::int64_t size) noexcept;

/// Calls body(begin, end) on disjoint ranges that cover [0, rows); on the pool where there is one.
template <typename Body>
void for_row_ranges(base::ThreadPool* pool, std::int64_t rows, const Body& body) {
  if (pool == nullptr || pool->num_threads() == 1) {
    body(std::int64_t{0}, rows);
    return;
  }
  pool->parallel([&](int worker, int num_workers) {
    const std::int64_t begin = rows * worker / num_workers;
    const std::int64_t end = rows * (worker + 1) / num_workers;
    if (begin < end) {
      body(begin, end);
    }
  });
}

}  // namespace moekit::reference
