// SPDX-License-Identifier: Apache-2.0
#pragma once

// The instructions of body_avx512.cc: the intrinsics, and what is written as an instruction. Tests
// bring the same names in plain C++ (emulated/test_avx512.h), for processors without these.

#if !defined(MOEKIT_EMULATED_INSTRUCTIONS)

#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "device/portable.h"

namespace moekit::panels {
inline namespace MOEKIT_ISA {

constexpr int kMostTokensOfTile = 16;

// sum += the pairs of `weights` * the pair at x. As an instruction, since compilers load and
// broadcast the pair to a register first: twice the instructions, a fifth of the time at one
// token and a tenth at sixteen (README, 8).
inline void add_dots(__m512& sum, __m512i weights, const std::uint16_t* x) {
  // Two neighbouring operands, as the memory operand of an instruction.
  struct Pair {
    std::uint16_t values[2];
  };

  __asm__("vdpbf16ps %2%{1to16%}, %1, %0"
          : "+v"(sum)
          : "v"(weights), "m"(*reinterpret_cast<const Pair*>(x)));
}

// sum += the bytes of `weights`, unsigned, times the four signed ones at x.
inline void add_digits(__m512i& sum, __m512i weights, const std::byte* x) {
  struct Digits {
    std::byte values[4];
  };

  __asm__("vpdpbusd %2%{1to16%}, %1, %0"
          : "+v"(sum)
          : "v"(weights), "m"(*reinterpret_cast<const Digits*>(x)));
}

// sum += weights * x[0], for the same reason.
inline void add_products(__m512& sum, __m512 weights, const float* x) {
  __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*x));
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::panels

#endif
