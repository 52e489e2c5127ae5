// SPDX-License-Identifier: Apache-2.0

// AVX-512 with BF16. A line holds the 8 codes of 16 rows, one row a 32-bit lane, even columns in
// the low half and odd columns in the high half: a 16-bit shift by 4j and one 16-bit permute of a
// table give the bf16 pair of columns 2j and 2j + 1 in every lane. Two bodies:
//
//   dots     operands bf16, vdpbf16ps by a broadcast pair. Per 128 codes 1 load, 3 shifts, 4
//            permutes; 4 dot products a token.
//   digits   nvfp4 and mxfp4 codes times operands in digits (digits_avx512.h); other elements times
//            f32, the odd and then the even column, one multiply-add each. Where two wide
//            multiply-adds start in a cycle and a dot product in two, this is the faster one
//            (README, 6).

#include <bit>

#include "panels/body_loops.h"
#include "panels/digits_avx512.h"
#include "panels/instructions_avx512.h"
#if !defined(MOEKIT_EMULATED_INSTRUCTIONS)
#include "panels/operand_digits_avx2.h"
#endif

namespace moekit::panels {

namespace {

// OperandType: bf16 bits, or float.
template <typename OperandType>
struct Avx512 {
  using Operand = OperandType;
  using Sums = __m512;
  using Scale = __m512;
  using Constants = __m512i;  // bf16(E2M1) by code

  template <int kTokens>
  using Tile = TileSums<Avx512, kTokens>;

  static constexpr int kParts = 1;
  template <int>
  static constexpr int kPartsTogether = 1;
  // 16 tokens: 16 sums leave room for weights and table, a weight's decoding (0.25 to 0.5
  // instructions a dot product at 8) is shared by twice as many, and their totals, touched once a
  // group, may live in L1.
  static constexpr int kMaxTokens = kMostTokensOfTile;
  // At least 8 independent chains where a block has them: vdpbf16ps takes 6 cycles on Zen 4 and its
  // like on Xeons, one starts every cycle.
  template <int kTokens>
  static constexpr int kGroupsTogether = kTokens <= 4   ? 4
                                         : kTokens <= 8 ? 2
                                                        : 1;

  static Sums zero() { return _mm512_setzero_ps(); }

  // bf16(E2M1) by 5-bit index: a permute reads five bits, and the fifth belongs to the next code,
  // so the table stands twice.
  static Constants constants() {
    return _mm512_broadcast_i64x4(_mm256_setr_epi16(0x0000,
                                                    0x3F00,
                                                    0x3F80,
                                                    0x3FC0,
                                                    0x4000,
                                                    0x4040,
                                                    0x4080,
                                                    0x40C0,
                                                    -0x8000,
                                                    -0x4100,
                                                    -0x4080,
                                                    -0x4040,
                                                    -0x4000,
                                                    -0x3FC0,
                                                    -0x3F80,
                                                    -0x3F40));
  }

  template <int kTokens, i64 kPair>
  static void add_pair(__m512i table, __m512i words, const Operand* x, Sums* sums) {
    const __m512i index =
        kPair == 0 ? words : _mm512_srli_epi16(words, static_cast<unsigned>(4 * kPair));
    const __m512i weights = _mm512_permutexvar_epi16(index, table);
    add_weights<kTokens>(weights, x + operand_at<kTokens>(kPair, 0), sums);
  }

  template <int kPartCount, int kTokens>
  static void add_codes(const Constants& table,
                        const std::byte* line,
                        const Operand* x,
                        Tile<kTokens>* sums) {
    const __m512i words = _mm512_loadu_si512(line);
    add_pair<kTokens, 0>(table, words, x, sums->at);
    add_pair<kTokens, 1>(table, words, x, sums->at);
    add_pair<kTokens, 2>(table, words, x, sums->at);
    add_pair<kTokens, 3>(table, words, x, sums->at);
  }

