// SPDX-License-Identifier: Apache-2.0

// AVX2 + FMA. Operands are integer digits (operand_digits.h): two byte shuffles make the small
// integers of 64 codes, `vpmaddubsw` multiplies 32 of them with four columns' digits, and 16-bit
// additions take the whole run; per line of 128 codes and token 12 products and 10 to 12 additions,
// none of them in a chain that a processor would wait for. Other elements and wide runs are f32.

#include <immintrin.h>

#include "panels/body_loops.h"
#include "panels/digit_runs.h"
#include "panels/operand_digits_avx2.h"

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
  static constexpr int kMaxTokens = 4;

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

  static __m256 broadcast_pair(const float* x) {
    return _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(x)));
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

// Eight rows of scales of one group.
template <Panel16Element kElement>
__m256 scale_of_rows(const std::byte* bytes) {
  const __m256i codes =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  if constexpr (kElement == Panel16Element::kNvfp4) {
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(codes, 20)),
                         _mm256_set1_ps(0x1p117F));
  } else {
    // Code 0 is 2^-127, the f32 subnormal 0x00400000; every other code is above it.
    return _mm256_castsi256_ps(
        _mm256_max_epi32(_mm256_slli_epi32(codes, 23), _mm256_set1_epi32(0x00400000)));
  }
}

// Totals of a panel: two parts of 8 rows, in order.
template <int kTokens>
struct Totals {
  __m256 at[kTokens][Avx2::kParts];
};

// Tokens that are summed at once, both parts of each: 12 sums of digits in 16 registers.
template <int kTokens>
constexpr int kPassTokens = kTokens < 2 ? 1 : 2;

// Sums of a run, one vector a digit.
template <int kTokens>
struct RunSums {
  __m256i at[kTokens][Avx2::kParts][kNumDigits];
};

struct Codes {
  __m256i low;   // of a part: columns 0 4 1 5 of a row
  __m256i high;  // columns 2 6 3 7
};

struct DigitTables {
  __m256i weights;
  __m256i nibble;
};

// Keeps a constant in its register, where compilers would rather make it again inside the loop,
// and sums in the order written, where they would rather hold every product at once.
[[gnu::always_inline]] inline __m256i in_order(__m256i value) {
  __asm__("" : "+x"(value));
  return value;
}

// sum += products of four bytes of each lane, in AVX-VNNI's own encoding: an instruction, since
// this file is compiled for processors without it.
[[gnu::always_inline]] inline void add_digits(__m256i& sum, __m256i codes, __m256i digits) {
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(codes), "x"(digits));
}

// sum += products of the two signed words of each lane.
[[gnu::always_inline]] inline void add_pairs(__m256i& sum, __m256i words, __m256i weights) {
  __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(words), "xm"(weights));
}

[[gnu::always_inline]] inline __m256i broadcast_digits(const std::byte* bytes) {
  int digits = 0;
  std::memcpy(&digits, bytes, sizeof(digits));
  return _mm256_set1_epi32(digits);
}

// How products of codes and digits become a digit's sum: 16-bit sums of pairs, which a run fits.
struct PairProducts {
  static __m256i begin(__m256i /*from*/, __m256i codes, __m256i digits) {
    return _mm256_maddubs_epi16(codes, digits);
  }

  static __m256i add(__m256i sum, __m256i codes, __m256i digits) {
    return in_order(_mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, digits)));
  }

  // The sums of each row, digits weighted; `start` is what the first digit's began from.
  template <int kSteps>
  static __m256i joined(const __m256i (&digits)[kNumDigits], __m256i start) {
    __m256i sum = start;
#pragma GCC unroll 3
    for (int digit = 0; digit < kNumDigits; ++digit) {
      const __m256i weight = _mm256_set1_epi16(static_cast<short>(1 << 7 * digit));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(digits[digit], weight));
    }
    return sum;
  }
};

// 32-bit sums where the processor has AVX-VNNI: one instruction for four. The sums are exact, so
// every bit is that of PairProducts.
struct DotProducts {
  static __m256i begin(__m256i from, __m256i codes, __m256i digits) {
    return add(from, codes, digits);
  }

