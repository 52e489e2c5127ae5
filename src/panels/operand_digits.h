// SPDX-License-Identifier: Apache-2.0
#pragma once

// Activations as integer digits, so that a scale group's sum is one of small integers: exact, in
// any order, and without turning codes into floats. In vectors: operand_digits_avx2.h.
//
// A row is cut into runs: up to four steps of 8 columns inside one scale group of the weights. A
// run's bf16 values are v * 2^e with one e and |v| < 2^20, and v = d0 + 128 d1 + 128^2 d2 with
// digits -64 to 64. Weights are taken as u = 2 E2M1 + 12, 0 to 24, the unsigned bytes that
// `vpmaddubsw` and `vpdpbusd` want: a pair of products is at most 2 * 24 * 64, so the 8 pairs that
// a run adds to one place stay within 16 bits. Then
//
//   sum w x = unit * (start + sum u d0 + 128 sum u d1 + 128^2 sum u d2),
//   unit = 2^(e-1), start = -12 sum v, the bracket below 2^30.
//
// Four bytes a column, as f32 operands take. Of token t of T, with steps counted in the row:
//
//   piece  at ((4 step + piece) T + t) * 8 bytes
//   0..2   digit `piece` of columns 0 4 1 5 (a line's low nibbles) and 2 6 3 7 (its high nibbles)
//   3      words of the run: {unit, start} at its first step, {count, entry} at its second, two
//          entries at each other
//
// 20 bits hold a bf16 13 binades below the run's largest. Elements that they do not hold have
// digits of zero and stand in the entries, ascending: bf16 << 16 | column in the run. One in twelve
// runs of 32 products of silu has any. Where there is no room for them, where the run is not finite
// or all below 2^-106, it is `wide`: unit is 0, count 255 and pieces 0 and 1 are the step's 8
// columns in bf16. What digits leave out is summed in f32, columns ascending, and scaled and added
// after the digits' sum. All of this depends on the row alone.

#include <cstddef>
#include <cstring>

#include "device/layout/panel16.h"

