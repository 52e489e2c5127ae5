// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/numerics/quantize.h"

namespace moekit::device {
namespace {

/// Rows of a golden file without its header, split at blanks.
std::vector<std::vector<std::string>> golden(const std::string& name) {
  std::ifstream file(MOEKIT_SOURCE_DIR "/testdata/golden/" + name);
  std::vector<std::vector<std::string>> rows;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') {
      continue;
    }
    std::istringstream words(line);
    std::vector<std::string> row;
    std::string word;
    while (words >> word) {
      row.push_back(word);
    }
    rows.push_back(row);
  }
  return rows;
}

u32 hex(const std::string& text) {
  return static_cast<u32>(std::stoul(text, nullptr, 16));
}

std::vector<float> bf16_values(const std::string& text) {
  std::vector<float> values;
  for (std::size_t i = 0; i + 4 <= text.size(); i += 4) {
    values.push_back(bf16_to_f32(static_cast<u16>(hex(text.substr(i, 4)))));
  }
  return values;
}

u32 amax_of(const std::vector<float>& values) {
  u32 amax = 0;
  for (const float value : values) {
    amax = fold_amax(amax, value);
  }
  return amax;
}

TEST(Q4, GoldenGroups) {
  const auto rows = golden("q4_groups.txt");
  std::size_t codes = 0;
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 4U);
    const float global = float_of(hex(row[0]));
    const std::vector<float> x = bf16_values(row[3]);
    const u32 scale = q4_scale(amax_of(x), global);
    EXPECT_EQ(scale, hex(row[1])) << row[3];
    const float divisor = q4_divisor(scale, global);
    ASSERT_EQ(x.size(), row[2].size());
    for (std::size_t i = 0; i < x.size(); ++i, ++codes) {
      // The tool that made the table keeps the sign of a zero; ours is always +0.
      const u32 expected = hex(row[2].substr(i, 1));
      EXPECT_EQ(q4_code(x[i], divisor), expected == 8U ? 0U : expected) << row[3] << " at " << i;
    }
  }
  EXPECT_GE(rows.size(), 48U);
  EXPECT_GE(codes, 600U);
}

TEST(Q8, GoldenBytes) {
  const auto rows = golden("q8_amax_byte.txt");
  for (const auto& row : rows) {
    EXPECT_EQ(q8_byte(hex(row[0])), static_cast<u32>(std::stoul(row[1]))) << row[2];
  }
  EXPECT_GE(rows.size(), 200U);
}

TEST(Q8, GoldenGroups) {
  const auto rows = golden("q8_groups.txt");
  std::size_t payloads = 0;
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 3U);
    const std::vector<float> x = bf16_values(row[2]);
    const u32 byte = q8_byte(amax_of(x));
    EXPECT_EQ(byte, static_cast<u32>(std::stoul(row[0])));
    for (std::size_t i = 0; i < x.size(); ++i, ++payloads) {
      EXPECT_EQ(q8_payload(x[i], byte), hex(row[1].substr(2 * i, 2))) << row[2] << " at " << i;
    }
  }
  EXPECT_GE(rows.size(), 12U);
  EXPECT_GE(payloads, 300U);
}

TEST(Q8b, GoldenGroups) {
  const auto rows = golden("q8b_groups.txt");
  std::size_t payloads = 0;
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 3U);
    const std::vector<float> x = bf16_values(row[2]);
    const float scale = q8b_scale(amax_of(x));
    EXPECT_EQ(bits_of(scale), hex(row[0]));
    for (std::size_t i = 0; i < x.size(); ++i, ++payloads) {
      EXPECT_EQ(q8b_payload(x[i], scale), hex(row[1].substr(2 * i, 2))) << row[2] << " at " << i;
    }
  }
  EXPECT_GE(rows.size(), 12U);
  EXPECT_GE(payloads, 1200U);
}

