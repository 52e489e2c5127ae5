// SPDX-License-Identifier: Apache-2.0
#pragma once

// Index maps of the CPU's packed layout `panel16`: 16 rows side by side, K ascending, one linear
// stream of bytes per panel, so that one broadcast activation pair serves the 32-bit lane of every
// row and the hardware prefetchers see a single stream.
//
// A panel is a run of K steps of 8 columns. In a step each row owns 32 bits per pair of columns
// (bf16) or 32 bits in all (4-bit codes):
//
//   bf16   4 lines of 64 bytes; line j, row r: columns 2j (low half) and 2j + 1 (high half).
//   codes  1 line of 64 bytes; row r's word holds the even columns in its low half, nibble j =
//          column 2j, and the odd columns in its high half. A 16-bit shift by 4j then leaves both
//          codes of pair j at the bottom of the two halves, where a 16-bit table permute (AVX-512)
//          turns them into the bf16 pair that a dot product instruction wants; byte shuffles
//          (AVX2) reach all eight from the same word.
//
// Scales precede the codes of their block: a block is 4 scale groups and begins with one line of
// scales, group major, 16 rows each. Columns are counted from the start of the shard's first scale
// group: a shard that begins inside a group stores no codes for the columns before it, except that
// its first step is filled with zero codes.
//
// E4M3 scales are stored as E5M3 bytes (bias 10, no subnormals, 0 means 0): the same values, but
// one shift and one multiply decode them without ever touching an f32 subnormal.
//
// Scales wider than a byte take 32 bits a row: a block is then one group, its line the f32 scales
// of 16 rows. int4 keeps the zero point in the low five bits of that word, which an f32 widened
// from bf16 or f16 leaves clear. E4M3 elements take two lines a step of four columns each; row r's
// word holds columns 0 and 2 of the four in its low half, 1 and 3 in its high half, so that 16-bit
// lanes are those of bf16 pairs here too.

#include "device/portable.h"

