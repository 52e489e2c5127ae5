// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantize_rows/quantize.h"

#include <array>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "device/numerics/quantize.h"

namespace moekit::kernels::quantize_rows {
namespace {

struct Output {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  std::vector<std::uint16_t> operand;
};

Output run(Rule rule,
           const std::vector<std::uint16_t>& x,
           std::int64_t rows,
           std::int64_t cols,
           float global) {
  const std::int64_t groups = (cols + group_size(rule) - 1) / group_size(rule);
  Output out;
  out.codes.resize(static_cast<std::size_t>(rows * cols / 8 * lane_code_bytes(rule)));
  out.scales.resize(static_cast<std::size_t>(rows * groups * scale_bytes(rule)));
  out.operand.resize(static_cast<std::size_t>(rows * cols));
  const Args args = {
      x.data(), out.codes.data(), out.scales.data(), out.operand.data(), &global, rows, cols, cols};
  quantize_on_host(rule, args);
  return out;
}

std::vector<std::uint16_t> random_bf16(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  std::vector<std::uint16_t> values(count);
  for (std::uint16_t& value : values) {
    value = device::bf16_from_f32(normal(generator));
  }
  return values;
}

// Element by element from the rules, in another order and without the lane code.
TEST(QuantizeRows, MatrixAgreesWithTheRulesPerElement) {
  std::size_t checked = 0;
  for (const std::int64_t cols : {8, 16, 24, 112, 120, 128, 136, 352}) {
    constexpr std::int64_t kRows = 3;
    const std::vector<std::uint16_t> x =
        random_bf16(static_cast<std::size_t>(kRows * cols), static_cast<unsigned>(cols));
    const float global = 0.01F;
    const Output q4 = run(Rule::kQ4, x, kRows, cols, global);
    const Output q8 = run(Rule::kQ8, x, kRows, cols, global);
    const Output q8b = run(Rule::kQ8b, x, kRows, cols, global);
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        const auto at = static_cast<std::size_t>(row * cols + col);
        const float value = device::bf16_to_f32(x[at]);
        const auto amax_of = [&](std::int64_t group) {
          device::u32 amax = 0;
          const std::int64_t begin = col / group * group;
          for (std::int64_t c = begin; c < std::min(begin + group, cols); ++c) {
            amax = device::fold_amax(
                amax, device::bf16_to_f32(x[static_cast<std::size_t>(row * cols + c)]));
          }
          return amax;
        };
        const auto scale_at = [&](std::int64_t group) {
          return static_cast<std::size_t>(row * ((cols + group - 1) / group) + col / group);
        };
        const device::u32 scale = device::q4_scale(amax_of(16), global);
        const device::u32 code = device::q4_code(value, device::q4_divisor(scale, global));
        ASSERT_EQ(q4.scales[scale_at(16)], scale);
        ASSERT_EQ((q4.codes[at / 2] >> (4 * (at % 2))) & 15U, code);
        ASSERT_EQ(q4.operand[at], device::q4_operand(code, scale));
        const device::u32 byte = device::q8_byte(amax_of(32));
        ASSERT_EQ(q8.scales[scale_at(32)], byte);
        ASSERT_EQ(q8.codes[at], device::q8_payload(value, byte));
        ASSERT_EQ(q8.operand[at], device::q8_operand(q8.codes[at], byte));
        const float scale_b = device::q8b_scale(amax_of(128));
        float stored = 0.0F;
        std::memcpy(&stored, q8b.scales.data() + 4 * scale_at(128), 4);
        ASSERT_EQ(device::bits_of(stored), device::bits_of(scale_b));
        ASSERT_EQ(q8b.codes[at], device::q8b_payload(value, scale_b));
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 2500U);
}

TEST(QuantizeRows, ANonFiniteValueSpoilsItsGroupAlone) {
  std::vector<std::uint16_t> x = random_bf16(64, 1);
  x[20] = 0x7F80;  // infinity, in the second group of 16
  const Output out = run(Rule::kQ4, x, 1, 64, 0.5F);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(device::is_nan(device::bf16_to_f32(out.operand[i])), i / 16 == 1) << i;
  }
}

TEST(QuantizeRows, NamesAreTheirOwnInverse) {
  std::size_t checked = 0;
  for (const Arch arch : plan::kCudaArchs) {
    for (const plan::KernelSource& source : kCuda.catalog(arch)) {
      const Result<plan::KernelSource> again = kCuda.source(source.kernel);
      ASSERT_TRUE(again.has_value()) << again.status().to_string();
      EXPECT_EQ(*again, source);
      EXPECT_EQ(source.arch, arch);
      EXPECT_EQ(source.entry.find('.'), std::string::npos);
      EXPECT_EQ(source.entry.find("__"), std::string::npos);
      ++checked;
    }
  }
  EXPECT_EQ(checked, 21U);
  EXPECT_EQ(kCuda.source("quantize_rows.q5.rows_t256.sm90a").status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(kCuda.source("quantize_rows.q4.rows_t256.sm91").status().code(),
            StatusCode::kInvalidArgument);
}

TEST(QuantizeRows, BadShapesAreRefusedWithTheirValues) {
  alignas(16) std::array<std::uint16_t, 32> x{};
  const float global = 1.0F;
  plan::Launch launch;
  Args args = {x.data(), nullptr, nullptr, nullptr, &global, 1, 12, 16};
  EXPECT_NE(describe_launch(Rule::kQ4, args, launch).message().find("num_cols 12"),
            std::string::npos);
  args.num_cols = 16;
  EXPECT_TRUE(describe_launch(Rule::kQ4, args, launch).ok());
  args.x = x.data() + 1;
  EXPECT_EQ(describe_launch(Rule::kQ8, args, launch).code(), StatusCode::kInvalidArgument);
  args.x = x.data();
  args.global = nullptr;
  EXPECT_EQ(describe_launch(Rule::kQ4, args, launch).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(describe_launch(Rule::kQ8, args, launch).ok());
}

TEST(QuantizeRows, RowsBeyondTheGridLimitGoToZ) {
  plan::Launch launch;
  const Args args = {nullptr, nullptr, nullptr, nullptr, nullptr, 200'000, 4096, 4096};
  ASSERT_TRUE(describe_launch(Rule::kQ8, args, launch).ok());
  EXPECT_EQ(launch.geometry.grid, (Dim3{2, 65535, 4}));
}

}  // namespace
}  // namespace moekit::kernels::quantize_rows
