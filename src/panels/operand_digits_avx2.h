// SPDX-License-Identifier: Apache-2.0
#pragma once

// operand_digits.h in vectors, for AVX2 and what has it.

#include <cstring>
#include <immintrin.h>

#include "panels/operand_digits.h"

namespace moekit::panels {
inline namespace MOEKIT_ISA {

/// Eight values of |v| < 2^20 to the pieces of a step; words: in the last two lanes.
inline void store_digits(__m256i values, __m256i words, std::byte* step) {
  // The columns of each dword of a piece side by side; 64 more in every digit, so that digits are
  // fields of bits.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i fields = _mm256_add_epi32(_mm256_permutevar8x32_epi32(values, order),
                                          _mm256_set1_epi32((64 << 14) + (64 << 7) + 64));
  __m256i bytes = _mm256_and_si256(fields, _mm256_set1_epi32(0x7F));
  bytes = _mm256_or_si256(
      bytes, _mm256_and_si256(_mm256_slli_epi32(fields, 1), _mm256_set1_epi32(0x7F00)));
  bytes = _mm256_or_si256(
      bytes, _mm256_and_si256(_mm256_slli_epi32(fields, 2), _mm256_set1_epi32(0xFF0000)));
  bytes = _mm256_sub_epi8(bytes, _mm256_set1_epi32(0x404040));
  // Digit by digit, then the halves of each piece side by side.
  const __m256i by_digit =
      _mm256_shuffle_epi8(bytes,
                          _mm256_broadcastsi128_si256(_mm_setr_epi8(
                              0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, -1, -1, -1, -1)));
  const __m256i pieces = _mm256_permutevar8x32_epi32(by_digit, order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(step), _mm256_or_si256(pieces, words));
}

/// The sum of all lanes, and the largest, in every lane.
inline __m256i sum_of(__m256i values) {
  __m256i sum = _mm256_add_epi32(values, _mm256_permute2x128_si256(values, values, 1));
  sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0x4E));
  return _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0xB1));
}

inline __m256i largest_of(__m256i bits) {
  __m256i most = _mm256_max_epu32(bits, _mm256_permute2x128_si256(bits, bits, 1));
  most = _mm256_max_epu32(most, _mm256_shuffle_epi32(most, 0x4E));
  return _mm256_max_epu32(most, _mm256_shuffle_epi32(most, 0xB1));
}

/// Words of a step, where store_digits wants them.
inline __m256i words_of(const RunWords& words, device::i64 step) {
  return _mm256_setr_epi32(0,
                           0,
                           0,
                           0,
                           0,
                           0,
                           static_cast<int>(words.at[2 * step]),
                           static_cast<int>(words.at[2 * step + 1]));
}

/// Moves what 20 bits do not hold from the values to the words; false where there is no room.
template <device::i64 kSteps>
[[gnu::noinline]] bool take_rest(const __m256i (&bits)[kSteps],
                                 const __m256i (&same)[kSteps],
                                 __m256i (&values)[kSteps],
                                 RunWords& words) {
  for (device::i64 step = 0; step < kSteps; ++step) {
    alignas(32) device::u32 operands[device::kPanel16StepCols];
    _mm256_store_si256(reinterpret_cast<__m256i*>(operands), bits[step]);
    const int held = _mm256_movemask_ps(_mm256_castsi256_ps(same[step]));
    for (device::i64 col = 0; col < device::kPanel16StepCols; ++col) {
      if ((held >> col & 1) == 0 &&
          !words.add(operands[col], step * device::kPanel16StepCols + col, kSteps)) {
        return false;
      }
    }
    values[step] = _mm256_and_si256(values[step], same[step]);
  }
  return true;
}