namespace moekit::panels {
inline namespace MOEKIT_ISA {

constexpr device::i64 kRunSteps = 4;
constexpr device::i64 kDigitStepBytes = 32;
constexpr device::i64 kDigitPieceBytes = 8;
constexpr int kNumDigits = 3;
/// What count says of a wide run.
constexpr device::u32 kWideRun = 255;
/// Of a run's largest element, as f32 has it: units and values stay normal from here on.
constexpr int kLeastDigitExponent = 127 - 106;

/// 2 E2M1 + 12 by code.
alignas(16) constexpr unsigned char kDigitWeights[16] = {
    12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/// Codes in groups that runs can follow.
constexpr bool has_digits(device::Panel16Element element) {
  return element == device::Panel16Element::kNvfp4 || element == device::Panel16Element::kMxfp4;
}

/// Steps of the run that begins `in_group` steps after its scale group does, `left` before the end.
constexpr device::i64 run_steps(device::i64 in_group, device::i64 left, device::i64 group_steps) {
  device::i64 steps = group_steps - in_group;
  steps = steps < left ? steps : left;
  return steps < kRunSteps ? steps : kRunSteps;
}

/// Where column `col` of a step stands in a piece of digits, in bytes.
constexpr device::i64 digit_place(device::i64 col) {
  return 2 * (col % 4) + col / 4;
}

/// Piece 3 of a run's steps.
struct RunWords {
  device::u32 at[2 * kRunSteps] = {};

  void begin(float unit, device::i32 start) {
    at[0] = device::bits_of(unit);
    at[1] = static_cast<device::u32>(start);
  }

  [[nodiscard]] device::u32 count() const { return at[2]; }

  /// False where there is no room in a run of `steps`.
  bool add(device::u32 operand_bits, device::i64 column, device::i64 steps) {
    const device::i64 next = 3 + static_cast<device::i64>(at[2]);
    if (next >= 2 * steps) {
      return false;
    }
    at[next] = (operand_bits & 0xFFFF0000U) | static_cast<device::u32>(column);
    ++at[2];
    return true;
  }

  void make_wide(device::i64 steps) {
    *this = RunWords();
    at[2] = steps > 1 ? kWideRun : 0;
  }
};

// The values of a run, v of v * 2^e, whose largest is `most`, and its words; false where it is
// wide.
inline bool plain_run_values(
    const float* x, device::i64 steps, device::u32 most, device::i32* out, RunWords& words) {
  const auto exponent = static_cast<int>(most >> 23);
  if (most == 0) {
    words.begin(1.0F, 0);
    return true;
  }
  if (exponent < kLeastDigitExponent || exponent == 255) {
    return false;
  }
  const float to_values = device::float_of(static_cast<device::u32>(146 - exponent + 127) << 23);
  const float to_operands = device::float_of(static_cast<device::u32>(exponent - 146 + 127) << 23);
  device::i32 sum = 0;
  for (device::i64 col = 0; col < steps * device::kPanel16StepCols; ++col) {
    // The product may be 0 where x is not: x is what the value must give back.
    out[col] = static_cast<device::i32>(x[col] * to_values);
    if (static_cast<float>(out[col]) * to_operands != x[col]) {
      out[col] = 0;
      if (!words.add(device::bits_of(x[col]), col, steps)) {
        return false;
      }
    }
    sum += out[col];
  }
  words.begin(device::float_of(static_cast<device::u32>(exponent - 20) << 23), -12 * sum);
  return true;
}

/// The f32 of a run, bf16 values, to its digits in place.
[[gnu::noinline]] inline void plain_run_to_digits(std::byte* run, device::i64 steps) {
  constexpr device::i64 kStepCols = device::kPanel16StepCols;
  float x[kRunSteps * kStepCols];
  std::memcpy(x, run, static_cast<std::size_t>(steps * kDigitStepBytes));
  device::u32 most = 0;
  for (device::i64 col = 0; col < steps * kStepCols; ++col) {
    const device::u32 magnitude = device::bits_of(x[col]) & 0x7FFFFFFFU;
    most = magnitude > most ? magnitude : most;
  }
  device::i32 values[kRunSteps * kStepCols] = {};
  RunWords words;
  const bool fits = plain_run_values(x, steps, most, values, words);
  if (!fits) {
    words.make_wide(steps);
  }
  for (device::i64 step = 0; step < steps; ++step) {
    unsigned char pieces[kDigitStepBytes] = {};
    for (device::i64 col = 0; col < kStepCols; ++col) {
      if (!fits) {
        const device::u32 bits = device::bits_of(x[step * kStepCols + col]);
        pieces[2 * col] = static_cast<unsigned char>(bits >> 16);
        pieces[2 * col + 1] = static_cast<unsigned char>(bits >> 24);
        continue;
      }
      device::i32 rest = values[step * kStepCols + col];
      for (device::i64 digit = 0; digit < kNumDigits; ++digit) {
        const device::i32 next = (rest + 64) >> 7;  // floor, so that digits are -64 to 63
        const device::i32 value = digit + 1 < kNumDigits ? rest - 128 * next : rest;
        pieces[digit * kDigitPieceBytes + digit_place(col)] = static_cast<unsigned char>(value);
        rest = next;
      }
    }
    std::memcpy(pieces + kNumDigits * kDigitPieceBytes, words.at + 2 * step, kDigitPieceBytes);
    std::memcpy(run + step * kDigitStepBytes, pieces, sizeof(pieces));
  }
}

/// One run of one tile of T operands: where its pieces stand, and what digits leave out.
struct RunOperands {
  const std::byte* x;  // its first step, the first token
  device::i64 steps;
  int tokens;

  [[nodiscard]] const std::byte* piece(device::i64 step, int piece, int token) const {
    return x + ((4 * step + piece) * tokens + token) * kDigitPieceBytes;
  }

  /// Word i of piece 3 of the run.
  [[nodiscard]] device::u32 word(device::i64 i, int token) const {
    device::u32 value = 0;
    std::memcpy(&value, piece(i / 2, kNumDigits, token) + i % 2 * 4, sizeof(value));
    return value;
  }

  /// Columns that digits leave out, and the i-th of them.
  [[nodiscard]] device::i64 num_rest(int token) const {
    if (word(0, token) == 0) {
      return steps * device::kPanel16StepCols;
    }
    return steps > 1 ? word(2, token) : 0;
  }

  [[nodiscard]] device::i64 rest_column(device::i64 i, int token) const {
    return word(0, token) == 0 ? i : word(3 + i, token) & 0xFFFFU;
  }

  [[nodiscard]] float rest_operand(device::i64 i, int token) const {
    if (word(0, token) != 0) {
      return device::float_of(word(3 + i, token) & 0xFFFF0000U);
    }
    device::u16 bits = 0;
    std::memcpy(&bits, piece(i / 8, static_cast<int>(i % 8 / 4), token) + i % 4 * 2, sizeof(bits));
    return device::float_of(static_cast<device::u32>(bits) << 16);
  }
};

/// How far the code of column `col` of a step is shifted up in its row's word of a line.
constexpr int code_shift(device::i64 col) {
  return static_cast<int>(16 * (col % 2) + 8 * (col / 4) + 4 * (col / 2 % 2));
}

/// Cuts a loaded row of f32 operands into runs and turns each into digits by `convert`.
template <typename Convert>
void convert_runs(const device::Panel16Shape& shape, std::byte* row, Convert convert) {
  const device::i64 group_steps = device::panel16_group_cols(shape) / device::kPanel16StepCols;
  device::i64 in_group = device::panel16_first_step(shape) % group_steps;
  for (device::i64 left = device::panel16_num_steps(shape); left > 0;) {
    const device::i64 steps = run_steps(in_group, left, group_steps);
    convert(row, steps);
    row += steps * kDigitStepBytes;
    left -= steps;
    in_group = in_group + steps == group_steps ? 0 : in_group + steps;
  }
}

/// A loaded row of f32 operands to digits in place, a column at a time: what operand_digits_avx2.h
/// does in vectors, for tests and for emulated bodies.
inline void plain_row_to_digits(const device::Panel16Shape& shape, std::byte* row) {
  convert_runs(shape, row, plain_run_to_digits);
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::panels
