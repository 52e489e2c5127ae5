// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every container reader holds shapes to before anybody makes views of them.

#include <algorithm>
#include <cstdint>
#include <span>

#include "moekit/status.h"

#include "base/text.h"

namespace moekit::checkpoint {

/// Refuses a shape that reaches 2^63 bits of the widest element with every zero extent taken as
/// one: strides and offsets of views are products of extents, and a zero must not hide one that
/// overflows. Behind it no product of the extents and an element's bits can overflow.
[[nodiscard]] inline Status check_shape_limits(std::span<const std::int64_t> shape) {
  constexpr std::int64_t kWidestElementBits = 64;
  std::int64_t bits = kWidestElementBits;
  const bool fits = std::all_of(shape.begin(), shape.end(), [&bits](std::int64_t extent) {
    return !__builtin_mul_overflow(bits, std::max<std::int64_t>(extent, 1), &bits);
  });
  return fits ? Status()
              : invalid_argument(base::cat("shape [",
                                           base::join(shape),
                                           "] has more than 2^63 bits of ",
                                           kWidestElementBits,
                                           "-bit elements"));
}

}  // namespace moekit::checkpoint
