// SPDX-License-Identifier: Apache-2.0
#include "panels/body.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/numerics/bf16.h"
#include "panels/test_bodies.h"
#include "panels/test_dot_case.h"

namespace moekit::panels {
namespace {

// Every tile of tokens: near the exact sum, and each token with the bits that it has alone.
TEST(Bodies, TokensOfATileAreSummedAsIfAlone) {
  int64_t judged = 0;
  for (const auto& [name, chosen] : bodies_under_test()) {
    for (const Panel16Shape& shape : kShapes) {
      const Body& body = body_of(*chosen, shape.element);
      const DotCase dots(shape, body.max_tokens);
      std::vector<std::vector<float>> alone;
      std::vector<std::pair<double, double>> exact;  // [tokens, kNumPanels * 16]
      for (int64_t t = 0; t < body.max_tokens; ++t) {
        alone.push_back(dots.dot(body, t, 1));
        for (int64_t row = 0; row < kNumPanels * kPanelRows; ++row) {
          exact.push_back(dots.expected(row, t));
        }
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
          const auto [sum, magnitude] =
              exact[static_cast<std::size_t>(token * kNumPanels * kPanelRows + row)];
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

// Panels of several segments, of whole blocks, and behind a first step that begins inside a group
// or a block.
constexpr Panel16Shape kLong[] = {
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 1056, 1, 0, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 1100, 1, 8, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 640, 1, 8, 0},
    {Panel16Element::kMxfp4, kPanelRows* kNumPanels, 1632, 1, 0, 0},
    {Panel16Element::kMxfp4, kPanelRows* kNumPanels, 1040, 1, 16, 0},
    {Panel16Element::kBf16, kPanelRows* kNumPanels, 1064, 1, 0, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 1024, 1, 0, 0},
    {Panel16Element::kMxfp4, kPanelRows* kNumPanels, 1024, 1, 0, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 124, 1, 4, 0},
    {Panel16Element::kMxfp4, kPanelRows* kNumPanels, 252, 1, 4, 0},
};

// Panels of several segments, in passes of which the last is short: each with the sums that it has
// in another call.
TEST(Bodies, PanelsOfACallAreSummedAsIfAlone) {
  const std::vector<int64_t> order = {0, 1, 1, 0, 1, 0};
  int64_t judged = 0;
  for (const auto& [name, chosen] : bodies_under_test()) {
    for (const Panel16Shape& shape : kLong) {
      const Body& body = body_of(*chosen, shape.element);
      for (const int64_t wanted : {1, 3, 17, 31, 35, 64}) {  // tiles that differ by a token too
        const int64_t count = std::min(wanted, body.max_tokens);
        SCOPED_TRACE(name + " element " + std::to_string(static_cast<int>(shape.element)) +
                     " cols " + std::to_string(shape.cols) + " tokens " + std::to_string(count));
        const DotCase dots(shape, count);
        const std::vector<float> two = dots.dot(body, 0, count);
        const std::vector<float> six = dots.dot_in_order(body, count, order);
        // Fewer tokens have shorter operands, which may be read in one go.
        const std::vector<float> alone = dots.dot(body, count - 1, 1);
        const int64_t of_panel = count * kPanelRows;
        for (int64_t i = 0; i < kNumPanels * kPanelRows; ++i) {
          EXPECT_EQ(alone[static_cast<std::size_t>(i)],
                    two[static_cast<std::size_t>(i / kPanelRows * of_panel +
                                                 (count - 1) * kPanelRows + i % kPanelRows)]);
        }
        for (int64_t i = 0; i < static_cast<int64_t>(order.size()) * of_panel; ++i) {
          const int64_t panel = order[static_cast<std::size_t>(i / of_panel)];
          EXPECT_EQ(six[static_cast<std::size_t>(i)],
                    two[static_cast<std::size_t>(panel * of_panel + i % of_panel)]);
          ++judged;
        }
        if (testing::Test::HasFailure()) {
          return;
        }
      }
    }
  }
  EXPECT_GE(judged, kPanelRows * 10 * 6 * 4);
}

// Few tokens, whose operands are long only where rows are, in groups of any length: with the sums
// of calls of one panel, which are read in one go. More panels than one pass takes, and runs that
// have a rest or are wide.
TEST(Bodies, PanelsOfLongRowsOfFewTokensAreSummedAsIfAlone) {
  struct Case {
    Panel16Shape shape;
    int64_t tokens;
    int binades;
  };

  constexpr Case kCases[] = {
      {{Panel16Element::kNvfp4, kPanelRows * kNumPanels, 4124, 1, 4, 0}, 1, 14},
      {{Panel16Element::kMxfp4, kPanelRows * kNumPanels, 4624, 1, 0, 0}, 1, 14},
      {{Panel16Element::kMxfp4, kPanelRows * kNumPanels, 4400, 1, 16, 0}, 1, 14},
      {{Panel16Element::kNvfp4, kPanelRows * kNumPanels, 2064, 1, 0, 0}, 2, 40},
      {{Panel16Element::kMxfp4, kPanelRows * kNumPanels, 1376, 1, 0, 0}, 3, 40},
      {{Panel16Element::kMxfp4, kPanelRows * kNumPanels, 1160, 1, 0, 64}, 4, 14},
      {{Panel16Element::kNvfp4, kPanelRows * kNumPanels, 1160, 1, 0, 128}, 4, 14},
      {{Panel16Element::kMxfp4, kPanelRows * kNumPanels, 1160, 1, 0, 256}, 4, 14},
  };
  const std::vector<int64_t> order = {0, 1, 1, 0, 1, 0, 0, 0, 1, 0, 1};
  int64_t judged = 0;
  for (const auto& [name, chosen] : bodies_under_test()) {
    for (const auto& [shape, tokens, binades] : kCases) {
      const Body& body = body_of(*chosen, shape.element);
      SCOPED_TRACE(name + " cols " + std::to_string(shape.cols) + " groups of " +
                   std::to_string(device::panel16_group_cols(shape)));
      DotCase dots(shape, tokens);
      dots.raise_columns(binades);
      const std::vector<float> alone[] = {dots.dot_in_order(body, tokens, {0}),
                                          dots.dot_in_order(body, tokens, {1})};
      const std::vector<float> sums = dots.dot_in_order(body, tokens, order);
      const int64_t of_panel = tokens * kPanelRows;
      for (int64_t i = 0; i < static_cast<int64_t>(order.size()) * of_panel; ++i) {
        const auto panel = static_cast<std::size_t>(order[static_cast<std::size_t>(i / of_panel)]);
        EXPECT_EQ(sums[static_cast<std::size_t>(i)],
                  alone[panel][static_cast<std::size_t>(i % of_panel)]);
        ++judged;
      }
      for (int64_t i = 0; i < kNumPanels * of_panel; ++i) {
        const auto [sum, magnitude] =
            dots.expected(i / of_panel * kPanelRows + i % kPanelRows, i / kPanelRows % tokens);
        const auto have = static_cast<double>(
            alone[static_cast<std::size_t>(i / of_panel)][static_cast<std::size_t>(i % of_panel)]);
        EXPECT_NEAR(have, sum, 0x1p-23 * magnitude * std::sqrt(2.0 * 4624));
      }
      if (testing::Test::HasFailure()) {
        return;
      }
    }
  }
  EXPECT_GE(judged, kPanelRows * 20 * 11);
}

// Sums of the first `tokens` tokens are within `relative` of the magnitudes, and `absolute`, of the
// exact ones. Returns how many were judged.
int64_t expect_near_exact(
    const Body& body, const DotCase& dots, int64_t tokens, double relative, double absolute = 0.0) {
  const std::vector<float> sums = dots.dot(body, 0, tokens);
  const int64_t count = kNumPanels * tokens * kPanelRows;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = i / (tokens * kPanelRows) * kPanelRows + i % kPanelRows;
    const auto [sum, magnitude] = dots.expected(row, i / kPanelRows % tokens);
    EXPECT_NEAR(static_cast<double>(sums[static_cast<std::size_t>(i)]),
                sum,
                relative * magnitude + absolute);
  }
  return count;
}

// Scales so small or large that code * scale, or its product with an operand, leaves bf16 or f32
// where the group's sum does not: on both sides of what the AMX body folds, and the extremes that
// there are.
TEST(Bodies, ExtremeScalesCountInFull) {
  int64_t judged = 0;
  for (const auto& [name, body] : bodies_under_test()) {
    for (const std::uint32_t least : {0U, 52U, 57U, 63U, 241U, 243U}) {
      const int64_t most = std::min(body->max_tokens, int64_t{20});
      const DotCase dots({Panel16Element::kMxfp4, kPanelRows * kNumPanels, 360, 1, 16, 0},
                         most,
                         least,
                         least < 127U ? 0 : -20);
      SCOPED_TRACE(name + " least " + std::to_string(least));
      judged += expect_near_exact(*body, dots, most, 0x1p-23 * std::sqrt(2.0 * 512), 0x1p-126 * 24);
    }
  }
  EXPECT_GE(judged, kNumPanels * kPanelRows * 6 * 4);
}

// Long rows, and shards that begin within a block: bodies that read them in segments agree with
// themselves where all of them read the wrong columns.
TEST(Bodies, LongRowsAndShardsCountTheirOwnScales) {
  int64_t judged = 0;
  for (const auto& [name, chosen] : bodies_under_test()) {
    for (const Panel16Shape& shape : kLong) {
      const Body& body = body_of(*chosen, shape.element);
      const int64_t most = std::min(body.max_tokens, int64_t{18});
      const DotCase dots(shape, most, 120, -20);
      SCOPED_TRACE(name + " cols " + std::to_string(shape.cols));
      judged += expect_near_exact(body, dots, most, 0x1p-23 * std::sqrt(2.0 * 2048));
    }
  }
  EXPECT_GE(judged, 10 * kNumPanels * kPanelRows * 4);
}

// The scale of one group of one panel is what the rest of the call need not be ready for.
TEST(Bodies, OneGroupOfAnExtremeScaleCountsInFull) {
  int64_t judged = 0;
  for (const auto& [name, chosen] : bodies_under_test()) {
    const Body& body = body_of(*chosen, Panel16Element::kMxfp4);
    for (const Panel16Shape& shape : {Panel16Shape{Panel16Element::kMxfp4, 32, 360, 1, 16, 0},
                                      Panel16Shape{Panel16Element::kMxfp4, 32, 512, 1, 0, 0}}) {
      for (int64_t place = 0; place < 2 * kNumPanels; ++place) {
        const int64_t most = std::min(body.max_tokens, int64_t{18});
        DotCase dots(shape, most, 120, -20);
        dots.set_scales(place / 2, place % 2 == 0 ? 0 : 6, 253);
        SCOPED_TRACE(name + " place " + std::to_string(place));
        judged += expect_near_exact(body, dots, most, 0x1p-23 * std::sqrt(2.0 * 512));
      }
    }
  }
  EXPECT_GE(judged, kNumPanels * kPanelRows * 8 * 4);
}

// Products of small scales and small operands that would be no normal f32.
TEST(Bodies, SmallScalesOfSmallOperandsCountInFull) {
  int64_t judged = 0;
  for (const auto& [name, body] : bodies_under_test()) {
    for (const std::uint32_t least : {50U, 57U, 63U}) {
      const int64_t most = std::min(body->max_tokens, int64_t{3});
      const DotCase dots(
          {Panel16Element::kMxfp4, kPanelRows * kNumPanels, 360, 1, 16, 0}, most, least, -58);
      SCOPED_TRACE(name + " least " + std::to_string(least));
      judged += expect_near_exact(*body, dots, most, 0x1p-16, 0x1p-149 * 24);
    }
  }
  EXPECT_GE(judged, kNumPanels * kPanelRows * 3 * 3);
}

// Elements far apart in one scale group: what a small one adds must not drown where the weights of
// the large ones are zero, in whatever form a body holds its operands.
TEST(Bodies, SmallOperandsBesideLargeOnesCountInFull) {
  int64_t judged = 0;
  for (const auto& [name, body] : bodies_under_test()) {
    for (const Panel16Element element : {Panel16Element::kNvfp4, Panel16Element::kMxfp4}) {
      for (const int binades : {4, 9, 13, 14, 40}) {
        SCOPED_TRACE(name + " binades " + std::to_string(binades));
        DotCase dots({element, kPanelRows * kNumPanels, 232, 1, 8, 0}, body->max_tokens);
        dots.raise_columns(binades);
        judged += expect_near_exact(*body, dots, body->max_tokens, 0x1p-23 * std::sqrt(2.0 * 232));
      }
    }
  }
  EXPECT_GE(judged, kNumPanels * kPanelRows * 10 * 4);
}

// Near the largest bf16 a group's sum would leave f32 before its scale brings it back: such rows
// are worked on smaller.
TEST(Bodies, SumsOfHugeOperandsStayInRange) {
  int64_t judged = 0;
  for (const auto& [name, chosen] : bodies_under_test()) {
    for (const Panel16Shape& shape : kShapes) {
      const Body& body = body_of(*chosen, shape.element);
      const int64_t most = std::min(body.max_tokens, int64_t{3});
      SCOPED_TRACE(name + " element " + std::to_string(static_cast<int>(shape.element)) + " cols " +
                   std::to_string(shape.cols));
      const DotCase dots(shape, most, 120, 125);
      const std::vector<float> sums = dots.dot(body, 0, most);
      for (int64_t i = 0; i < kNumPanels * most * kPanelRows; ++i) {
        const int64_t row = i / (most * kPanelRows) * kPanelRows + i % kPanelRows;
        const int64_t token = i / kPanelRows % most;
        const auto [sum, magnitude] = dots.expected(row, token);
        const double have = static_cast<double>(sums[static_cast<std::size_t>(i)]) *
                            static_cast<double>(dots.factor(body, token));
        EXPECT_NEAR(have, sum, 0x1p-23 * magnitude * std::sqrt(2.0 * 512));
        ++judged;
      }
    }
  }
  EXPECT_GE(judged, 15 * kNumPanels * kPanelRows);
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
      for (const auto& [name, body] : bodies_under_test()) {
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

// Rows that are read where they lie are what load_operand would have written, flag and factor too.
TEST(Bodies, RowsInPlaceAreTheirOperands) {
  constexpr int kLarge = 0x7180;  // 2^100, from which on rows are worked on smaller
  constexpr int kSmall = 0x1080;  // 2^-94, below which they are worked on larger
  int64_t in_place = 0;
  int64_t others = 0;
  std::mt19937 random(29);
  for (const auto& [name, body] : bodies_under_test()) {
    // Tiles that are rows are not: AMX pads them.
    const bool takes_rows = body->interleave != nullptr && body->operand_bytes == 2;
    EXPECT_EQ(body->is_operand != nullptr, takes_rows) << name;
    if (body->is_operand == nullptr) {
      continue;
    }
    for (const int64_t cols : {8, 48, 200, 203, 1024}) {
      for (const int special :
           {0x0001, kSmall - 1, kSmall, 0x3F80, kLarge - 1, kLarge, 0x7F7F, 0x7F80, 0x7FC0}) {
        for (const int64_t offset : {0, 8, 12}) {
          std::vector<std::uint16_t> row(static_cast<std::size_t>(cols));
          for (std::uint16_t& bits : row) {
            bits = static_cast<std::uint16_t>(
                (random() & 0x8000U) |
                (random() % static_cast<unsigned>(std::min(special, 0x4200) + 1)));
          }
          row[random() % row.size()] =
              static_cast<std::uint16_t>((random() & 0x8000U) | static_cast<unsigned>(special));
          const Panel16Shape shape{Panel16Element::kMxfp4, kPanelRows, cols, 1, offset};
          OperandRow source{row.data(), DType::kBf16, cols};
          std::vector<std::uint16_t> operand(static_cast<std::size_t>(cols) + 64);
          const LoadedRow expected =
              body->load_operand(source, shape, reinterpret_cast<std::byte*>(operand.data()));
          LoadedRow loaded{false, 0.0F};
          const bool is_operand = body->is_operand(source, shape, &loaded);
          const bool in_range = special >= kSmall && (special < kLarge || special >= 0x7F80);
          EXPECT_EQ(is_operand, cols % 8 == 0 && offset % 8 == 0 && in_range)
              << name << " cols " << cols << " offset " << offset << " special " << special;
          ++(is_operand ? in_place : others);
          if (is_operand) {
            EXPECT_EQ(loaded.finite, expected.finite) << special;
            EXPECT_EQ(loaded.factor, expected.factor) << special;
            EXPECT_EQ(std::memcmp(operand.data(), row.data(), row.size() * sizeof(row[0])), 0);
          }
          source.quantizer = Quantizer::kQ8;
          EXPECT_FALSE(body->is_operand(source, shape, &loaded));
          source.quantizer = Quantizer::kNone;
          source.dtype = DType::kF16;
          EXPECT_FALSE(body->is_operand(source, shape, &loaded));
        }
      }
    }
  }
  EXPECT_EQ(in_place > 0, others > 0);
}

// Rows of tiny and of huge elements: operands times the row's factor are the row, no sum of
// products with codes leaves f32's normal range, and rows of zeros are nothing special.
TEST(Bodies, RowsAreBroughtInRange) {
  int64_t judged = 0;
  for (const auto& [name, named] : bodies_under_test()) {
    const Body& body = body_of(*named, Panel16Element::kBf16);
    for (const float largest :
         {0.0F, 0x1p-133F, 0x1p-126F, 0x1.8p-95F, 0x1p-94F, 0x1p99F, 0x1p100F, 0x1.8p127F}) {
      constexpr int64_t kCols = 48;
      std::vector<float> row(kCols);
      for (std::size_t i = 0; i < row.size(); ++i) {
        row[i] = std::ldexp(i % 2 == 0 ? largest : -largest, -static_cast<int>(i % 5));
        row[i] = device::bf16_to_f32(device::bf16_from_f32(row[i]));
      }
      const Panel16Shape shape{Panel16Element::kBf16, kPanelRows, kCols, 1, 0};
      std::vector<std::byte> operand(1024);
      const LoadedRow loaded =
          body.load_operand({row.data(), DType::kF32, kCols}, shape, operand.data());
      EXPECT_TRUE(loaded.finite);
      for (std::size_t i = 0; i < row.size(); ++i) {
        float value = 0.0F;
        if (body.operand_bytes == 4) {
          std::memcpy(&value, operand.data() + 4 * i, 4);
        } else {
          std::uint16_t bits = 0;
          std::memcpy(&bits, operand.data() + 2 * i, 2);
          value = device::bf16_to_f32(bits);
        }
        EXPECT_EQ(value * loaded.factor, row[i]) << name << " largest " << largest << " at " << i;
        EXPECT_TRUE(value == 0.0F || body.operand_bytes == 4 || std::abs(value) >= 0x1p-110F)
            << name << " largest " << largest;
        EXPECT_LT(std::abs(value), 0x1p100F) << name << " largest " << largest;
        ++judged;
      }
    }
  }
  EXPECT_GE(judged, 8 * 48);
}

// A tile of body.max_tokens into which some rows were interleaved, and what stands there by the
// places alone.
void expect_rows_in_places(const Body& body, int64_t num_pairs, int64_t num_rows, int64_t first) {
  const auto pair_bytes = static_cast<std::size_t>(2 * body.operand_bytes);
  const std::size_t row_bytes = static_cast<std::size_t>(num_pairs) * pair_bytes;
  const auto num_tokens = static_cast<std::size_t>(body.max_tokens);
  std::vector<std::vector<std::byte>> rows(static_cast<std::size_t>(num_rows));
  std::vector<const std::byte*> pointers;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    rows[row].resize(row_bytes);
    for (std::size_t i = 0; i < row_bytes; ++i) {
      rows[row][i] = static_cast<std::byte>(17 * row + i * i % 251);
    }
    pointers.push_back(rows[row].data());
  }
  std::vector<std::byte> tile(row_bytes * num_tokens, std::byte{0xA5});
  std::vector<std::byte> expected = tile;
  for (std::size_t pair = 0; pair < static_cast<std::size_t>(num_pairs); ++pair) {
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const std::size_t place = pair * num_tokens + static_cast<std::size_t>(first) + row;
      std::memcpy(
          expected.data() + place * pair_bytes, rows[row].data() + pair * pair_bytes, pair_bytes);
    }
  }
  body.interleave({pointers.data(), num_rows, num_pairs, tile.data(), first, body.max_tokens});
  EXPECT_EQ(tile, expected) << "pairs " << num_pairs << " rows " << num_rows << " first " << first;
}

// Every number of rows, at every place of a tile, over whole and cut chunks of pairs.
TEST(Bodies, InterleavesRowsToTheirPlaces) {
  int64_t judged = 0;
  for (const auto& [name, body] : bodies_under_test()) {
    SCOPED_TRACE(name);
    const int64_t most = body->interleave == nullptr ? 0 : body->max_tokens;
    for (const int64_t num_pairs : {4, 12, 64, 68, 140}) {
      for (int64_t num_rows = 1; num_rows <= most; ++num_rows) {
        for (int64_t first = 0; first + num_rows <= most; first += 3, ++judged) {
          expect_rows_in_places(*body, num_pairs, num_rows, first);
        }
      }
    }
  }
  EXPECT_GE(judged, 5 * 5);
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
    for (const auto& [name, body] : bodies_under_test()) {
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
