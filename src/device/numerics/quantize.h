// SPDX-License-Identifier: Apache-2.0
#pragma once

// The activation quantisers Q4 (NVFP4, groups of 16), Q8 (MXFP8, groups of 32) and Q8b (FP8, groups
// of 128), element by element: scale of a group from its largest magnitude, code of a value from
// the scale. Bit-defined in IEEE f32 with true division and without flushing to zero, so that any
// order of work on any backend gives the same bytes (spec section 2).
//
// A group that holds NaN or an infinity gets the NaN scale and codes 0: whoever decodes it gets
// NaN.

#include "device/numerics/bf16.h"
#include "device/numerics/e2m1.h"
#include "device/numerics/e4m3.h"
#include "device/numerics/e8m0.h"

namespace moekit::device {
inline namespace MOEKIT_ISA {

constexpr i32 kQ4GroupSize = 16;
constexpr i32 kQ8GroupSize = 32;
constexpr i32 kQ8bGroupSize = 128;

/// Folds a value into the largest magnitude of its group. Compared as bits: order does not matter,
/// infinity beats every number and NaN beats infinity, so one look at the end finds both.
constexpr u32 fold_amax(u32 amax_bits, float value) {
  const u32 magnitude = bits_of(value) & 0x7FFFFFFFU;
  return magnitude > amax_bits ? magnitude : amax_bits;
}

/// Q4: the E4M3 block scale. `global` is the dequant-side input scale, finite and not negative.
constexpr u32 q4_scale(u32 amax_bits, float global) {
  const float amax = float_of(amax_bits);
  if (!is_finite(amax)) {
    return kE4m3Nan;
  }
  if (amax_bits == 0) {
    return 0U;  // also where the global is 0, which would give 0 / 0
  }
  const float wanted = amax / (6.0F * global);
  return e4m3_from_f32(wanted < kE4m3Max ? wanted : kE4m3Max);
}

/// Q4: what values are divided by; 0 and NaN give codes 0.
constexpr float q4_divisor(u32 scale, float global) {
  return e4m3_to_f32(scale) * global;
}

constexpr u32 q4_code(float value, float divisor) {
  return divisor > 0.0F ? e2m1_from_f32(value / divisor) : 0U;
}

/// What a NaN scale makes of every operand of its group. Said in bits: a product with NaN has
/// another sign and payload on a GPU than on a CPU.
constexpr u16 kNanOperand = 0x7FC0U;

/// The operand of the following product, without the global: exact in BF16.
constexpr u16 q4_operand(u32 code, u32 scale) {
  return scale == kE4m3Nan ? kNanOperand : bf16_from_f32(e2m1_to_f32(code) * e4m3_to_f32(scale));
}

/// Q8: exponent field of amax / 448 rounded up to a power of two; 0 for a group of zeros, 255 (NaN)
/// where the group is not finite.
constexpr u32 q8_byte(u32 amax_bits) {
  const float amax = float_of(amax_bits);
  if (!is_finite(amax)) {
    return kE8m0Nan;
  }
  if (amax_bits == 0) {
    return 0U;
  }
  const u32 bits = bits_of(amax / 448.0F);
  const u32 byte = (bits >> 23) + ((bits & 0x7FFFFFU) != 0U ? 1U : 0U);
  return byte == 0U ? 1U : byte;  // at most 247: the largest f32 / 448 is below 2^120
}

constexpr u32 q8_payload(float value, u32 byte) {
  if (byte == 0U || byte == kE8m0Nan) {
    return 0U;
  }
  // 2^(127 - byte), byte 1 to 254: the exponent field 254 - byte, a subnormal for 254.
  const float multiplier = byte == 254U ? float_of(0x00400000U) : float_of((254U - byte) << 23);
  return e4m3_from_f32(value * multiplier);
}

/// Exact in BF16: E4M3 has 4 significant bits and the scale is a power of two. Values within half
/// a step of the largest BF16 round up to 2^128, which is infinity in every f32.
constexpr u16 q8_operand(u32 payload, u32 byte) {
  if (byte == kE8m0Nan) {
    return kNanOperand;
  }
  const float scale = byte == 0U ? 0.0F : e8m0_to_f32(byte);
  return bf16_from_f32(e4m3_to_f32(payload) * scale);
}

/// Q8b: f32 scale of a token's group of 128.
constexpr float q8b_scale(u32 amax_bits) {
  const float amax = float_of(amax_bits);
  return is_finite(amax) ? amax / 448.0F : kQuietNan;
}

constexpr u32 q8b_payload(float value, float scale) {
  return scale > 0.0F ? e4m3_from_f32(value / scale) : 0U;
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
