// SPDX-License-Identifier: Apache-2.0
#pragma once

// E2M1, the FP4 element of NVFP4 and MXFP4: sign, two exponent bits of bias 1, one mantissa bit.
// Codes 0..7 are 0 0.5 1 1.5 2 3 4 6; bit 3 is the sign. Source: OCP Microscaling Formats
// v1.0, 5.3.3.

#include "device/portable.h"

namespace moekit::device {
inline namespace MOEKIT_ISA {

constexpr float e2m1_to_f32(u32 code) {
  const u32 exponent = (code >> 1) & 3U;
  const u32 mantissa = code & 1U;
  const u32 sign = (code & 8U) << 28;
  const u32 normal = ((exponent + 126U) << 23) | (mantissa << 22);
  const u32 subnormal = mantissa != 0U ? 0x3F000000U : 0U;
  return float_of(sign | (exponent != 0U ? normal : subnormal));
}

/// RNE on the magnitude, saturating at 6; a result of magnitude 0 is +0, NaN encodes as +6 (callers
/// carry NaN in the block scale). Ties go to the even mantissa, so the interval ends below are
/// closed exactly where the lower code is even.
constexpr u32 e2m1_from_f32(float value) {
  const float magnitude = abs_f32(value);
  u32 code = 0;
  code += magnitude > 0.25F ? 1U : 0U;
  code += magnitude >= 0.75F ? 1U : 0U;
  code += magnitude > 1.25F ? 1U : 0U;
  code += magnitude >= 1.75F ? 1U : 0U;
  code += magnitude > 2.5F ? 1U : 0U;
  code += magnitude >= 3.5F ? 1U : 0U;
  code += magnitude > 5.0F ? 1U : 0U;
  if (is_nan(value)) {
    return 7U;
  }
  return code != 0U ? code | ((bits_of(value) >> 28) & 8U) : 0U;
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
