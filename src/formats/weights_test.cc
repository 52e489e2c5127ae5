// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/format.h"

namespace moekit {
namespace {

/// A matrix that owns its bytes; all codes 1.0 (0x22), all scales 1.
struct OwnedMatrix {
  OwnedMatrix(Format format, std::int64_t rows, std::int64_t cols, std::int64_t group_offset = 0) {
    matrix.format = format;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.group_offset = group_offset;
    matrix.row_stride_bytes = code_row_bytes(format, cols);
    matrix.scale_row_stride_bytes = num_scale_cols(matrix);
    codes.assign(static_cast<std::size_t>(rows * matrix.row_stride_bytes), 0x22);
    scales.assign(static_cast<std::size_t>(rows * matrix.scale_row_stride_bytes),
                  format == Format::kMxfp4 ? 127 : 0x38);
    matrix.codes = codes.data();
    matrix.scales = scales.empty() ? nullptr : scales.data();
  }

  WeightMatrix matrix;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
};

void expect_refused(const WeightMatrix& matrix, const std::vector<std::string>& words) {
  const Status status = validate_weights(matrix);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const std::string& word : words) {
    EXPECT_NE(status.message().find(word), std::string_view::npos)
        << word << " not in: " << status.message();
  }
}

TEST(Format, names_round_trip) {
  ASSERT_GE(kFormats.size(), 3U);
  for (const FormatInfo& info : kFormats) {
    EXPECT_EQ(format_from_name(info.name), info.format);
    EXPECT_EQ(format_info(info.format).name, info.name);
  }
  EXPECT_EQ(format_from_name("fp4"), std::nullopt);
}

TEST(Format, row_bytes_and_scale_columns) {
  EXPECT_EQ(code_row_bytes(Format::kNvfp4, 104), 52);
  EXPECT_EQ(code_row_bytes(Format::kBf16, 104), 208);
  EXPECT_EQ(num_scale_cols({.format = Format::kNvfp4, .cols = 104}), 7);
  EXPECT_EQ(num_scale_cols({.format = Format::kMxfp4, .cols = 104}), 4);
  EXPECT_EQ(num_scale_cols({.format = Format::kBf16, .cols = 104}), 0);
  // Columns 24..103 of a sharded tensor begin 8 columns into a group of 16.
  EXPECT_EQ(num_scale_cols({.format = Format::kNvfp4, .cols = 80, .group_offset = 8}), 6);
}

TEST(Weights, short_last_group_and_group_offset_pick_the_right_scale) {
  OwnedMatrix owned(Format::kNvfp4, 2, 24, 8);
  ASSERT_EQ(owned.matrix.scale_row_stride_bytes, 2);
  owned.scales = {0x38, 0x40, 0x44, 0x48};  // 1 2 | 3 4
  ASSERT_TRUE(validate_weights(owned.matrix).ok());
  std::vector<float> out(24);
  ASSERT_TRUE(decode_row(owned.matrix, 1, out).ok());
  for (std::size_t col = 0; col < 24; ++col) {
    EXPECT_EQ(out[col], col < 8 ? 3.0F : 4.0F) << col;
  }
}

TEST(Weights, low_nibble_is_the_even_column) {
  OwnedMatrix owned(Format::kMxfp4, 1, 8);
  owned.codes = {0x21, 0x43, 0x65, 0xF7};
  std::vector<float> out(8);
  ASSERT_TRUE(decode_row(owned.matrix, 0, out).ok());
  EXPECT_EQ(out, (std::vector<float>{0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, -6.0F}));
}

TEST(Weights, zero_scales_and_zero_globals_are_legal) {
  OwnedMatrix owned(Format::kNvfp4, 1, 32);
  owned.scales = {0x00, 0x80};
  owned.matrix.global_scale = 0.0F;
  EXPECT_TRUE(validate_weights(owned.matrix).ok());
  std::vector<float> out(32, 1.0F);
  ASSERT_TRUE(decode_row(owned.matrix, 0, out).ok());
  for (const float value : out) {
    EXPECT_EQ(value, 0.0F);
  }
}

TEST(Weights, bad_scales_name_row_and_group) {
  OwnedMatrix nvfp4(Format::kNvfp4, 3, 40);
  nvfp4.scales[2 * 3 + 1] = 0x7F;
  expect_refused(nvfp4.matrix, {"127", "row 2", "group 1", "NaN"});
  nvfp4.scales[2 * 3 + 1] = 0xFF;
  expect_refused(nvfp4.matrix, {"255", "row 2", "group 1", "NaN"});
  nvfp4.scales[2 * 3 + 1] = 0x81;
  expect_refused(nvfp4.matrix, {"129", "row 2", "group 1", "negative"});
  OwnedMatrix mxfp4(Format::kMxfp4, 3, 40);
  mxfp4.scales[1 * 2 + 1] = 255;
  expect_refused(mxfp4.matrix, {"255", "e8m0", "row 1", "group 1", "NaN"});
}

TEST(Weights, e8m0_253_and_254_are_refused_only_where_a_product_overflows) {
  struct Case {
    std::uint8_t scale;
    std::uint8_t code;
    bool legal;
  };

  // Codes 3 5 6 7 are 1.5, 3, 4, 6; the largest BF16 is just below 2^128.
  const std::vector<Case> cases{{253, 5, true},
                                {253, 6, false},
                                {253, 7, false},
                                {254, 3, true},
                                {254, 4, false},
                                {254, 0x8 | 4, false},
                                {252, 7, true}};
  for (const Case& item : cases) {
    // One group is short, the shard begins 24 columns into the first group.
    OwnedMatrix owned(Format::kMxfp4, 2, 16, 24);
    ASSERT_EQ(owned.matrix.scale_row_stride_bytes, 2);
    std::fill(owned.codes.begin(), owned.codes.end(), std::uint8_t{0});
    owned.scales[1 * 2 + 1] = item.scale;
    owned.codes[1 * 8 + 7] = static_cast<std::uint8_t>(item.code << 4);  // row 1, column 15
    if (item.legal) {
      EXPECT_TRUE(validate_weights(owned.matrix).ok()) << int{item.scale} << " " << int{item.code};
      std::vector<float> out(16);
      ASSERT_TRUE(decode_row(owned.matrix, 1, out).ok());
      EXPECT_TRUE(std::isfinite(out[15]));
    } else {
      expect_refused(owned.matrix, {"row 1", "group 1", "exceeds the largest bf16"});
    }
  }
  // A large code in the neighbouring group changes nothing.
  OwnedMatrix owned(Format::kMxfp4, 1, 64);
  std::fill(owned.codes.begin(), owned.codes.end(), std::uint8_t{0x77});
  std::fill(owned.codes.begin(), owned.codes.begin() + 16, std::uint8_t{0x33});
  owned.scales[0] = 254;
  EXPECT_TRUE(validate_weights(owned.matrix).ok());
}

TEST(Weights, a_zero_global_excuses_nan_scales) {
  OwnedMatrix owned(Format::kNvfp4, 2, 32);
  owned.scales[3] = 0x7F;
  expect_refused(owned.matrix, {"NaN", "row 1", "group 1"});
  owned.matrix.global_scale = 0.0F;
  EXPECT_TRUE(validate_weights(owned.matrix).ok());
}

TEST(Weights, globals) {
  OwnedMatrix owned(Format::kNvfp4, 1, 16);
  owned.matrix.global_scale = std::numeric_limits<float>::quiet_NaN();
  expect_refused(owned.matrix, {"global scale", "nan"});
  owned.matrix.global_scale = std::numeric_limits<float>::infinity();
  expect_refused(owned.matrix, {"global scale", "inf"});
  owned.matrix.global_scale = -0.5F;
  expect_refused(owned.matrix, {"global scale", "-0.5"});
  owned.matrix.global_scale = 0.25F;
  EXPECT_TRUE(validate_weights(owned.matrix).ok());
  std::vector<float> out(16);
  ASSERT_TRUE(decode_row(owned.matrix, 0, out).ok());
  EXPECT_EQ(out[0], 1.0F);  // the global stays with the f32 sum
  OwnedMatrix mxfp4(Format::kMxfp4, 1, 32);
  mxfp4.matrix.global_scale = 2.0F;  // optional there
  EXPECT_TRUE(validate_weights(mxfp4.matrix).ok());
  OwnedMatrix bf16(Format::kBf16, 1, 32);
  bf16.matrix.global_scale = 2.0F;
  expect_refused(bf16.matrix, {"global scale 2", "bf16 has none"});
}

TEST(Weights, extents_strides_and_pointers) {
  OwnedMatrix owned(Format::kNvfp4, 2, 24);
  WeightMatrix bad = owned.matrix;
  bad.cols = 20;
  expect_refused(bad, {"cols 20", "multiple of 8"});
  bad = owned.matrix;
  bad.cols = std::numeric_limits<std::int64_t>::max() - 7;
  expect_refused(bad, {"cols"});
  bad = owned.matrix;
  bad.rows = 0;
  expect_refused(bad, {"rows 0"});
  bad = owned.matrix;
  bad.rows = std::int64_t{1} << 62;
  expect_refused(bad, {"rows", "64 bits"});
  bad = owned.matrix;
  bad.group_offset = 16;
  expect_refused(bad, {"group_offset 16", "16"});
  bad = owned.matrix;
  bad.group_offset = -1;
  expect_refused(bad, {"group_offset -1"});
  bad = owned.matrix;
  bad.row_stride_bytes = 11;
  expect_refused(bad, {"row_stride_bytes 11", "at least 12"});
  bad = owned.matrix;
  bad.scale_row_stride_bytes = 1;
  expect_refused(bad, {"scale_row_stride_bytes 1", "at least 2"});
  bad = owned.matrix;
  bad.codes = nullptr;
  expect_refused(bad, {"codes", "null"});
  bad = owned.matrix;
  bad.scales = nullptr;
  expect_refused(bad, {"scales", "null"});
  bad = owned.matrix;
  bad.col_stride_elems = 2;
  expect_refused(bad, {"col_stride_elems 2", "nvfp4"});
  OwnedMatrix bf16(Format::kBf16, 2, 8);
  bad = bf16.matrix;
  bad.col_stride_elems = std::int64_t{1} << 62;
  expect_refused(bad, {"col_stride_elems"});
  bad = bf16.matrix;
  bad.group_offset = 1;
  expect_refused(bad, {"group_offset 1"});
}

TEST(Weights, decode_row_checks_its_arguments) {
  OwnedMatrix owned(Format::kNvfp4, 2, 24);
  std::vector<float> out(24);
  EXPECT_EQ(decode_row(owned.matrix, 2, out).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(decode_row(owned.matrix, -1, out).code(), StatusCode::kInvalidArgument);
  out.resize(23);
  EXPECT_EQ(decode_row(owned.matrix, 0, out).code(), StatusCode::kInvalidArgument);
}

TEST(Weights, transposed_and_interleaved_bf16_views) {
  // [E = 1, H = 8, 2 I = 4] as unquantised gpt-oss stores it: column 2 i is gate i, 2 i + 1 up i.
  std::vector<std::uint16_t> stored(32);
  for (std::size_t k = 0; k < 8; ++k) {
    for (std::size_t n = 0; n < 4; ++n) {
      // BF16 of small integers has all its bits in the upper half of the f32.
      stored[k * 4 + n] = static_cast<std::uint16_t>(
          std::bit_cast<std::uint32_t>(static_cast<float>(10 * n + k)) >> 16);
    }
  }
  const WeightMatrix up{.rows = 2,
                        .cols = 8,
                        .codes = stored.data() + 1,
                        .row_stride_bytes = 4,
                        .col_stride_elems = 4};
  ASSERT_TRUE(validate_weights(up).ok());
  std::vector<float> out(8);
  ASSERT_TRUE(decode_row(up, 1, out).ok());
  for (std::size_t k = 0; k < 8; ++k) {
    EXPECT_EQ(out[k], static_cast<float>(30 + k));
  }
}

TEST(Weights, unaligned_bf16_rows_decode) {
  std::vector<std::uint8_t> bytes(1 + 16);
  bytes[1 + 14] = 0x80;
  bytes[1 + 15] = 0x3F;
  const WeightMatrix matrix{
      .rows = 1, .cols = 8, .codes = bytes.data() + 1, .row_stride_bytes = 16};
  std::vector<float> out(8);
  ASSERT_TRUE(decode_row(matrix, 0, out).ok());
  EXPECT_EQ(out[7], 1.0F);
}

}  // namespace
}  // namespace moekit