TEST(Q8, ByteIsTheSmallestPowerOfTwoThatHoldsTheGroup) {
  // Every finite BF16 magnitude: amax / 448 <= 2^(byte - 127), and half of that is too small.
  std::size_t checked = 0;
  for (u32 bits = 1; bits < 0x7F80U; ++bits, ++checked) {
    const double amax = static_cast<double>(bf16_to_f32(static_cast<u16>(bits)));
    const u32 byte = q8_byte(bits << 16);
    ASSERT_GE(byte, 1U);
    ASSERT_LE(byte, 247U);
    // The rule divides in f32: where amax / 448 rounds to the power of two itself, that is the
    // scale.
    const auto quotient = static_cast<double>(static_cast<float>(amax) / 448.0F);
    ASSERT_LE(quotient, std::ldexp(1.0, static_cast<int>(byte) - 127)) << bits;
    if (byte > 1U) {
      ASSERT_GT(quotient, std::ldexp(1.0, static_cast<int>(byte) - 128)) << bits;
    }
  }
  EXPECT_EQ(checked, 0x7F7FU);
}

TEST(Quantisers, NonFiniteGroupsGetTheNanScale) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::size_t checked = 0;
  for (const float bad : {infinity, -infinity, kQuietNan, -kQuietNan}) {
    const u32 amax = fold_amax(fold_amax(fold_amax(0, 1.0F), bad), -3.0F);
    const u32 q4 = q4_scale(amax, 0.5F);
    EXPECT_EQ(q4, kE4m3Nan);
    EXPECT_EQ(q4_code(1.0F, q4_divisor(q4, 0.5F)), 0U);
    EXPECT_EQ(q4_operand(0, q4), 0x7FC0U);  // one NaN on every backend
    EXPECT_EQ(q8_byte(amax), kE8m0Nan);
    EXPECT_EQ(q8_payload(1.0F, kE8m0Nan), 0U);
    EXPECT_EQ(q8_operand(0, kE8m0Nan), 0x7FC0U);
    EXPECT_TRUE(is_nan(q8b_scale(amax)));
    EXPECT_EQ(q8b_payload(1.0F, q8b_scale(amax)), 0U);
    ++checked;
  }
  EXPECT_EQ(checked, 4U);
}

TEST(Quantisers, ZeroGroupsAndZeroGlobalsAreZero) {
  EXPECT_EQ(q4_scale(0, 0.0F), 0U);
  EXPECT_EQ(q4_code(1.0F, q4_divisor(q4_scale(bits_of(1.0F), 0.0F), 0.0F)), 0U);
  EXPECT_EQ(q8_byte(0), 0U);
  EXPECT_EQ(q8_operand(0, 0), 0U);
  EXPECT_EQ(q8b_scale(0), 0.0F);
  // 1e-45 / 448 underflows: the scale is 0, and so are the payloads.
  EXPECT_EQ(q8b_payload(float_of(1), q8b_scale(1)), 0U);
}

TEST(Quantisers, OperandsAreExactInBf16) {
  std::size_t checked = 0;
  for (u32 scale = 0; scale < 0x7FU; ++scale) {
    for (u32 code = 0; code < 16; ++code, ++checked) {
      ASSERT_EQ(bf16_to_f32(q4_operand(code, scale)), e2m1_to_f32(code) * e4m3_to_f32(scale));
    }
  }
  for (u32 byte = 1; byte < 248U; ++byte) {
    for (u32 payload = 0; payload < 256; ++payload) {
      if ((payload & 0x7FU) == kE4m3Nan) {
        continue;
      }
      const double exact =
          static_cast<double>(e4m3_to_f32(payload)) * std::ldexp(1.0, static_cast<int>(byte) - 127);
      // Operands under 2^-126 may flush to zero; 2^128 and more are no f32.
      if (std::abs(exact) >= std::ldexp(1.0, -126) && std::abs(exact) < std::ldexp(1.0, 128)) {
        ASSERT_EQ(static_cast<double>(bf16_to_f32(q8_operand(payload, byte))), exact);
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 60000U);
}

}  // namespace
}  // namespace moekit::device