  static __m256i add(__m256i sum, __m256i codes, __m256i digits) {
    add_digits(sum, codes, digits);
    return sum;
  }

  template <int kSteps>
  static __m256i joined(const __m256i (&digits)[kNumDigits], __m256i /*start*/) {
    if constexpr (kSteps == 2) {
      // Two steps' are at most 16 * 24 * 64: they fit 16 bits.
      __m256i sum = digits[0];
      add_pairs(sum, digits[1], _mm256_set1_epi32(1 << 7));
      add_pairs(sum, digits[2], _mm256_set1_epi32(1 << 14));
      return sum;
    }
    return _mm256_add_epi32(_mm256_add_epi32(digits[0], _mm256_slli_epi32(digits[1], 7)),
                            _mm256_slli_epi32(digits[2], 14));
  }
};

template <typename ProductsOf, Panel16Element kElementOf, int kTokensOf>
struct Form {
  using Products = ProductsOf;
  static constexpr Panel16Element kElement = kElementOf;
  static constexpr int kTokens = kTokensOf;  // of a tile
};

// One run of one panel.
struct Run {
  RunOperands operands;
  const std::byte* lines;
  const std::byte* scales;  // of its group
  Ahead ahead;
};

// What the sums of a run's first digit begin from.
[[gnu::always_inline]] inline __m256i start_of(const Run& run, int token) {
  return broadcast_digits(run.operands.piece(0, kNumDigits, token) + 4);
}

// sums (+)= a line's products for tokens [first, first + kCount). Loops over arrays that are to be
// registers unroll by pragma, since compilers weigh their size first.
template <typename Products, int kCount, bool kBegins>
[[gnu::always_inline]] inline void add_line(
    const DigitTables& tables, const Run& run, i64 step, int first, RunSums<kCount>& sums) {
  Codes codes[Avx2::kParts];
#pragma GCC unroll 2
  for (i64 part = 0; part < Avx2::kParts; ++part) {
    const __m256i line = in_order(Avx2::load(run.lines + step * kPanel16LineBytes + part * 32));
    codes[part].low = _mm256_shuffle_epi8(tables.weights, _mm256_and_si256(line, tables.nibble));
    codes[part].high = _mm256_shuffle_epi8(
        tables.weights, _mm256_and_si256(_mm256_srli_epi16(line, 4), tables.nibble));
  }
#pragma GCC unroll 6
  for (int at = 0; at < kCount * kNumDigits; ++at) {
    const int token = at / kNumDigits;
    const int digit = at % kNumDigits;
    const std::byte* digits = run.operands.piece(step, digit, first + token);
    const __m256i low = broadcast_digits(digits);
    const __m256i high = broadcast_digits(digits + 4);
    const __m256i zero = _mm256_setzero_si256();
    const __m256i start = kBegins ? start_of(run, first + token) : zero;
#pragma GCC unroll 2
    for (i64 part = 0; part < Avx2::kParts; ++part) {
      __m256i& sum = sums.at[token][part][digit];
      sum = kBegins ? Products::begin(digit == 0 ? start : zero, codes[part].low, low)
                    : Products::add(sum, codes[part].low, low);
      sum = Products::add(sum, codes[part].high, high);
    }
  }
}

