// SPDX-License-Identifier: Apache-2.0
#include "reference/routing.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace moekit::reference {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

Selection select(const Routing& routing,
                 const std::vector<float>& logits,
                 const float* bias = nullptr) {
  const auto row = read_logits(matrix_view(static_cast<const void*>(logits.data()),
                                           DType::kF32,
                                           1,
                                           static_cast<std::int64_t>(logits.size())),
                               0);
  Selection selection = select_experts(routing, row, bias);
  EXPECT_EQ(judge_selection(routing, row, bias, selection), "");
  return selection;
}

std::string judge(const Routing& routing,
                  const std::vector<float>& logits,
                  const Selection& selection,
                  const float* bias = nullptr) {
  const std::vector<double> row(logits.begin(), logits.end());
  return judge_selection(routing, row, bias, selection);
}

Routing routing_of(Scoring scoring, std::int64_t experts, std::int64_t top_k) {
  Routing routing;
  routing.scoring = scoring;
  routing.num_experts = experts;
  routing.top_k = top_k;
  return routing;
}

TEST(RoutingOracle, SoftmaxByHand) {
  const Selection s =
      select(routing_of(Scoring::kSoftmax, 4, 2), {0.0F, std::log(2.0F), 0.0F, std::log(4.0F)});
  EXPECT_EQ(s.ids, (std::vector<std::int32_t>{3, 1}));
  EXPECT_NEAR(s.weights[0], 0.5, 1e-7);
  EXPECT_NEAR(s.weights[1], 0.25, 1e-7);
}

TEST(RoutingOracle, RenormaliseAndScale) {
  Routing routing = routing_of(Scoring::kSoftmax, 4, 2);
  routing.renormalize = true;
  routing.scale = 3.0F;
  const Selection s = select(routing, {0.0F, std::log(2.0F), 0.0F, std::log(4.0F)});
  EXPECT_NEAR(s.weights[0], 2.0, 1e-6);
  EXPECT_NEAR(s.weights[1], 1.0, 1e-6);
}

TEST(RoutingOracle, BiasSelectsButDoesNotWeigh) {
  Routing routing = routing_of(Scoring::kSigmoid, 3, 1);
  routing.correction_bias = true;
  const float bias[] = {0.0F, 5.0F, 0.0F};
  const Selection s = select(routing, {2.0F, -1.0F, 1.0F}, bias);
  EXPECT_EQ(s.ids[0], 1);
  EXPECT_NEAR(s.weights[0], 1.0 / (1.0 + std::exp(1.0)), 1e-9);
}

TEST(RoutingOracle, GroupsAreRankedByTheirBestTwo) {
  Routing routing = routing_of(Scoring::kNone, 6, 2);
  routing.num_groups = 3;
  // Group sums: 9 + 0, 6 + 5, 4 + 4: the group with the single best expert loses.
  const Selection s = select(routing, {9.0F, 0.0F, 6.0F, 5.0F, 4.0F, 4.0F});
  EXPECT_EQ(s.ids, (std::vector<std::int32_t>{2, 3}));
}

TEST(RoutingOracle, TiesNanAndInfinity) {
  const float nan = std::nanf("");
  Selection s = select(routing_of(Scoring::kNone, 5, 3), {1.0F, 2.0F, nan, 2.0F, 2.0F});
  EXPECT_EQ(s.ids, (std::vector<std::int32_t>{1, 3, 4}));
  s = select(routing_of(Scoring::kSoftmax, 3, 2), {nan, kInf, -kInf});
  EXPECT_EQ(s.ids, (std::vector<std::int32_t>{1, -1}));
  EXPECT_EQ(s.weights, (std::vector<double>{1.0, 0.0}));
  s = select(routing_of(Scoring::kSoftmax, 3, 2), {nan, -kInf, -kInf});
  EXPECT_EQ(s.ids, (std::vector<std::int32_t>{-1, -1}));
}

TEST(RoutingOracle, SoftmaxOverTheSelected) {
  const Selection s =
      select(routing_of(Scoring::kSoftmaxSelected, 4, 2), {0.0F, std::log(3.0F), -9.0F, 0.0F});
  EXPECT_EQ(s.ids, (std::vector<std::int32_t>{1, 0}));
  EXPECT_NEAR(s.weights[0], 0.75, 1e-7);
}

TEST(RoutingOracle, ZeroSumGivesWeightsZero) {
  Routing routing = routing_of(Scoring::kSoftmax, 3, 2);
  routing.renormalize = true;
  const Selection s = select(routing, {-kInf, -kInf, -kInf});
  EXPECT_EQ(s.weights, (std::vector<double>{0.0, 0.0}));
}

TEST(RoutingJudge, RefusesEachWrongChoice) {
  const Routing routing = routing_of(Scoring::kSigmoid, 4, 2);
  const std::vector<float> logits = {1.0F, 2.0F, 2.0F, -kInf};
  const Selection right = select(routing, logits);
  const auto changed = [&](auto change) {
    Selection s = right;
    change(s);
    return judge(routing, logits, s);
  };
  EXPECT_EQ(judge(routing, logits, right), "");
  EXPECT_NE(changed([](Selection& s) { std::swap(s.ids[0], s.ids[1]); }), "");  // tie, wrong order
  EXPECT_NE(changed([](Selection& s) { s.ids = {1, 0}; }), "");
  EXPECT_NE(changed([](Selection& s) { s.ids = {1, 1}; }), "");
  EXPECT_NE(changed([](Selection& s) { s.ids = {1, 3}; }), "");
  EXPECT_NE(changed([](Selection& s) { s.ids = {1, 4}; }), "");
  EXPECT_NE(changed([](Selection& s) { s.ids = {1, -1}; }), "");
  EXPECT_NE(changed([](Selection& s) { s.ids = {-1, 1}; }), "");
  EXPECT_NE(changed([](Selection& s) { s.weights[1] *= 1.0 + 1e-5; }), "");
  EXPECT_NE(changed([](Selection& s) { s.weights[0] = std::nan(""); }), "");
}

TEST(RoutingJudge, AllowsNearTiesOnly) {
  const Routing routing = routing_of(Scoring::kSigmoid, 2, 1);
  Selection other;
  other.ids = {1};
  const auto weigh = [&](float logit) {
    other.weights = {1.0 / (1.0 + std::exp(-static_cast<double>(logit)))};
  };
  const float near_one = std::nextafterf(1.0F, 0.0F);
  weigh(near_one);
  EXPECT_EQ(judge(routing, {1.0F, near_one}, other), "");
  weigh(0.999F);
  EXPECT_NE(judge(routing, {1.0F, 0.999F}, other), "");
}

}  // namespace
}  // namespace moekit::reference
