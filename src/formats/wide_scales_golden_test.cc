// SPDX-License-Identifier: Apache-2.0
// Formats whose scales are floats: every element code of fp8_block128 and of int4 under every zero
// point, blocks and groups on their grid, and what is refused.
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/format.h"

namespace moekit {
namespace {

std::vector<float> e4m3_golden() {
  std::ifstream file(std::string(MOEKIT_SOURCE_DIR) + "/testdata/golden/e4m3_decode.txt");
  std::vector<float> values(256, 0.0F);
  for (std::string line; std::getline(file, line);) {
    std::uint32_t code = 0;
    std::uint32_t bits = 0;
    std::istringstream fields(line);
    if (line[0] != '#' && fields >> std::hex >> code >> bits) {
      values[code] = std::bit_cast<float>(bits);
    }
  }
  return values;
}

TEST(WideScalesGolden, fp8_block128_decodes_every_code) {
  const std::vector<float> golden = e4m3_golden();
  std::vector<std::uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), std::uint8_t{0});
  int compared = 0;
  for (const float scale : {1.0F, 0.0F, 0x1p-130F, 3.1415927F, 0x1p100F}) {
    const float scales[] = {scale, scale};
    const WeightMatrix matrix{.format = Format::kFp8Block128,
                              .rows = 1,
                              .cols = 256,
                              .codes = codes.data(),
                              .row_stride_bytes = 256,
                              .scales = scales};
    EXPECT_FALSE(validate_weights(matrix).ok());  // codes 0x7F and 0xFF are NaN
    std::vector<float> out(256);
    ASSERT_TRUE(decode_row(matrix, 0, out).ok());
    for (std::size_t code = 0; code < 256; ++code) {
      if (std::isnan(golden[code])) {
        EXPECT_TRUE(std::isnan(out[code]));
      } else {
        EXPECT_EQ(out[code], golden[code] * scale) << code;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 5 * 254);
}

TEST(WideScalesGolden, fp8_blocks_lie_on_the_whole_tensors_grid) {
  // Rows 100 ... 299 and columns 120 ... 279 of a larger tensor: blocks 0 to 2 by 0 to 2.
  const std::vector<std::uint8_t> codes(32000, 0x38);  // 200 rows of 160, all 1
  const float scales[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const WeightMatrix matrix{.format = Format::kFp8Block128,
                            .rows = 200,
                            .cols = 160,
                            .codes = codes.data(),
                            .row_stride_bytes = 160,
                            .scales = scales,
                            .scale_row_stride_bytes = 12,
                            .group_offset = 120,
                            .group_row_offset = 100};
  ASSERT_EQ(num_scale_rows(matrix), 3);
  ASSERT_EQ(num_scale_cols(matrix), 3);
  ASSERT_TRUE(validate_weights(matrix).ok());
  std::vector<float> out(160);
  for (const std::int64_t row : {0, 27, 28, 155, 156, 199}) {
    ASSERT_TRUE(decode_row(matrix, row, out).ok());
    for (const std::int64_t col : {0, 7, 8, 135, 136, 159}) {
      const std::int64_t block = (100 + row) / 128 * 3 + (120 + col) / 128;
      EXPECT_EQ(out[static_cast<std::size_t>(col)], scales[block]) << row << ", " << col;
    }
  }
}

TEST(WideScalesGolden, int4_decodes_every_code_under_every_zero_point) {
  std::vector<std::uint8_t> codes(16);
  for (std::uint32_t i = 0; i < 16; ++i) {
    codes[i] = static_cast<std::uint8_t>(((2 * i) & 15U) | ((2 * i + 1) & 15U) << 4);
  }
  int compared = 0;
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    // 1.5, the smallest subnormal and 0 of either type.
    const std::uint16_t one_and_a_half =
        dtype == DType::kBf16 ? std::uint16_t{0x3FC0} : std::uint16_t{0x3E00};
    const float smallest = dtype == DType::kBf16 ? 0x1p-133F : 0x1p-24F;
    for (const auto& [bits, scale] : {std::pair<std::uint16_t, float>{one_and_a_half, 1.5F},
                                      {std::uint16_t{1}, smallest},
                                      {std::uint16_t{0}, 0.0F}}) {
      for (std::uint8_t zero = 0; zero <= 16; ++zero) {
        const WeightMatrix matrix{.format = Format::kInt4,
                                  .rows = 1,
                                  .cols = 32,
                                  .codes = codes.data(),
                                  .row_stride_bytes = 16,
                                  .scales = &bits,
                                  .scale_row_stride_bytes = 2,
                                  .group_size = 32,
                                  .scale_dtype = dtype,
                                  .zero_points = &zero,
                                  .zero_point_row_stride = 1};
        ASSERT_TRUE(validate_weights(matrix).ok());
        std::vector<float> out(32);
        ASSERT_TRUE(decode_row(matrix, 0, out).ok());
        for (std::size_t k = 0; k < 32; ++k, ++compared) {
          EXPECT_EQ(out[k], static_cast<float>(static_cast<int>(k % 16) - zero) * scale) << k;
        }
      }
    }
  }
  EXPECT_EQ(compared, 2 * 3 * 17 * 32);
}

TEST(WideScales, refusals_name_row_and_group) {
  std::vector<std::uint8_t> codes(128, 0x11);
  std::uint16_t scales[] = {0x3F80, 0x3F80, 0x3F80, 0x3F80};
  const std::uint8_t zeros[] = {8, 8, 8, 17};
  WeightMatrix matrix{.format = Format::kInt4,
                      .rows = 2,
                      .cols = 64,
                      .codes = codes.data(),
                      .row_stride_bytes = 32,
                      .scales = scales,
                      .scale_row_stride_bytes = 4,
                      .group_size = 32};
  EXPECT_TRUE(validate_weights(matrix).ok());
  const auto refused = [&](std::string_view word) {
    const Status status = validate_weights(matrix);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(word), std::string_view::npos) << status.message();
  };
  for (const auto bad : {std::uint16_t{0x7FC0}, std::uint16_t{0xBF80}, std::uint16_t{0x7F80}}) {
    scales[3] = bad;
    refused("row 1, group 1");
  }
  scales[3] = 0x3F80;
  matrix.zero_points = zeros;
  matrix.zero_point_row_stride = 2;
  refused("zero point 17 at row 1, group 1");
  matrix.zero_points = nullptr;
  matrix.group_size = 48;
  refused("group_size 48");
  matrix.group_size = 32;
  matrix.input_scale = -1.0F;
  refused("input scale -1");
}

TEST(WideScales, encoded_values_are_near_and_fixed_points) {
  std::vector<float> values(18496);  // 136 x 136
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i)) * 0.05F;
  }
  for (const Format format : {Format::kFp8Block128, Format::kInt4}) {
    WeightMatrix matrix{.format = format, .rows = 136, .cols = 136};
    matrix.row_stride_bytes = code_row_bytes(format, 136);
    matrix.scale_row_stride_bytes = num_scale_cols(matrix) * scale_elem_bytes(matrix);
    std::vector<std::byte> codes(static_cast<std::size_t>(136 * matrix.row_stride_bytes));
    std::vector<std::byte> scales(
        static_cast<std::size_t>(num_scale_rows(matrix) * matrix.scale_row_stride_bytes));
    EncodedWeights encoded{.codes = codes, .scales = scales};
    ASSERT_TRUE(encode_weights(format, values, 136, encoded).ok());
    matrix.codes = codes.data();
    matrix.scales = scales.data();
    ASSERT_TRUE(validate_weights(matrix).ok());
    std::vector<float> row(136);
    std::vector<float> all;
    for (std::int64_t r = 0; r < 136; ++r) {
      ASSERT_TRUE(decode_row(matrix, r, row).ok());
      all.insert(all.end(), row.begin(), row.end());
    }
    // Half a step: 2^-4 relative for E4M3, a fourteenth of the largest for int4 (and bf16 scales).
    const float bound = format == Format::kInt4 ? 0.05F / 14.0F * 1.01F : 0.05F / 16.0F;
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_LE(std::fabs(all[i] - values[i]), bound) << i;
    }
    // Encoded once more, the decoded values keep their codes; their scales too, but for the
    // rounding of amax / 448.
    std::vector<std::byte> codes_again(codes.size());
    std::vector<std::byte> scales_again(scales.size());
    EncodedWeights again{.codes = codes_again, .scales = scales_again};
    ASSERT_TRUE(encode_weights(format, all, 136, again).ok());
    EXPECT_EQ(codes_again, codes);
    matrix.scales = scales_again.data();
    for (std::int64_t r = 0; r < 136; ++r) {
      ASSERT_TRUE(decode_row(matrix, r, row).ok());
      for (std::size_t k = 0; k < row.size(); ++k) {
        const float want = all[static_cast<std::size_t>(r * 136) + k];
        ASSERT_LE(std::fabs(row[k] - want),
                  format == Format::kInt4 ? 0.0F : 0x1p-22F * std::fabs(want))
            << r << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace moekit
