// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/small_floats.h"

namespace moekit::reference {
namespace {

struct Row {
  std::uint32_t first = 0;
  std::uint32_t second = 0;
  std::string rest{};
};

std::vector<Row> golden_rows(const std::string& name) {
  std::ifstream file(std::string(MOEKIT_SOURCE_DIR) + "/testdata/golden/" + name);
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') {
      continue;
    }
    std::istringstream fields(line);
    Row row;
    fields >> std::hex >> row.first >> row.second >> row.rest;
    rows.push_back(row);
  }
  return rows;
}

void expect_table(const std::string& name, const double* values, std::size_t count) {
  const std::vector<Row> rows = golden_rows(name);
  ASSERT_EQ(rows.size(), count) << name;
  for (const Row& row : rows) {
    const double expected = static_cast<double>(std::bit_cast<float>(row.second));
    const double actual = values[row.first];
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << name << " " << row.first;
    } else {
      EXPECT_EQ(actual, expected) << name << " " << row.first;
      EXPECT_EQ(std::signbit(actual), std::signbit(expected)) << name << " " << row.first;
    }
  }
}

TEST(SmallFloatsGolden, EveryCodeOfTheTables) {
  expect_table("e2m1_decode.txt", kE2m1Values.data(), 16);
  expect_table("e4m3_decode.txt", kE4m3Values.data(), 256);
  expect_table("e8m0_decode.txt", kE8m0Values.data(), 256);
}

TEST(SmallFloatsGolden, RoundsToBf16) {
  const std::vector<Row> rows = golden_rows("bf16_round.txt");
  ASSERT_GE(rows.size(), 600U);
  for (const Row& row : rows) {
    const double input = static_cast<double>(std::bit_cast<float>(row.first));
    const double rounded = round_to(kBf16Shape, input);
    const double expected = bf16_value(static_cast<std::uint16_t>(row.second));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(rounded)) << row.rest << std::hex << row.first;
    } else {
      EXPECT_EQ(rounded, expected) << row.rest << std::hex << row.first;
    }
  }
}

TEST(SmallFloats, Bf16CodesAreTheUpperHalvesOfF32) {
  for (std::uint32_t code = 0; code < 0x10000U; ++code) {
    const double expected = static_cast<double>(std::bit_cast<float>(code << 16));
    const double actual = bf16_value(static_cast<std::uint16_t>(code));
    ASSERT_TRUE(actual == expected || (std::isnan(actual) && std::isnan(expected))) << code;
    ASSERT_TRUE(std::isnan(actual) || round_to(kBf16Shape, actual) == actual) << code;
  }
}

TEST(SmallFloats, F16HandValues) {
  EXPECT_EQ(f16_value(0x3C00), 1.0);
  EXPECT_EQ(f16_value(0xC000), -2.0);
  EXPECT_EQ(f16_value(0x7BFF), 65504.0);
  EXPECT_EQ(f16_value(0x0001), 0x1p-24);
  EXPECT_EQ(f16_value(0x03FF), 1023.0 * 0x1p-24);
  EXPECT_EQ(f16_value(0x7C00), HUGE_VAL);
  EXPECT_TRUE(std::isnan(f16_value(0x7E00)));
}

TEST(SmallFloats, TiesGoToEvenAndOverflowToInfinity) {
  EXPECT_EQ(round_to(kF16Shape, 2049.0), 2048.0);
  EXPECT_EQ(round_to(kF16Shape, 2051.0), 2052.0);
  EXPECT_EQ(round_to(kF16Shape, 65519.9), 65504.0);
  EXPECT_EQ(round_to(kF16Shape, 65520.0), HUGE_VAL);
  EXPECT_EQ(round_to(kF16Shape, 0x1p-25), 0.0);
  EXPECT_EQ(round_to(kF16Shape, 0x1.8p-25), 0x1p-24);
  EXPECT_EQ(round_to(kBf16Shape, 1.0 + 0x1p-8), 1.0);
  EXPECT_EQ(round_to(kBf16Shape, 1.0 + 0x3p-8), 1.0 + 0x1p-6);
  EXPECT_EQ(round_to(kBf16Shape, -0x1.FFp127), -HUGE_VAL);
}

}  // namespace
}  // namespace moekit::reference
