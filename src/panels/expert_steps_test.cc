// SPDX-License-Identifier: Apache-2.0
#include "panels/expert_steps.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "panels/layer_case.h"
#include "panels/test_bodies.h"

namespace moekit::panels {
namespace {

Problem small_problem(Recipe recipe) {
  Problem problem;
  problem.num_tokens = 33;
  problem.num_experts = 6;
  problem.top_k = 3;
  problem.hidden_size = 136;        // 8.5 panels, 2.1 nvfp4 blocks, 1.06 mxfp4 blocks
  problem.intermediate_size = 112;  // 7 panels, 1.75 nvfp4 blocks
  problem.recipe = recipe;
  return problem;
}

constexpr Recipe kEveryRecipe[] = {Recipe::kW4a16Nvfp4, Recipe::kW4a16Mxfp4, Recipe::kW16a16};
constexpr ExecutionFamily kBothFamilies[] = {ExecutionFamily::kDirect, ExecutionFamily::kGrouped};

double io_rounding(DType dtype) {
  return dtype == DType::kBf16 ? 0x1p-8 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-23;
}

// Both stages, element by element. Returns how many elements were judged.
std::int64_t check(const LayerCase& layer, const LayerCase::Output& output) {
  const LayerCase::Expected expected = layer.expected(output.intermediate);
  const std::int64_t inner = layer.problem().intermediate_size;
  std::int64_t judged = 0;
  for (std::size_t i = 0; i < expected.intermediate.size(); ++i) {
    if (layer.local_expert(static_cast<std::int64_t>(i) / inner) < 0) {
      continue;
    }
    const double have = static_cast<double>(device::bf16_to_f32(output.intermediate[i]));
    const double want = expected.intermediate[i];
    EXPECT_LE(std::abs(have - want), 0x1p-8 * std::abs(want) + expected.intermediate_bound[i])
        << "intermediate " << i;
    ++judged;
  }
  const double rounding = io_rounding(layer.problem().io_dtype);
  for (std::size_t i = 0; i < expected.out.size(); ++i) {
    const double have = static_cast<double>(output.out[i]);
    EXPECT_LE(std::abs(have - expected.out[i]),
              rounding * std::abs(expected.out[i]) + expected.bound[i] + 0x1p-24)
        << "out " << i;
    ++judged;
  }
  return judged;
}

std::int64_t check_everywhere(const LayerCase& layer) {
  std::int64_t judged = 0;
  for (const std::string& isa : testable_isas()) {
    for (const ExecutionFamily family : kBothFamilies) {
      SCOPED_TRACE(isa + std::string(" ") + std::string(execution_family_name(family)));
      judged += check(layer, layer.run(isa, 2, family));
      if (testing::Test::HasFailure()) {
        return judged;
      }
    }
  }
  return judged;
}

TEST(ExpertSteps, EveryRecipeAndTokenCount) {
  std::int64_t judged = 0;
  for (const Recipe recipe : kEveryRecipe) {
    for (const std::int64_t tokens : {0, 1, 2, 3, 4, 5, 7, 8, 9, 33}) {
      SCOPED_TRACE(std::string(recipe_info(recipe).name) + " M " + std::to_string(tokens));
      judged += check_everywhere(LayerCase(small_problem(recipe), tokens));
    }
  }
  EXPECT_GE(judged, 100000);
}

TEST(ExpertSteps, OddExtents) {
  std::int64_t judged = 0;
  for (const Recipe recipe : kEveryRecipe) {
    for (const auto& [hidden, inner] : {std::pair{8, 8},
                                        {24, 40},
                                        {64, 16},
                                        {128, 64},
                                        {232, 176},
                                        {256, 312},
                                        {312, 352},
                                        {520, 232}}) {
      Problem problem = small_problem(recipe);
      problem.hidden_size = hidden;
      problem.intermediate_size = inner;
      SCOPED_TRACE(std::to_string(hidden) + " x " + std::to_string(inner));
      judged += check_everywhere(LayerCase(problem, 3));
    }
  }
  EXPECT_GE(judged, 30000);
}

TEST(ExpertSteps, EveryActivationWithBiases) {
  std::int64_t judged = 0;
  for (const ActivationKind kind : {ActivationKind::kSilu,
                                    ActivationKind::kSwigluOai,
                                    ActivationKind::kSitu,
                                    ActivationKind::kGeluTanh,
                                    ActivationKind::kRelu2}) {
    for (const bool bias : {false, true}) {
      Problem problem = small_problem(Recipe::kW4a16Nvfp4);
      problem.activation.kind = kind;
      if (kind == ActivationKind::kSilu && bias) {
        problem.activation.limit = 0.5F;
      }
      problem.gate_up_bias = bias;
      problem.down_bias = bias;
      SCOPED_TRACE(activation_name(kind));
      judged += check_everywhere(LayerCase(problem, 5));
    }
  }
  EXPECT_GE(judged, 40000);
}

TEST(ExpertSteps, EveryIoDtypeSharedOrderScalingAndWeightPlace) {
  std::int64_t judged = 0;
  for (const DType io : {DType::kBf16, DType::kF16, DType::kF32}) {
    for (const SharedInput shared : {SharedInput::kNone, SharedInput::kIo, SharedInput::kF32}) {
      for (int bits = 0; bits < 8; ++bits) {
        Problem problem = small_problem(Recipe::kW4a16Mxfp4);
        problem.io_dtype = io;
        problem.shared = shared;
        problem.routed_scaling = 2.5F;
        problem.combine_order = (bits & 1) != 0 ? CombineOrder::kExpert : CombineOrder::kSlot;
        problem.routed_scaling_place =
            (bits & 2) != 0 ? ScalingPlace::kSum : ScalingPlace::kWeights;
        problem.router_weight_on_input = (bits & 4) != 0;
        problem.gate_up_bias = true;
        SCOPED_TRACE(std::string(dtype_name(io)) + " bits " + std::to_string(bits));
        judged += check_everywhere(LayerCase(problem, 4));
      }
    }
  }
  EXPECT_GE(judged, 200000);
}

// The body of AMX serves grouped calls alone where weights are 4-bit codes.
bool families_share_bits(const std::string& isa, Recipe recipe) {
  const Format weights = recipe_info(recipe).weights;
  return !isa.starts_with("amx") || (weights != Format::kNvfp4 && weights != Format::kMxfp4);
}

TEST(ExpertSteps, SameBitsForEveryThreadCountFamilyPoisonAndTile) {
  int compared = 0;
  for (const std::string& isa : testable_isas()) {
    for (const Recipe recipe : kEveryRecipe) {
      LayerCase layer(small_problem(recipe), 33);
      std::vector<float> of_family[2];
      for (const ExecutionFamily family : kBothFamilies) {
        const LayerCase::Output first = layer.run(isa, 1, family, 0xFF);
        of_family[family == ExecutionFamily::kDirect ? 0 : 1] = first.out;
        for (const int threads : {1, 2, 3, 4}) {
          const LayerCase::Output other = layer.run(isa, threads, family, 0x7F);
          ASSERT_EQ(first.out, other.out) << isa << ' ' << threads;
          ++compared;
        }
        // A token alone gives the bits that it gives among others: no tile changes an order.
        for (const std::int64_t token : {0, 17, 32}) {
          LayerCase alone(small_problem(recipe), 33);
          for (std::size_t route = 0; route < alone.ids.size(); ++route) {
            const bool its = static_cast<std::int64_t>(route) / 3 == token;
            alone.ids[route] = its ? alone.ids[route] : -1;
          }
          const LayerCase::Output output = alone.run(isa, 2, family);
          const auto at = token * 136;
          ASSERT_TRUE(std::equal(
              output.out.begin() + at, output.out.begin() + at + 136, first.out.begin() + at));
        }
      }
      if (families_share_bits(isa, recipe)) {
        ASSERT_EQ(of_family[0], of_family[1]) << isa;
      }
    }
  }
  EXPECT_GE(compared, 24);
}

TEST(ExpertSteps, InactiveRoutesContributeNothing) {
  for (const std::string& isa : testable_isas()) {
    for (const bool narrow : {true, false}) {
      Problem problem = small_problem(Recipe::kW4a16Nvfp4);
      LayerCase layer(problem, 6);
      layer.narrow_ids = narrow;
      layer.ids = {0, -1, 5, -1, -1, -1, 6, 100, -7, 2, 2, 2, 1, 3, 0, 4, 4, 6};
      if (!narrow) {
        // Would be expert 1 if narrowed before the check.
        layer.ids[3] = (std::int64_t{1} << 32) + 1;
        layer.ids[4] = std::numeric_limits<std::int64_t>::min();
      }
      for (std::size_t k = 0; k < 136; ++k) {
        layer.x[136 + k] = NAN;  // an inactive token's x means nothing
      }
      const LayerCase::Output output = layer.run(isa, 2, ExecutionFamily::kDirect);
      check(layer, output);
      for (const std::size_t token : {1U, 2U}) {
        for (std::size_t row = 0; row < 136; ++row) {
          EXPECT_EQ(device::bits_of(output.out[token * 136 + row]), 0U);
        }
      }
    }
  }
}

TEST(ExpertSteps, ExpertMapReachesTheLocalExperts) {
  Problem problem = small_problem(Recipe::kW4a16Mxfp4);
  problem.router_experts = 20;
  problem.expert_map = true;
  std::int64_t judged = check_everywhere(LayerCase(problem, 9));
  problem.combine_order = CombineOrder::kExpert;
  judged += check_everywhere(LayerCase(problem, 9));
  EXPECT_GE(judged, 5000);
}

TEST(ExpertSteps, NonFiniteTokenGivesNanInItsRowAlone) {
  for (const std::string& isa : testable_isas()) {
    for (const Recipe recipe : kEveryRecipe) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
        LayerCase layer(small_problem(recipe), 5);
        layer.ids.assign(layer.ids.size(), 1);  // all in one tile
        const LayerCase::Output clean = layer.run(isa, 2, ExecutionFamily::kDirect);
        layer.x[2 * 136 + 71] = bad;
        const LayerCase::Output output = layer.run(isa, 2, ExecutionFamily::kDirect);
        for (std::size_t i = 0; i < output.out.size(); ++i) {
          if (i / 136 == 2) {
            ASSERT_TRUE(std::isnan(output.out[i])) << isa << ' ' << i;
          } else {
            ASSERT_EQ(output.out[i], clean.out[i]);
          }
        }
      }
    }
  }
}