/// The f32 of a run, bf16 values, to its digits in place; false, and nothing written, where it is
/// zero or wide. Whatever a run has one of stands in every lane: to the general registers and back
/// would cost more than the digits.
template <device::i64 kSteps>
[[gnu::always_inline]] inline bool run_to_digits(std::byte* run) {
  __m256i bits[kSteps];
  __m256i most = _mm256_setzero_si256();
  for (device::i64 step = 0; step < kSteps; ++step) {
    bits[step] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(run + step * kDigitStepBytes));
    most = _mm256_max_epu32(most, _mm256_and_si256(bits[step], _mm256_set1_epi32(0x7FFFFFFF)));
  }
  const __m256i exponent = _mm256_srli_epi32(largest_of(most), 23);
  const __m256i in_range =
      _mm256_and_si256(_mm256_cmpgt_epi32(exponent, _mm256_set1_epi32(kLeastDigitExponent - 1)),
                       _mm256_cmpgt_epi32(_mm256_set1_epi32(255), exponent));
  if (_mm256_movemask_epi8(in_range) == 0) {
    return false;
  }
  // The largest is below 2^(exponent - 126): e = exponent - 146 leaves 20 bits.
  const __m256 to_values = _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(146 + 127), exponent), 23));
  const __m256 to_operands = _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(146 - 127)), 23));
  __m256i values[kSteps];
  __m256i same[kSteps];
  __m256i all_same = in_range;
  for (device::i64 step = 0; step < kSteps; ++step) {
    const __m256 x = _mm256_castsi256_ps(bits[step]);
    values[step] = _mm256_cvtps_epi32(_mm256_mul_ps(x, to_values));
    // The product may be 0 where x is not: x is what the value must give back.
    const __m256 again = _mm256_mul_ps(_mm256_cvtepi32_ps(values[step]), to_operands);
    same[step] = _mm256_castps_si256(_mm256_cmp_ps(again, x, _CMP_EQ_OQ));
    all_same = _mm256_and_si256(all_same, same[step]);
  }
  RunWords words;
  const bool has_rest = _mm256_movemask_epi8(all_same) != -1;
  if (has_rest && !take_rest<kSteps>(bits, same, values, words)) {
    return false;
  }
  __m256i sum = values[0];
  for (device::i64 step = 1; step < kSteps; ++step) {
    sum = _mm256_add_epi32(sum, values[step]);
  }
  const __m256i start = _mm256_mullo_epi32(sum_of(sum), _mm256_set1_epi32(-12));
  const __m256i unit = _mm256_slli_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(20)), 23);
  const __m256i zero = _mm256_setzero_si256();
  store_digits(
      values[0], _mm256_blend_epi32(_mm256_blend_epi32(zero, unit, 0x40), start, 0x80), run);
  for (device::i64 step = 1; step < kSteps; ++step) {
    store_digits(
        values[step], has_rest ? words_of(words, step) : zero, run + step * kDigitStepBytes);
  }
  return true;
}

/// Groups of kSteps steps: what the shard holds of the first and the last one is a column at a
/// time.
template <device::i64 kSteps>
void groups_to_digits(const device::Panel16Shape& shape, std::byte* row) {
  const device::i64 first = device::panel16_first_step(shape) % kSteps;
  device::i64 left = device::panel16_num_steps(shape);
  if (first != 0) {
    const device::i64 steps = left < kSteps - first ? left : kSteps - first;
    plain_run_to_digits(row, steps);
    row += steps * kDigitStepBytes;
    left -= steps;
  }
  for (; left >= kSteps; left -= kSteps, row += kSteps * kDigitStepBytes) {
    if (!run_to_digits<kSteps>(row)) {
      plain_run_to_digits(row, kSteps);
    }
  }
  if (left != 0) {
    plain_run_to_digits(row, left);
  }
}

/// A loaded row of f32 operands to digits in place.
inline void row_to_digits(const device::Panel16Shape& shape, std::byte* row) {
  switch (device::panel16_group_cols(shape)) {
    case 2 * device::kPanel16StepCols:
      return groups_to_digits<2>(shape, row);
    case 4 * device::kPanel16StepCols:
      return groups_to_digits<4>(shape, row);
    default:
      return plain_row_to_digits(shape, row);
  }
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::panels
