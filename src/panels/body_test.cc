// SPDX-License-Identifier: Apache-2.0
#include "panels/body.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/cpu_info.h"
#include "device/numerics/bf16.h"
#include "device/numerics/e2m1.h"
#include "device/numerics/e4m3.h"
#include "device/numerics/e8m0.h"

namespace moekit::panels {
namespace {

using device::Panel16Element;
using device::Panel16Shape;
using std::int64_t;

constexpr int64_t kNumPanels = 2;

/// Two panels of random weights, written through the index maps, and rows of activations.
class DotCase {
 public:
  DotCase(const Panel16Shape& shape,
          int64_t num_tokens,
          std::uint32_t least_e8m0 = 120,
          int x_exponent = 0)
      : shape_(shape), tokens_(num_tokens), least_e8m0_(least_e8m0) {
    panels_.resize(static_cast<std::size_t>(kNumPanels * device::panel16_panel_bytes(shape)));
    values_.resize(static_cast<std::size_t>(kNumPanels * kPanelRows * shape.cols));
    for (int64_t row = 0; row < kNumPanels * kPanelRows; ++row) {
      fill_row(row);
    }
    x_.resize(static_cast<std::size_t>(num_tokens * shape.cols));
    for (float& value : x_) {
      const auto unit = static_cast<float>(draw(4001)) / 2000.0F - 1.0F;
      value = device::bf16_round(std::ldexp(unit, static_cast<int>(draw(6)) - 3 + x_exponent));
    }
  }

  /// Every fifth column gets zero weights and operands 2^binades times larger.
  void raise_columns(int binades) {
    for (int64_t col = 0; col < shape_.cols; col += 5) {
      for (int64_t row = 0; row < kNumPanels * kPanelRows; ++row) {
        const device::Panel16Nibble at =
            device::panel16_code_position(shape_, row % kPanelRows, col);
        panels_[static_cast<std::size_t>(row / kPanelRows * device::panel16_panel_bytes(shape_) +
                                         at.byte)] &=
            static_cast<std::byte>(0xF0U >> static_cast<unsigned>(at.shift));
        values_[static_cast<std::size_t>(row * shape_.cols + col)] = 0.0;
      }
      for (int64_t token = 0; token < tokens_; ++token) {
        float& value = x_[static_cast<std::size_t>(token * shape_.cols + col)];
        value = std::ldexp(token % 2 == 0 ? 1.5F : value, binades);
      }
    }
  }

  /// [kNumPanels, count, 16] sums of tokens [first, first + count), one call.
  std::vector<float> dot(const Body& body, int64_t first, int64_t count) const {
    // As expert_steps.cc sets a row aside.
    const int64_t cols = device::round_up(shape_.cols, device::kPanel16StepCols) + 8;
    const int64_t row_bytes = device::round_up(cols * body.operand_bytes, int64_t{64});
    std::vector<std::byte> rows(static_cast<std::size_t>(row_bytes * count));
    for (int64_t t = 0; t < count; ++t) {
      const OperandRow row{x_.data() + (first + t) * shape_.cols, DType::kF32, shape_.cols};
      EXPECT_TRUE(body.load_operand(row, shape_, rows.data() + t * row_bytes).finite);
    }
    std::vector<std::byte> operands(rows.size());
    const int64_t pairs = device::panel16_num_steps(shape_) * device::kPanel16StepCols / 2;
    // In batches, as where room is short.
    for (int64_t t = 0; body.interleave != nullptr && t < count; t += 5) {
      const int64_t num_rows = std::min(int64_t{5}, count - t);
      body.interleave(
          {rows.data() + t * row_bytes, row_bytes, num_rows, pairs, operands.data(), t, count});
    }
    std::vector<float> sums(static_cast<std::size_t>(kNumPanels * count * kPanelRows));
    DotCall call{panels_.data(), kNumPanels, &shape_, operands.data(), count, sums.data()};
    if (body.interleave == nullptr) {
      call.operand = rows.data();
      call.operand_row_bytes = row_bytes;
    }
    body.dot(call);
    return sums;
  }

