// SPDX-License-Identifier: Apache-2.0
#pragma once

// Test equipment: the AVX-512 intrinsics and instructions of body_avx512.cc and body_amx.cc under
// their own names, in plain C++, so that these bodies run, and sanitizers see them, on every
// machine. What an instruction does stands in Intel's manual (volume 2); what differs here is that
// a misaligned access ends the program with a message, and that which NaN comes out is open.

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#define MOEKIT_EMULATED_INSTRUCTIONS  // instructions_*.h leave out what stands here

namespace moekit::panels {

// Every number of tokens is a body's code once more, and a sanitizer makes two minutes of sixteen.
#ifdef MOEKIT_SANITIZED
constexpr int kMostTokensOfTile = 5;
#else
constexpr int kMostTokensOfTile = 16;
#endif

// The names are the compilers' and may not be chosen.
// NOLINTBEGIN(readability-identifier-naming)
struct alignas(16) __m128i {
  std::byte bytes[16];
};

struct alignas(32) __m256i {
  std::byte bytes[32];
};

struct alignas(64) __m512i {
  std::byte bytes[64];
};

struct alignas(64) __m512 {
  std::byte bytes[64];
};

struct alignas(64) __m512h {
  std::byte bytes[64];
};

struct alignas(64) __m512bh {
  std::byte bytes[64];
};

using __mmask16 = std::uint16_t;
using __mmask32 = std::uint32_t;

// Memory. `load_` and `store_` without u: multiples of 64 bytes.
__m128i _mm_loadu_si128(const void* from);
__m512i _mm512_loadu_si512(const void* from);
__m512i _mm512_load_si512(const void* from);
void _mm512_store_si512(void* to, const __m512i& value);
__m512 _mm512_loadu_ps(const void* from);
void _mm512_storeu_ps(void* to, const __m512& value);

// Constants.
__m512 _mm512_setzero_ps();
__m512i _mm512_setzero_si512();
__m512 _mm512_set1_ps(float value);
__m512i _mm512_set1_epi16(short value);
__m512i _mm512_set1_epi32(int value);

template <typename... Lanes>
__m256i _mm256_setr_epi16(Lanes... lanes) {
  return std::bit_cast<__m256i>(std::array<short, 16>{static_cast<short>(lanes)...});
}

// Bits and places.
__m512i _mm512_and_si512(const __m512i& a, const __m512i& b);
__m512i _mm512_andnot_si512(const __m512i& a, const __m512i& b);
__m512i _mm512_or_si512(const __m512i& a, const __m512i& b);
__m512i _mm512_slli_epi16(const __m512i& a, unsigned count);
__m512i _mm512_slli_epi32(const __m512i& a, unsigned count);
__m512i _mm512_srli_epi16(const __m512i& a, unsigned count);
__m512i _mm512_srai_epi16(const __m512i& a, unsigned count);
__m512i _mm512_srlv_epi32(const __m512i& a, const __m512i& counts);
__m512i _mm512_bsrli_epi128(const __m512i& a, int bytes);
__m512i _mm512_permutexvar_epi16(const __m512i& index, const __m512i& a);
__m512i _mm512_maskz_permutexvar_epi16(__mmask32 mask, const __m512i& index, const __m512i& a);
__m512i _mm512_permutexvar_epi8(const __m512i& index, const __m512i& a);
__m512 _mm512_permutexvar_ps(const __m512i& index, const __m512& a);
__m512i _mm512_shuffle_epi8(const __m512i& a, const __m512i& index);
__m512i _mm512_broadcast_i64x4(const __m256i& a);
__m512i _mm512_broadcast_i32x4(const __m128i& a);
__m256i _mm512_extracti64x4_epi64(const __m512i& a, int half);
__m512 _mm512_castsi512_ps(const __m512i& a);
__m256i _mm512_castsi512_si256(const __m512i& a);
__m512h _mm512_castsi512_ph(const __m512i& a);
__m512i _mm512_castph_si512(const __m512h& a);

// Integers.
__m512i _mm512_add_epi16(const __m512i& a, const __m512i& b);
__m512i _mm512_mask_add_epi16(const __m512i& source,
                              __mmask32 mask,
                              const __m512i& a,
                              const __m512i& b);
__m512i _mm512_sub_epi16(const __m512i& a, const __m512i& b);
__m512i _mm512_subs_epu16(const __m512i& a, const __m512i& b);
__m512i _mm512_max_epu16(const __m512i& a, const __m512i& b);
__m512i _mm512_add_epi32(const __m512i& a, const __m512i& b);
__m512i _mm512_sub_epi32(const __m512i& a, const __m512i& b);
__m512i _mm512_min_epi32(const __m512i& a, const __m512i& b);
__m512i _mm512_max_epi32(const __m512i& a, const __m512i& b);
__mmask32 _mm512_test_epi16_mask(const __m512i& a, const __m512i& b);
__mmask16 _mm512_cmplt_epi32_mask(const __m512i& a, const __m512i& b);
__mmask32 _mm512_cmpgt_epu16_mask(const __m512i& a, const __m512i& b);
__m512i _mm512_cvtepu8_epi32(const __m128i& a);
/// sum + products of signed pairs, without saturation.
__m512i _mm512_dpwssd_epi32(const __m512i& sum, const __m512i& a, const __m512i& b);

// Floating point in the default environment.
__m512 _mm512_mul_ps(const __m512& a, const __m512& b);
__m512h _mm512_mul_ph(const __m512h& a, const __m512h& b);
__m512 _mm512_fmadd_ps(const __m512& a, const __m512& b, const __m512& c);
__m512 _mm512_cvtph_ps(const __m256i& a);
__m512 _mm512_cvtepi32_ps(const __m512i& a);
__m512bh _mm512_cvtne2ps_pbh(const __m512& high, const __m512& low);
// NOLINTEND(readability-identifier-naming)

/// vdpbf16ps with a broadcast memory operand: the odd elements first.
void add_dots(__m512& sum, const __m512i& weights, const std::uint16_t* x);

/// vfmadd231ps with a broadcast memory operand.
void add_products(__m512& sum, const __m512& weights, const float* x);

/// vpdpbusd with a broadcast memory operand: unsigned bytes times signed ones, without saturation.
void add_digits(__m512i& sum, const __m512i& weights, const std::byte* x);

/// a * b + c, rounded once.
float fused(float a, float b, float c);

/// One step of vdpbf16ps and tdpbf16ps: sum + a * b rounded once; subnormal operands and results
/// are zeros of their sign.
float accumulate(float sum, float a, float b);

/// A subnormal is a zero of its sign.
inline float flushed(float value) {
  return std::abs(value) < 0x1p-126F ? std::copysign(0.0F, value) : value;
}

/// Ends the program with a message, as a fault of the real instruction would.
[[noreturn]] void fault(const char* instruction, const char* reason);

}  // namespace moekit::panels
