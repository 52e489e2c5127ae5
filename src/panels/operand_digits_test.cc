// SPDX-License-Identifier: Apache-2.0
#include "panels/operand_digits.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/cpu_info.h"
#include "device/numerics/bf16.h"
#include "panels/body.h"

namespace moekit::panels {
namespace {

using device::Panel16Element;
using device::Panel16Shape;
using std::int64_t;

// Runs of every number of steps: whole and short groups, shards that begin inside one.
constexpr Panel16Shape kShapes[] = {{Panel16Element::kMxfp4, 16, 256, 1, 0, 0},
                                    {Panel16Element::kMxfp4, 16, 104, 1, 8, 0},
                                    {Panel16Element::kMxfp4, 16, 52, 1, 20, 0},
                                    {Panel16Element::kNvfp4, 16, 232, 1, 8, 0},
                                    {Panel16Element::kNvfp4, 16, 36, 1, 4, 0}};

std::vector<std::byte> room_for(const Panel16Shape& shape) {
  return std::vector<std::byte>(
      static_cast<std::size_t>(device::panel16_num_steps(shape) * kDigitStepBytes));
}

// A row of `shape` as bodies load it, before it becomes digits.
std::vector<std::byte> floats_of(const Panel16Shape& shape, const std::vector<float>& x) {
  std::vector<std::byte> row = room_for(shape);
  const auto lead = static_cast<std::size_t>(device::panel16_lead_cols(shape));
  std::memcpy(row.data() + lead * sizeof(float), x.data(), x.size() * sizeof(float));
  return row;
}

std::vector<float> random_row(const Panel16Shape& shape, int binades, std::mt19937& random) {
  std::vector<float> x(static_cast<std::size_t>(shape.cols));
  for (float& value : x) {
    const int exponent =
        binades == 0
            ? 0
            : static_cast<int>(random() % static_cast<std::uint32_t>(2 * binades)) - binades;
    const auto unit = static_cast<float>(random() % 4001U) / 2000.0F - 1.0F;
    value = random() % 9 == 0 ? 0.0F : device::bf16_round(std::ldexp(unit, exponent));
  }
  return x;
}

// What the digits of a run and the columns that they leave out say a column is, in units of 1.
void expect_run(const RunOperands& run, const float* expected, int64_t* num_wide) {
  const float unit = device::float_of(run.word(0, 0));
  std::vector<double> have(static_cast<std::size_t>(run.steps * device::kPanel16StepCols));
  int64_t sum = 0;
  for (int64_t col = 0; unit != 0.0F && col < static_cast<int64_t>(have.size()); ++col) {
    int64_t value = 0;
    for (int digit = kNumDigits - 1; digit >= 0; --digit) {
      const std::byte at_byte = run.piece(col / 8, digit, 0)[digit_place(col % 8)];
      const int at = (std::to_integer<int>(at_byte) ^ 128) - 128;
      ASSERT_LE(std::abs(at), 64);
      value = value * 128 + at;
    }
    sum += value;
    have[static_cast<std::size_t>(col)] =
        static_cast<double>(value) * 2.0 * static_cast<double>(unit);
  }
  if (unit != 0.0F) {
    EXPECT_EQ(static_cast<std::int32_t>(run.word(1, 0)), -12 * sum);
  }
  *num_wide += unit == 0.0F ? 1 : 0;
  for (int64_t i = 0; i < run.num_rest(0); ++i) {
    double& column = have[static_cast<std::size_t>(run.rest_column(i, 0))];
    EXPECT_EQ(column, 0.0);
    column = static_cast<double>(run.rest_operand(i, 0));
  }
  for (std::size_t col = 0; col < have.size(); ++col) {
    EXPECT_EQ(have[col], static_cast<double>(expected[col])) << "column " << col;
  }
}

// The plain digits of a row give every operand back; visit(run) sees each run.
template <typename Visit>
void expect_row(const Panel16Shape& shape,
                const std::vector<float>& x,
                int64_t* wide,
                Visit visit) {
  const std::vector<std::byte> before = floats_of(shape, x);
  std::vector<std::byte> row = before;
  plain_row_to_digits(shape, row.data());
  std::vector<float> expected(before.size() / sizeof(float));
  std::memcpy(expected.data(), before.data(), before.size());
  convert_runs(shape, row.data(), [&](const std::byte* run, int64_t steps) {
    const RunOperands operands{run, steps, 1};
    visit(operands);
    expect_run(operands, expected.data() + (run - row.data()) / 4, wide);
  });
}

TEST(OperandDigits, GiveEveryOperandBack) {
  std::mt19937 random(5);
  int64_t runs = 0;
  int64_t wide = 0;
  int64_t rest = 0;
  for (const Panel16Shape& shape : kShapes) {
    for (const int binades : {0, 3, 7, 9, 20, 120}) {
      expect_row(shape, random_row(shape, binades, random), &wide, [&](const RunOperands& run) {
        rest += run.num_rest(0) < run.steps * device::kPanel16StepCols ? run.num_rest(0) : 0;
        ++runs;
      });
    }
  }
  EXPECT_GE(runs, 5 * 6 * 3);
  EXPECT_GE(wide, 10);
  EXPECT_GE(rest, 10);
}

// Where the largest element is so small that the unit would be no normal number, a run is wide.
TEST(OperandDigits, UnitsAreNormalHoweverSmallTheRow) {
  std::mt19937 random(7);
  int64_t runs = 0;
  int64_t wide = 0;
  for (const Panel16Shape& shape : kShapes) {
    for (int exponent = -128; exponent <= -96; ++exponent) {
      std::vector<float> x = random_row(shape, 0, random);
      for (float& value : x) {
        value = device::bf16_round(std::ldexp(value, exponent));
      }
      expect_row(shape, x, &wide, [&](const RunOperands& run) {
        const float unit = device::float_of(run.word(0, 0));
        EXPECT_TRUE(unit == 0.0F || std::isnormal(unit)) << exponent;
        ++runs;
      });
    }
  }
  EXPECT_GE(wide, 100);
  EXPECT_GE(runs - wide, 100);
}

// The vectors of a body write what the plain conversion does, for tiny, huge and no numbers too.
TEST(OperandDigits, BodiesWriteThePlainOnes) {
  if (base::detect_cpu().isa < base::CpuIsa::kAvx2) {
    GTEST_SKIP() << "this processor or system lacks AVX2";
  }
  std::mt19937 random(6);
  int64_t judged = 0;
  for (const Panel16Shape& shape : kShapes) {
    for (const int binades : {0, 3, 7, 9, 20, 90, 148, 149}) {
      std::vector<float> x = random_row(shape, binades > 100 ? 0 : binades, random);
      for (std::size_t i = 0; binades > 100 && i < x.size(); ++i) {
        // The last that are digits, and the first that are wide.
        const int edge = -105 - static_cast<int>(i / 32 % 3);
        const int exponent = binades == 149 ? edge : i % 64 < 32 ? -120 : -100;
        x[i] = device::bf16_round(std::ldexp(x[i], exponent));
      }
      if (binades == 3) {
        x[x.size() / 2] = std::numeric_limits<float>::infinity();
        x[1] = std::numeric_limits<float>::quiet_NaN();
      }
      std::vector<std::byte> expected = floats_of(shape, x);
      plain_row_to_digits(shape, expected.data());
      std::vector<std::byte> have = room_for(shape);
      const LoadedRow loaded =
          body_for(Isa::kAvx2)
              .load_operand({x.data(), DType::kF32, shape.cols}, shape, have.data());
      EXPECT_EQ(loaded.finite, binades != 3);
      EXPECT_EQ(have, expected) << "cols " << shape.cols << " binades " << binades;
      ++judged;
    }
  }
  EXPECT_GE(judged, 5 * 8);
}

}  // namespace
}  // namespace moekit::panels
