// SPDX-License-Identifier: Apache-2.0
#pragma once

// E4M3 ("fn" variant): bias 7, largest finite 448, no infinities, S.1111.111 is NaN.
// Source: OCP 8-bit Floating Point Specification v1.0; NVFP4 block scales use it unsigned.

#include "device/portable.h"

namespace moekit::device {
inline namespace MOEKIT_ISA {

constexpr float kE4m3Max = 448.0F;
constexpr u32 kE4m3Nan = 0x7FU;

/// Exact, subnormals (multiples of 2^-9) included.
constexpr float e4m3_to_f32(u32 code) {
  const u32 sign = (code & 0x80U) << 24;
  const u32 magnitude = code & 0x7FU;
  const u32 normal = (magnitude << 20) + 0x3C000000U;  // rebias 7 -> 127
  const u32 subnormal = bits_of(static_cast<float>(magnitude) * float_of(0x3B000000U));
  const u32 finite = magnitude >= 8U ? normal : subnormal;
  return float_of(sign | (magnitude == kE4m3Nan ? 0x7FC00000U : finite));
}

/// RNE, saturating at +-448, infinities included; NaN stays NaN.
constexpr u32 e4m3_from_f32(float value) {
  const u32 sign = (bits_of(value) >> 24) & 0x80U;
  const u32 magnitude = bits_of(value) & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return sign | kE4m3Nan;
  }
  if (magnitude >= 0x43E00000U) {  // 448 and up
    return sign | 0x7EU;
  }
  if (magnitude >= 0x3C800000U) {  // normal in E4M3: at least 2^-6
    const u32 rebased = magnitude - 0x3C000000U;
    return sign | ((rebased + 0x7FFFFU + ((rebased >> 20) & 1U)) >> 20);
  }
  // Subnormal: adding 2^14 leaves a unit of 2^-9 in the last place, so the sum rounds by RNE.
  const float shifted = float_of(magnitude) + 16384.0F;
  return sign | (bits_of(shifted) - bits_of(16384.0F));
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
