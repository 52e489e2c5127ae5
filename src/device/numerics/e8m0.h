// SPDX-License-Identifier: Apache-2.0
#pragma once

// E8M0, the power-of-two block scale of MX formats: 2^(code - 127), code 255 is NaN, no zero.
// Source: OCP Microscaling Formats v1.0, 5.4.1.

#include "device/portable.h"

namespace moekit::device {
inline namespace MOEKIT_ISA {

constexpr u32 kE8m0Nan = 255U;

/// Exact; code 0 is 2^-127, an f32 subnormal.
constexpr float e8m0_to_f32(u32 code) {
  const u32 finite = code != 0U ? code << 23 : 0x00400000U;
  return float_of(code == kE8m0Nan ? 0x7FC00000U : finite);
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
