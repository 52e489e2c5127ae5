// SPDX-License-Identifier: Apache-2.0
#pragma once

// The packed FP4 tile of sm_90a: 16 rows x 64 columns, each lane's bytes where the tensor cores
// want them. Codes first (512 bytes, 16 per lane), then the block scales of the same tile (64 bytes
// for nvfp4, 32 for mxfp4), so one bulk copy of consecutive tiles brings both.
//
// A tile is four MMA steps of m16n8k16. Lane (group g = lane / 4, quad t = lane % 4) holds, of rows
// g and g + 8, the columns 16 t ... 16 t + 15: all of one nvfp4 group (half of an mxfp4 group), so
// a lane decodes two scales per 32 codes. Step j takes columns 16 t + 4 j ... + 3; the K order of
// the four steps is therefore a permutation of the 64 columns, and the other operand is read in the
// same order.
//
// The eight codes of a step are scattered over two 32-bit words so that unpacking them to BF16
// needs one rotate and one mask per pair (README of decode_gemv, section 3): a code's sign,
// exponent and mantissa bits end at bits 15, 8, 7, 6 of a half word, which is the BF16 value e2m1 *
// 2^-126. Three pairs of a word are plain rotations; the twelve bits they leave free hold the
// fourth pair of both words of a step pair. No layout reaches one operation less: sets of bits {15,
// 8, 7, 6} do not tile a half word.

#include "device/portable.h"

namespace moekit::device {

/// A bit of one lane's 16 bytes: 32-bit word 0...3, bit 0...31.
struct Fp4Bit {
  i32 word;
  i32 bit;
};

inline namespace MOEKIT_ISA {

constexpr i32 kFp4TileRows = 16;
constexpr i32 kFp4TileCols = 64;
constexpr i32 kFp4TileCodeBytes = 512;
constexpr i32 kFp4LaneCodeBytes = 16;

/// Bits that hold one pair of codes once rotated into place.
constexpr u32 kFp4PairMask = 0x81C081C0U;

/// Where the fourth pair of both words is gathered from: these bits of the odd word, the others of
/// the even word.
constexpr u32 kFp4OddWordMask = 0xC180C180U;

/// Left rotation that brings a step's register into place: [odd step][register]. Register 3 rotates
/// the gathered word.
constexpr i32 fp4_rotation(i32 odd_step, i32 reg) {
  constexpr i32 kRotation[2][4] = {{0, 4, 10, 8}, {2, 6, 12, 14}};
  return kRotation[odd_step][reg];
}

constexpr i32 fp4_lane(i32 row, i32 col) {
  return (row & 7) * 4 + col / 16;
}

constexpr i32 fp4_step(i32 col) {
  return (col % 16) / 4;
}

/// MMA register of a code within its step: a0 (row g), a1 (row g + 8), a2, a3 (next two columns).
constexpr i32 fp4_register(i32 row, i32 col) {
  return (row >= 8 ? 1 : 0) + ((col & 2) != 0 ? 2 : 0);
}

/// Where bit `code_bit` (3: sign, 2 and 1: exponent, 0: mantissa) of the code at (row, col) lies in
/// its lane's bytes.
constexpr Fp4Bit fp4_code_bit(i32 row, i32 col, i32 code_bit) {
  const i32 step = fp4_step(col);
  const i32 reg = fp4_register(row, col);
  const i32 odd = step & 1;
  const i32 place = (code_bit == 3 ? 15 : 6 + code_bit) + 16 * (col & 1);
  const i32 bit = (place - fp4_rotation(odd, reg)) & 31;
  const bool in_odd_word = reg == 3 ? ((kFp4OddWordMask >> bit) & 1U) != 0U : odd == 1;
  return {(step & 2) + (in_odd_word ? 1 : 0), bit};
}

constexpr i32 fp4_tile_bytes(i32 group_size) {
  return kFp4TileCodeBytes + kFp4TileRows * kFp4TileCols / group_size;
}

/// Byte of the scale of (row, col) within the tile: both rows of a lane side by side.
constexpr i32 fp4_scale_byte(i32 row, i32 col, i32 group_size) {
  const i32 groups = kFp4TileCols / group_size;
  return kFp4TileCodeBytes + ((row & 7) * groups + col / group_size) * 2 + (row >= 8 ? 1 : 0);
}

/// Tiles along K of `cols` columns whose first scale group began `group_offset` columns earlier:
/// the shard is shifted so that groups stay aligned to lanes.
constexpr i64 fp4_k_tiles(i64 cols, i64 group_offset) {
  return ceil_div(group_offset + cols, static_cast<i64>(kFp4TileCols));
}

/// Row tiles of a matrix, or of a gate and up pair (8 rows of each per tile).
constexpr i64 fp4_row_tiles(i64 rows, i32 num_parts) {
  return ceil_div(rows * num_parts, static_cast<i64>(kFp4TileRows));
}

/// The part (0: gate or the only one, 1: up) and row that stand in row `row_in_tile` of a row tile.
constexpr i64 fp4_part_row(i64 row_tile, i32 row_in_tile, i32 num_parts) {
  return num_parts == 2 ? row_tile * 8 + (row_in_tile & 7) : row_tile * 16 + row_in_tile;
}

// mxfp4 scales reach 2^127, but a decoded operand (code * 2^-126 * scale) only 12: row r is stored
// divided by 2^e(r), e = 0 unless the row holds a scale above 2^1. The exponents stand behind the
// tiles of a unit, one byte per padded row; the epilogue multiplies the f32 sum by 2^e.

/// Scale byte as stored: the exponent field of the BF16 factor code * 2^-126 is multiplied with.
constexpr i32 kMxfp4ScaleBias = 126;
constexpr i32 kMxfp4LargestScale = 254 - kMxfp4ScaleBias;

/// nvfp4: operands are stored divided by 2^7 for the same reason (the largest E4M3 scale is 448).
constexpr i32 kNvfp4OperandExponent = 7;

/// Bytes of one packed unit before rounding up.
constexpr i64 fp4_unit_bytes(i64 rows, i64 cols, i64 group_offset, i32 num_parts, i32 group_size) {
  const i64 row_tiles = fp4_row_tiles(rows, num_parts);
  const i64 tiles = row_tiles * fp4_k_tiles(cols, group_offset) * fp4_tile_bytes(group_size);
  return tiles + (group_size == 32 ? row_tiles * kFp4TileRows : 0);
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
