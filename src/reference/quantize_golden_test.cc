// SPDX-License-Identifier: Apache-2.0
// The oracle's quantisers against the tables that another tool made: the same tables that the
// device headers are held to, so both give the same operands.
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/quantize.h"
#include "reference/small_floats.h"

namespace moekit::reference {
namespace {

std::vector<std::vector<std::string>> golden(const std::string& name) {
  std::ifstream file(std::string(MOEKIT_SOURCE_DIR) + "/testdata/golden/" + name);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') {
      continue;
    }
    std::istringstream fields(line);
    std::vector<std::string>& row = rows.emplace_back();
    for (std::string field; fields >> field;) {
      row.push_back(field);
    }
  }
  return rows;
}

std::uint32_t hex(const std::string& text) {
  return static_cast<std::uint32_t>(std::stoul(text, nullptr, 16));
}

std::vector<double> inputs(const std::string& text) {
  std::vector<double> values;
  for (std::size_t i = 0; i + 4 <= text.size(); i += 4) {
    values.push_back(bf16_value(static_cast<std::uint16_t>(hex(text.substr(i, 4)))));
  }
  return values;
}

std::vector<double> quantized(Quantizer quantizer, double global, const std::vector<double>& row) {
  std::vector<double> out(row.size());
  quantize_row(quantizer, global, row, out);
  return out;
}

TEST(OracleQuantizers, Q4GivesTheGoldenOperands) {
  int compared = 0;
  for (const auto& row : golden("q4_groups.txt")) {
    const double global = static_cast<double>(std::bit_cast<float>(hex(row[0])));
    const double scale = kE4m3Values[hex(row[1])];
    const std::vector<double> out = quantized(Quantizer::kQ4, global, inputs(row[3]));
    for (std::size_t i = 0; i < out.size(); ++i, ++compared) {
      EXPECT_EQ(out[i], kE2m1Values[hex(row[2].substr(i, 1))] * scale) << row[3] << " at " << i;
    }
  }
  EXPECT_GE(compared, 600);
}

TEST(OracleQuantizers, Q8GivesTheGoldenOperands) {
  int compared = 0;
  for (const auto& row : golden("q8_groups.txt")) {
    const int byte = std::stoi(row[0]);
    const double scale = byte == 0 ? 0.0 : power_of_two(byte - 127);
    const std::vector<double> out = quantized(Quantizer::kQ8, 1.0, inputs(row[2]));
    for (std::size_t i = 0; i < out.size(); ++i, ++compared) {
      const double expected = kE4m3Values[hex(row[1].substr(2 * i, 2))] * scale;
      EXPECT_EQ(out[i], round_to(kBf16Shape, expected)) << row[2] << " at " << i;
    }
  }
  EXPECT_GE(compared, 300);
}

TEST(OracleQuantizers, Q8bGivesTheGoldenOperands) {
  int compared = 0;
  for (const auto& row : golden("q8b_groups.txt")) {
    const double scale = static_cast<double>(std::bit_cast<float>(hex(row[0])));
    const std::vector<double> out = quantized(Quantizer::kQ8b, 1.0, inputs(row[2]));
    for (std::size_t i = 0; i < out.size(); ++i, ++compared) {
      EXPECT_EQ(out[i], kE4m3Values[hex(row[1].substr(2 * i, 2))] * scale) << i;
    }
  }
  EXPECT_GE(compared, 1000);
}

TEST(OracleQuantizers, ANonFiniteGroupIsNanAndNoOther) {
  for (const Quantizer quantizer : {Quantizer::kQ4, Quantizer::kQ8, Quantizer::kQ8b}) {
    std::vector<double> row(256, 1.0);
    row[130] = std::numeric_limits<double>::infinity();
    const std::vector<double> out = quantized(quantizer, 0.01, row);
    EXPECT_TRUE(std::isfinite(out[0]));
    EXPECT_TRUE(std::isnan(out[128]));
    EXPECT_TRUE(std::isnan(out[130]));
  }
}

}  // namespace
}  // namespace moekit::reference
