// SPDX-License-Identifier: Apache-2.0
#pragma once

// Panels of 4-bit codes against operands in digits (operand_digits.h) on AVX-512. A line of 128
// codes is 1 load, 1 shift and 2 byte permutes; a token takes 6 `vpdpbusd` by broadcast dwords, and
// 9 instructions more a scale group.

#include <utility>

#include "panels/body_loops.h"
#include "panels/digit_runs.h"
#include "panels/instructions_avx512.h"
#include "panels/operand_digits.h"
#include "panels/panel_segments.h"

namespace moekit::panels {
inline namespace MOEKIT_ISA {

/// The scales of 16 rows from their stored bytes.
template <Panel16Element kElement>
__m512 code_scales(const std::byte* bytes) {
  const __m512i codes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  if constexpr (kElement == Panel16Element::kNvfp4) {
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(codes, 20)),
                         _mm512_set1_ps(0x1p117F));
  } else {
    // Code 0 is 2^-127, the f32 subnormal 0x00400000; every other code is above it.
    return _mm512_castsi512_ps(
        _mm512_max_epi32(_mm512_slli_epi32(codes, 23), _mm512_set1_epi32(0x00400000)));
  }
}

/// A run of codes, its scales, and the first piece of the tile's first token at its first step.
struct DigitRun {
  const std::byte* lines;
  const std::byte* scales;
  const std::byte* x;
  i64 steps;
  Ahead ahead;
};

/// Keeps a line in its register, where compilers would rather read it again for its second use:
/// loads are what limits one token.
inline __m512i loaded_once(__m512i line) {
#if !defined(MOEKIT_EMULATED_INSTRUCTIONS)
  __asm__("" : "+v"(line));
#endif
  return line;
}

/// Calls body(0) to body(kCount - 1), each with its constant, so that arrays it indexes are
/// registers.
template <int kCount, typename Body>
[[gnu::always_inline]] inline void repeat(Body body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, kIndex>()), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

/// total + what digits leave out of a run of one token. Rare: kept out of the loops that meet it.
template <Panel16Element kElement>
[[gnu::noinline]] __m512 add_rest(const DigitRun& run, int tokens, int token, __m512 total) {
  const RunOperands operands{run.x, run.steps, tokens};
  alignas(64) static constexpr float kValues[16] = {0.0F,
                                                    0.5F,
                                                    1.0F,
                                                    1.5F,
                                                    2.0F,
                                                    3.0F,
                                                    4.0F,
                                                    6.0F,
                                                    -0.0F,
                                                    -0.5F,
                                                    -1.0F,
                                                    -1.5F,
                                                    -2.0F,
                                                    -3.0F,
                                                    -4.0F,
                                                    -6.0F};
  const __m512 values = _mm512_castsi512_ps(_mm512_load_si512(kValues));
  const i64 count = operands.num_rest(token);
  __m512 sum = _mm512_setzero_ps();
  for (i64 i = 0; i < count; ++i) {
    const i64 column = operands.rest_column(i, token);
    const __m512i words =
        _mm512_loadu_si512(run.lines + column / kPanel16StepCols * kPanel16LineBytes);
    const __m512i codes =
        _mm512_srlv_epi32(words, _mm512_set1_epi32(code_shift(column % kPanel16StepCols)));
    // Sixteen values: what stands above a code does not matter.
    sum = _mm512_fmadd_ps(
        _mm512_permutexvar_ps(codes, values), _mm512_set1_ps(operands.rest_operand(i, token)), sum);
  }
  return _mm512_fmadd_ps(sum, code_scales<kElement>(run.scales), total);
}

/// 2 E2M1 + 12 by six bits of an index, of which the code is the low four.
inline __m512i digit_weights() {
  alignas(64) static constexpr auto kTable = [] {
    struct {
      unsigned char bytes[64];
    } table{};

    for (int i = 0; i < 64; ++i) {
      table.bytes[i] = kDigitWeights[i % 16];
    }
    return table;
  }();
  return _mm512_load_si512(kTable.bytes);
}

/// Where operands are as long as this, panels of a call are walked side by side, so many columns of
/// each in turn: a third of a first-level cache, which holds the lines that are asked for, too.
constexpr i64 kLeastOperandBytesToCut = 16384;
constexpr i64 kSegmentSteps = 64;
constexpr i64 kPanelsOfPass = 8;

