// SPDX-License-Identifier: Apache-2.0
#pragma once

// exp, sigmoid and tanh in f32 with one definition for every backend, so that a CPU and a GPU give
// the same bits and no result depends on the libm in use. Plain multiply and add (the build sets
// -ffp-contract=off, NVRTC --fmad=false), no table, selects instead of branches so that loops
// vectorise. Errors, measured over all of f32 by elementary_test.cc, are stated at each function.

#include "device/portable.h"

namespace moekit::device {
inline namespace MOEKIT_ISA {

/// e^x within 2 ulp; 0 below -104, infinity above 88.73; NaN propagates.
constexpr float exp_f32(float x) {
  // Beyond these the result is 0 or infinity anyway, and the exponent arithmetic below stays in
  // range.
  x = x < -104.0F ? -104.0F : x;
  x = x > 89.0F ? 89.0F : x;
  // n = rint(x / ln 2): adding 1.5 * 2^23 leaves the integer in the low mantissa bits.
  constexpr float kMagic = 12582912.0F;
  const float shifted = x * 1.44269504F + kMagic;
  const float n = shifted - kMagic;
  const i32 n_int = static_cast<i32>(bits_of(shifted) - bits_of(kMagic));
  // Cody and Waite: the high part of ln 2 has nine significant bits, so n * high is exact.
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  // Taylor to r^7: |r| <= ln(2)/2, so the remainder is below 0.1 ulp.
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r * r + r;
  p = p + 1.0F;
  // 2^n in two factors, so that results in the subnormal range round once and never trap the
  // exponent.
  const i32 half = n_int >> 1;
  const float scale_a = float_of(static_cast<u32>(half + 127) << 23);
  const float scale_b = float_of(static_cast<u32>(n_int - half + 127) << 23);
  return p * scale_a * scale_b;
}

/// 1 / (1 + e^-x) within 3 ulp; NaN propagates (through e).
constexpr float sigmoid_f32(float x) {
  // From e^-|x|, so that large negative x keeps its relative precision down to the subnormals.
  const float e = exp_f32(-abs_f32(x));
  const float numerator = x < 0.0F ? e : 1.0F;
  return numerator / (1.0F + e);
}

/// log(1 + e^x) within 4 ulp where e^-|x| is a normal f32; NaN propagates.
constexpr float softplus_f32(float x) {
  // log(1 + t) = 2 atanh(t / (2 + t)), t = e^-|x| at most 1: the argument is at most 1/3, and the
  // term after s^17 is below 2^-30 of the sum.
  const float t = exp_f32(-abs_f32(x));
  const float s = t / (2.0F + t);
  const float square = s * s;
  float p = 1.0F / 17.0F;
  p = p * square + 1.0F / 15.0F;
  p = p * square + 1.0F / 13.0F;
  p = p * square + 1.0F / 11.0F;
  p = p * square + 1.0F / 9.0F;
  p = p * square + 1.0F / 7.0F;
  p = p * square + 1.0F / 5.0F;
  p = p * square + 1.0F / 3.0F;
  const float log_part = 2.0F * (s + s * square * p);
  return x > 0.0F ? x + log_part : log_part;
}

/// Square root of a finite value that is not negative, within 1 ulp above 2^-120; by Newton's
/// iteration in multiplies, adds and divisions, so that no backend's instruction decides a bit.
constexpr float sqrt_f32(float x) {
  if (!(x > 0.0F)) {
    return 0.0F;
  }
  // Halving the exponent is good to 6 %; each step squares the relative error and halves it.
  float y = float_of((bits_of(x) >> 1) + 0x1FBD1DF5U);
  y = 0.5F * (y + x / y);
  y = 0.5F * (y + x / y);
  y = 0.5F * (y + x / y);
  return y;
}

/// tanh within 4 ulp; NaN propagates.
constexpr float tanh_f32(float x) {
  const float magnitude = abs_f32(x);
  const float square = x * x;
  // Series of tanh to x^17: at |x| = 0.55 the next term is below 0.1 ulp.
  float p = 6404582.0F / 10854718875.0F;
  p = p * square - 929569.0F / 638512875.0F;
  p = p * square + 21844.0F / 6081075.0F;
  p = p * square - 1382.0F / 155925.0F;
  p = p * square + 62.0F / 2835.0F;
  p = p * square - 17.0F / 315.0F;
  p = p * square + 2.0F / 15.0F;
  p = p * square - 1.0F / 3.0F;
  const float near_zero = x + x * square * p;
  const float far = 1.0F - 2.0F / (exp_f32(2.0F * magnitude) + 1.0F);
  const float signed_far = float_of(bits_of(far) | (bits_of(x) & 0x80000000U));
  return magnitude < 0.55F ? near_zero : signed_far;
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
