// SPDX-License-Identifier: Apache-2.0

// The ranks of a layer, run for real on this CPU: their partial sums add up to the whole layer,
// each rank agrees with the oracle of its own part, biases and `shared` count once.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "reference/layer.h"
#include "tests/edges/layer_under_test.h"

namespace moekit::tests {
namespace {

// A sanitizer looks for errors of memory: even and uneven columns, one rank and several of both.
#ifdef MOEKIT_SANITIZED
constexpr std::int64_t kTpSizes[] = {1, 3, 16};
constexpr std::int64_t kEpSizes[] = {1, 4};
#else
constexpr std::int64_t kTpSizes[] = {1, 2, 3, 4, 6, 8, 16};
constexpr std::int64_t kEpSizes[] = {1, 2, 4, 8};
#endif

// Layers of public models with every extent scaled down, the widths so that 16 ranks get columns,
// most of them unevenly and inside a scale group.
constexpr const char* kLayers[] = {
    // GLM-5.2: 6144, 2048, 256 experts, top-8
    "recipe=w4a16_nvfp4 h=192 i=128 e=16 k=8 m=5 shared=io seed=21",
    // gpt-oss: 2880, 2880, 32 experts, top-4, biases, interleaved
    ("recipe=w4a16_mxfp4 h=88 i=184 e=8 k=4 m=4 activation=swiglu_oai "
     "row_order=interleaved bias=both seed=22"),
    // Nemotron-3-Nano: 2688, 1856, 128 experts, top-6, no gate
    "recipe=w4a16_nvfp4 h=112 i=232 e=16 k=6 m=3 activation=relu2 bias=down shared=f32 seed=23",
    // Mixtral: 4096, 14336, 8 experts, top-2
    "recipe=w16a16 h=128 i=224 e=8 k=2 m=6 bias=both scaling=2.5@sum seed=24",
    // The quantising recipes and formats with wide scales, in the shape of GLM-5.2
    "recipe=w4a4_nvfp4 h=96 i=128 e=8 k=4 m=3 seed=25",
    "recipe=w4a8_mxfp4 h=96 i=256 e=8 k=4 m=3 seed=26",
    "recipe=w4a8_nvfp4 h=96 i=136 e=8 k=4 m=3 bias=both seed=27",
    "recipe=w8a8_fp8_block128 h=136 i=512 e=8 k=3 m=2 seed=28",
    "recipe=w4a16_int4 h=96 i=264 e=8 k=4 m=3 bias=both seed=29",
};

// f32 [tokens, hidden] of one rank (or of the whole layer), judged by the oracle.
std::vector<float> run_judged(const LayerUnderTest& layer,
                              const Problem& problem,
                              const ExpertsSource& source,
                              const std::vector<std::int32_t>& map) {
  const Result<Plan> plan = make_plan(problem, host_cpu());
  EXPECT_TRUE(plan.has_value()) << plan.status().to_string();
  if (!plan.has_value()) {
    return {};
  }
  const Result<PackedExperts> packed = moekit::prepare(*plan, source);
  EXPECT_TRUE(packed.has_value()) << packed.status().to_string();
  if (!packed.has_value()) {
    return {};
  }
  const std::int64_t tokens = layer.verify_case.num_tokens;
  std::vector<float> out(static_cast<std::size_t>(tokens * problem.hidden_size));
  RunArguments arguments = layer.tensors.arguments;
  arguments.out =
      matrix_view(static_cast<void*>(out.data()), DType::kF32, tokens, problem.hidden_size);
  arguments.expert_map = problem.expert_map ? map.data() : nullptr;
  if (problem.shared == SharedInput::kNone) {
    arguments.shared = {};
  }
  verify::GuardedBuffer workspace(plan->workspace_bytes());
  const Result<Binding> binding =
      moekit::bind(shared_runtime(), *plan, *packed, workspace.bytes(), arguments);
  EXPECT_TRUE(binding.has_value()) << binding.status().to_string();
  if (!binding.has_value()) {
    return {};
  }
  EXPECT_TRUE(moekit::run(shared_runtime(), *binding).ok());
  EXPECT_TRUE(workspace.intact());
  const Result<VerifyReport> report = verify_call(*plan, source, arguments, workspace.bytes());
  EXPECT_TRUE(report.has_value()) << report.status().to_string();
  EXPECT_TRUE(report.has_value() && report->passed) << report->first_failure;
  return out;
}

// Sum of |terms| of every output: what an f32 sum in any order may be off by is a multiple of it.
std::vector<double> magnitudes(const LayerUnderTest& layer) {
  const reference::LayerCall call{
      layer.verify_case.problem, layer.weights.source, layer.tensors.arguments};
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(layer.verify_case.num_tokens));
  std::iota(tokens.begin(), tokens.end(), 0);
  reference::Batch batch = reference::make_batch(call, tokens);
  reference::evaluate_gate_up(call, batch);
  return reference::evaluate_down(call, batch).magnitude;
}

// Every third combination deals the experts out by a shuffled list instead of a rule.
void place_experts(Shard& shard, std::int64_t num_experts, std::size_t combination) {
  if (combination % 3 == 1) {
    shard.placement = ExpertPlacement::kRoundRobin;
  } else if (combination % 3 == 2) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(num_experts));
    std::iota(ids.begin(), ids.end(), 0);
    std::mt19937 random(static_cast<unsigned>(combination));
    std::shuffle(ids.begin(), ids.end(), random);
    const std::int64_t begin = num_experts * shard.ep_rank / shard.ep_size;
    const std::int64_t end = num_experts * (shard.ep_rank + 1) / shard.ep_size;
    shard.experts.assign(ids.begin() + begin, ids.begin() + end);
  }
}