// total += the run for tokens [first, first + kCount).
template <typename RunForm, int kCount, int kSteps>
[[gnu::always_inline]] inline void add_tokens(const DigitTables& tables,
                                              const Run& run,
                                              int first,
                                              Totals<RunForm::kTokens>& total) {
  using Products = typename RunForm::Products;
  RunSums<kCount> sums;
  add_line<Products, kCount, true>(tables, run, 0, first, sums);
  if constexpr (kSteps > 0) {
#pragma GCC unroll 3
    for (i64 step = 1; step < kSteps; ++step) {
      add_line<Products, kCount, false>(tables, run, step, first, sums);
    }
  } else {
    for (i64 step = 1; step < run.operands.steps; ++step) {
      add_line<Products, kCount, false>(tables, run, step, first, sums);
    }
  }
#pragma GCC unroll 2
  for (i64 part = 0; part < Avx2::kParts; ++part) {
    const __m256 scale = scale_of_rows<RunForm::kElement>(run.scales + part * 8);
#pragma GCC unroll 2
    for (int token = 0; token < kCount; ++token) {
      // Exact in 32 bits, rounded once.
      const __m256 rows = _mm256_cvtepi32_ps(
          Products::template joined<kSteps>(sums.at[token][part], start_of(run, first + token)));
      const std::byte* unit = run.operands.piece(0, kNumDigits, first + token);
      const __m256 value =
          _mm256_mul_ps(rows, _mm256_broadcast_ss(reinterpret_cast<const float*>(unit)));
      __m256& sum = total.at[first + token][part];
      sum = _mm256_fmadd_ps(value, scale, sum);
    }
  }
}

// Sums of the columns that digits leave out, 16 rows.
[[gnu::noinline]] void sum_rest(const Run& run, int token, float* sums) {
  const __m256 magnitudes = _mm256_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F);
  const i64 count = run.operands.num_rest(token);
  __m256 rows[Avx2::kParts] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (i64 i = 0; i < count; ++i) {
    const i64 column = run.operands.rest_column(i, token);
    const __m128i shift = _mm_cvtsi32_si128(code_shift(column % kPanel16StepCols));
    const __m256 x = _mm256_set1_ps(run.operands.rest_operand(i, token));
    for (i64 part = 0; part < Avx2::kParts; ++part) {
      const std::byte* line = run.lines + column / kPanel16StepCols * kPanel16LineBytes;
      const __m256i codes = _mm256_srl_epi32(Avx2::load(line + part * 32), shift);
      const __m256 sign =
          _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)), _mm256_set1_ps(-0.0F));
      const __m256 weights = _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, codes), sign);
      rows[part] = _mm256_fmadd_ps(weights, x, rows[part]);
    }
  }
  _mm256_storeu_ps(sums, rows[0]);
  _mm256_storeu_ps(sums + 8, rows[1]);
}

// total += the run. kSteps: its steps, or 0 where they are not a constant.
template <typename RunForm, int kSteps>
[[gnu::always_inline]] inline void add_run(const DigitTables& tables,
                                           const Run& run,
                                           Totals<RunForm::kTokens>& total) {
  constexpr int kTokens = RunForm::kTokens;
  constexpr int kPass = kPassTokens<kTokens>;
#pragma GCC unroll 4
  for (i64 step = 0; step < (kSteps > 0 ? kSteps : run.operands.steps); ++step) {
    prefetch(run.lines + step * kPanel16LineBytes, run.ahead);
  }
#pragma GCC unroll 2
  for (int first = 0; first + kPass <= kTokens; first += kPass) {
    add_tokens<RunForm, kPass, kSteps>(tables, run, first, total);
    if constexpr (kTokens > kPass) {
      // The next tokens decode the lines again: codes kept for them would be on the stack.
      __asm__ volatile("" ::: "memory");
    }
  }
  if constexpr (kTokens % kPass != 0) {
    add_tokens<RunForm, 1, kSteps>(tables, run, kTokens - 1, total);
  }
#pragma GCC unroll 4
  for (int token = 0; token < kTokens; ++token) {
    const bool has_rest =
        kSteps > 1 ? run.operands.word(2, token) != 0 : run.operands.num_rest(token) != 0;
    if (has_rest) [[unlikely]] {
      float sums[kPanelRows];
      const Run rare = run;  // a copy, so that the loop's own is never in memory
      sum_rest(rare, token, sums);
#pragma GCC unroll 2
      for (i64 part = 0; part < Avx2::kParts; ++part) {
        total.at[token][part] =
            _mm256_fmadd_ps(_mm256_loadu_ps(sums + part * 8),
                            scale_of_rows<RunForm::kElement>(run.scales + part * 8),
                            total.at[token][part]);
      }
    }
  }
}

