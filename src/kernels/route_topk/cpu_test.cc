// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/experts.h"
#include "moekit/plan.h"
#include "moekit/routing.h"
#include "moekit/runtime.h"

#include "device/numerics/bf16.h"

namespace moekit {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Routed route_f32(const Routing& routing,
                 const std::vector<float>& logits,
                 const std::vector<float>& bias = {}) {
  const auto tokens = static_cast<std::int64_t>(logits.size()) / routing.num_experts;
  Routed out;
  out.ids.assign(static_cast<std::size_t>(tokens * routing.top_k), 77);
  out.weights.assign(out.ids.size(), kNan);
  RouteArguments arguments;
  arguments.logits = matrix_view(logits.data(), DType::kF32, tokens, routing.num_experts);
  arguments.correction_bias = bias.empty() ? nullptr : bias.data();
  arguments.topk_ids = matrix_view(out.ids.data(), DType::kI32, tokens, routing.top_k);
  arguments.topk_weights = matrix_view(out.weights.data(), DType::kF32, tokens, routing.top_k);
  const Status status = route(routing, arguments);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return out;
}

double score(Scoring scoring, double logit, double max, double sum) {
  switch (scoring) {
    case Scoring::kSoftmax:
      return std::exp(logit - max) / sum;
    case Scoring::kSigmoid:
      return 1.0 / (1.0 + std::exp(-logit));
    case Scoring::kSqrtSoftplus:
      return std::sqrt(std::max(logit, 0.0) + std::log1p(std::exp(-std::fabs(logit))));
    default:
      return logit;
  }
}

// Straight from spec section 4, in double, by sorting.
void check_token(const Routing& routing,
                 const float* logits,
                 const float* bias,
                 const std::int32_t* ids,
                 const float* weights) {
  const auto experts = static_cast<std::size_t>(routing.num_experts);
  const double max = *std::max_element(logits, logits + experts);
  double sum = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    sum += std::exp(static_cast<double>(logits[e]) - max);
  }
  std::vector<double> scores(experts);
  std::vector<double> keys(experts);
  for (std::size_t e = 0; e < experts; ++e) {
    scores[e] = score(routing.scoring, static_cast<double>(logits[e]), max, sum);
    keys[e] = scores[e] + (bias != nullptr ? static_cast<double>(bias[e]) : 0.0);
  }
  const std::size_t per_group = experts / static_cast<std::size_t>(routing.num_groups);
  std::vector<std::pair<double, std::size_t>> groups;
  for (std::size_t g = 0; g < static_cast<std::size_t>(routing.num_groups); ++g) {
    std::vector<double> members(keys.begin() + static_cast<std::ptrdiff_t>(g * per_group),
                                keys.begin() + static_cast<std::ptrdiff_t>((g + 1) * per_group));
    std::sort(members.rbegin(), members.rend());
    groups.emplace_back(-(members[0] + (per_group > 1 ? members[1] : 0.0)), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t g = 0; g < static_cast<std::size_t>(routing.top_groups); ++g) {
    for (std::size_t i = 0; i < per_group; ++i) {
      const std::size_t e = groups[g].second * per_group + i;
      order.emplace_back(-keys[e], e);
    }
  }
  std::sort(order.begin(), order.end());
  const auto top_k = static_cast<std::size_t>(routing.top_k);
  double total = 0;
  double selected_max = -INFINITY;
  for (std::size_t s = 0; s < top_k; ++s) {
    ASSERT_EQ(static_cast<std::size_t>(ids[s]), order[s].second) << "slot " << s;
    selected_max = std::max(selected_max, scores[order[s].second]);
  }
  std::vector<double> expected(top_k);
  for (std::size_t s = 0; s < top_k; ++s) {
    expected[s] = scores[order[s].second];
    if (routing.scoring == Scoring::kSoftmaxSelected) {
      expected[s] = std::exp(expected[s] - selected_max);
    }
    total += expected[s];
  }
  const bool divide = routing.renormalize || routing.scoring == Scoring::kSoftmaxSelected;
  for (std::size_t s = 0; s < top_k; ++s) {
    const double want =
        expected[s] / (divide ? total + 1e-20 : 1.0) * static_cast<double>(routing.scale);
    // 32-fold sums and two divisions of f32 scores that are good to 3 ulp each.
    EXPECT_NEAR(static_cast<double>(weights[s]), want, 40 * 0x1p-24 * std::abs(want));
  }
}

TEST(RouteTopk, EveryScoringAgainstSorting) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  int checked = 0;
  for (const Scoring scoring : {Scoring::kSoftmax,
                                Scoring::kSigmoid,
                                Scoring::kSoftmaxSelected,
                                Scoring::kNone,
                                Scoring::kSqrtSoftplus}) {
    for (const auto& [experts, top_k, groups, top_groups] :
         {std::array<std::int64_t, 4>{8, 2, 1, 1},
          {33, 1, 1, 1},
          {128, 8, 1, 1},
          {256, 8, 8, 4},
          {384, 32, 1, 1},
          {896, 22, 4, 3},
          {1024, 16, 1024, 64},
          {1024, 32, 8, 4},
          {1, 1, 1, 1}}) {
      for (int bits = 0; bits < 4; ++bits) {
        Routing routing{.scoring = scoring,
                        .num_experts = experts,
                        .top_k = top_k,
                        .num_groups = groups,
                        .top_groups = top_groups,
                        .renormalize = (bits & 1) != 0 && scoring != Scoring::kNone,
                        .scale = 2.5F,
                        .correction_bias = (bits & 2) != 0};
        constexpr std::int64_t kTokens = 3;
        std::vector<float> logits(static_cast<std::size_t>(kTokens * experts));
        std::generate(logits.begin(), logits.end(), [&] { return normal(random); });
        std::vector<float> bias(routing.correction_bias ? static_cast<std::size_t>(experts) : 0U);
        std::generate(bias.begin(), bias.end(), [&] { return normal(random) * 0.1F; });
        const Routed routed = route_f32(routing, logits, bias);
        for (std::int64_t token = 0; token < kTokens; ++token) {
          SCOPED_TRACE(std::string(scoring_name(scoring)) + " E " + std::to_string(experts));
          check_token(routing,
                      logits.data() + token * experts,
                      bias.empty() ? nullptr : bias.data(),
                      routed.ids.data() + token * top_k,
                      routed.weights.data() + token * top_k);
          ++checked;
        }
      }
    }
  }
  EXPECT_GE(checked, 300);
}

