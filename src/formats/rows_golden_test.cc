// SPDX-License-Identifier: Apache-2.0
// Every row of kFormats has golden vectors, testdata/golden/format_NAME.txt, and decodes them bit
// for bit. A format whose codecs exist is its row and that file: this test asks for no line.
#include <bit>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/format.h"

namespace moekit {
namespace {

struct GoldenRow {
  std::int64_t cols = 0;
  std::vector<std::uint8_t> scales{};
  std::vector<std::uint8_t> codes{};
  std::vector<std::uint32_t> values{};  // f32 bits
};

std::vector<std::uint8_t> bytes_of(const std::string& hex) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; hex != "-" && i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<GoldenRow> read_golden(const FormatInfo& info) {
  std::ifstream file(std::string(MOEKIT_SOURCE_DIR) + "/testdata/golden/format_" +
                     std::string(info.name) + ".txt");
  EXPECT_TRUE(file.is_open()) << "no golden vectors of " << info.name;
  std::vector<GoldenRow> rows;
  std::size_t promised = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("# rows: ", 0) == 0) {
      promised = std::stoul(line.substr(8));
    }
    if (line.empty() || line[0] == '#') {
      continue;
    }
    std::istringstream fields(line);
    GoldenRow row;
    std::string scales;
    std::string codes;
    std::string values;
    fields >> row.cols >> scales >> codes >> values;
    row.scales = bytes_of(scales);
    row.codes = bytes_of(codes);
    for (std::size_t i = 0; i + 7 < values.size(); i += 8) {
      row.values.push_back(
          static_cast<std::uint32_t>(std::stoul(values.substr(i, 8), nullptr, 16)));
    }
    rows.push_back(row);
  }
  EXPECT_EQ(rows.size(), promised) << info.name;
  EXPECT_GE(rows.size(), 8U) << info.name;
  return rows;
}

TEST(FormatRowsGolden, every_format_decodes_its_vectors) {
  int compared = 0;
  for (const FormatInfo& info : kFormats) {
    for (const GoldenRow& row : read_golden(info)) {
      const WeightMatrix matrix{
          .format = info.format,
          .rows = 1,
          .cols = row.cols,
          .codes = row.codes.data(),
          .row_stride_bytes = static_cast<std::int64_t>(row.codes.size()),
          .scales = row.scales.empty() ? nullptr : row.scales.data(),
          .scale_row_stride_bytes = static_cast<std::int64_t>(row.scales.size())};
      ASSERT_EQ(static_cast<std::int64_t>(row.codes.size()), code_row_bytes(info.format, row.cols));
      ASSERT_EQ(static_cast<std::int64_t>(row.scales.size()),
                num_scale_cols(matrix) * scale_elem_bytes(matrix));
      ASSERT_EQ(static_cast<std::int64_t>(row.values.size()), row.cols);
      const Status valid = validate_weights(matrix);
      ASSERT_TRUE(valid.ok()) << info.name << " " << valid.to_string();
      std::vector<float> out(static_cast<std::size_t>(row.cols));
      ASSERT_TRUE(decode_row(matrix, 0, out).ok());
      for (std::size_t k = 0; k < out.size(); ++k) {
        // -0 and 0 are one value: a zero scale byte has no sign to give.
        const std::uint32_t got = std::bit_cast<std::uint32_t>(out[k]);
        const bool zeros = (got << 1) == 0 && (row.values[k] << 1) == 0;
        ASSERT_TRUE(got == row.values[k] || zeros)
            << info.name << " cols " << row.cols << " k " << k << " " << out[k] << " expected "
            << std::bit_cast<float>(row.values[k]);
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 2000);
}

}  // namespace
}  // namespace moekit
