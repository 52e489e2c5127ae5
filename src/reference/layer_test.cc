// SPDX-License-Identifier: Apache-2.0
#include "reference/layer.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "reference/layer_fixture.h"
#include "reference/small_floats.h"
#include "reference/weights.h"

namespace moekit::reference {
namespace {

// Two experts of H = I = 8 in bf16 whose matrices are multiples of the identity: every step can be
// done by hand.
struct HandLayer {
  Problem problem{};
  std::vector<std::vector<std::uint16_t>> storage{};
  ExpertsSource source{};
  std::vector<float> x = {1, -2, 0.5F, 0, 3, -1, 2, 4};
  std::vector<std::int32_t> ids = {0, 1};
  std::vector<float> weights = {0.5F, 2.0F};
  std::vector<float> biases = {10, 20, 30, 40, 50, 60, 70, 80, 90, 0, 110, 0, 130, 0, 150, 0};
  std::vector<float> shared = {1, 2, 3, 4, 5, 6, 7, 8};
  RunArguments arguments{};

  WeightMatrix diagonal(std::uint16_t code, float global) {
    storage.emplace_back(64, std::uint16_t{0});
    for (std::size_t i = 0; i < 8; ++i) {
      storage.back()[i * 8 + i] = code;
    }
    WeightMatrix matrix;
    matrix.rows = 8;
    matrix.cols = 8;
    matrix.codes = storage.back().data();
    matrix.row_stride_bytes = 16;
    matrix.global_scale = global;
    return matrix;
  }

  HandLayer() {
    storage.reserve(8);
    problem.num_tokens = 1;
    problem.num_experts = 2;
    problem.top_k = 2;
    problem.hidden_size = 8;
    problem.intermediate_size = 8;
    problem.activation.kind = ActivationKind::kRelu2;
    problem.io_dtype = DType::kF32;
    for (const float global : {1.0F, 4.0F}) {
      ExpertWeights expert;
      expert.up = diagonal(0x3F80, global);    // 1
      expert.gate = diagonal(0x3F80, 100.0F);  // not read by relu2
      expert.down = diagonal(0x4000, 0.5F);    // 2
      source.experts.push_back(expert);
    }
    bind();
  }

  void bind() {
    arguments.x = matrix_view(static_cast<const void*>(x.data()), DType::kF32, 1, 8);
    arguments.topk_ids = matrix_view(static_cast<const void*>(ids.data()), DType::kI32, 1, 2);
    arguments.topk_weights =
        matrix_view(static_cast<const void*>(weights.data()), DType::kF32, 1, 2);
    arguments.shared = matrix_view(static_cast<const void*>(shared.data()), DType::kF32, 1, 8);
  }