// Where products and activation alone would leave infinities, or zeros of relu2.
TEST(ExpertSteps, AnInfiniteOperandLeavesNoNumberInItsRow) {
  for (const std::string& isa : testable_isas()) {
    for (const Recipe recipe : kEveryRecipe) {
      Problem problem = small_problem(recipe);
      problem.top_k = 1;
      problem.hidden_size = problem.intermediate_size = 8;
      problem.activation.kind = ActivationKind::kRelu2;
      LayerCase layer(problem, 12);
      for (std::size_t token = 0; token < 12; ++token) {
        layer.x[token * 8 + token % 8] = token < 8 ? std::numeric_limits<float>::infinity() : 1.0F;
      }
      const LayerCase::Output output = layer.run(isa, 2, ExecutionFamily::kGrouped);
      for (std::size_t i = 0; i < output.out.size(); ++i) {
        EXPECT_EQ(std::isnan(output.out[i]), i < std::size_t{8} * 8) << isa << ' ' << i;
      }
    }
  }
}

// Few tokens and many routes: rows are loaded once and copied into the tiles of several experts,
// with what is known of them.
TEST(ExpertSteps, AnInfiniteTokenIsNanInEveryTileThatItIsCopiedTo) {
  constexpr std::size_t kInner = 16;
  std::int64_t judged = 0;
  for (const std::string& isa : testable_isas()) {
    for (const Recipe recipe : kEveryRecipe) {
      Problem problem = small_problem(recipe);
      problem.top_k = 4;
      problem.intermediate_size = kInner;
      problem.activation.kind = ActivationKind::kRelu2;
      LayerCase layer(problem, 3);
      layer.ids = {0, 1, 2, 3, 1, 2, 0, 4, 2, 0, 1, 5};
      layer.x[136 + 70] = std::numeric_limits<float>::infinity();
      for (const ExecutionFamily family : kBothFamilies) {
        const LayerCase::Output output = layer.run(isa, 2, family);
        for (std::size_t i = 0; i < output.intermediate.size(); ++i, ++judged) {
          const float value = device::bf16_to_f32(output.intermediate[i]);
          ASSERT_EQ(std::isnan(value), i / kInner / 4 == 1) << isa << " intermediate " << i;
        }
      }
    }
  }
  EXPECT_GE(judged, 3 * 2 * 12 * 16);
}

