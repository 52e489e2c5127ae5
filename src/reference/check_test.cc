// SPDX-License-Identifier: Apache-2.0
// Does the check pass what is right and fail what is wrong? Every mutation here is one that a real
// mistake makes.
#include "reference/check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "reference/layer_fixture.h"

namespace moekit::reference {
namespace {

constexpr std::size_t kBf16Bytes = 2;

Problem small_problem(Recipe recipe = Recipe::kW4a16Nvfp4) {
  Problem problem;
  problem.num_experts = 4;
  problem.top_k = 2;
  problem.hidden_size = 96;
  problem.intermediate_size = 72;
  problem.recipe = recipe;
  problem.gate_up_bias = true;
  problem.down_bias = true;
  return problem;
}

VerifyReport check(const LayerFixture& layer, bool materialised = true) {
  Evidence evidence;
  evidence.num_tokens = layer.num_tokens;
  evidence.out = layer.arguments.out;
  evidence.intermediate = materialised ? layer.intermediate.data() : nullptr;
  return check_layer({layer.problem, layer.source, layer.arguments}, evidence);
}

LayerFixture ran(const Problem& problem, std::int64_t num_tokens, std::uint32_t seed = 1) {
  LayerFixture layer = LayerFixture::make(problem, num_tokens, seed);
  layer.run_plain();
  return layer;
}

TEST(Check, PassesPlainScalarCodeOfEveryRecipe) {
  for (const RecipeInfo& info : std::span(kRecipes).first(3)) {  // those of the fixture
    for (const DType io : {DType::kBf16, DType::kF32}) {
      Problem problem = small_problem(info.recipe);
      problem.io_dtype = io;
      const LayerFixture layer = ran(problem, 30);
      for (const bool materialised : {true, false}) {
        const VerifyReport report = check(layer, materialised);
        EXPECT_TRUE(report.passed) << info.name << ": " << report.first_failure;
        EXPECT_EQ(report.tokens_checked, 30);
        EXPECT_EQ(report.routes_checked, 60);
        EXPECT_EQ(report.outputs_checked, 30 * 96);
        EXPECT_EQ(report.intermediates_checked, materialised ? 60 * 72 : 0);
        EXPECT_GT(report.cosine, 0.9999);
        EXPECT_GT(report.max_bound_fraction, io == DType::kBf16 ? 0.3 : 0.0);
        EXPECT_LT(report.end_to_end_relative_l2, 0.01);
      }
    }
  }
}

struct Mutation {
  const char* name;
  std::function<void(LayerFixture&)> apply;
  bool end_to_end = true;  // also visible without the intermediate
};

void move_output(LayerFixture& layer, std::size_t index, int ulps) {
  std::uint16_t code = 0;
  std::memcpy(&code, layer.out.data() + index * 2, 2);
  code = static_cast<std::uint16_t>(code + ulps);
  std::memcpy(layer.out.data() + index * 2, &code, 2);
}

std::vector<Mutation> mutations() {
  const auto with = [](std::function<void(LayerFixture&)> change) {
    return [change](LayerFixture& layer) {
      // What an implementation with this one mistake computes.
      const LayerFixture original = layer;
      change(layer);
      layer.run_plain();
      layer.problem = original.problem;
      layer.source = original.source;
      layer.ids = original.ids;
      layer.weights = original.weights;
    };
  };
  return {
      {"output off by two ulps", [](LayerFixture& l) { move_output(l, 500, 2); }},
      {"output sign", [](LayerFixture& l) { l.out[1003] ^= 0x80; }},
      {"output NaN", [](LayerFixture& l) { l.out[1004] = l.out[1005] = 0xFF; }},
      {"output row zero",
       [](LayerFixture& l) { std::memset(l.out.data() + 96 * kBf16Bytes, 0, 96 * kBf16Bytes); }},
      {"intermediate off by two ulps", [](LayerFixture& l) { l.intermediate[700] += 2; }, false},
      {"intermediate off by one ulp", [](LayerFixture& l) { l.intermediate[701] += 1; }, false},
      {"intermediate NaN", [](LayerFixture& l) { l.intermediate[702] = 0xFFFF; }, false},
      {"gate and up swapped", with([](LayerFixture& l) {
         for (auto& e : l.source.experts) {
           std::swap(e.gate, e.up);
         }
       })},
      {"gate's global for up", with([](LayerFixture& l) {
         for (auto& e : l.source.experts) {
           e.up.global_scale = e.gate.global_scale;
         }
       })},
      {"bias dropped", with([](LayerFixture& l) {
         for (auto& e : l.source.experts) {
           e.down_bias.data = nullptr;
         }
       })},
      {"bias stride ignored", with([](LayerFixture& l) {
         for (auto& e : l.source.experts) {
           e.up_bias.stride = 1;
         }
       })},
      {"limit ignored", with([](LayerFixture& l) { l.problem.activation.limit.reset(); })},
      {"router weight on input",
       with([](LayerFixture& l) { l.problem.router_weight_on_input = true; })},
      {"scaling dropped", with([](LayerFixture& l) { l.problem.routed_scaling = 1.0F; })},
      {"scale grid of the next row", with([](LayerFixture& l) {
         auto& down = l.source.experts[1].down;
         down.scales = static_cast<const unsigned char*>(down.scales) + 1;
         down.rows -= 1;
       })},
      {"duplicate counted once", with([](LayerFixture& l) { l.ids[1] = -1; })},
      {"expert of the neighbour", with([](LayerFixture& l) { l.ids[5] = (l.ids[5] + 1) % 4; })},
  };
}

TEST(Check, FailsEveryMutation) {
  int applied = 0;
  for (const Mutation& mutation : mutations()) {
    for (const bool materialised : {true, false}) {
      if (!materialised && !mutation.end_to_end) {
        continue;
      }
      Problem problem = small_problem();
      problem.activation.limit = 0.5F;
      problem.routed_scaling = 1.01F;
      LayerFixture layer = LayerFixture::make(problem, 8, 3);
      layer.ids[1] = layer.ids[0];
      layer.run_plain();
      ASSERT_TRUE(check(layer, materialised).passed) << check(layer, materialised).first_failure;
      mutation.apply(layer);
      const VerifyReport report = check(layer, materialised);
      EXPECT_FALSE(report.passed) << mutation.name << (materialised ? "" : " end to end");
      EXPECT_FALSE(report.first_failure.empty()) << mutation.name;
      ++applied;
    }
  }
  EXPECT_GE(applied, 30);
}

TEST(Check, FailsAnIntermediateThatIsTruncatedInsteadOfRounded) {
  LayerFixture layer = ran(small_problem(), 30);
  std::int64_t moved = 0;
  for (std::size_t i = 0; i < layer.intermediate.size(); i += 7) {
    layer.intermediate[i] = static_cast<std::uint16_t>(layer.intermediate[i] - 1);
    ++moved;
  }
  ASSERT_GT(moved, 300);
  const VerifyReport report = check(layer);
  EXPECT_FALSE(report.passed);
  EXPECT_GT(report.intermediates_out_of_bound, moved * 9 / 10);
}

TEST(Check, InactiveTokenMustBeExactlyZero) {
  LayerFixture layer = LayerFixture::make(small_problem(), 4, 9);
  layer.ids[2] = -1;
  layer.ids[3] = 4;
  layer.run_plain();
  EXPECT_TRUE(check(layer).passed) << check(layer).first_failure;
  layer.out[202] = 1;  // the smallest subnormal
  EXPECT_FALSE(check(layer).passed);
}

TEST(Check, NonFiniteTokenMustBeNanInEveryColumnAndOnlyThere) {
  LayerFixture layer = LayerFixture::make(small_problem(), 4, 9);
  const std::uint16_t infinity = 0x7F80;
  std::memcpy(layer.x.data() + 101 * kBf16Bytes, &infinity, 2);
  layer.run_plain();
  for (std::size_t n = 0; n < 96; ++n) {
    const std::uint16_t nan = 0x7FC0;
    std::memcpy(layer.out.data() + (96 + n) * kBf16Bytes, &nan, 2);
  }
  EXPECT_TRUE(check(layer).passed) << check(layer).first_failure;
  std::memset(layer.out.data() + 103 * kBf16Bytes, 0, 2);
  EXPECT_FALSE(check(layer).passed);
}

void fill_row(LayerFixture& layer, std::size_t token, std::uint16_t code) {
  for (std::size_t k = 0; k < 96; ++k) {
    std::memcpy(layer.x.data() + (token * 96 + k) * kBf16Bytes, &code, kBf16Bytes);
  }
}

TEST(Check, TokensBeyondTheRangeOfF32AreCountedAndAllOfThemProveNothing) {
  constexpr std::uint16_t kHuge = 0x7F00;  // 2^127
  LayerFixture layer = LayerFixture::make(small_problem(), 4, 9);
  fill_row(layer, 1, kHuge);
  layer.run_plain();
  const VerifyReport report = check(layer);
  EXPECT_TRUE(report.passed) << report.first_failure;
  EXPECT_EQ(report.tokens_checked, 3);
  EXPECT_EQ(report.tokens_out_of_range, 1);
  for (const std::size_t token : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
    fill_row(layer, token, kHuge);
  }
  layer.run_plain();
  const VerifyReport nothing = check(layer);
  EXPECT_FALSE(nothing.passed);
  EXPECT_NE(nothing.first_failure.find("none of 4 tokens could be checked: 4 whose sums"),
            std::string::npos)
      << nothing.first_failure;
}

TEST(Check, RowsThatDependOnNoIntermediateAreJudgedInEveryChunk) {
  LayerFixture layer = LayerFixture::make(small_problem(Recipe::kW4a8Mxfp4), 3, 9);
  fill_row(layer, 0, 0x7FC0);  // NaN
  layer.ids[2] = layer.ids[3] = -1;
  std::fill(layer.out.begin(), layer.out.end(), 0);
  for (std::size_t n = 0; n < 96; ++n) {
    const std::uint16_t nan = 0x7FC0;
    std::memcpy(layer.out.data() + n * kBf16Bytes, &nan, kBf16Bytes);
  }
  Evidence evidence;
  evidence.num_tokens = 3;
  evidence.out = layer.arguments.out;
  evidence.intermediate = layer.intermediate.data();
  evidence.first_token = 3;  // every token has left the slice
  const auto report = [&] {
    return check_layer({layer.problem, layer.source, layer.arguments}, evidence);
  };
  EXPECT_TRUE(report().passed) << report().first_failure;
  EXPECT_EQ(report().tokens_checked, 2);
  EXPECT_EQ(report().tokens_not_finite, 1);
  EXPECT_EQ(report().tokens_inactive, 1);
  EXPECT_EQ(report().tokens_overwritten, 1);
  layer.out[5 * kBf16Bytes + 1] = 0;  // no longer NaN
  EXPECT_FALSE(report().passed);
}

TEST(Check, ShareOfDifferingValuesIsLimited) {
  LayerFixture layer = ran(small_problem(), 30);
  const VerifyReport report = check(layer);
  ASSERT_GE(report.intermediates_checked, kShareMinimum);
  EXPECT_LT(static_cast<double>(report.intermediates_differing),
            kShareLimit * static_cast<double>(report.intermediates_checked));
}

// One-hot inputs and a vanishing gate: sigmoid is 1/2 in f32, so a = g / 2 * 1 with g of nine or
// more bits lies on ties by the hundred, which f64 resolves and f32 rounds to even.
TEST(Check, StructuralTiesDoNotCountTowardsTheShare) {
  Problem problem = small_problem(Recipe::kW4a16Mxfp4);
  problem.gate_up_bias = false;
  problem.activation.kind = ActivationKind::kSwigluOai;
  LayerFixture layer = LayerFixture::make(problem, 40, 5);
  for (std::size_t i = 0; i < layer.x.size() / 2; ++i) {
    // Seven-bit mantissas at 2^-30, one column alive per token.
    const auto code = static_cast<std::uint16_t>((127 - 30) << 7 | (2 * i + 1) % 128);
    const std::uint16_t value = i % 96 == i / 96 ? code : 0;
    std::memcpy(layer.x.data() + i * 2, &value, 2);
  }
  layer.run_plain();
  const VerifyReport report = check(layer);
  EXPECT_TRUE(report.passed) << report.first_failure;
  EXPECT_GT(report.intermediates_differing, report.intermediates_checked / 100);
}

TEST(Check, SamplesSixtyFourTokens) {
  EXPECT_EQ(sample_tokens(0, 0).size(), 0U);
  EXPECT_EQ(sample_tokens(64, 0).size(), 64U);
  for (const std::int64_t first : {std::int64_t{0},
                                   std::int64_t{10},
                                   std::int64_t{256},
                                   std::int64_t{300},
                                   std::int64_t{990},
                                   std::int64_t{999}}) {
    const auto tokens = sample_tokens(1000, first);
    ASSERT_EQ(tokens.size(), 64U) << first;
    EXPECT_EQ(tokens.front(), 0);
    EXPECT_GE(tokens.back(), 999 - (1000 - first) + 1);
    EXPECT_LT(tokens.back(), 1000);
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      ASSERT_LT(tokens[i - 1], tokens[i]);
    }
  }
}

TEST(Check, LooksAtTheTokensThatTheSliceHolds) {
  LayerFixture layer = ran(small_problem(), 12);
  Evidence evidence;
  evidence.num_tokens = 12;
  evidence.out = layer.arguments.out;
  evidence.first_token = 8;
  const std::vector<std::uint16_t> slice(layer.intermediate.begin() + 1152,
                                         layer.intermediate.end());
  evidence.intermediate = slice.data();
  VerifyReport report = check_layer({layer.problem, layer.source, layer.arguments}, evidence);
  EXPECT_TRUE(report.passed) << report.first_failure;
  EXPECT_EQ(report.tokens_checked, 12);
  EXPECT_EQ(report.intermediates_checked, 4 * 2 * 72);
  move_output(layer, 3, 2);  // a token outside the slice
  report = check_layer({layer.problem, layer.source, layer.arguments}, evidence);
  EXPECT_FALSE(report.passed);
}

TEST(Check, ThreadsChangeNothing) {
  const LayerFixture layer = ran(small_problem(), 12);
  auto pool = base::ThreadPool::create(3);
  ASSERT_TRUE(pool.has_value());
  Evidence evidence;
  evidence.num_tokens = 12;
  evidence.out = layer.arguments.out;
  evidence.intermediate = layer.intermediate.data();
  LayerCall call{layer.problem, layer.source, layer.arguments};
  const VerifyReport alone = check_layer(call, evidence);
  call.pool = pool->get();
  const VerifyReport together = check_layer(call, evidence);
  EXPECT_EQ(alone.rms_error, together.rms_error);
  EXPECT_EQ(alone.max_bound_fraction, together.max_bound_fraction);
  EXPECT_TRUE(together.passed);
}

}  // namespace
}  // namespace moekit::reference