struct Tally {
  int ranks = 0;
  int inside_a_group = 0;
  int uneven = 0;
  int summed = 0;
};

void expect_ranks_sum_to_whole(const LayerUnderTest& layer,
                               const std::vector<float>& whole,
                               const std::vector<double>& magnitude,
                               const Shard& sizes,
                               std::size_t combination,
                               Tally& tally) {
  const Problem& problem = layer.verify_case.problem;
  std::vector<double> sum(whole.size());
  // Activation groups restart at a shard's first column: where that cuts one in two, its operands
  // are other numbers than the whole layer's, and the oracle of each rank is what judges.
  const std::int64_t group =
      std::max<std::int64_t>(1, quantizer_info(recipe_info(problem.recipe).quantizer).group_size);
  bool same_groups = true;
  for (std::int64_t rank = 0; rank < sizes.tp_size * sizes.ep_size; ++rank) {
    Shard shard = sizes;
    shard.tp_rank = rank % sizes.tp_size;
    shard.ep_rank = rank / sizes.tp_size;
    place_experts(shard, problem.num_experts, combination);
    const Result<Problem> local = local_problem(problem, shard);
    ASSERT_TRUE(local.has_value()) << local.status().to_string();
    const Result<ExpertsSource> source = shard_source(problem, shard, layer.weights.prepared);
    ASSERT_TRUE(source.has_value()) << source.status().to_string();
    const std::vector<float> partial =
        run_judged(layer, *local, *source, shard_expert_map(problem, shard).value());
    ASSERT_EQ(partial.size(), whole.size());
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += static_cast<double>(partial[i]);
    }
    same_groups &= shard_columns(problem, shard)->begin % group == 0;
    ++tally.ranks;
    tally.inside_a_group += local->down_group_offset != 0 ? 1 : 0;
    tally.uneven += local->intermediate_size * sizes.tp_size != problem.intermediate_size ? 1 : 0;
  }
  if (!same_groups) {
    return;
  }
  ++tally.summed;
  // Spec section 2's bound for one f32 sum over I * top_k terms, for the whole and for the parts.
  const double unit = 2.0 * 4.0 * 0x1p-24 *
                      std::sqrt(static_cast<double>(problem.intermediate_size * problem.top_k));
  for (std::size_t i = 0; i < sum.size(); ++i) {
    ASSERT_LE(std::fabs(sum[i] - static_cast<double>(whole[i])), unit * magnitude[i] + 0x1p-126)
        << "element " << i;
  }
}

TEST(Shards, RanksSumToTheWholeLayer) {
  Tally tally;
  std::size_t combinations = 0;
  for (const char* const line : kLayers) {
    LayerUnderTest layer = LayerUnderTest::make(line);
    layer.problem().out_dtype = DType::kF32;
    const std::vector<float> whole = run_judged(layer, layer.problem(), layer.weights.prepared, {});
    const std::vector<double> magnitude = magnitudes(layer);
    ASSERT_EQ(magnitude.size(), whole.size());
    for (const std::int64_t tp : kTpSizes) {
      for (const std::int64_t ep : kEpSizes) {
        SCOPED_TRACE(std::string(line) + " tp=" + std::to_string(tp) + " ep=" + std::to_string(ep));
        Shard sizes;
        sizes.tp_size = tp;
        sizes.ep_size = ep;
        expect_ranks_sum_to_whole(layer, whole, magnitude, sizes, combinations, tally);
        ++combinations;
      }
    }
  }
  const std::size_t sizes = std::size(kTpSizes) * std::size(kEpSizes);
  const std::int64_t ranks =
      std::accumulate(std::begin(kTpSizes), std::end(kTpSizes), std::int64_t{0}) *
      std::accumulate(std::begin(kEpSizes), std::end(kEpSizes), std::int64_t{0});
  EXPECT_EQ(combinations, std::size(kLayers) * sizes);
  EXPECT_EQ(tally.ranks, std::ssize(kLayers) * ranks);
  EXPECT_GT(tally.inside_a_group, ranks * 5 / 6);
  EXPECT_GT(tally.uneven, ranks * 5 / 6);
  EXPECT_GE(tally.summed, static_cast<int>(4 * sizes));
}

}  // namespace
}  // namespace moekit::tests