  /// Σ weight * x in double and Σ |weight * x|.
  std::pair<double, double> expected(int64_t row, int64_t token) const {
    double sum = 0.0;
    double magnitude = 0.0;
    for (int64_t col = 0; col < shape_.cols; ++col) {
      const double term =
          values_[static_cast<std::size_t>(row * shape_.cols + col)] *
          static_cast<double>(x_[static_cast<std::size_t>(token * shape_.cols + col)]);
      sum += term;
      magnitude += std::abs(term);
    }
    return {sum, magnitude};
  }

 private:
  std::uint32_t draw(std::uint32_t count) { return static_cast<std::uint32_t>(random_() % count); }

  void fill_row(int64_t row) {
    std::byte* panel = panels_.data() + row / kPanelRows * device::panel16_panel_bytes(shape_);
    const int64_t in_panel = row % kPanelRows;
    double scale = 1.0;
    double zero = 0.0;
    int64_t scaled_group = -1;
    for (int64_t col = 0; col < shape_.cols; ++col) {
      const int64_t group_cols = device::panel16_group_cols(shape_);
      if (group_cols != 0 && (shape_.group_offset + col) / group_cols != scaled_group) {
        scaled_group = (shape_.group_offset + col) / group_cols;
        std::byte* at = panel + device::panel16_scale_position(shape_, in_panel, scaled_group);
        scale = store_scale(at, &zero);
      }
      values_[static_cast<std::size_t>(row * shape_.cols + col)] =
          (store_element(panel, in_panel, col) - zero) * scale;
    }
  }

  // Returns its value; an int4 also gets a zero point.
  double store_scale(std::byte* at, double* zero) {
    switch (shape_.element) {
      case Panel16Element::kNvfp4: {
        const std::uint32_t code = draw(0x78);
        *at = static_cast<std::byte>(device::e5m3_from_e4m3(code));
        return static_cast<double>(device::e4m3_to_f32(code));
      }
      case Panel16Element::kMxfp4: {
        const std::uint32_t code = least_e8m0_ + draw(12);
        *at = static_cast<std::byte>(code);
        return static_cast<double>(device::e8m0_to_f32(code));
      }
      default: {
        const float scale = device::bf16_round(0.01F + static_cast<float>(draw(100)) / 50.0F);
        const std::uint32_t point = shape_.element == Panel16Element::kInt4 ? draw(16) : 0U;
        const std::uint32_t word = device::panel16_int4_word(scale, point);
        std::memcpy(at, &word, sizeof(word));
        *zero = static_cast<double>(point);
        return static_cast<double>(scale);
      }
    }
  }

  double store_element(std::byte* panel, int64_t row, int64_t col) {
    switch (shape_.element) {
      case Panel16Element::kBf16: {
        const auto unit = static_cast<float>(draw(2001)) / 1000.0F - 1.0F;
        const std::uint16_t bits = device::bf16_from_f32(unit);
        std::memcpy(panel + device::panel16_bf16_position(row, col), &bits, sizeof(bits));
        return static_cast<double>(device::bf16_to_f32(bits));
      }
      case Panel16Element::kE4m3: {
        std::uint32_t code = draw(256);
        code = (code & 0x7FU) == 0x7FU ? 0x08U : code;
        panel[device::panel16_e4m3_position(shape_, row, col)] = static_cast<std::byte>(code);
        return static_cast<double>(device::e4m3_to_f32(code));
      }
      default: {
        const std::uint32_t code = draw(16);
        const device::Panel16Nibble at = device::panel16_code_position(shape_, row, col);
        panel[at.byte] |= static_cast<std::byte>(code << static_cast<unsigned>(at.shift));
        return shape_.element == Panel16Element::kInt4
                   ? static_cast<double>(code)
                   : static_cast<double>(device::e2m1_to_f32(code));
      }
    }
  }