// Where a token names an expert more than once, the order of experts leaves that of its slots.
TEST(ExpertSteps, EqualExpertsAreSummedInTheOrderOfSlots) {
  Problem problem = small_problem(Recipe::kW4a16Mxfp4);
  problem.num_experts = problem.top_k = 7;
  problem.io_dtype = DType::kF32;
  const auto run = [&problem](const std::string& isa, std::vector<std::int64_t> ids) {
    LayerCase layer(problem, 2);
    layer.ids = std::move(ids);
    return layer.run(isa, 2, ExecutionFamily::kDirect).out;
  };
  // Ascending but for the last: by experts it comes first.
  const std::vector<std::int64_t> same = {3, 3, 3, 3, 3, 3, 3, 1, 1, 2, 2, 2, 4, 4};
  const std::vector<std::int64_t> mixed = {3, 3, 3, 3, 3, 3, 3, 1, 1, 2, 2, 2, 4, 0};
  for (const std::string& isa : testable_isas()) {
    problem.combine_order = CombineOrder::kSlot;
    const std::vector<float> by_slot = run(isa, same);
    const std::vector<float> mixed_by_slot = run(isa, mixed);
    problem.combine_order = CombineOrder::kExpert;
    EXPECT_EQ(run(isa, same), by_slot) << isa;
    EXPECT_NE(run(isa, mixed), mixed_by_slot) << isa << ": the sums do not show their order";
  }
}