TEST(RouteTopk, LowestIdWinsTies) {
  for (const bool bias : {false, true}) {
    const Routing routing{
        .scoring = Scoring::kSigmoid, .num_experts = 6, .top_k = 3, .correction_bias = bias};
    const std::vector<float> zeros(bias ? 6U : 0U, 0.0F);
    const Routed routed = route_f32(routing, {1, 2, 2, 1, 2, 2}, zeros);
    EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{1, 2, 4}));
  }
  const Routing grouped{
      .scoring = Scoring::kSigmoid, .num_experts = 6, .top_k = 2, .num_groups = 3, .top_groups = 1};
  EXPECT_EQ(route_f32(grouped, {1, 1, 1, 1, 1, 1}).ids, (std::vector<std::int32_t>{0, 1}));
}

TEST(RouteTopk, BiasSelectsButDoesNotWeigh) {
  const Routing routing{
      .scoring = Scoring::kSigmoid, .num_experts = 4, .top_k = 2, .correction_bias = true};
  // GLM-5.2: biases of about 12 over scores of about 1e-8; narrowing either would lose the scores.
  const std::vector<float> logits{-18.0F, -18.5F, -17.0F, -19.0F};
  const Routed routed = route_f32(routing, logits, {12.0F, 12.25F, 12.0F, 12.5F});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{3, 1}));
  EXPECT_NEAR(routed.weights[0], 1.0 / (1.0 + std::exp(19.0)), 1e-14);
  EXPECT_NEAR(routed.weights[1], 1.0 / (1.0 + std::exp(18.5)), 1e-14);
}

