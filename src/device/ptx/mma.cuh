// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tensor core and packed BF16 instructions.

#include "device/portable.h"

namespace moekit::device {
inline namespace MOEKIT_ISA {

/// d += a[16x16] * b[16x8], BF16 operands, f32 accumulators.
inline void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

inline u32 bf16x2_mul(u32 a, u32 b) {
  u32 product = 0;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

inline u32 bf16x2_fma(u32 a, u32 b, u32 c) {
  u32 sum = 0;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}

/// 1 / value to within an ulp: one instruction.
inline float reciprocal_near(float value) {
  float reciprocal = 0.0F;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(value));
  return reciprocal;
}

/// The same value, computed here and kept: the compiler cannot rebuild it elsewhere.
template <typename T>
inline T opaque(T value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// Bits of `ones` where the mask has ones, else of `zeros`: one instruction.
template <u32 kMask>
inline u32 bit_select(u32 zeros, u32 ones) {
  u32 selected = 0;
  asm("lop3.b32 %0, %1, %2, %3, 0xD8;" : "=r"(selected) : "r"(zeros), "r"(ones), "n"(kMask));
  return selected;
}

template <u32 kSelector>
inline u32 byte_permute(u32 a, u32 b) {
  return __byte_perm(a, b, kSelector);
}

template <i32 kBits>
inline u32 rotate_left(u32 word) {
  return kBits == 0 ? word : __funnelshift_l(word, word, kBits);
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