TEST(ExpertSteps, ZeroWeightRouteChangesNothing) {
  for (const std::string& isa : testable_isas()) {
    LayerCase layer(small_problem(Recipe::kW4a16Nvfp4), 4);
    layer.ids[1] = 3;
    layer.weights[1] = 0.0F;
    const LayerCase::Output with = layer.run(isa, 2, ExecutionFamily::kDirect);
    layer.ids[1] = -1;
    const LayerCase::Output without = layer.run(isa, 2, ExecutionFamily::kDirect);
    EXPECT_EQ(with.out, without.out);
  }
}

// A row that was loaded alone serves the next expert that has it alone, and no other: experts 0 and
// 2 have token 0 alone, 1 and 4 token 1, and 3 and 5 both.
TEST(ExpertSteps, RowsLoadedAloneServeTheirOwnTokenOnly) {
  std::int64_t judged = 0;
  for (const Recipe recipe : kEveryRecipe) {
    Problem problem = small_problem(recipe);
    problem.top_k = 4;
    LayerCase layer(problem, 2);
    layer.ids = {0, 2, 3, 5, 1, 3, 4, 5};
    judged += check_everywhere(layer);
  }
  EXPECT_GE(judged, 3 * 2 * 2 * (2 * 136 + 8 * 112));
}

// Few tokens and many routes: one expert has more rows than there are tokens.
TEST(ExpertSteps, TokensMayNameAnExpertInEverySlot) {
  std::int64_t judged = 0;
  for (const Recipe recipe : kEveryRecipe) {
    for (const auto& [tokens, top_k] : {std::pair{8, 8}, {2, 32}, {16, 4}, {1, 5}}) {
      Problem problem = small_problem(recipe);
      problem.num_experts = 32;
      problem.top_k = top_k;
      LayerCase layer(problem, tokens);
      layer.ids.assign(layer.ids.size(), 3);
      layer.ids.back() = 4;
      SCOPED_TRACE("M " + std::to_string(tokens) + " top_k " + std::to_string(top_k));
      judged += check_everywhere(layer);
    }
  }
  EXPECT_GE(judged, 3 * 2 * 2 * 27 * 136);
}