TEST(RouteTopk, NonFiniteLogits) {
  const Routing routing{.scoring = Scoring::kSoftmax, .num_experts = 5, .top_k = 4};
  // NaN and -infinity are never selected; +infinity is the largest finite value.
  const Routed routed = route_f32(routing, {kNan, 1.0F, kInf, -kInf, 0.0F});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{2, 1, 4, -1}));
  EXPECT_EQ(routed.weights, (std::vector<float>{1.0F, 0.0F, 0.0F, 0.0F}));
  const Routed none = route_f32(routing, {kNan, kNan, -kInf, -kInf, kNan});
  EXPECT_EQ(none.ids, (std::vector<std::int32_t>{-1, -1, -1, -1}));
  EXPECT_EQ(none.weights, (std::vector<float>{0.0F, 0.0F, 0.0F, 0.0F}));
  Routing biased{.scoring = Scoring::kSigmoid,
                 .num_experts = 3,
                 .top_k = 3,
                 .renormalize = true,
                 .correction_bias = true};
  const Routed masked = route_f32(biased, {kNan, 0.0F, 0.0F}, {100.0F, 0.0F, 1.0F});
  EXPECT_EQ(masked.ids, (std::vector<std::int32_t>{2, 1, -1}));
  EXPECT_EQ(masked.weights, (std::vector<float>{0.5F, 0.5F, 0.0F}));
}

TEST(RouteTopk, ScoresThatUnderflowStayApart) {
  const Routing routing{
      .scoring = Scoring::kSoftmax, .num_experts = 4, .top_k = 3, .renormalize = true};
  const Routed routed = route_f32(routing, {0.0F, -400.0F, -300.0F, -500.0F});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{0, 2, 1}));
  EXPECT_EQ(routed.weights, (std::vector<float>{1.0F, 0.0F, 0.0F}));
}

TEST(RouteTopk, ZeroSumGivesZeroWeights) {
  const Routing routing{
      .scoring = Scoring::kNone, .num_experts = 3, .top_k = 2, .renormalize = true};
  EXPECT_EQ(route_f32(routing, {1.0F, -1.0F, -2.0F}).weights, (std::vector<float>{0.0F, 0.0F}));
}

TEST(RouteTopk, NarrowLogitsReadAsF32) {
  const Routing routing{.scoring = Scoring::kSoftmax, .num_experts = 16, .top_k = 4};
  std::mt19937 random(9);
  std::vector<std::uint16_t> bf16(32);
  std::vector<std::uint16_t> f16(32);
  std::vector<float> wide_bf16(32);
  std::vector<float> wide_f16(32);
  for (std::size_t i = 0; i < 32; ++i) {
    const float value = std::uniform_real_distribution<float>(-3.0F, 3.0F)(random);
    bf16[i] = device::bf16_from_f32(value);
    f16[i] = device::f16_from_f32(value);
    wide_bf16[i] = device::bf16_to_f32(bf16[i]);
    wide_f16[i] = device::f16_to_f32(f16[i]);
  }
  for (const auto& [narrow, wide, dtype] :
       {std::tuple{&bf16, &wide_bf16, DType::kBf16}, std::tuple{&f16, &wide_f16, DType::kF16}}) {
    Routed have;
    have.ids.resize(8);
    have.weights.resize(8);
    RouteArguments arguments;
    arguments.logits = matrix_view(std::as_const(*narrow).data(), dtype, 2, 16);
    arguments.topk_ids = matrix_view(have.ids.data(), DType::kI32, 2, 4);
    arguments.topk_weights = matrix_view(have.weights.data(), DType::kF32, 2, 4);
    ASSERT_TRUE(route(routing, arguments).ok());
    const Routed want = route_f32(routing, *wide);
    EXPECT_EQ(have.ids, want.ids);
    EXPECT_EQ(have.weights, want.weights);
  }
}

