// SPDX-License-Identifier: Apache-2.0

// AVX2 + FMA. There is no bf16 dot product, so operands are f32 and weights become f32.
//
// Codes: two byte shuffles turn 32 codes into the high and the low bytes of their bf16 values, an
// interleave joins them to bf16 pairs, and a shift and a mask split each pair into two f32: 19
// instructions per 64 codes, 2.4 per FMA of 8 weights. In a vector the two columns of a pair lie
// side by side for each row, so operands are broadcast in pairs (one 64-bit broadcast) and a row's
// sum is two lanes that the store adds.

#include <immintrin.h>

#include "panels/body_loops.h"

namespace moekit::panels {

namespace {

struct Avx2 {
  using Operand = float;

  // Rows 0 1 4 5 and rows 2 3 6 7 of a part of 8 rows, two lanes (even and odd columns) a row.
  struct Sums {
    __m256 low;
    __m256 high;
  };

  using Scale = Sums;
  static constexpr int kParts = 2;
  // 4 tokens: 8 sums, 2 weights, 1 operand and 4 constants fill the 16 registers.
  static constexpr int kMaxTokens = 4;

  static Sums zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

  static __m256i load(const std::byte* bytes) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  }

  static __m256 low_halves(__m256i words) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  }

  static __m256 high_halves(__m256i words) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
  }

  static __m256 broadcast_pair(const float* x) {
    return _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(x)));
  }

  template <int kTokens>
  static void add_pair(__m256 low, __m256 high, const float* x, i64 x_stride, Sums* sums) {
    for (int t = 0; t < kTokens; ++t) {
      const __m256 pair = broadcast_pair(x + t * x_stride);
      sums[t].low = _mm256_fmadd_ps(low, pair, sums[t].low);
      sums[t].high = _mm256_fmadd_ps(high, pair, sums[t].high);
    }
  }

  // 32 codes, one per byte: columns (x[0], x[1]) in the first two bytes' halves, (x[4], x[5]) in
  // the second two.
  template <int kTokens>
  static void add_nibbles(__m256i codes, const float* x, i64 x_stride, Sums* sums) {
    // The two bytes of bf16(E2M1): 0 .5 1 1.5 2 3 4 6, then the same with the sign set.
    const __m256i high_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64));
    const __m256i low_bytes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -128, -64, 0, 0x40, -128, -64, 0, 0, -128, -64, 0, 0x40, -128, -64));
    const __m256i high = _mm256_shuffle_epi8(high_bytes, codes);
    const __m256i low = _mm256_shuffle_epi8(low_bytes, codes);
    const __m256i rows_low = _mm256_unpacklo_epi8(low, high);
    const __m256i rows_high = _mm256_unpackhi_epi8(low, high);
    add_pair<kTokens>(low_halves(rows_low), low_halves(rows_high), x, x_stride, sums);
    add_pair<kTokens>(high_halves(rows_low), high_halves(rows_high), x + 4, x_stride, sums);
  }

  template <int kTokens>
  static void add_codes(const std::byte* line, i64 part, const float* x, i64 x_stride, Sums* sums) {
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    const __m256i words = load(line + part * 32);
    add_nibbles<kTokens>(_mm256_and_si256(words, nibble), x, x_stride, sums);
    add_nibbles<kTokens>(
        _mm256_and_si256(_mm256_srli_epi16(words, 4), nibble), x + 2, x_stride, sums);
  }

  // Rows come in order here: `low` sums even columns, `high` odd columns.
  template <int kTokens>
  static void add_bf16(const std::byte* lines, i64 part, const float* x, i64 x_stride, Sums* sums) {
    for (i64 pair = 0; pair < 4; ++pair) {
      const __m256i words = load(lines + pair * kPanel16LineBytes + part * 32);
      const __m256 even = low_halves(words);
      const __m256 odd = high_halves(words);
      for (int t = 0; t < kTokens; ++t) {
        const float* at = x + t * x_stride + pair * 2;
        sums[t].low = _mm256_fmadd_ps(even, _mm256_broadcast_ss(at), sums[t].low);
        sums[t].high = _mm256_fmadd_ps(odd, _mm256_broadcast_ss(at + 1), sums[t].high);
      }
    }
  }

  template <Panel16Element kElement>
  static Scale scale(const std::byte* bytes, i64 part) {
    const __m256i codes =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + part * 8)));
    __m256 rows;
    if constexpr (kElement == Panel16Element::kNvfp4) {
      rows = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(codes, 20)),
                           _mm256_set1_ps(0x1p117F));
    } else {
      // Code 0 is 2^-127, the f32 subnormal 0x00400000; every other code is above it.
      rows = _mm256_castsi256_ps(
          _mm256_max_epi32(_mm256_slli_epi32(codes, 23), _mm256_set1_epi32(0x00400000)));
    }
    return {_mm256_unpacklo_ps(rows, rows), _mm256_unpackhi_ps(rows, rows)};
  }

  static Sums multiply_add(const Sums& sums, const Scale& scale, const Sums& total) {
    return {_mm256_fmadd_ps(sums.low, scale.low, total.low),
            _mm256_fmadd_ps(sums.high, scale.high, total.high)};
  }

  static void store_codes(const Sums& sums, i64 part, float* out) {
    // Adds neighbouring lanes and leaves rows 0 1 2 3 | 4 5 6 7.
    _mm256_storeu_ps(out + part * 8, _mm256_hadd_ps(sums.low, sums.high));
  }

  static void store_bf16(const Sums& sums, i64 part, float* out) {
    _mm256_storeu_ps(out + part * 8, _mm256_add_ps(sums.low, sums.high));
  }
};

}  // namespace

constinit const Body kAvx2Body = make_body<Avx2>(Isa::kAvx2);

}  // namespace moekit::panels
