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
//   3      of a run's first step: unit (f32), start (i32); of others zero
//
// 20 bits hold a bf16 13 binades below the run's largest. A run with an element that they do not
// hold, with one that is not finite, or all below 2^-106, is `wide`: unit is 0, and pieces 0 and 1
// are the step's 8 columns in bf16, to be worked as floats. Whether it is depends on the row alone.

#include <cstddef>
#include <cstring>

#include "device/layout/panel16.h"

namespace moekit::panels {
inline namespace MOEKIT_ISA {

constexpr device::i64 kRunSteps = 4;
constexpr device::i64 kDigitStepBytes = 32;
constexpr device::i64 kDigitPieceBytes = 8;
constexpr int kNumDigits = 3;
/// Of a run's largest element, as f32 has it: units and values stay normal from here on.
constexpr int kLeastDigitExponent = 127 - 106;

/// 2 E2M1 + 12 by code.
alignas(16) constexpr unsigned char kDigitWeights[16] = {
    12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/// Codes in groups that runs can follow.
constexpr bool has_digits(device::Panel16Element element) {
  return element == device::Panel16Element::kNvfp4 || element == device::Panel16Element::kMxfp4;
}

/// Steps of the run that begins at `step` and ends before `end`, both counted from the first scale
/// group.
constexpr device::i64 run_steps(device::i64 step, device::i64 end, device::i64 group_steps) {
  device::i64 steps = group_steps - step % group_steps;
  steps = steps < end - step ? steps : end - step;
  return steps < kRunSteps ? steps : kRunSteps;
}

/// Where column `col` of a step stands in a piece of digits, in bytes.
constexpr device::i64 digit_place(device::i64 col) {
  return 2 * (col % 4) + col / 4;
}

/// Piece 3 of a run's first step.
struct RunHeader {
  float unit = 0.0F;  // 0: the run is wide
  device::i32 start = 0;
};

static_assert(sizeof(RunHeader) == kDigitPieceBytes);

// The values of a run, v of v * 2^e, whose largest is `most`; false where 20 bits do not hold them.
inline bool plain_run_values(const float* x, device::i64 cols, device::u32 most, device::i32* out) {
  const auto exponent = static_cast<int>(most >> 23);
  if (exponent < kLeastDigitExponent || exponent == 255) {
    return false;
  }
  const float to_values = device::float_of(static_cast<device::u32>(146 - exponent + 127) << 23);
  const float to_operands = device::float_of(static_cast<device::u32>(exponent - 146 + 127) << 23);
  for (device::i64 col = 0; col < cols; ++col) {
    // The product may be 0 where x is not: x is what the value must give back.
    out[col] = static_cast<device::i32>(x[col] * to_values);
    if (static_cast<float>(out[col]) * to_operands != x[col]) {
      return false;
    }
  }
  return true;
}

/// The f32 of a run, bf16 values, to its digits in place.
inline void plain_run_to_digits(std::byte* run, device::i64 steps) {
  constexpr device::i64 kStepCols = device::kPanel16StepCols;
  float x[kRunSteps * kStepCols];
  std::memcpy(x, run, static_cast<std::size_t>(steps * kDigitStepBytes));
  device::u32 most = 0;
  for (device::i64 col = 0; col < steps * kStepCols; ++col) {
    const device::u32 magnitude = device::bits_of(x[col]) & 0x7FFFFFFFU;
    most = magnitude > most ? magnitude : most;
  }
  device::i32 values[kRunSteps * kStepCols] = {};
  const bool fits = most == 0 || plain_run_values(x, steps * kStepCols, most, values);
  RunHeader header;
  header.unit = most == 0 ? 1.0F : fits ? device::float_of(((most >> 23) - 20U) << 23) : 0.0F;
  for (device::i64 col = 0; fits && col < steps * kStepCols; ++col) {
    header.start -= 12 * values[col];
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
    if (step == 0) {
      std::memcpy(pieces + kNumDigits * kDigitPieceBytes, &header, sizeof(header));
    }
    std::memcpy(run + step * kDigitStepBytes, pieces, sizeof(pieces));
  }
}

/// Cuts a loaded row of f32 operands into runs and turns each into digits by `convert`.
template <typename Convert>
void convert_runs(const device::Panel16Shape& shape, std::byte* row, Convert convert) {
  const device::i64 group_steps = device::panel16_group_cols(shape) / device::kPanel16StepCols;
  const device::i64 first = device::panel16_first_step(shape);
  const device::i64 end = first + device::panel16_num_steps(shape);
  for (device::i64 step = first; step < end;) {
    const device::i64 steps = run_steps(step, end, group_steps);
    convert(row + (step - first) * kDigitStepBytes, steps);
    step += steps;
  }
}

/// A loaded row of f32 operands to digits in place, a column at a time: what operand_digits_avx2.h
/// does in vectors, for tests and for emulated bodies.
inline void plain_row_to_digits(const device::Panel16Shape& shape, std::byte* row) {
  convert_runs(shape, row, plain_run_to_digits);
}
}  // namespace MOEKIT_ISA
}  // namespace moekit::panels