/// Dot products of panels of kElement with a tile of kTokens tokens.
template <Panel16Element kElement, int kTokens>
class DigitTile {
 public:
  static void dot(const DotCall& call) {
    const Panel16Shape& shape = *call.shape;
    const PanelCut cut = panel_cut(call);
    if (cut.segments() > 1) {
      return dot_segments(call, cut);
    }
    const CallStream stream(call, stream_block_bytes(shape));
    for (i64 panel = 0; panel < call.num_panels; ++panel) {
      const std::byte* lines = call.panels + panel * cut.panel_bytes;
      const RunSpan span = panel_runs(shape, lines, call.operand);
      dot_span(shape, stream, span, false, call.sums + panel * kSums);
    }
  }

 private:
  // Their 24 sums fill the registers.
  static constexpr int kMostTogether = 8;
  static constexpr i64 kSums = kTokens * kPanelRows;

  // Segments begin with a block's scales.
  static PanelCut panel_cut(const DotCall& call) {
    const Panel16Shape& shape = *call.shape;
    const i64 steps = device::panel16_num_steps(shape);
    const i64 block_steps = device::panel16_steps_per_block(shape);
    const bool cut = steps * kDigitStepBytes * kTokens >= kLeastOperandBytesToCut &&
                     call.num_panels > 1 && kSegmentSteps % block_steps == 0 &&
                     device::panel16_first_step(shape) % block_steps == 0;
    return {call.num_panels,
            kPanelsOfPass,
            device::panel16_panel_bytes(shape),
            steps,
            cut ? kSegmentSteps : steps,
            kSegmentSteps / block_steps * stream_block_bytes(shape)};
  }

  static void dot_segments(const DotCall& call, const PanelCut& cut) {
    const Panel16Shape& shape = *call.shape;
    AheadOfSegments ahead(call, cut);
    for (SegmentWalk walk(cut); !walk.done(); walk.next(), ahead.next()) {
      const i64 first = walk.first_unit();
      const std::byte* lines = call.panels + walk.offset();
      const CallStream stream(ahead.from(walk), lines, walk.bytes(), stream_block_bytes(shape));
      const RunSpan span{lines, call.operand + first * kDigitStepBytes * kTokens, 0, walk.units()};
      dot_span(shape, stream, span, first > 0, call.sums + walk.panel() * kSums);
    }
  }

  template <int kCount>
  using Sums = __m512i[kCount][kNumDigits];

  static constexpr i64 piece_at(i64 piece, i64 token) {
    return (piece * kTokens + token) * kDigitPieceBytes;
  }

  // Behind the first segment sums go on from what they are.
  static void dot_span(const Panel16Shape& shape,
                       const CallStream& stream,
                       const RunSpan& span,
                       bool goes_on,
                       float* sums) {
    const __m512i table = digit_weights();
    __m512 total[kTokens];
    repeat<kTokens>([&](auto t) __attribute__((always_inline)) {
      total[t] = goes_on ? _mm512_castsi512_ps(_mm512_loadu_si512(sums + t * kPanelRows))
                         : _mm512_setzero_ps();
    });
    const auto open = [&](const std::byte* line) __attribute__((always_inline)) {
      const Ahead ahead = stream.from(line);
      // Not in a function of their own: g++ 12 takes one that only asks for memory for a pure one
      // and drops its calls.
      __builtin_prefetch(line + ahead.far, 0, 2);
      __builtin_prefetch(line + ahead.near);
      return ahead;
    };
    for_each_run<kElement, kTokens>(
        shape,
        span,
        open,
        [&](const RunPlace& at, auto constant, i64 steps) __attribute__((always_inline)) {
          constexpr int kSteps = decltype(constant)::value;
          add_run<kSteps>(table, {at.lines, at.scales, at.x, steps, at.ahead}, total);
        });
    repeat<kTokens>([&](auto t) __attribute__((always_inline)) {
      _mm512_storeu_ps(sums + t * kPanelRows, total[t]);
    });
  }

  /// total += the run. kSteps: run.steps where it is a constant, 0 where it is not. Of more tokens
  /// than go together the halves come one after the other while the lines are in L1.
  template <int kSteps>
  [[gnu::always_inline]] static void add_run(__m512i table, const DigitRun& run, __m512* total) {
    if constexpr (kTokens <= kMostTogether) {
      add_tokens<kSteps, 0, kTokens>(table, run, total);
    } else {
      constexpr int kHalf = (kTokens + 1) / 2;
      add_tokens<kSteps, 0, kHalf>(table, run, total);
      add_tokens<kSteps, kHalf, kTokens - kHalf>(table, run, total);
    }
  }

