// SPDX-License-Identifier: Apache-2.0
#include "device/layout/fp4_tile.h"

#include <array>
#include <set>

#include <gtest/gtest.h>

#include "device/numerics/bf16.h"
#include "device/numerics/e2m1.h"

namespace moekit::device {
namespace {

TEST(Fp4Tile, CodeBitsAreABijectionOntoTheCodeBytes) {
  std::set<i64> seen;
  for (i32 row = 0; row < kFp4TileRows; ++row) {
    for (i32 col = 0; col < kFp4TileCols; ++col) {
      for (i32 code_bit = 0; code_bit < 4; ++code_bit) {
        const Fp4Bit at = fp4_code_bit(row, col, code_bit);
        ASSERT_GE(at.word, 0);
        ASSERT_LT(at.word, 4);
        ASSERT_GE(at.bit, 0);
        ASSERT_LT(at.bit, 32);
        seen.insert((fp4_lane(row, col) * 4 + at.word) * 32 + at.bit);
      }
    }
  }
  EXPECT_EQ(seen.size(), 8U * kFp4TileCodeBytes);
}

TEST(Fp4Tile, ScaleBytesAreABijectionBehindTheCodes) {
  for (const i32 group_size : {16, 32}) {
    std::set<i32> seen;
    for (i32 row = 0; row < kFp4TileRows; ++row) {
      for (i32 col = 0; col < kFp4TileCols; col += group_size) {
        const i32 at = fp4_scale_byte(row, col, group_size);
        EXPECT_GE(at, kFp4TileCodeBytes);
        EXPECT_LT(at, fp4_tile_bytes(group_size));
        seen.insert(at);
        EXPECT_EQ(fp4_scale_byte(row, col + group_size - 1, group_size), at);
      }
    }
    EXPECT_EQ(static_cast<i32>(seen.size()), fp4_tile_bytes(group_size) - kFp4TileCodeBytes);
  }
}

u32 rotate(u32 word, i32 bits) {
  return bits == 0 ? word : (word << bits) | (word >> (32 - bits));
}

/// The registers a kernel decodes, as it does: rotate, mask, read as a BF16 pair.
float kernel_value(const std::array<u32, 4>& lane_words, i32 row, i32 col) {
  const i32 step = fp4_step(col);
  const i32 reg = fp4_register(row, col);
  const u32 even = lane_words[static_cast<std::size_t>(step & 2)];
  const u32 odd = lane_words[static_cast<std::size_t>(step | 1)];
  const u32 gathered = (even & ~kFp4OddWordMask) | (odd & kFp4OddWordMask);
  const u32 word = reg == 3 ? gathered : (step & 1) != 0 ? odd : even;
  const u32 pair = rotate(word, fp4_rotation(step & 1, reg)) & kFp4PairMask;
  return bf16_to_f32(static_cast<u16>((col & 1) != 0 ? pair >> 16 : pair & 0xFFFFU));
}

TEST(Fp4Tile, RotateAndMaskYieldEveryCodeTimesTwoToMinus126) {
  u32 state = 1;
  std::array<std::array<u32, 4>, 32> words{};
  std::array<std::array<u32, kFp4TileCols>, kFp4TileRows> codes{};
  for (i32 row = 0; row < kFp4TileRows; ++row) {
    for (i32 col = 0; col < kFp4TileCols; ++col) {
      state = state * 1664525U + 1013904223U;
      const u32 code = state >> 28;
      codes[static_cast<std::size_t>(row)][static_cast<std::size_t>(col)] = code;
      for (i32 code_bit = 0; code_bit < 4; ++code_bit) {
        const Fp4Bit at = fp4_code_bit(row, col, code_bit);
        words[static_cast<std::size_t>(fp4_lane(row, col))][static_cast<std::size_t>(at.word)] |=
            ((code >> code_bit) & 1U) << at.bit;
      }
    }
  }
  constexpr float kTwoTo126 = 8.50705917e37F;
  for (i32 row = 0; row < kFp4TileRows; ++row) {
    for (i32 col = 0; col < kFp4TileCols; ++col) {
      const u32 code = codes[static_cast<std::size_t>(row)][static_cast<std::size_t>(col)];
      const float value =
          kernel_value(words[static_cast<std::size_t>(fp4_lane(row, col))], row, col);
      EXPECT_EQ(bits_of(value * kTwoTo126), bits_of(e2m1_to_f32(code))) << row << " " << col;
    }
  }
}

}  // namespace
}  // namespace moekit::device