  Panel16Shape shape_;
  int64_t tokens_;
  std::uint32_t least_e8m0_;
  std::mt19937 random_{7};
  std::vector<std::byte> panels_;
  std::vector<double> values_;
  std::vector<float> x_;
};

// Whole blocks, short last blocks and groups, shards that begin inside a block, a group or a step.
constexpr Panel16Shape kShapes[] = {
    {Panel16Element::kBf16, kPanelRows* kNumPanels, 136, 1, 0, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 64, 1, 0, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 232, 1, 0, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 200, 1, 8, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 88, 1, 4, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 16, 1, 8, 0},
    {Panel16Element::kMxfp4, kPanelRows* kNumPanels, 512, 1, 0, 0},
    {Panel16Element::kMxfp4, kPanelRows* kNumPanels, 360, 1, 0, 0},
    {Panel16Element::kMxfp4, kPanelRows* kNumPanels, 360, 1, 16, 0},
    {Panel16Element::kMxfp4, kPanelRows* kNumPanels, 32, 1, 8, 0},
    {Panel16Element::kInt4, kPanelRows* kNumPanels, 256, 1, 0, 32},
    {Panel16Element::kInt4, kPanelRows* kNumPanels, 400, 1, 0, 128},
    {Panel16Element::kInt4, kPanelRows* kNumPanels, 136, 1, 8, 32},
    {Panel16Element::kE4m3, kPanelRows* kNumPanels, 256, 1, 0, 128},
    {Panel16Element::kE4m3, kPanelRows* kNumPanels, 200, 1, 72, 128},
};

struct NamedBody {
  std::string name;
  const Body* body;
};

std::vector<NamedBody> testable() {
  std::vector<NamedBody> bodies;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (static_cast<int>(isa) <= static_cast<int>(base::detect_cpu().isa)) {
      bodies.push_back({std::string(isa_name(isa)), &body_for(isa)});
    }
  }
#if defined(__x86_64__)
  if (base::detect_cpu().isa >= base::CpuIsa::kAvx512) {
    bodies.push_back({"avx512 fma", &kAvx512FmaBody});
  }
  if (base::detect_cpu().avx_vnni) {
    bodies.push_back({"avx2 vnni", &kAvx2VnniBody});
  }
#endif
  return bodies;
}

// Every tile of tokens: near the exact sum, and each token with the bits that it has alone.
TEST(Bodies, TokensOfATileAreSummedAsIfAlone) {
  int64_t judged = 0;
  for (const auto& [name, chosen] : testable()) {
    for (const Panel16Shape& shape : kShapes) {
      const Body& body = body_of(*chosen, shape.element);
      const DotCase dots(shape, body.max_tokens);
      std::vector<std::vector<float>> alone;
      for (int64_t t = 0; t < body.max_tokens; ++t) {
        alone.push_back(dots.dot(body, t, 1));
      }
      for (int64_t count = 1; count <= body.max_tokens; ++count) {
        SCOPED_TRACE(name + " element " + std::to_string(static_cast<int>(shape.element)) +
                     " cols " + std::to_string(shape.cols) + " tokens " + std::to_string(count));
        const std::vector<float> sums = dots.dot(body, 0, count);
        for (int64_t i = 0; i < kNumPanels * count * kPanelRows; ++i) {
          const int64_t panel = i / (count * kPanelRows);
          const int64_t token = i / kPanelRows % count;
          const int64_t row = panel * kPanelRows + i % kPanelRows;
          const float have = sums[static_cast<std::size_t>(i)];
          EXPECT_EQ(have, alone[static_cast<std::size_t>(token)][static_cast<std::size_t>(row)]);
          const auto [sum, magnitude] = dots.expected(row, token);
          // Twice the rounding of every addition: products of one instruction are rounded once or
          // twice.
          EXPECT_NEAR(static_cast<double>(have), sum, 0x1p-23 * magnitude * std::sqrt(2.0 * 512));
          ++judged;
        }
        if (testing::Test::HasFailure()) {
          return;
        }
      }
    }
  }
  EXPECT_GE(judged, 4000);  // the portable body alone: 15 shapes, 1 to 4 tokens, 32 rows
}

// Exact sums: what adds them in 16 bits and what adds them in 32 differ in no bit.
TEST(Bodies, BothFormsOfAvx2HaveTheSameBits) {
#if defined(__x86_64__)
  if (!base::detect_cpu().avx_vnni) {
    GTEST_SKIP() << "this processor lacks AVX-VNNI";
  }
  int64_t judged = 0;
  for (const Panel16Shape& shape : kShapes) {
    const DotCase dots(shape, kAvx2Body.max_tokens);
    for (int64_t count = 1; count <= kAvx2Body.max_tokens; ++count, ++judged) {
      EXPECT_EQ(dots.dot(kAvx2Body, 0, count), dots.dot(kAvx2VnniBody, 0, count));
    }
  }
  EXPECT_GE(judged, 4 * 15);
#else
  GTEST_SKIP() << "bodies of x86-64";
#endif
}

// Scales so small or large that code * scale, or its product with an operand, leaves bf16 or f32
// where the group's sum does not: on both sides of what the AMX body folds, and the extremes that
// there are.
TEST(Bodies, ExtremeScalesCountInFull) {
  int64_t judged = 0;
  for (const auto& [name, body] : testable()) {
    for (const std::uint32_t least : {0U, 52U, 57U, 63U, 241U, 243U}) {
      const int64_t most = std::min(body->max_tokens, int64_t{20});
      const DotCase dots({Panel16Element::kMxfp4, kPanelRows * kNumPanels, 360, 1, 16, 0},
                         most,
                         least,
                         least < 127U ? 0 : -20);
      const std::vector<float> sums = dots.dot(*body, 0, most);
      for (int64_t i = 0; i < kNumPanels * most * kPanelRows; ++i) {
        const int64_t row = i / (most * kPanelRows) * kPanelRows + i % kPanelRows;
        const auto [sum, magnitude] = dots.expected(row, i / kPanelRows % most);
        EXPECT_NEAR(static_cast<double>(sums[static_cast<std::size_t>(i)]),
                    sum,
                    0x1p-23 * magnitude * std::sqrt(2.0 * 512) + 0x1p-126 * 24)
            << name << " least " << least;
        ++judged;
      }
    }
  }
  EXPECT_GE(judged, kNumPanels * kPanelRows * 6 * 4);
}

// Elements far apart in one scale group: what a small one adds must not drown where the weights of
// the large ones are zero, in whatever form a body holds its operands.
TEST(Bodies, SmallOperandsBesideLargeOnesCountInFull) {
  int64_t judged = 0;
  for (const auto& [name, body] : testable()) {
    for (const Panel16Element element : {Panel16Element::kNvfp4, Panel16Element::kMxfp4}) {
      for (const int binades : {4, 9, 13, 14, 40}) {
        SCOPED_TRACE(name + " binades " + std::to_string(binades));
        DotCase dots({element, kPanelRows * kNumPanels, 232, 1, 8, 0}, body->max_tokens);
        dots.raise_columns(binades);
        const std::vector<float> sums = dots.dot(*body, 0, body->max_tokens);
        for (int64_t i = 0; i < kNumPanels * body->max_tokens * kPanelRows; ++i) {
          const int64_t row = i / (body->max_tokens * kPanelRows) * kPanelRows + i % kPanelRows;
          const auto [sum, magnitude] = dots.expected(row, i / kPanelRows % body->max_tokens);
          EXPECT_NEAR(static_cast<double>(sums[static_cast<std::size_t>(i)]),
                      sum,
                      0x1p-23 * magnitude * std::sqrt(2.0 * 232));
          ++judged;
        }
      }
    }
  }
  EXPECT_GE(judged, kNumPanels * kPanelRows * 10 * 4);
}

// Vectors or not, an activation is the same arithmetic: the bits of every body are the portable
// one's, NaN for NaN.
TEST(Bodies, ActivationsHaveTheSameBits) {
  std::mt19937 random(11);
  const auto any_value = [&random](int round) {
    const auto bits = static_cast<std::uint32_t>(random());
    return round % 4 == 0 ? device::float_of(bits)
                          : std::ldexp(static_cast<float>(bits % 20001U) / 10000.0F - 1.0F,
                                       static_cast<int>(random() % 8) - 2);
  };
  int64_t judged = 0;
  for (int kind = 0; kind < 5; ++kind) {
    for (int round = 0; round < 2000; ++round) {
      float operands[4][kPanelRows];  // gate, up and their biases
      for (float(&row)[kPanelRows] : operands) {
        for (float& value : row) {
          value = any_value(round);
        }
      }
      ActivateCall call;
      call.params = {static_cast<device::ActivationKind>(kind),
                     round % 3 == 0 ? 7.0F : 1e30F,
                     1.702F,
                     1.0F,
                     4.0F,
                     25.0F};
      call.gate_sums = operands[0];
      call.up_sums = operands[1];
      call.gate_global = 0.5F;
      call.up_global = 2.0F;
      call.gate_bias = round % 2 == 0 ? operands[2] : nullptr;
      call.up_bias = operands[3];
      std::vector<std::uint16_t> expected(kPanelRows);
      call.out = expected.data();
      kPortableBody.activate(call);
      for (const auto& [name, body] : testable()) {
        std::vector<std::uint16_t> have(kPanelRows);
        call.out = have.data();
        body->activate(call);
        for (std::size_t i = 0; i < have.size(); ++i) {
          const bool both_nan = (have[i] & 0x7FFFU) > 0x7F80U && (expected[i] & 0x7FFFU) > 0x7F80U;
          EXPECT_TRUE(both_nan || have[i] == expected[i])
              << name << " kind " << kind << " round " << round << " row " << i;
          ++judged;
        }
      }
      if (testing::Test::HasFailure()) {
        return;
      }
    }
  }
  EXPECT_GE(judged, int64_t{10000} * kPanelRows);
}

// Scaling, weighted sums and the rounding of outputs: separate products and sums on every body.
TEST(Bodies, SumsOfRoutesHaveTheSameBits) {
  constexpr std::size_t kRows = 5 * kPanelRows;
  std::mt19937 random(13);
  const auto values = [&random](std::size_t count) {
    std::vector<float> out(count);
    for (float& value : out) {
      value = std::ldexp(static_cast<float>(random() % 20001U) / 10000.0F - 1.0F,
                         static_cast<int>(random() % 40) - 20);
    }
    return out;
  };
  int64_t judged = 0;
  for (int64_t num_routes = 0; num_routes <= 9; ++num_routes) {
    const std::vector<float> sums = values(kRows * 9);
    const std::vector<float> weights = values(9);
    const std::vector<float> bias = values(kPanelRows);
    std::vector<const float*> routes;
    std::vector<LoadedRow> rows;
    std::vector<std::int32_t> places;
    for (int64_t i = 0; i < num_routes; ++i) {
      routes.push_back(sums.data() + static_cast<std::size_t>(i) * kRows);
      rows.push_back({true, i % 2 == 0 ? 1.0F : 0x1p32F});
      places.push_back(static_cast<std::int32_t>(num_routes - 1 - i));
    }
    const auto run = [&](const Body& body) {
      std::vector<float> out(kRows + 9 * kPanelRows);
      body.weighted_sum({routes.data(), weights.data(), num_routes, kRows, out.data()});
      body.scale({.sums = sums.data(),
                  .num_tokens = num_routes,
                  .global = 0.3F,
                  .rows = rows.data(),
                  .bias = num_routes % 2 == 0 ? bias.data() : nullptr,
                  .routes = places.data(),
                  .out = out.data() + kRows,
                  .out_stride = kPanelRows});
      out[0] = std::numeric_limits<float>::quiet_NaN();
      out[1] = std::numeric_limits<float>::infinity();
      std::vector<std::uint16_t> rounded(out.size());
      body.round_to_bf16(out.data(), static_cast<int64_t>(out.size()) - 3, rounded.data());
      return std::pair(out, rounded);
    };
    const auto [expected, expected_bits] = run(kPortableBody);
    ASSERT_GT(expected_bits[0] & 0x7FFFU, 0x7F80U);  // NaN
    for (const auto& [name, body] : testable()) {
      const auto [have, have_bits] = run(*body);
      EXPECT_EQ(have_bits, expected_bits) << name << " routes " << num_routes;
      for (std::size_t i = 1; i < have.size(); ++i) {
        EXPECT_EQ(have[i], expected[i]) << name << " routes " << num_routes << " at " << i;
        ++judged;
      }
    }
    for (int64_t row = 2; row < static_cast<int64_t>(kRows); ++row) {
      float sum = 0.0F;
      for (int64_t i = 0; i < num_routes; ++i) {
        const float product =
            weights[static_cast<std::size_t>(i)] * routes[static_cast<std::size_t>(i)][row];
        sum += product;
      }
      EXPECT_EQ(expected[static_cast<std::size_t>(row)], sum);
    }
  }
  EXPECT_GE(judged, 10 * 200);
}

}  // namespace
}  // namespace moekit::panels
