// SPDX-License-Identifier: Apache-2.0
#include "moekit/problem.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace moekit {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Problem good_problem() {
  Problem problem;
  problem.num_tokens = 64;
  problem.num_experts = 128;
  problem.top_k = 8;
  problem.hidden_size = 2048;
  problem.intermediate_size = 768;
  problem.recipe = Recipe::kW4a16Nvfp4;
  return problem;
}

TEST(ValidateProblem, AcceptsTheUsualAndTheExtreme) {
  EXPECT_TRUE(validate_problem(good_problem()).ok());
  Problem problem = good_problem();
  problem.num_experts = 1;
  problem.top_k = 1;
  EXPECT_TRUE(validate_problem(problem).ok());
  problem.num_experts = 1024;
  problem.top_k = 32;
  problem.num_tokens = 0;
  problem.hidden_size = 8;
  problem.intermediate_size = 8;
  EXPECT_TRUE(validate_problem(problem).ok());
}

struct BadProblem {
  std::string what;
  std::function<void(Problem&)> spoil;
  StatusCode code;
  std::string expected_text;  // values that the message must hold
};

const std::vector<BadProblem> kBadProblems = {
    {"recipe enumerator",
     [](Problem& p) { p.recipe = static_cast<Recipe>(99); },
     StatusCode::kInvalidArgument,
     "recipe is not an enumerator"},
    {"activation enumerator",
     [](Problem& p) { p.activation.kind = static_cast<ActivationKind>(99); },
     StatusCode::kInvalidArgument,
     "activation kind is not an enumerator"},
    {"row order enumerator",
     [](Problem& p) { p.row_order = static_cast<RowOrder>(99); },
     StatusCode::kInvalidArgument,
     "row_order is not an enumerator"},
    {"combine order enumerator",
     [](Problem& p) { p.combine_order = static_cast<CombineOrder>(99); },
     StatusCode::kInvalidArgument,
     "combine_order is not an enumerator"},
    {"shared enumerator",
     [](Problem& p) { p.shared = static_cast<SharedInput>(99); },
     StatusCode::kInvalidArgument,
     "shared is not an enumerator"},
    {"no experts",
     [](Problem& p) { p.num_experts = 0; },
     StatusCode::kInvalidArgument,
     "num_experts 0"},
    {"too many experts",
     [](Problem& p) { p.num_experts = 1025; },
     StatusCode::kUnsupported,
     "1024"},
    {"no slots", [](Problem& p) { p.top_k = 0; }, StatusCode::kInvalidArgument, "top_k 0"},
    {"too many slots", [](Problem& p) { p.top_k = 33; }, StatusCode::kUnsupported, "at most 32"},
    {"top_k over experts",
     [](Problem& p) { p.num_experts = 4; },
     StatusCode::kInvalidArgument,
     "top_k 8 exceeds the 4"},
    {"odd hidden",
     [](Problem& p) { p.hidden_size = 2044; },
     StatusCode::kInvalidArgument,
     "hidden_size 2044, expected a multiple of 8 (nearest: 2040 or 2048)"},
    {"no intermediate",
     [](Problem& p) { p.intermediate_size = 0; },
     StatusCode::kInvalidArgument,
     "intermediate_size 0"},
    {"huge extent",
     [](Problem& p) { p.hidden_size = std::int64_t{1} << 40; },
     StatusCode::kInvalidArgument,
     "1099511627776"},
    {"negative tokens",
     [](Problem& p) { p.num_tokens = -1; },
     StatusCode::kInvalidArgument,
     "num_tokens -1"},
    {"routes beyond i32",
     [](Problem& p) { p.num_tokens = std::int64_t{1} << 29; },
     StatusCode::kInvalidArgument,
     "268435455"},
    {"limit on relu2",
     [](Problem& p) {
       p.activation = {ActivationKind::kRelu2, 7.0F, {}, {}, {}, {}};
     },
     StatusCode::kInvalidArgument,
     "relu2 has no parameter limit (given 7)"},
    {"alpha on silu",
     [](Problem& p) { p.activation.alpha = 1.702F; },
     StatusCode::kInvalidArgument,
     "silu has no parameter alpha (given 1.702)"},
    {"limit of zero",
     [](Problem& p) { p.activation.limit = 0.0F; },
     StatusCode::kInvalidArgument,
     "limit 0"},
    {"limit NaN",
     [](Problem& p) { p.activation.limit = kNan; },
     StatusCode::kInvalidArgument,
     "limit nan"},
    {"io dtype",
     [](Problem& p) { p.io_dtype = DType::kE4m3; },
     StatusCode::kInvalidArgument,
     "e4m3"},
    {"scaling",
     [](Problem& p) { p.routed_scaling = kNan; },
     StatusCode::kInvalidArgument,
     "routed_scaling nan"},
    {"namespace without map",
     [](Problem& p) { p.router_experts = 256; },
     StatusCode::kInvalidArgument,
     "needs expert_map"},
    {"namespace below local",
     [](Problem& p) {
       p.router_experts = 64;
       p.expert_map = true;
     },
     StatusCode::kInvalidArgument,
     "router_experts 64 is below num_experts 128"},
    {"negative namespace",
     [](Problem& p) { p.router_experts = -4; },
     StatusCode::kInvalidArgument,
     "router_experts -4, expected 0"},
    {"groups of bf16",
     [](Problem& p) {
       p.recipe = Recipe::kW16a16;
       p.weight_group_size = 3;
     },
     StatusCode::kInvalidArgument,
     "weight_group_size 3, expected 0: no groups share a scale (bf16)"},
    {"negative bound",
     [](Problem& p) { p.max_workspace_bytes = -5; },
     StatusCode::kInvalidArgument,
     "max_workspace_bytes -5"},
    {"routing of another size",
     [](Problem& p) {
       p.routing = Routing{};
       p.routing->num_experts = 64;
       p.routing->top_k = 8;
     },
     StatusCode::kInvalidArgument,
     "routing for 64 experts"},
};