template <typename RunForm>
void dot_digit_panel(const std::byte* panel,
                     const Panel16Shape& shape,
                     const CallStream& stream,
                     const std::byte* x,
                     float* sums) {
  constexpr int kTokens = RunForm::kTokens;
  const DigitTables tables{in_order(_mm256_broadcastsi128_si256(
                               _mm_load_si128(reinterpret_cast<const __m128i*>(kDigitWeights)))),
                           in_order(_mm256_set1_epi8(0x0F))};
  Totals<kTokens> total;
#pragma GCC unroll 4
  for (int token = 0; token < kTokens; ++token) {
    total.at[token][0] = total.at[token][1] = _mm256_setzero_ps();
  }
  const auto open = [&](const std::byte* line) __attribute__((always_inline)) {
    const Ahead ahead = stream.from(line);
    prefetch(line, ahead);
    return ahead;
  };
  for_each_run<RunForm::kElement, kTokens>(
      shape,
      panel_runs(shape, panel, x),
      open,
      [&](const RunPlace& at, auto constant, i64 steps) __attribute__((always_inline)) {
        constexpr int kSteps = decltype(constant)::value;
        add_run<RunForm, kSteps>(
            tables, {{at.x, steps, kTokens}, at.lines, at.scales, at.ahead}, total);
      });
#pragma GCC unroll 4
  for (int token = 0; token < kTokens; ++token) {
    _mm256_storeu_ps(sums + i64{token} * kPanelRows, total.at[token][0]);
    _mm256_storeu_ps(sums + i64{token} * kPanelRows + 8, total.at[token][1]);
  }
}

template <typename RunForm>
void dot_digit_panels(const DotCall& call) {
  const i64 panel_bytes = device::panel16_panel_bytes(*call.shape);
  const CallStream stream(call, stream_block_bytes(*call.shape));
  for (i64 panel = 0; panel < call.num_panels; ++panel) {
    dot_digit_panel<RunForm>(call.panels + panel * panel_bytes,
                             *call.shape,
                             stream,
                             call.operand,
                             call.sums + panel * RunForm::kTokens * kPanelRows);
  }
}

template <typename Products, Panel16Element kElement, int... kTokens>
void dot_digit_tokens(const DotCall& call,
                      std::integer_sequence<int, kTokens...> /*tokens less one*/) {
  using Function = void (*)(const DotCall&);
  static constexpr Function kByTokens[] = {
      dot_digit_panels<Form<Products, kElement, kTokens + 1>>...};
  kByTokens[call.num_tokens - 1](call);
}

template <typename Products>
void dot_avx2(const DotCall& call) {
  constexpr auto kTokens = std::make_integer_sequence<int, Avx2::kMaxTokens>();
  switch (call.shape->element) {
    case Panel16Element::kBf16:
      return dot_tokens<Avx2, Panel16Element::kBf16>(call, kTokens);
    case Panel16Element::kNvfp4:
      return dot_digit_tokens<Products, Panel16Element::kNvfp4>(call, kTokens);
    case Panel16Element::kMxfp4:
      return dot_digit_tokens<Products, Panel16Element::kMxfp4>(call, kTokens);
    case Panel16Element::kInt4:
      return dot_tokens<Avx2, Panel16Element::kInt4>(call, kTokens);
    case Panel16Element::kE4m3:
      return dot_tokens<Avx2, Panel16Element::kE4m3>(call, kTokens);
  }
}

LoadedRow load_operand_avx2(const OperandRow& row, const Panel16Shape& shape, std::byte* operand) {
  const LoadedRow loaded = load_operand<float>(row, shape, operand);
  if (has_digits(shape.element)) {
    row_to_digits(shape, operand);
  }
  return loaded;
}

}  // namespace

constinit const Body kAvx2Body =
    make_body<Avx2>(Isa::kAvx2, load_operand_avx2, dot_avx2<PairProducts>);
constinit const Body kAvx2VnniBody =
    make_body<Avx2>(Isa::kAvx2, load_operand_avx2, dot_avx2<DotProducts>);

}  // namespace moekit::panels
