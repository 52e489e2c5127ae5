// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every container reader holds shapes to before anybody makes views of them.

#include <algorithm>
#include <cstdint>
#include <span>

namespace moekit::checkpoint {

/// Whether a shape stays below 2^63 bits of the widest element with every zero extent taken as one:
/// strides and offsets of views are products of extents, and a zero must not hide one that
/// overflows.
[[nodiscard]] inline bool views_fit(std::span<const std::int64_t> shape) {
  constexpr std::int64_t kWidestElementBits = 64;
  std::int64_t bits = kWidestElementBits;
  return std::all_of(shape.begin(), shape.end(), [&bits](std::int64_t extent) {
    return !__builtin_mul_overflow(bits, std::max<std::int64_t>(extent, 1), &bits);
  });
}

}  // namespace moekit::checkpoint