TEST(ValidateProblem, EveryRefusalNamesItsValues) {
  ASSERT_GE(kBadProblems.size(), 20U);
  for (const BadProblem& bad : kBadProblems) {
    Problem problem = good_problem();
    bad.spoil(problem);
    const Status status = validate_problem(problem);
    EXPECT_EQ(status.code(), bad.code) << bad.what << ": " << status.to_string();
    EXPECT_NE(status.message().find(bad.expected_text), std::string_view::npos)
        << bad.what << ": " << status.to_string();
  }
}

TEST(ValidateRouting, GroupsAndRanges) {
  Routing routing;
  routing.num_experts = 256;
  routing.top_k = 8;
  routing.num_groups = 8;
  routing.top_groups = 4;
  EXPECT_TRUE(validate_routing(routing).ok());
  routing.top_groups = 9;
  EXPECT_EQ(validate_routing(routing).message(), "routing top_groups 9, expected 1..8");
  routing.top_groups = 1;
  routing.num_groups = 64;
  EXPECT_EQ(validate_routing(routing).message(),
            "routing top_k 8 exceeds the 4 experts of 1 groups");
  routing.num_groups = 7;
  EXPECT_EQ(validate_routing(routing).code(), StatusCode::kInvalidArgument);
  routing.scoring = static_cast<Scoring>(9);
  EXPECT_EQ(validate_routing(routing).message(), "routing scoring is not an enumerator");
  routing = Routing{};
  routing.num_experts = 1025;
  routing.top_k = 1;
  EXPECT_EQ(validate_routing(routing).code(), StatusCode::kUnsupported);
}

TEST(Names, RoundTrip) {
  int checked = 0;
  for (const RowOrder order : {RowOrder::kGateUp, RowOrder::kUpGate, RowOrder::kInterleaved}) {
    EXPECT_EQ(row_order_from_name(row_order_name(order)), order);
    ++checked;
  }
  for (const SharedInput shared : {SharedInput::kNone, SharedInput::kIo, SharedInput::kF32}) {
    EXPECT_EQ(shared_input_from_name(shared_input_name(shared)), shared);
    ++checked;
  }
  for (const Scoring scoring :
       {Scoring::kSoftmax, Scoring::kSigmoid, Scoring::kSoftmaxSelected, Scoring::kNone}) {
    EXPECT_EQ(scoring_from_name(scoring_name(scoring)), scoring);
    ++checked;
  }
  EXPECT_EQ(checked, 10);
  EXPECT_FALSE(row_order_from_name("gateup").has_value());
}

}  // namespace
}  // namespace moekit