  // Pair by pair over all groups: the distance between dependent dot products is kGroups * kTokens.
  template <i64 kGroupCols, int kGroups, int kTokens>
  static void add_groups(const Constants& table,
                         const std::byte* line,
                         const Operand* x,
                         Tile<kTokens>* sums) {
    constexpr i64 kGroupBytes = kGroupCols / kPanel16StepCols * kPanel16LineBytes;
    __m512i words[kGroups];
    for (int group = 0; group < kGroups; ++group) {
      words[group] = _mm512_loadu_si512(line + group * kGroupBytes);
    }
    for (int group = 0; group < kGroups; ++group) {
      add_pair<kTokens, 0>(table, words[group], x + group * kGroupCols * kTokens, sums[group].at);
    }
    for (int group = 0; group < kGroups; ++group) {
      add_pair<kTokens, 1>(table, words[group], x + group * kGroupCols * kTokens, sums[group].at);
    }
    for (int group = 0; group < kGroups; ++group) {
      add_pair<kTokens, 2>(table, words[group], x + group * kGroupCols * kTokens, sums[group].at);
    }
    for (int group = 0; group < kGroups; ++group) {
      add_pair<kTokens, 3>(table, words[group], x + group * kGroupCols * kTokens, sums[group].at);
    }
  }

  template <int kTokens>
  static void add_bf16(const std::byte* lines, i64 /*part*/, const Operand* x, Sums* sums) {
    for (i64 pair = 0; pair < 4; ++pair) {
      const __m512i weights = _mm512_loadu_si512(lines + pair * kPanel16LineBytes);
      add_weights<kTokens>(weights, x + operand_at<kTokens>(pair, 0), sums);
    }
  }

  template <Panel16Element kElement>
  static Scale scale(const std::byte* bytes, i64 /*part*/) {
    return code_scales<kElement>(bytes);
  }

  struct NoZeroPoints {};

  // What moves a code's index to the bf16 of (code - zero point) in the table of int4: 16 - zero
  // point, in both halves of a row's lane.
  template <Panel16Element kElement>
  static auto zero_points(const std::byte* words, i64 /*part*/) {
    if constexpr (kElement == Panel16Element::kInt4) {
      const __m512i bits = _mm512_set1_epi32(device::kPanel16ZeroPointBits);
      const __m512i zeros = _mm512_and_si512(_mm512_loadu_si512(words), bits);
      return _mm512_sub_epi16(_mm512_set1_epi16(16),
                              _mm512_or_si512(zeros, _mm512_slli_epi32(zeros, 16)));
    } else {
      return NoZeroPoints{};
    }
  }

  template <Panel16Element kElement>
  static Scale wide_scale(const std::byte* words, i64 /*part*/) {
    __m512i rows = _mm512_loadu_si512(words);
    if constexpr (kElement == Panel16Element::kInt4) {
      rows = _mm512_andnot_si512(_mm512_set1_epi32(device::kPanel16ZeroPointBits), rows);
    }
    return _mm512_castsi512_ps(rows);
  }

  static Sums scaled(const Sums& sums, float factor) {
    return _mm512_mul_ps(sums, _mm512_set1_ps(factor));
  }

  // bf16 of -16 to 15.
  static __m512i integer_table() {
    alignas(64) std::uint16_t values[32];
    for (int i = 0; i < 32; ++i) {
      values[i] = device::bf16_from_f32(static_cast<float>(i - 16));
    }
    return _mm512_loadu_si512(values);
  }

  template <int kTokens>
  static void add_int4(
      const std::byte* line, i64 /*part*/, __m512i offsets, const Operand* x, Sums* sums) {
    const __m512i table = integer_table();
    const __m512i words = _mm512_loadu_si512(line);
    for (i64 pair = 0; pair < 4; ++pair) {
      const __m512i codes = _mm512_and_si512(
          _mm512_srli_epi16(words, static_cast<unsigned>(4 * pair)), _mm512_set1_epi16(15));
      const __m512i weights = _mm512_permutexvar_epi16(_mm512_add_epi16(codes, offsets), table);
      add_weights<kTokens>(weights, x + operand_at<kTokens>(pair, 0), sums);
    }
  }