// A tile of rows that are read where they lie and one that is not: all of them are loaded then.
// With the clamp the intermediate stays finite, and tokens beside the huge and the tiny one keep
// their bits.
TEST(ExpertSteps, ARowOutOfRangeAmongRowsInPlace) {
  for (const Recipe recipe : kEveryRecipe) {
    Problem problem = small_problem(recipe);
    problem.activation.kind = ActivationKind::kSwigluOai;
    problem.activation.alpha = 1.702F;
    problem.activation.beta = 1.0F;
    problem.activation.limit = 7.0F;
    const LayerCase plain(problem, 33);
    LayerCase wild = plain;
    constexpr std::int64_t kHuge = 5;
    constexpr std::int64_t kTiny = 20;
    const auto hidden = static_cast<std::size_t>(problem.hidden_size);
    for (std::size_t i = 0; i < hidden; ++i) {
      wild.x[kHuge * hidden + i] *= 0x1p110F;
      wild.x[kTiny * hidden + i] *= 0x1p-110F;
    }
    for (const std::string& isa : testable_isas()) {
      for (const ExecutionFamily family : kBothFamilies) {
        SCOPED_TRACE(isa);
        const LayerCase::Output want = plain.run(isa, 2, family);
        const LayerCase::Output have = wild.run(isa, 2, family);
        EXPECT_GE(check(wild, have), 33 * problem.hidden_size);
        for (std::int64_t token = 0; token < 33; ++token) {
          const auto begin = static_cast<std::ptrdiff_t>(token * problem.hidden_size);
          EXPECT_EQ(std::equal(have.out.begin() + begin,
                               have.out.begin() + begin + problem.hidden_size,
                               want.out.begin() + begin),
                    token != kHuge && token != kTiny)
              << token;
        }
      }
    }
  }
}

// Without room for two rows of x a worker holds one row of the intermediate too.
TEST(ExpertSteps, LongRowsOfXLeaveNoRoomToInterleave) {
  Problem problem = small_problem(Recipe::kW4a16Mxfp4);
  problem.num_experts = 2;
  problem.top_k = 1;
  problem.intermediate_size = 8;
  // Two rows take more than half of this processor's L2.
  const std::int64_t l2 = device_from_name("cpu:portable")->l2_per_core_bytes;
  problem.hidden_size = std::max<std::int64_t>(l2 / 2 / 8, 32768) / 8 * 8 + 8;
  LayerCase layer(problem, 3);
  layer.ids = {1, 1, 0};
  for (const std::string& isa : testable_isas()) {
    DeviceDescriptor device = *device_from_name(select_body(isa));
    device.num_threads = 2;
    ASSERT_EQ(scratch_layout(problem, device, 3).spare_rows, 0);
    EXPECT_GE(check(layer, layer.run(isa, 2, ExecutionFamily::kDirect)), 3 * problem.hidden_size);
  }
}

TEST(ExpertSteps, ChunksOfTokensGiveTheSameBits) {
  for (const std::string& isa : testable_isas()) {
    Problem problem = small_problem(Recipe::kW4a16Nvfp4);
    const LayerCase whole(problem, 33);
    problem.max_workspace_bytes = 98304;
    const LayerCase chunked(problem, 33);
    EXPECT_EQ(whole.run(isa, 2, ExecutionFamily::kGrouped).out,
              chunked.run(isa, 2, ExecutionFamily::kGrouped).out);
  }
}

