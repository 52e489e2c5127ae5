// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/format.h"

namespace moekit {
namespace {

struct Encoded {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  WeightMatrix matrix;
  Status status;
};

Encoded encode(Format format, const std::vector<float>& values, std::int64_t rows) {
  Encoded result;
  const std::int64_t cols = static_cast<std::int64_t>(values.size()) / rows;
  result.matrix = WeightMatrix{.format = format, .rows = rows, .cols = cols};
  result.matrix.row_stride_bytes = code_row_bytes(format, cols);
  result.matrix.scale_row_stride_bytes = num_scale_cols(result.matrix);
  result.codes.resize(static_cast<std::size_t>(rows * result.matrix.row_stride_bytes));
  result.scales.resize(static_cast<std::size_t>(rows * result.matrix.scale_row_stride_bytes));
  EncodedWeights encoded{.codes = result.codes, .scales = result.scales};
  result.status = encode_weights(format, values, rows, encoded);
  result.matrix.codes = result.codes.data();
  result.matrix.scales = result.scales.empty() ? nullptr : result.scales.data();
  result.matrix.global_scale = encoded.global_scale;
  return result;
}

std::vector<float> decode(const WeightMatrix& matrix) {
  std::vector<float> all;
  std::vector<float> row(static_cast<std::size_t>(matrix.cols));
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    EXPECT_TRUE(decode_row(matrix, i, row).ok());
    for (const float value : row) {
      all.push_back(value * matrix.global_scale);
    }
  }
  return all;
}

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(rng) * 0.02F;
  }
  return values;
}

TEST(Encode, nvfp4_golden_by_hand) {
  // amax 12: global 12 / 2688; the second group's amax is 3, a quarter: scales 448 and 112.
  std::vector<float> values(24, 0.0F);
  values[0] = 12.0F;
  values[1] = -1.0F;  // half a unit of code 1: E2M1_RNE(-0.5) is code 1 with sign
  values[16] = 3.0F;
  values[17] = 1.5F;
  const Encoded result = encode(Format::kNvfp4, values, 1);
  ASSERT_TRUE(result.status.ok()) << result.status.to_string();
  EXPECT_EQ(result.matrix.global_scale, 12.0F / 2688.0F);
  EXPECT_EQ(result.scales, (std::vector<std::byte>{std::byte{0x7E}, std::byte{0x6E}}));
  EXPECT_EQ(result.codes[0], std::byte{0x97});
  EXPECT_EQ(result.codes[8], std::byte{0x57});
}

TEST(Encode, mxfp4_scale_is_the_floor_of_the_logarithm) {
  struct Case {
    float amax;
    int byte;
  };

  const std::vector<Case> cases{{1.0F, 125},
                                {4.0F, 127},
                                {7.99F, 127},
                                {8.0F, 128},
                                {0.0F, 0},
                                {1e-45F, 0},
                                {std::numeric_limits<float>::max(), 252}};
  for (const Case& item : cases) {
    std::vector<float> values(40, 0.0F);
    values[39] = item.amax;
    const Encoded result = encode(Format::kMxfp4, values, 1);
    ASSERT_TRUE(result.status.ok());
    EXPECT_EQ(static_cast<int>(result.scales[0]), 0);
    EXPECT_EQ(static_cast<int>(result.scales[1]), item.byte) << item.amax;
    EXPECT_TRUE(validate_weights(result.matrix).ok());
  }
}

TEST(Encode, all_zero_tensor_gets_global_zero) {
  const Encoded result = encode(Format::kNvfp4, std::vector<float>(64, 0.0F), 2);
  ASSERT_TRUE(result.status.ok());
  EXPECT_EQ(result.matrix.global_scale, 0.0F);
  for (const std::byte code : result.codes) {
    EXPECT_EQ(code, std::byte{0});
  }
  EXPECT_TRUE(validate_weights(result.matrix).ok());
}

TEST(Encode, decoded_values_are_fixed_points_and_errors_are_bounded) {
  // 104 columns: the last group of either format is short.
  const std::vector<float> values = random_values(std::size_t{6} * 104, 7);
  for (const Format format : {Format::kNvfp4, Format::kMxfp4}) {
    const Encoded once = encode(format, values, 6);
    ASSERT_TRUE(once.status.ok());
    ASSERT_TRUE(validate_weights(once.matrix).ok());
    const std::vector<float> decoded = decode(once.matrix);
    const std::int64_t group = format_info(format).group_size;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto col = static_cast<std::int64_t>(i) % 104;
      const std::size_t first = i - static_cast<std::size_t>(col % group);
      const std::size_t last = std::min(first + static_cast<std::size_t>(group),
                                        i - static_cast<std::size_t>(col) + 104);
      float amax = 0.0F;
      for (std::size_t j = first; j < last; ++j) {
        amax = std::max(amax, std::fabs(values[j]));
      }
      // Coarsest step of E2M1 is 2 at amplitude 6: half of it, plus the scale's own rounding
      // (nvfp4 1/16 relative, mxfp4 up to saturation at 6/8 of amax).
      EXPECT_LE(std::fabs(decoded[i] - values[i]), amax * 0.26F) << i;
    }
    if (format == Format::kMxfp4) {
      // Powers of two: encoding what was decoded gives the same values again.
      EXPECT_EQ(decode(encode(format, decoded, 6).matrix), decoded);
    }
  }
}

TEST(Encode, bf16_rounds_to_nearest_even) {
  std::vector<float> values(8, 0.0F);
  values[0] = 1.00390625F;   // tie between 1 and 1.0078125: even is 1
  values[1] = 1.01171875F;   // tie: even is 1.015625
  values[2] = -3.00000024F;  // just past -3
  const Encoded result = encode(Format::kBf16, values, 1);
  ASSERT_TRUE(result.status.ok());
  const std::vector<float> decoded = decode(result.matrix);
  EXPECT_EQ(decoded[0], 1.0F);
  EXPECT_EQ(decoded[1], 1.015625F);
  EXPECT_EQ(decoded[2], -3.0F);
}

TEST(Encode, refuses_what_it_cannot_hold) {
  std::vector<float> values(32, 1.0F);
  values[17] = std::numeric_limits<float>::infinity();
  const Encoded infinite = encode(Format::kNvfp4, values, 2);
  EXPECT_EQ(infinite.status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(infinite.status.message().find("row 1, column 1"), std::string_view::npos)
      << infinite.status.message();
  values[17] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(encode(Format::kMxfp4, values, 1).status.code(), StatusCode::kInvalidArgument);
  values[17] = std::numeric_limits<float>::max();
  EXPECT_EQ(encode(Format::kBf16, values, 1).status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(encode(Format::kNvfp4, std::vector<float>(12, 1.0F), 1).status.code(),
            StatusCode::kInvalidArgument);
  std::vector<std::byte> codes(15);
  std::vector<std::byte> scales(2);
  EncodedWeights short_codes{.codes = codes, .scales = scales};
  EXPECT_EQ(encode_weights(Format::kNvfp4, std::vector<float>(32, 1.0F), 1, short_codes).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(encode_weights(Format::kNvfp4, std::vector<float>(32, 1.0F), 0, short_codes).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace moekit
