// SPDX-License-Identifier: Apache-2.0
// Exhaustive: every element code under every scale byte, against tables that another tool made.
#include <bit>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/format.h"

namespace moekit {
namespace {

struct GoldenPair {
  std::uint32_t first = 0;   // hex
  std::uint32_t second = 0;  // hex
};

std::vector<GoldenPair> read_golden(const std::string& name) {
  std::ifstream file(std::string(MOEKIT_SOURCE_DIR) + "/testdata/golden/" + name);
  std::vector<GoldenPair> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') {
      continue;
    }
    std::istringstream fields(line);
    GoldenPair row;
    fields >> std::hex >> row.first >> row.second;
    rows.push_back(row);
  }
  return rows;
}

/// One row of 16 columns holding all codes, under one scale byte.
class AllCodes {
 public:
  AllCodes(Format format, std::uint8_t scale) : scale_{scale} {
    for (std::uint32_t pair = 0; pair < 8; ++pair) {
      codes_[pair] = static_cast<std::uint8_t>((2 * pair) | (2 * pair + 1) << 4);
    }
    matrix = WeightMatrix{.format = format,
                          .rows = 1,
                          .cols = 16,
                          .codes = codes_.data(),
                          .row_stride_bytes = 8,
                          .scales = scale_.data(),
                          .scale_row_stride_bytes = 1};
  }

  WeightMatrix matrix;

 private:
  std::array<std::uint8_t, 8> codes_{};
  std::array<std::uint8_t, 1> scale_{};
};

/// Decodes 16 codes under 256 scales; returns how many products were compared.
int check_all_products(Format format, const std::string& scale_file) {
  const std::vector<GoldenPair> codes = read_golden("e2m1_decode.txt");
  const std::vector<GoldenPair> scales = read_golden(scale_file);
  EXPECT_EQ(codes.size(), 16U);
  EXPECT_EQ(scales.size(), 256U);
  int compared = 0;
  for (const GoldenPair& scale : scales) {
    const double scale_value = static_cast<double>(std::bit_cast<float>(scale.second));
    const AllCodes row(format, static_cast<std::uint8_t>(scale.first));
    std::vector<float> out(16);
    EXPECT_TRUE(decode_row(row.matrix, 0, out).ok());
    const Status valid = validate_weights(row.matrix);
    for (const GoldenPair& code : codes) {
      // A double holds both factors and their product exactly.
      const double exact = static_cast<double>(std::bit_cast<float>(code.second)) * scale_value;
      if (std::isnan(scale_value) || scale_value < 0.0 ||
          6.0 * scale_value > 3.3895313892515355e38) {
        EXPECT_EQ(valid.code(), StatusCode::kInvalidArgument) << scale.first;
        continue;
      }
      EXPECT_TRUE(valid.ok()) << valid.to_string();
      EXPECT_EQ(static_cast<double>(out[code.first]), exact) << scale.first << " " << code.first;
      // Exact in BF16: no bit below the upper 16.
      EXPECT_EQ(std::bit_cast<std::uint32_t>(out[code.first]) & 0xFFFFU, 0U);
      ++compared;
    }
  }
  return compared;
}

TEST(WeightsGolden, nvfp4_decodes_every_code_under_every_scale) {
  // 127 positive bytes and 0x80, which counts as 0.
  EXPECT_EQ(check_all_products(Format::kNvfp4, "e4m3_decode.txt"), 128 * 16);
}

TEST(WeightsGolden, mxfp4_decodes_every_code_under_every_scale) {
  // Bytes 0..252; 253 and 254 overflow with code 6, 255 is NaN.
  EXPECT_EQ(check_all_products(Format::kMxfp4, "e8m0_decode.txt"), 253 * 16);
}

TEST(WeightsGolden, bf16_widens_every_pattern) {
  std::vector<std::uint16_t> codes(65536);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::uint16_t>(i);
  }
  const WeightMatrix matrix{
      .rows = 1, .cols = 65536, .codes = codes.data(), .row_stride_bytes = 131072};
  std::vector<float> out(65536);
  ASSERT_TRUE(decode_row(matrix, 0, out).ok());
  for (std::uint32_t i = 0; i < 65536; ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), i << 16);
  }
}

TEST(WeightsGolden, mxfp4_encode_rounds_as_the_table_says) {
  // Beside a 4 the group's scale is 2^0, so the codes are E2M1_RNE of the values themselves.
  int compared = 0;
  for (const GoldenPair& row : read_golden("e2m1_round.txt")) {
    const float input = std::bit_cast<float>(row.first);
    if (!(std::fabs(input) < 8.0F)) {
      continue;
    }
    std::vector<float> values(32, 0.0F);
    values[0] = 4.0F;
    values[31] = input;
    std::vector<std::byte> codes(16);
    std::vector<std::byte> scales(1);
    EncodedWeights encoded{.codes = codes, .scales = scales};
    ASSERT_TRUE(encode_weights(Format::kMxfp4, values, 1, encoded).ok());
    ASSERT_EQ(scales[0], std::byte{127});
    const std::uint32_t expected = row.second == 8 ? 0 : row.second;  // -0 is written as +0
    EXPECT_EQ(static_cast<std::uint32_t>(codes[15]) >> 4, expected) << input;
    ++compared;
  }
  EXPECT_GE(compared, 100);
}

}  // namespace
}  // namespace moekit
