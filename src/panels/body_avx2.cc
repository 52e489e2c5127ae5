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

  struct Constants {
    __m256i high_bytes;  // of bf16(E2M1) by code
    __m256i low_bytes;
    __m256i nibble;
    __m256i high_half;
  };

  static constexpr int kParts = 2;
  // One or two tokens: both parts at once give 4 or 8 independent chains of additions, enough to
  // cover their latency within the scheduler's 64 entries; one part's 2 chains ran at half speed.
  template <int kTokens>
  static constexpr int kPartsTogether = kTokens <= 2 ? 2 : 1;
  // 4 tokens: 8 sums, 2 weights, 1 operand and 4 constants fill the 16 registers.
  static constexpr int kMaxTokens = 4;
  // One or two tokens: whole groups with both parts. Two groups at one token are 8 chains where 4
  // suffice (16 cycles of additions in 18 of decoding), and spill: 0.96 of the speed.
  template <int kTokens>
  static constexpr int kGroupsTogether = kTokens <= 2 ? 1 : 0;

  static Sums zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

  static __m256i load(const std::byte* bytes) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  }

  static __m256 low_halves(__m256i words) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  }

  static __m256 high_halves(__m256i words, __m256i mask) {
    return _mm256_castsi256_ps(_mm256_and_si256(words, mask));
  }

  // Keeps a constant in its register: compilers would rather make it again inside the loop.
  static __m256i pinned(__m256i value) {
    __asm__("" : "+x"(value));
    return value;
  }

  static Constants constants() {
    // The two bytes of bf16(E2M1): 0 .5 1 1.5 2 3 4 6, then the same with the sign set.
    return {
        pinned(_mm256_broadcastsi128_si256(_mm_setr_epi8(
            0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64))),
        pinned(_mm256_broadcastsi128_si256(_mm_setr_epi8(
            0, 0, -128, -64, 0, 0x40, -128, -64, 0, 0, -128, -64, 0, 0x40, -128, -64))),
        pinned(_mm256_set1_epi8(0x0F)),
        pinned(_mm256_set1_epi32(static_cast<int>(0xFFFF0000U)))};
  }

  static __m256 broadcast_pair(const float* x) {
    return _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(x)));
  }

  // One 32-bit word of two bf16 weights per lane pair: `first` at x[0] x[1], `second` at x[4] x[5].
  struct PairWords {
    __m256i low;
    __m256i high;
  };

  // 32 codes, one per byte, to bf16 pairs.
  static PairWords decode(const Constants& constants, __m256i codes) {
    const __m256i high = _mm256_shuffle_epi8(constants.high_bytes, codes);
    const __m256i low = _mm256_shuffle_epi8(constants.low_bytes, codes);
    return {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
  }

  template <int kPartCount, int kTokens>
  static void add_pair(const __m256 (&low)[kPartCount],
                       const __m256 (&high)[kPartCount],
                       const float* x,
                       TileSums<Avx2, kTokens>* sums) {
    for (int t = 0; t < kTokens; ++t) {
      const __m256 pair = broadcast_pair(x + operand_at<kTokens>(0, t));
      for (int part = 0; part < kPartCount; ++part) {
        Sums& sum = sums[part].at[t];
        sum.low = _mm256_fmadd_ps(low[part], pair, sum.low);
        sum.high = _mm256_fmadd_ps(high[part], pair, sum.high);
      }
    }
  }

  template <int kPartCount, int kTokens>
  static void add_nibbles(const Constants& constants,
                          const __m256i (&codes)[kPartCount],
                          const float* x,
                          TileSums<Avx2, kTokens>* sums) {
    PairWords words[kPartCount];
    __m256 low[kPartCount];
    __m256 high[kPartCount];
    for (int part = 0; part < kPartCount; ++part) {
      words[part] = decode(constants, codes[part]);
      low[part] = low_halves(words[part].low);
      high[part] = low_halves(words[part].high);
    }
    add_pair<kPartCount, kTokens>(low, high, x, sums);
    for (int part = 0; part < kPartCount; ++part) {
      low[part] = high_halves(words[part].low, constants.high_half);
      high[part] = high_halves(words[part].high, constants.high_half);
    }
    add_pair<kPartCount, kTokens>(low, high, x + operand_at<kTokens>(2, 0), sums);
  }

  template <int kPartCount, int kTokens>
  static void add_codes(const Constants& constants,
                        const std::byte* line,
                        const float* x,
                        TileSums<Avx2, kTokens>* sums) {
    __m256i codes[kPartCount];
    for (i64 part = 0; part < kPartCount; ++part) {
      codes[part] = _mm256_and_si256(load(line + part * 32), constants.nibble);
    }
    add_nibbles<kPartCount, kTokens>(constants, codes, x, sums);
    for (i64 part = 0; part < kPartCount; ++part) {
      codes[part] =
          _mm256_and_si256(_mm256_srli_epi16(load(line + part * 32), 4), constants.nibble);
    }
    add_nibbles<kPartCount, kTokens>(constants, codes, x + operand_at<kTokens>(1, 0), sums);
  }

  template <i64 kGroupCols, int kGroups, int kTokens>
  static void add_groups(const Constants& constants,
                         const std::byte* line,
                         const float* x,
                         TileSums<Avx2, kTokens>* sums) {
    constexpr i64 kGroupBytes = kGroupCols / kPanel16StepCols * kPanel16LineBytes;
    for (i64 group = 0; group < kGroups; ++group) {
      for (i64 part = 0; part < kParts; ++part) {
        add_codes<1, kTokens>(constants,
                              line + group * kGroupBytes + part * 32,
                              x + group * kGroupCols * kTokens,
                              sums + group * kParts + part);
      }
    }
  }

  // Rows come in order here: `low` sums even columns, `high` odd columns.
  template <int kTokens>
  static void add_bf16(const std::byte* lines, i64 part, const float* x, Sums* sums) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
    for (i64 pair = 0; pair < 4; ++pair) {
      const __m256i words = load(lines + pair * kPanel16LineBytes + part * 32);
      const __m256 even = low_halves(words);
      const __m256 odd = high_halves(words, mask);
      for (int t = 0; t < kTokens; ++t) {
        const float* at = x + operand_at<kTokens>(pair, t);
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

  struct NoZeroPoints {};

  template <Panel16Element kElement>
  static auto zero_points(const std::byte* words, i64 part) {
    if constexpr (kElement == Panel16Element::kInt4) {
      const __m256i bits = _mm256_set1_epi32(device::kPanel16ZeroPointBits);
      return _mm256_cvtepi32_ps(_mm256_and_si256(load(words + part * 32), bits));
    } else {
      return NoZeroPoints{};
    }
  }

  // int4: rows in order, as add_bf16 sums them. E4M3: each row in two lanes, as add_e4m3 does.
  template <Panel16Element kElement>
  static Scale wide_scale(const std::byte* words, i64 part) {
    __m256i rows = load(words + part * 32);
    if constexpr (kElement == Panel16Element::kInt4) {
      const __m256i bits = _mm256_set1_epi32(device::kPanel16ZeroPointBits);
      rows = _mm256_andnot_si256(bits, rows);
      return {_mm256_castsi256_ps(rows), _mm256_castsi256_ps(rows)};
    } else {
      const __m256i low =
          _mm256_permutevar8x32_epi32(rows, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
      const __m256i high =
          _mm256_permutevar8x32_epi32(rows, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
      return {_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)};
    }
  }

  static Sums scaled(const Sums& sums, float factor) {
    return {_mm256_mul_ps(sums.low, _mm256_set1_ps(factor)),
            _mm256_mul_ps(sums.high, _mm256_set1_ps(factor))};
  }

  static __m256 nibble_values(__m256i words, int shift, __m256 zeros) {
    const __m256i codes = _mm256_and_si256(_mm256_srli_epi32(words, shift), _mm256_set1_epi32(15));
    return _mm256_sub_ps(_mm256_cvtepi32_ps(codes), zeros);
  }

  template <int kTokens>
  static void add_int4(const std::byte* line, i64 part, __m256 zeros, const float* x, Sums* sums) {
    const __m256i words = load(line + part * 32);
    for (i64 pair = 0; pair < 4; ++pair) {
      const __m256 even = nibble_values(words, static_cast<int>(4 * pair), zeros);
      const __m256 odd = nibble_values(words, static_cast<int>(16 + 4 * pair), zeros);
      add_columns<kTokens>(even, odd, x + operand_at<kTokens>(pair, 0), sums);
    }
  }

  template <int kTokens>
  static void add_columns(__m256 even, __m256 odd, const float* x, Sums* sums) {
    for (int t = 0; t < kTokens; ++t) {
      const float* at = x + operand_at<kTokens>(0, t);
      sums[t].low = _mm256_fmadd_ps(even, _mm256_broadcast_ss(at), sums[t].low);
      sums[t].high = _mm256_fmadd_ps(odd, _mm256_broadcast_ss(at + 1), sums[t].high);
    }
  }

  // The bits of an E4M3 stand in an f16 one place lower, its exponent four bits of five: f16 has
  // bias 15, E4M3 has 7, so the f16 reads 2^-8 of the value, subnormals included. `words` has the
  // E4M3 in the high byte of each half.
  static Sums e4m3_values(__m256i words) {
    const __m256i halves = _mm256_and_si256(_mm256_srai_epi16(words, 1),
                                            _mm256_set1_epi16(static_cast<short>(0xBF80)));
    const __m256 unit = _mm256_set1_ps(256.0F);
    return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), unit),
            _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), unit)};
  }

  // `low` sums rows 0 to 3 of the part, `high` rows 4 to 7, even and odd columns side by side.
  template <int kTokens>
  static void add_e4m3(const std::byte* lines, i64 part, const float* x, Sums* sums) {
    for (i64 line = 0; line < 2; ++line) {
      const __m256i words = load(lines + line * kPanel16LineBytes + part * 32);
      add_e4m3_pair<kTokens>(
          e4m3_values(_mm256_slli_epi16(words, 8)), x + operand_at<kTokens>(2 * line, 0), sums);
      add_e4m3_pair<kTokens>(e4m3_values(words), x + operand_at<kTokens>(2 * line + 1, 0), sums);
    }
  }

  template <int kTokens>
  static void add_e4m3_pair(const Sums& weights, const float* x, Sums* sums) {
    for (int t = 0; t < kTokens; ++t) {
      const __m256 pair = broadcast_pair(x + operand_at<kTokens>(0, t));
      sums[t].low = _mm256_fmadd_ps(weights.low, pair, sums[t].low);
      sums[t].high = _mm256_fmadd_ps(weights.high, pair, sums[t].high);
    }
  }

  static Sums multiply_add(const Sums& sums, const Scale& scale, const Sums& total) {
    return {_mm256_fmadd_ps(sums.low, scale.low, total.low),
            _mm256_fmadd_ps(sums.high, scale.high, total.high)};
  }

  static void store_codes(const Sums& sums, i64 part, float* out) {
    // Adds neighbouring lanes and leaves rows 0 1 2 3 | 4 5 6 7.
    _mm256_storeu_ps(out + part * 8, _mm256_hadd_ps(sums.low, sums.high));
  }

  template <Panel16Element kElement>
  static void store_wide(const Sums& sums, i64 part, float* out) {
    if constexpr (kElement == Panel16Element::kE4m3) {
      // Rows 0 1 4 5 | 2 3 6 7.
      const __m256 rows = _mm256_hadd_ps(sums.low, sums.high);
      const __m256d in_order = _mm256_permute4x64_pd(_mm256_castps_pd(rows), 0xD8);
      _mm256_storeu_ps(out + part * 8, _mm256_castpd_ps(in_order));
    } else {
      store_bf16(sums, part, out);
    }
  }

  static void store_bf16(const Sums& sums, i64 part, float* out) {
    _mm256_storeu_ps(out + part * 8, _mm256_add_ps(sums.low, sums.high));
  }
};

}  // namespace

constinit const Body kAvx2Body = make_body<Avx2>(Isa::kAvx2);

}  // namespace moekit::panels