  std::vector<double> evaluate() { return evaluate_layer({problem, source, arguments}, {0}); }
};

TEST(Layer, HandComputedSum) {
  HandLayer layer;
  // Route 0: max(x, 0)^2 * (2 * 0.5) * 0.5; route 1: (4 max(x, 0))^2 * 1 * 2.
  const std::vector<double> out = layer.evaluate();
  ASSERT_EQ(out.size(), 8U);
  for (std::size_t i = 0; i < 8; ++i) {
    const double h = std::max(static_cast<double>(layer.x[i]), 0.0);
    EXPECT_EQ(out[i], h * h * 0.5 + 16.0 * h * h * 2.0) << i;
  }
}

TEST(Layer, RouterWeightOnInputScalesTheSumButNotTheBias) {
  HandLayer layer;
  layer.problem.router_weight_on_input = true;
  layer.problem.gate_up_bias = true;
  layer.source.experts[0].up_bias = {layer.biases.data(), DType::kF32, 8, 2};  // 10, 30, 50, …
  layer.ids = {0, -1};
  const std::vector<double> out = layer.evaluate();
  EXPECT_EQ(out[0], round_to(kBf16Shape, (0.5 * 1 + 10.0) * (0.5 * 1 + 10.0)));
  EXPECT_EQ(out[1], round_to(kBf16Shape, (0.5 * -2 + 30.0) * (0.5 * -2 + 30.0)));
}

TEST(Layer, ScalingStandsOnWeightsOrOnTheSumWithoutShared) {
  HandLayer layer;
  layer.problem.routed_scaling = 2.0F;
  layer.problem.shared = SharedInput::kF32;
  const double routed = 1.0 * 0.5 + 16.0 * 2.0;
  EXPECT_EQ(layer.evaluate()[0], 2.0 * routed + 1.0);
  layer.problem.routed_scaling_place = ScalingPlace::kSum;
  EXPECT_EQ(layer.evaluate()[0], 2.0 * routed + 1.0);
  layer.problem.router_weight_on_input = true;  // (p h)^2 and ((p s) h)^2 differ
  EXPECT_EQ(layer.evaluate()[0], 2.0 * (0.25 + 64.0) + 1.0);
  layer.problem.routed_scaling_place = ScalingPlace::kWeights;
  EXPECT_EQ(layer.evaluate()[0], 4.0 * (0.25 + 64.0) + 1.0);
}

TEST(Layer, DownBiasIsWeightedAndShared) {
  HandLayer layer;
  layer.problem.down_bias = true;
  layer.source.experts[1].down_bias = {layer.biases.data(), DType::kF32, 8, 1};
  EXPECT_EQ(layer.evaluate()[3], 2.0 * 40.0);  // x[3] is 0
}

TEST(Layer, SameExpertTwiceCountsTwice) {
  HandLayer layer;
  layer.ids = {1, 1};
  EXPECT_EQ(layer.evaluate()[0], 16.0 * 2.5);
}

TEST(Layer, InactiveTokenIsZeroEvenWithNanInput) {
  HandLayer layer;
  layer.ids = {-1, 2};
  layer.x[0] = std::nanf("");
  for (const double value : layer.evaluate()) {
    EXPECT_EQ(value, 0.0);
  }
}

TEST(Layer, ActiveTokenWithNanOrInfinityIsNanEverywhere) {
  for (const float bad : {std::nanf(""), HUGE_VALF}) {
    HandLayer layer;
    layer.x[3] = bad;
    layer.ids = {-1, 0};
    for (const double value : layer.evaluate()) {
      EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(Layer, InputIsRoundedToBf16BeforeTheProduct) {
  HandLayer layer;
  layer.ids = {0, -1};
  layer.weights = {1.0F, 0.0F};
  layer.x[0] = 1.0F + 0x1p-8F;  // a tie: to even, 1
  layer.x[1] = 1.0F + 0x3p-8F;  // a tie: to even, 1 + 2^-6
  const std::vector<double> out = layer.evaluate();
  EXPECT_EQ(out[0], 1.0);
  EXPECT_EQ(out[1], round_to(kBf16Shape, (1.0 + 0x1p-6) * (1.0 + 0x1p-6)));
}

TEST(Layer, IntermediateIsRoundedToBf16) {
  HandLayer layer;
  layer.ids = {0, -1};
  layer.weights = {1.0F, 0.0F};
  layer.x[0] = 1.0F + 0x1p-7F;  // square 1 + 2^-6 + 2^-14 rounds to 1 + 2^-6
  EXPECT_EQ(layer.evaluate()[0], 1.0 + 0x1p-6);
}

TEST(Layer, EveryRecipeAgreesWithPlainScalarCode) {
  for (const RecipeInfo& info : std::span(kRecipes).first(3)) {  // those of the fixture
    for (const auto kind : {ActivationKind::kSilu,
                            ActivationKind::kSwigluOai,
                            ActivationKind::kSitu,
                            ActivationKind::kGeluTanh,
                            ActivationKind::kRelu2}) {
      Problem problem;
      problem.num_experts = 3;
      problem.top_k = 2;
      problem.hidden_size = 72;
      problem.intermediate_size = 40;
      problem.recipe = info.recipe;
      problem.activation.kind = kind;
      problem.gate_up_bias = true;
      problem.down_bias = true;
      problem.io_dtype = DType::kF32;
      problem.shared = SharedInput::kF32;
      LayerFixture layer = LayerFixture::make(problem, 3, 7);
      layer.run_plain();
      const std::vector<double> expected =
          evaluate_layer({layer.problem, layer.source, layer.arguments}, {0, 1, 2});
      double error = 0.0;
      double norm = 0.0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        float value = 0.0F;
        std::memcpy(&value, layer.out.data() + i * 4, 4);
        error += std::pow(static_cast<double>(value) - expected[i], 2.0);
        norm += expected[i] * expected[i];
      }
      EXPECT_GT(norm, 1.0) << info.name;
      // A few intermediates round the other way; the rest is f32 noise.
      EXPECT_LT(std::sqrt(error / norm), 1e-4) << info.name << " " << activation_name(kind);
    }
  }
}

TEST(Layer, ZeroGlobalIsZeroWhateverTheScalesHold) {
  Problem problem;
  problem.num_experts = 1;
  problem.top_k = 1;
  problem.hidden_size = 16;
  problem.intermediate_size = 16;
  problem.recipe = Recipe::kW4a16Nvfp4;
  LayerFixture layer = LayerFixture::make(problem, 2, 1);
  const std::vector<unsigned char> nan_scales(16, 0x7F);
  layer.source.experts[0].up.scales = nan_scales.data();
  layer.source.experts[0].up.global_scale = 0.0F;
  const auto out = evaluate_layer({layer.problem, layer.source, layer.arguments}, {0, 1});
  for (const double value : out) {
    EXPECT_EQ(value, 0.0);
  }
}

TEST(Weights, GroupOffsetAndShortGroups) {
  // Columns 8..31 of a row of 40 with scales 1, 2, 4 per 16: a shard that begins inside group 0.
  const std::vector<unsigned char> codes(12, 0x22);              // every code 1.0
  const std::vector<unsigned char> scales = {0x38, 0x40, 0x48};  // 1, 2, 4
  WeightMatrix matrix;
  matrix.format = Format::kNvfp4;
  matrix.rows = 1;
  matrix.cols = 24;
  matrix.codes = codes.data();
  matrix.row_stride_bytes = 12;
  matrix.scales = scales.data();
  matrix.scale_row_stride_bytes = 3;
  matrix.group_offset = 8;
  std::vector<double> row(24);
  decode_weight_row(matrix, 0, row.data());
  for (std::size_t k = 0; k < 24; ++k) {
    EXPECT_EQ(row[k], k < 8 ? 1.0F : 2.0F) << k;
  }
  matrix.group_offset = 0;
  decode_weight_row(matrix, 0, row.data());
  for (std::size_t k = 0; k < 24; ++k) {
    EXPECT_EQ(row[k], k < 16 ? 1.0F : 2.0F) << k;
  }
}

TEST(Weights, TransposedBf16AndStridedRows) {
  std::vector<std::uint16_t> storage(40);  // 8 columns, 5 rows
  for (std::size_t i = 0; i < storage.size(); ++i) {
    storage[i] = static_cast<std::uint16_t>(0x3F80 + i);
  }
  WeightMatrix matrix;
  matrix.rows = 3;
  matrix.cols = 8;
  matrix.codes = storage.data();
  matrix.row_stride_bytes = 2;
  matrix.col_stride_elems = 5;
  std::vector<double> row(8);
  decode_weight_row(matrix, 2, row.data());
  for (std::size_t k = 0; k < 8; ++k) {
    EXPECT_EQ(static_cast<double>(row[k]), bf16_value(storage[k * 5 + 2])) << k;
  }
}

TEST(Weights, LowNibbleIsTheEvenColumnAndSubnormalScalesCount) {
  const std::vector<unsigned char> codes = {0x71, 0, 0, 0};  // k = 0: 0.5, k = 1: 6
  const std::vector<unsigned char> scale = {0x01};           // E4M3 2^-9
  WeightMatrix matrix;
  matrix.format = Format::kNvfp4;
  matrix.rows = 1;
  matrix.cols = 8;
  matrix.codes = codes.data();
  matrix.row_stride_bytes = 4;
  matrix.scales = scale.data();
  matrix.scale_row_stride_bytes = 1;
  std::vector<double> row(8);
  decode_weight_row(matrix, 0, row.data());
  EXPECT_EQ(row[0], 0x1p-10F);
  EXPECT_EQ(row[1], 6 * 0x1p-9F);
  matrix.format = Format::kMxfp4;
  const std::vector<unsigned char> exponent = {0x00};  // E8M0 2^-127, an f32 subnormal
  matrix.scales = exponent.data();
  decode_weight_row(matrix, 0, row.data());
  EXPECT_EQ(row[0], 0x1p-128F);
  EXPECT_EQ(row[1], 6 * 0x1p-127F);
}

TEST(Routes, Int64IdsAreCheckedBeforeNarrowing) {
  Problem problem;
  problem.num_experts = 4;
  problem.top_k = 4;
  const std::vector<std::int64_t> ids = {
      3, (std::int64_t{1} << 32) + 1, -(std::int64_t{1} << 32), 4};
  RunArguments arguments;
  arguments.topk_ids = matrix_view(static_cast<const void*>(ids.data()), DType::kI64, 1, 4);
  EXPECT_EQ(local_expert(problem, arguments, 0, 0), 3);
  EXPECT_EQ(local_expert(problem, arguments, 0, 1), -1);
  EXPECT_EQ(local_expert(problem, arguments, 0, 2), -1);
  EXPECT_EQ(local_expert(problem, arguments, 0, 3), -1);
}

TEST(Routes, MapSendsRouterIdsToLocalsOrAway) {
  Problem problem;
  problem.num_experts = 2;
  problem.router_experts = 4;
  problem.expert_map = true;
  problem.top_k = 4;
  const std::vector<std::int32_t> ids = {0, 1, 2, 3};
  const std::vector<std::int32_t> map = {-1, 1, -1, 0};
  RunArguments arguments;
  arguments.topk_ids = matrix_view(static_cast<const void*>(ids.data()), DType::kI32, 1, 4);
  arguments.expert_map = map.data();
  EXPECT_EQ(local_expert(problem, arguments, 0, 0), -1);
  EXPECT_EQ(local_expert(problem, arguments, 0, 1), 1);
  EXPECT_EQ(local_expert(problem, arguments, 0, 2), -1);
  EXPECT_EQ(local_expert(problem, arguments, 0, 3), 0);
}

}  // namespace
}  // namespace moekit::reference
