// SPDX-License-Identifier: Apache-2.0
#pragma once

// operand_digits.h in vectors, for AVX2 and what has it.

#include <cstring>
#include <immintrin.h>

#include "panels/operand_digits.h"

namespace moekit::panels {
inline namespace MOEKIT_ISA {

inline void store_pieces(std::byte* step, __m128i low, __m128i high) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(step), low);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(step) + 1, high);
}

/// Eight values of |v| < 2^20 to the pieces of a step.
inline void store_digits(__m256i values, __m128i words, std::byte* step) {
  const __m256i half = _mm256_set1_epi32(64);
  const __m256i mask = _mm256_set1_epi32(127);
  const auto digit = [&](__m256i rest) {
    const __m256i low = _mm256_and_si256(_mm256_add_epi32(rest, half), mask);
    return _mm256_and_si256(_mm256_sub_epi32(low, half), _mm256_set1_epi32(255));
  };
  const __m256i second = _mm256_srai_epi32(_mm256_add_epi32(values, half), 7);
  const __m256i third = _mm256_srai_epi32(_mm256_add_epi32(second, half), 7);
  __m256i bytes = _mm256_or_si256(digit(values), _mm256_slli_epi32(digit(second), 8));
  bytes = _mm256_or_si256(bytes,
                          _mm256_slli_epi32(_mm256_and_si256(third, _mm256_set1_epi32(255)), 16));
  // Columns 0 to 3 and 4 to 7, digit by digit; then 0 4 1 5 2 6 3 7.
  const __m256i by_digit =
      _mm256_shuffle_epi8(bytes,
                          _mm256_broadcastsi128_si256(_mm_setr_epi8(
                              0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, -1, -1, -1, -1)));
  const __m128i first = _mm256_castsi256_si128(by_digit);
  const __m128i last = _mm256_extracti128_si256(by_digit, 1);
  store_pieces(
      step, _mm_unpacklo_epi8(first, last), _mm_or_si128(_mm_unpackhi_epi8(first, last), words));
}

inline int sum_of(__m256i values) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1)));
}

inline unsigned largest_of(__m256i bits) {
  __m128i most = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4E));
  return static_cast<unsigned>(
      _mm_cvtsi128_si32(_mm_max_epu32(most, _mm_shuffle_epi32(most, 0xB1))));
}

/// Words of a step, in the upper half of 16 bytes.
inline __m128i words_of(const RunWords& words, device::i64 step) {
  return _mm_bslli_si128(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(words.at + 2 * step)), 8);
}

inline void store_wide_run(const __m256i (&bits)[kRunSteps], device::i64 steps, std::byte* run) {
  RunWords words;
  words.make_wide(steps);
  for (device::i64 step = 0; step < steps; ++step) {
    const __m256i high = _mm256_srli_epi32(bits[step], 16);
    const __m128i bf16 =
        _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    store_pieces(run + step * kDigitStepBytes, bf16, words_of(words, step));
  }
}

/// Moves what 20 bits do not hold from the values to the words; false where there is no room.
inline bool take_rest(const __m256i (&bits)[kRunSteps],
                      const __m256 (&same)[kRunSteps],
                      device::i64 steps,
                      __m256i (&values)[kRunSteps],
                      RunWords& words) {
  for (device::i64 step = 0; step < steps; ++step) {
    alignas(32) device::u32 operands[device::kPanel16StepCols];
    _mm256_store_si256(reinterpret_cast<__m256i*>(operands), bits[step]);
    const int held = _mm256_movemask_ps(same[step]);
    for (device::i64 col = 0; col < device::kPanel16StepCols; ++col) {
      if ((held >> col & 1) == 0 &&
          !words.add(operands[col], step * device::kPanel16StepCols + col, steps)) {
        return false;
      }
    }
    values[step] = _mm256_and_si256(values[step], _mm256_castps_si256(same[step]));
  }
  return true;
}

/// The f32 of a run, bf16 values, to its digits in place.
inline void run_to_digits(std::byte* run, device::i64 steps) {
  __m256i bits[kRunSteps];
  __m256i most = _mm256_setzero_si256();
  for (device::i64 step = 0; step < kRunSteps; ++step) {
    bits[step] =
        step < steps
            ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(run + step * kDigitStepBytes))
            : _mm256_setzero_si256();
    const __m256i magnitude = _mm256_and_si256(bits[step], _mm256_set1_epi32(0x7FFFFFFF));
    most = _mm256_max_epu32(most, magnitude);
  }
  const auto exponent = static_cast<int>(largest_of(most) >> 23);
  // The largest is below 2^(exponent - 126): e = exponent - 146 leaves 20 bits.
  RunWords words;
  if (largest_of(most) == 0) {
    words.begin(1.0F, 0);
    for (device::i64 step = 0; step < steps; ++step) {
      store_pieces(run + step * kDigitStepBytes, _mm_setzero_si128(), words_of(words, step));
    }
    return;
  }
  if (exponent < kLeastDigitExponent || exponent == 255) {
    store_wide_run(bits, steps, run);
    return;
  }
  const __m256 to_values =
      _mm256_set1_ps(device::float_of(static_cast<device::u32>(146 - exponent + 127) << 23));
  const __m256 to_operands =
      _mm256_set1_ps(device::float_of(static_cast<device::u32>(exponent - 146 + 127) << 23));
  __m256i values[kRunSteps];
  __m256 same[kRunSteps];
  __m256 all_same = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
  for (device::i64 step = 0; step < kRunSteps; ++step) {
    const __m256 x = _mm256_castsi256_ps(bits[step]);
    values[step] = _mm256_cvtps_epi32(_mm256_mul_ps(x, to_values));
    // The product may be 0 where x is not: x is what the value must give back.
    const __m256 again = _mm256_mul_ps(_mm256_cvtepi32_ps(values[step]), to_operands);
    same[step] = _mm256_cmp_ps(again, x, _CMP_EQ_OQ);
    all_same = _mm256_and_ps(all_same, same[step]);
  }
  if (_mm256_movemask_ps(all_same) != 255 && !take_rest(bits, same, steps, values, words)) {
    store_wide_run(bits, steps, run);
    return;
  }
  __m256i sum = _mm256_add_epi32(values[0], values[1]);
  sum = _mm256_add_epi32(sum, _mm256_add_epi32(values[2], values[3]));
  const float unit = device::float_of(static_cast<device::u32>(exponent - 20) << 23);
  words.begin(unit, -12 * sum_of(sum));
  for (device::i64 step = 0; step < steps; ++step) {
    store_digits(values[step], words_of(words, step), run + step * kDigitStepBytes);
  }
}

/// A loaded row of f32 operands to digits in place.
inline void row_to_digits(const device::Panel16Shape& shape, std::byte* row) {
  convert_runs(shape, row, run_to_digits);
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::panels