TEST(RouteTopk, RefusesWhatDoesNotFit) {
  const Routing routing{.num_experts = 8, .top_k = 2, .correction_bias = true};
  std::vector<float> logits(16);
  std::vector<std::int32_t> ids(4);
  std::vector<float> weights(4);
  RouteArguments arguments;
  arguments.logits = matrix_view(std::as_const(logits).data(), DType::kF32, 2, 8);
  arguments.topk_ids = matrix_view(ids.data(), DType::kI32, 2, 2);
  arguments.topk_weights = matrix_view(weights.data(), DType::kF32, 2, 2);
  const Status no_bias = route(routing, arguments);
  EXPECT_EQ(no_bias.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(no_bias.message().find("correction_bias is null"), std::string_view::npos);
  arguments.correction_bias = logits.data();
  EXPECT_TRUE(route(routing, arguments).ok());
  arguments.topk_ids.shape[1] = 3;
  EXPECT_NE(route(routing, arguments).message().find("topk_ids"), std::string_view::npos);
  arguments.topk_ids.shape[1] = 2;
  arguments.topk_ids.dtype = DType::kI64;
  EXPECT_NE(route(routing, arguments).message().find("i64"), std::string_view::npos);
  arguments.topk_ids.dtype = DType::kI32;
  arguments.logits.dtype = DType::kE4m3;
  EXPECT_NE(route(routing, arguments).message().find("e4m3"), std::string_view::npos);
  arguments.logits = matrix_view(std::as_const(logits).data(), DType::kF32, 2, 7);
  EXPECT_NE(route(routing, arguments).message().find("[2, 8]"), std::string_view::npos);
  Routing too_many = routing;
  too_many.num_experts = 1025;
  EXPECT_EQ(route(too_many, arguments).code(), StatusCode::kUnsupported);
}

TEST(RouteTopk, HashTableNamesTheIdsAndScoresWeighThem) {
  Routing routing;
  routing.scoring = Scoring::kSqrtSoftplus;
  routing.num_experts = 6;
  routing.top_k = 2;
  routing.renormalize = true;
  routing.scale = 1.5F;
  routing.hash_table = true;
  const std::vector<std::int32_t> table = {4, 1, 0, 6, 3, 5};  // three token ids; 6 is no expert
  const std::vector<std::int64_t> token_ids = {0, 2, 1, 3, -1, std::int64_t{1} << 32};
  std::vector<float> logits(std::size_t{6} * 6, 0.5F);
  logits[4] = 2.0F;
  logits[1] = -1.0F;
  logits[6 + 5] = kNan;
  std::vector<std::int32_t> ids(12, 77);
  std::vector<float> weights(12, kNan);
  RouteArguments arguments;
  arguments.logits = matrix_view(static_cast<const void*>(logits.data()), DType::kF32, 6, 6);
  arguments.topk_ids = matrix_view(ids.data(), DType::kI32, 6, 2);
  arguments.topk_weights = matrix_view(weights.data(), DType::kF32, 6, 2);
  EXPECT_EQ(route(routing, arguments).code(), StatusCode::kInvalidArgument);  // no table
  arguments.hash_table = {table.data(), 3, {token_ids.data(), DType::kI64, 1, {6}, {1}}};
  const Status status = route(routing, arguments);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(ids, (std::vector<std::int32_t>{4, 1, 3, -1, 0, -1, -1, -1, -1, -1, -1, -1}));
  const double high = score(Scoring::kSqrtSoftplus, 2.0, 0.0, 0.0);
  const double low = score(Scoring::kSqrtSoftplus, -1.0, 0.0, 0.0);
  EXPECT_NEAR(weights[0], 1.5 * high / (high + low), 1e-6);
  EXPECT_NEAR(weights[1], 1.5 * low / (high + low), 1e-6);
  EXPECT_NEAR(weights[2], 1.5, 1e-6);  // alone in its token
  for (std::size_t i = 6; i < 12; ++i) {
    EXPECT_EQ(weights[i], 0.0F) << i;
  }
}

TEST(RouteTopk, ExpertScaleMultipliesAfterRenormalisation) {
  Routing routing;
  routing.num_experts = 4;
  routing.top_k = 2;
  routing.renormalize = true;
  const std::vector<float> logits = {1.0F, 3.0F, 2.0F, 0.0F};
  const Routed plain = route_f32(routing, logits);
  routing.expert_scale = true;
  const std::vector<float> scales = {2.0F, 4.0F, 0.5F, 8.0F};
  Routed scaled{std::vector<std::int32_t>(2), std::vector<float>(2)};
  RouteArguments arguments;
  arguments.logits = matrix_view(logits.data(), DType::kF32, 1, 4);
  arguments.topk_ids = matrix_view(scaled.ids.data(), DType::kI32, 1, 2);
  arguments.topk_weights = matrix_view(scaled.weights.data(), DType::kF32, 1, 2);
  EXPECT_EQ(route(routing, arguments).code(), StatusCode::kInvalidArgument);  // no scales
  arguments.expert_scale = scales.data();
  ASSERT_TRUE(route(routing, arguments).ok());
  EXPECT_EQ(scaled.ids, plain.ids);
  EXPECT_EQ(scaled.weights[0], plain.weights[0] * 4.0F);
  EXPECT_EQ(scaled.weights[1], plain.weights[1] * 0.5F);
}

}  // namespace
}  // namespace moekit