// One thread walks its output rows in two blocks, four threads have one each.
TEST(ExpertSteps, BlocksOfOutputRowsGiveTheSameBits) {
  Problem problem = small_problem(Recipe::kW4a16Nvfp4);
  problem.hidden_size = 40 * kPanelRows + 8;
  problem.intermediate_size = 8;
  constexpr std::int64_t kTokens = 1500;
  problem.num_tokens = kTokens;
  for (const std::string& isa : testable_isas()) {
    const LayerCase layer(problem, kTokens);
    DeviceDescriptor device = *device_from_name(select_body(isa));
    device.num_threads = 1;
    const std::int64_t panel_sums = kTokens * problem.top_k * kPanelRows * 4;
    ASSERT_LT(scratch_layout(problem, device, kTokens).route_sums_bytes, 41 * panel_sums);
    device.num_threads = 4;
    ASSERT_GE(scratch_layout(problem, device, kTokens).route_sums_bytes, 11 * panel_sums);
    EXPECT_EQ(layer.run(isa, 1, ExecutionFamily::kGrouped).out,
              layer.run(isa, 4, ExecutionFamily::kGrouped).out);
  }
}

TEST(ExpertSteps, RoutingStepGivesTheBitsOfRoutingFirst) {
  constexpr std::int64_t kTokens = 11;
  Problem problem = small_problem(Recipe::kW4a16Mxfp4);
  const Routing routing{
      .scoring = Scoring::kSigmoid, .num_experts = 6, .top_k = 3, .renormalize = true};
  LayerCase separate(problem, kTokens);
  problem.routing = routing;
  problem.max_workspace_bytes = 98304;  // chunks: logits are read from where each begins
  LayerCase joined(problem, kTokens);
  std::mt19937 random(21);
  for (std::int64_t i = 0; i < kTokens * 6; ++i) {
    joined.logits.push_back(std::uniform_real_distribution<float>(-4.0F, 4.0F)(random));
  }
  joined.logits[7] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::int32_t> ids(separate.ids.size());
  ASSERT_TRUE(
      route(routing,
            {.logits = matrix_view(std::as_const(joined.logits).data(), DType::kF32, kTokens, 6),
             .topk_ids = matrix_view(ids.data(), DType::kI32, kTokens, 3),
             .topk_weights = matrix_view(separate.weights.data(), DType::kF32, kTokens, 3)})
          .ok());
  separate.ids.assign(ids.begin(), ids.end());
  for (const std::string& isa : testable_isas()) {
    EXPECT_EQ(joined.run(isa, 2, ExecutionFamily::kGrouped).out,
              separate.run(isa, 1, ExecutionFamily::kGrouped).out);
  }
}

TEST(ExpertSteps, ScratchGrowsWithTokensAndStaysBounded) {
  Problem problem;
  problem.num_experts = 160;
  problem.top_k = 8;
  problem.hidden_size = 6144;
  problem.intermediate_size = 512;
  problem.recipe = Recipe::kW4a16Nvfp4;
  int checked = 0;
  for (const auto& [threads, l2_kib] : {std::pair{1, 0},
                                        {2, 512},
                                        {2, 2048},
                                        {16, 0},
                                        {16, 2048},
                                        {64, 1024},
                                        {128, 2048},
                                        {256, 0}}) {
    DeviceDescriptor device;
    device.isa = Isa::kAvx512;
    device.num_threads = threads;
    device.l2_per_core_bytes = std::int64_t{l2_kib} << 10;
    std::int64_t last = 0;
    for (std::int64_t tokens = 0; tokens <= 300; ++tokens) {
      const ScratchLayout layout = scratch_layout(problem, device, tokens);
      ASSERT_GE(layout.worker_bytes, last);
      ASSERT_GE(layout.route_sums_bytes, std::max<std::int64_t>(1, tokens * 8) * 64);
      last = layout.worker_bytes;
      ++checked;
    }
    const ScratchLayout layout = scratch_layout(problem, device, 64);
    const std::int64_t other = 64 * 8 * 512 * 2 + 64 * 8 * 8 + 161 * 4;
    EXPECT_LT(layout.num_workers * layout.worker_bytes + other, 16 << 20) << threads;
  }
  EXPECT_EQ(checked, 8 * 301);
}

}  // namespace
}  // namespace moekit::panels