  /// kCount tokens from kFirst on; the first ones ask for the lines ahead.
  template <int kSteps, int kFirst, int kCount>
  [[gnu::always_inline]] static void add_tokens(__m512i table, const DigitRun& run, __m512* total) {
    Sums<kCount> sums;
    repeat<kCount>([&](auto t) __attribute__((always_inline)) {
      const RunOperands operands{run.x, run.steps, kTokens};
      sums[t][0] = _mm512_set1_epi32(static_cast<int>(operands.word(1, kFirst + t)));
      sums[t][1] = _mm512_setzero_si512();
      sums[t][2] = _mm512_setzero_si512();
    });
    const auto add_step = [&](i64 step) __attribute__((always_inline)) {
      const std::byte* line = run.lines + step * kPanel16LineBytes;
      if constexpr (kFirst == 0) {
        __builtin_prefetch(line + run.ahead.far, 0, 2);
        __builtin_prefetch(line + run.ahead.near);
      }
      const std::byte* x = run.x + step * kDigitStepBytes * kTokens + piece_at(0, kFirst);
      add_line<kCount>(table, line, x, sums);
    };
    if constexpr (kSteps == 0) {
      for (i64 step = 0; step < run.steps; ++step) {
        add_step(step);
      }
    } else {
      repeat<kSteps>(add_step);
    }
    finish_run<kSteps, kFirst, kCount>(run, sums, total);
  }

  template <int kCount>
  [[gnu::always_inline]] static void add_line(__m512i table,
                                              const std::byte* line,
                                              const std::byte* x,
                                              Sums<kCount>& sums) {
    const __m512i words = loaded_once(_mm512_loadu_si512(line));
    // A byte permute reads six bits: what stands above a code does not matter.
    const __m512i low = _mm512_permutexvar_epi8(words, table);
    const __m512i high = _mm512_permutexvar_epi8(_mm512_srli_epi16(words, 4), table);
    repeat<kCount * kNumDigits>([&](auto i) __attribute__((always_inline)) {
      add_digits(
          sums[i / kNumDigits][i % kNumDigits], low, x + piece_at(i % kNumDigits, i / kNumDigits));
    });
    repeat<kCount * kNumDigits>([&](auto i) __attribute__((always_inline)) {
      add_digits(sums[i / kNumDigits][i % kNumDigits],
                 high,
                 x + piece_at(i % kNumDigits, i / kNumDigits) + 4);
    });
  }

  /// The digits' sums of a run as one. Two steps' are at most 16 * 24 * 64 and so fit the 16 bits
  /// of a dot product with the digit's weight.
  template <int kSteps>
  [[gnu::always_inline]] static __m512i joined(const __m512i (&sums)[kNumDigits]) {
    if constexpr (kSteps == 2) {
      const __m512i low = _mm512_dpwssd_epi32(sums[0], sums[1], _mm512_set1_epi32(1 << 7));
      return _mm512_dpwssd_epi32(low, sums[2], _mm512_set1_epi32(1 << 14));
    } else {
      return _mm512_add_epi32(_mm512_add_epi32(sums[0], _mm512_slli_epi32(sums[1], 7)),
                              _mm512_slli_epi32(sums[2], 14));
    }
  }

  /// Joins the digits' sums, scales them and adds them to the totals, and what digits leave out.
  template <int kSteps, int kFirst, int kCount>
  [[gnu::always_inline]] static void finish_run(const DigitRun& run,
                                                Sums<kCount>& sums,
                                                __m512* total) {
    const __m512 scale = code_scales<kElement>(run.scales);
    const RunOperands operands{run.x, run.steps, kTokens};
    repeat<kCount>([&](auto t) __attribute__((always_inline)) {
      constexpr int kToken = kFirst + t;
      const __m512i sum = joined<kSteps>(sums[t]);
      const float unit = device::float_of(operands.word(0, kToken));
      const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(unit));
      total[kToken] = _mm512_fmadd_ps(value, scale, total[kToken]);
      const bool has_rest =
          kSteps > 1 ? operands.word(2, kToken) != 0 : operands.num_rest(kToken) != 0;
      if (has_rest) [[unlikely]] {
        const DigitRun rare = run;  // a copy, so that the loop's own is never in memory
        total[kToken] = add_rest<kElement>(rare, kTokens, kToken, total[kToken]);
      }
    });
  }
};

template <Panel16Element kElement, int... kTokens>
void dot_digit_tokens(const DotCall& call,
                      std::integer_sequence<int, kTokens...> /*tokens less one*/) {
  using Function = void (*)(const DotCall&);
  static constexpr Function kByTokens[] = {DigitTile<kElement, kTokens + 1>::dot...};
  kByTokens[call.num_tokens - 1](call);
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::panels