namespace moekit::device {

enum class Panel16Element : i32 { kBf16 = 0, kNvfp4 = 1, kMxfp4 = 2, kInt4 = 3, kE4m3 = 4 };

/// One packed unit: `num_parts` matrices of equal shape whose panels alternate.
struct Panel16Shape {
  Panel16Element element = Panel16Element::kBf16;
  i64 rows = 0;  // of each part, unpadded
  i64 cols = 0;
  i64 num_parts = 1;
  i64 group_offset = 0;  // columns of the first scale group that lie before column 0
  i64 group_cols = 0;    // columns that share a scale; 0: the element's own
};

struct Panel16Nibble {
  i64 byte;   // within the panel
  i32 shift;  // 0 or 4
};

inline namespace MOEKIT_ISA {

constexpr i64 kPanel16Rows = 16;
constexpr i64 kPanel16StepCols = 8;
constexpr i64 kPanel16LineBytes = 64;
constexpr i64 kPanel16BlockGroups = 4;
constexpr i64 kPanel16UnitAlignment = 256;

/// Columns that share a scale, as the element's own format has it; 0 without scales.
constexpr i64 panel16_own_group_cols(Panel16Element element) {
  return element == Panel16Element::kNvfp4   ? 16
         : element == Panel16Element::kMxfp4 ? 32
         : element == Panel16Element::kBf16  ? 0
                                             : 128;
}

constexpr i64 panel16_group_cols(const Panel16Shape& shape) {
  return shape.group_cols != 0 ? shape.group_cols : panel16_own_group_cols(shape.element);
}

/// Scales of four bytes a row, with a line of their own for each group.
constexpr bool panel16_has_wide_scales(Panel16Element element) {
  return element == Panel16Element::kInt4 || element == Panel16Element::kE4m3;
}

constexpr i64 panel16_block_groups(Panel16Element element) {
  return panel16_has_wide_scales(element) ? 1 : kPanel16BlockGroups;
}

constexpr i64 panel16_steps_per_block(const Panel16Shape& shape) {
  return panel16_block_groups(shape.element) * panel16_group_cols(shape) / kPanel16StepCols;
}

/// Zero columns in front of column 0 inside the first stored step.
constexpr i64 panel16_lead_cols(const Panel16Shape& shape) {
  return shape.group_offset % kPanel16StepCols;
}

/// Index of the first stored step, counted from the start of the first scale group.
constexpr i64 panel16_first_step(const Panel16Shape& shape) {
  return shape.group_offset / kPanel16StepCols;
}

constexpr i64 panel16_num_steps(const Panel16Shape& shape) {
  return ceil_div(panel16_lead_cols(shape) + shape.cols, kPanel16StepCols);
}

constexpr i64 panel16_num_blocks(const Panel16Shape& shape) {
  return shape.element == Panel16Element::kBf16
             ? 0
             : ceil_div(panel16_first_step(shape) + panel16_num_steps(shape),
                        panel16_steps_per_block(shape));
}

constexpr i64 panel16_step_bytes(Panel16Element element) {
  return element == Panel16Element::kBf16   ? 4 * kPanel16LineBytes
         : element == Panel16Element::kE4m3 ? 2 * kPanel16LineBytes
                                            : kPanel16LineBytes;
}

constexpr i64 panel16_panel_bytes(const Panel16Shape& shape) {
  return panel16_num_blocks(shape) * kPanel16LineBytes +
         panel16_num_steps(shape) * panel16_step_bytes(shape.element);
}

/// Row panels of one part; the last is padded with zero rows.
constexpr i64 panel16_num_panels(const Panel16Shape& shape) {
  return ceil_div(shape.rows, kPanel16Rows);
}

/// Offset of the panel of rows [16 * panel, 16 * panel + 16) of `part` within the unit.
constexpr i64 panel16_panel_offset(const Panel16Shape& shape, i64 panel, i64 part) {
  return (panel * shape.num_parts + part) * panel16_panel_bytes(shape);
}

constexpr i64 panel16_unit_bytes(const Panel16Shape& shape) {
  return round_up(panel16_panel_offset(shape, panel16_num_panels(shape), 0), kPanel16UnitAlignment);
}

/// Where the line of `step` (counted from the first scale group) begins within a panel of codes.
constexpr i64 panel16_code_line(const Panel16Shape& shape, i64 step) {
  const i64 scale_lines = step / panel16_steps_per_block(shape) + 1;
  return scale_lines * kPanel16LineBytes +
         (step - panel16_first_step(shape)) * panel16_step_bytes(shape.element);
}

/// Where the 4-bit code of (row in panel, column) lies within its panel.
constexpr Panel16Nibble panel16_code_position(const Panel16Shape& shape, i64 row, i64 col) {
  const i64 absolute = shape.group_offset + col;
  const i64 step = absolute / kPanel16StepCols;
  const i64 in_step = absolute % kPanel16StepCols;
  const i64 pair = in_step / 2;
  return {panel16_code_line(shape, step) + row * 4 + (in_step % 2) * 2 + pair / 2,
          static_cast<i32>(pair % 2) * 4};
}

/// Where the E4M3 element of (row in panel, column) lies within its panel.
constexpr i64 panel16_e4m3_position(const Panel16Shape& shape, i64 row, i64 col) {
  const i64 absolute = shape.group_offset + col;
  const i64 in_step = absolute % kPanel16StepCols;
  return panel16_code_line(shape, absolute / kPanel16StepCols) + in_step / 4 * kPanel16LineBytes +
         row * 4 + (in_step % 2) * 2 + (in_step % 4) / 2;
}

/// Where the scale (one byte, or four) of (row in panel, group) lies within its panel.
constexpr i64 panel16_scale_position(const Panel16Shape& shape, i64 row, i64 group) {
  const i64 block_groups = panel16_block_groups(shape.element);
  const i64 block = group / block_groups;
  const i64 block_step = block * panel16_steps_per_block(shape);
  const i64 steps_before = block_step - panel16_first_step(shape);
  return block * kPanel16LineBytes +
         (steps_before > 0 ? steps_before : 0) * panel16_step_bytes(shape.element) +
         ((group % block_groups) * kPanel16Rows + row) *
             (panel16_has_wide_scales(shape.element) ? 4 : 1);
}

// A scale that came from bf16 or f16 has these bits of its f32 clear.
constexpr u32 kPanel16ZeroPointBits = 0x1FU;

constexpr u32 panel16_int4_word(float scale, u32 zero_point) {
  return bits_of(scale) | zero_point;
}

constexpr float panel16_int4_scale(u32 word) {
  return float_of(word & ~kPanel16ZeroPointBits);
}

constexpr u32 panel16_int4_zero_point(u32 word) {
  return word & kPanel16ZeroPointBits;
}

/// Byte offset of the bf16 element (row in panel, column) within its panel.
constexpr i64 panel16_bf16_position(i64 row, i64 col) {
  return (col / 2) * kPanel16LineBytes + row * 4 + (col % 2) * 2;
}

/// E4M3 scale (not negative, not NaN; 0x80 counts as 0) to the stored E5M3 byte of equal value.
constexpr u32 e5m3_from_e4m3(u32 code) {
  const u32 magnitude = code & 0x7FU;
  if (magnitude >= 8U) {
    return magnitude + (3U << 3);  // bias 7 -> 10
  }
  if (magnitude == 0U) {
    return 0;
  }
  // Subnormal m * 2^-9: normalise. The leading bit of m becomes the implied one.
  const u32 top = magnitude >= 4U ? 2U : magnitude >= 2U ? 1U : 0U;
  return ((top + 1U) << 3) | ((magnitude << (3U - top)) & 7U);
}

/// Inverse of e5m3_from_e4m3 (for 0x80: gives 0).
constexpr u32 e4m3_from_e5m3(u32 code) {
  const u32 exponent = code >> 3;
  if (exponent >= 4U) {
    return code - (3U << 3);
  }
  return exponent == 0U ? 0U : (8U | (code & 7U)) >> (4U - exponent);
}

/// Value of a stored E5M3 byte, exact.
constexpr float e5m3_to_f32(u32 code) {
  return float_of(code << 20) * float_of((117U + 127U) << 23);
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