  // An f16 with the bits of an E4M3 one place lower reads 2^-8 of the value, which f32 and bf16
  // hold exactly, subnormals included. `words` has the E4M3 in the high byte of each half.
  static __m512i e4m3_pairs(__m512i words) {
    const __m512i halves = _mm512_and_si512(_mm512_srai_epi16(words, 1),
                                            _mm512_set1_epi16(static_cast<short>(0xBF80)));
    const __m512 unit = _mm512_set1_ps(256.0F);
    const __m512 low = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), unit);
    const __m512 high = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)), unit);
    return std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  }

  template <int kTokens>
  static void add_e4m3(const std::byte* lines, i64 /*part*/, const Operand* x, Sums* sums) {
    for (i64 line = 0; line < 2; ++line) {
      const __m512i words = _mm512_loadu_si512(lines + line * kPanel16LineBytes);
      add_weights<kTokens>(
          e4m3_pairs(_mm512_slli_epi16(words, 8)), x + operand_at<kTokens>(2 * line, 0), sums);
      add_weights<kTokens>(e4m3_pairs(words), x + operand_at<kTokens>(2 * line + 1, 0), sums);
    }
  }

  // `weights` are bf16 pairs: the dot product adds the odd column first.
  template <int kTokens>
  static void add_weights(__m512i weights, const Operand* x, Sums* sums) {
    if constexpr (sizeof(Operand) == sizeof(std::uint16_t)) {
      for (int t = 0; t < kTokens; ++t) {
        add_dots(sums[t], weights, x + operand_at<kTokens>(0, t));
      }
    } else {
      const __m512 odd = _mm512_castsi512_ps(
          _mm512_and_si512(weights, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
      const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(weights, 16));
      for (int t = 0; t < kTokens; ++t) {
        add_products(sums[t], odd, x + operand_at<kTokens>(0, t) + 1);
      }
      for (int t = 0; t < kTokens; ++t) {
        add_products(sums[t], even, x + operand_at<kTokens>(0, t));
      }
    }
  }

  static Sums multiply_add(const Sums& sums, const Scale& scale, const Sums& total) {
    return _mm512_fmadd_ps(sums, scale, total);
  }

  static void store_codes(const Sums& sums, i64 /*part*/, float* out) {
    _mm512_storeu_ps(out, sums);
  }

  static Sums load_codes(const float* sums, i64 /*part*/) { return _mm512_loadu_ps(sums); }

  static void store_bf16(const Sums& sums, i64 part, float* out) { store_codes(sums, part, out); }

  template <Panel16Element>
  static void store_wide(const Sums& sums, i64 part, float* out) {
    store_codes(sums, part, out);
  }
};

LoadedRow load_digits(const OperandRow& row, const Panel16Shape& shape, std::byte* operand) {
  const LoadedRow loaded = load_operand<float>(row, shape, operand);
  if (has_digits(shape.element)) {
#if defined(MOEKIT_EMULATED_INSTRUCTIONS)
    plain_row_to_digits(shape, operand);
#else
    row_to_digits(shape, operand);
#endif
  }
  return loaded;
}

void dot_digits(const DotCall& call) {
  constexpr auto kTokens = std::make_integer_sequence<int, Avx512<float>::kMaxTokens>();
  switch (call.shape->element) {
    case Panel16Element::kNvfp4:
      return dot_digit_tokens<Panel16Element::kNvfp4>(call, kTokens);
    case Panel16Element::kMxfp4:
      return dot_digit_tokens<Panel16Element::kMxfp4>(call, kTokens);
    case Panel16Element::kBf16:
      return dot_tokens<Avx512<float>, Panel16Element::kBf16>(call, kTokens);
    case Panel16Element::kInt4:
      return dot_tokens<Avx512<float>, Panel16Element::kInt4>(call, kTokens);
    case Panel16Element::kE4m3:
      return dot_tokens<Avx512<float>, Panel16Element::kE4m3>(call, kTokens);
  }
}

}  // namespace

constinit const Body kAvx512Body = make_body<Avx512<std::uint16_t>>(Isa::kAvx512);
constinit const Body kAvx512DigitBody = [] {
  Body body = make_body<Avx512<float>>(Isa::kAvx512, load_digits, dot_digits);
  // A line takes about 5 cycles a token and 12 to read (README, 6).
  body.panel_cost = 1;
  body.least_panel_cost = 3;
  return body;
}();

}  // namespace moekit::panels
