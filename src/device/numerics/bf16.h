// SPDX-License-Identifier: Apache-2.0
#pragma once

// BF16 and F16 as bit patterns: exact widening, and narrowing that rounds to nearest, ties to even.

#include "device/portable.h"

namespace moekit::device {
inline namespace MOEKIT_ISA {

constexpr float bf16_to_f32(u16 bits) {
  return float_of(static_cast<u32>(bits) << 16);
}

/// RNE; overflow goes to infinity, NaN stays NaN (quiet, sign kept).
constexpr u16 bf16_from_f32(float value) {
  const u32 bits = bits_of(value);
  // Selects instead of branches so that a loop over this vectorises.
  const u32 rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const u32 quiet_nan = (bits >> 16) | 0x0040U;
  return static_cast<u16>(is_nan(value) ? quiet_nan : rounded);
}

constexpr float bf16_round(float value) {
  return bf16_to_f32(bf16_from_f32(value));
}

/// Exact, F16 subnormals included.
constexpr float f16_to_f32(u16 bits) {
  const u32 sign = static_cast<u32>(bits & 0x8000U) << 16;
  const u32 exponent = (bits >> 10) & 0x1FU;
  const u32 mantissa = bits & 0x3FFU;
  if (exponent == 0x1FU) {
    return float_of(sign | 0x7F800000U | (mantissa << 13));
  }
  if (exponent == 0) {
    // mantissa * 2^-24 is exact in f32.
    const float magnitude = static_cast<float>(mantissa) * float_of(0x33800000U);
    return float_of(sign | bits_of(magnitude));
  }
  return float_of(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

/// RNE with gradual underflow; overflow goes to infinity, NaN stays NaN.
constexpr u16 f16_from_f32(float value) {
  const u32 bits = bits_of(value);
  const u32 sign = (bits >> 16) & 0x8000U;
  const u32 magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<u16>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  }
  if (magnitude >= 0x477FF000U) {  // 65520 and up round to infinity
    return static_cast<u16>(sign | 0x7C00U);
  }
  if (magnitude >= 0x38800000U) {  // normal in F16: at least 2^-14
    const u32 rebased = magnitude - 0x38000000U;
    return static_cast<u16>(sign | ((rebased + 0xFFFU + ((rebased >> 13) & 1U)) >> 13));
  }
  // Subnormal: |value| * 2^24 is below 1024; adding 2^23 rounds to an integer by RNE.
  const float shifted = float_of(magnitude) * 16777216.0F + 8388608.0F;
  return static_cast<u16>(sign | (bits_of(shifted) - 0x4B000000U));
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
