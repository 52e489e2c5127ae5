// SPDX-License-Identifier: Apache-2.0

// Properties that hold bit for bit, for both execution families and the three formats.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/edges/layer_under_test.h"

namespace moekit::tests {
namespace {

constexpr std::int64_t kHidden = 136;

// Calls body(line) for formats, families and io dtypes; `line` lacks h, i, e, k and m no more.
template <typename Body>
void for_each_line(const Body& body) {
  int lines = 0;
  for (const char* const recipe : {"w4a16_nvfp4", "w4a16_mxfp4", "w16a16"}) {
    for (const char* const rest :
         {"m=5 family=direct io=f32", "m=5 family=grouped", "m=41", "m=41 io=f16 shared=f32"}) {
      const std::string line =
          std::string("recipe=") + recipe + " h=136 i=72 e=8 k=3 bias=both seed=11 " + rest;
      SCOPED_TRACE(line);
      body(line);
      ++lines;
    }
  }
  EXPECT_EQ(lines, 12);
}

std::vector<std::int32_t> ids_of(const LayerUnderTest& layer) {
  const auto* ids = static_cast<const std::int32_t*>(layer.tensors.arguments.topk_ids.data);
  return {ids, ids + layer.verify_case.num_tokens * layer.top_k()};
}

std::vector<float> weights_of(const LayerUnderTest& layer) {
  const auto* weights = static_cast<const float*>(layer.tensors.arguments.topk_weights.data);
  return {weights, weights + layer.verify_case.num_tokens * layer.top_k()};
}

// Rows of `view` in another order, in fresh memory.
std::vector<std::byte> permuted_rows(const TensorView& view,
                                     const std::vector<std::size_t>& order) {
  const auto row_bytes = static_cast<std::size_t>(view.strides[0] * dtype_bits(view.dtype) / 8);
  std::vector<std::byte> rows;
  for (const std::size_t from : order) {
    const auto* row = static_cast<const std::byte*>(view.data) + from * row_bytes;
    rows.insert(rows.end(), row, row + row_bytes);
  }
  return rows;
}

TEST(Properties, PermutingTokensPermutesRows) {
  for_each_line([](const std::string& line) {
    LayerUnderTest layer = LayerUnderTest::make(line);
    const std::vector<float> out = layer.run_verified();
    const auto tokens = static_cast<std::size_t>(layer.verify_case.num_tokens);
    std::vector<std::size_t> order(tokens);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::reverse(order.begin(), order.end());
    std::rotate(order.begin(), order.begin() + 2, order.end());
    RunArguments& arguments = layer.tensors.arguments;
    std::vector<std::vector<std::byte>> storage;
    for (TensorView* view :
         {&arguments.x, &arguments.topk_ids, &arguments.topk_weights, &arguments.shared}) {
      if (view->data != nullptr) {
        storage.push_back(permuted_rows(*view, order));
        view->data = storage.back().data();
      }
    }
    const std::vector<float> permuted = layer.run_verified();
    for (std::size_t t = 0; t < tokens; ++t) {
      EXPECT_TRUE(same_bits(row_of(permuted, static_cast<std::int64_t>(t), kHidden),
                            row_of(out, static_cast<std::int64_t>(order[t]), kHidden)))
          << t;
    }
  });
}

TEST(Properties, RenumberingExpertsChangesNoBitInSlotOrder) {
  for_each_line([](const std::string& line) {
    LayerUnderTest layer = LayerUnderTest::make(line);
    const std::vector<float> out = layer.run_verified();
    // Expert e becomes (5 e + 3) mod 8.
    const auto renumber = [](std::int32_t e) { return (5 * e + 3) % 8; };
    ExpertsSource moved = layer.weights.source;
    for (std::int32_t e = 0; e < 8; ++e) {
      moved.experts[static_cast<std::size_t>(renumber(e))] =
          layer.weights.source.experts[static_cast<std::size_t>(e)];
    }
    std::vector<std::int32_t> ids = ids_of(layer);
    std::transform(ids.begin(), ids.end(), ids.begin(), renumber);
    layer.weights.source = moved;
    layer.weights.prepared = moved;
    layer.set_ids(ids);
    layer.prepare();
    EXPECT_TRUE(same_bits(out, layer.run_verified()));
  });
}

TEST(Properties, RenumberingExpertsStaysWithinTheBoundInExpertOrder) {
  LayerUnderTest layer =
      LayerUnderTest::make("recipe=w4a16_nvfp4 h=136 i=72 e=8 k=3 m=41 order=expert bias=both");
  layer.run_verified();
  std::vector<std::int32_t> ids = ids_of(layer);
  std::reverse(layer.weights.source.experts.begin(), layer.weights.source.experts.end());
  for (std::int32_t& id : ids) {
    id = 7 - id;
  }
  layer.weights.prepared = layer.weights.source;
  layer.set_ids(ids);
  layer.prepare();
  layer.run_verified();
}

TEST(Properties, RouteOfWeightZeroChangesNothing) {
  for_each_line([](const std::string& line) {
    LayerUnderTest layer = LayerUnderTest::make(line);
    std::vector<std::int32_t> ids = ids_of(layer);
    std::vector<float> weights = weights_of(layer);
    for (std::size_t i = 1; i < weights.size(); i += 3) {
      weights[i] = 0.0F;
    }
    layer.set_ids(ids, weights);
    const std::vector<float> zero = layer.run_verified();
    for (std::size_t i = 1; i < ids.size(); i += 3) {
      ids[i] = -1;
    }
    layer.set_ids(ids, weights);
    EXPECT_EQ(zero, layer.run_verified());
  });
}

TEST(Properties, PowersOfTwoScaleBits) {
  for_each_line([](const std::string& line) {
    LayerUnderTest layer = LayerUnderTest::make(line);
    if (layer.problem().shared != SharedInput::kNone) {
      return;  // shared is not scaled
    }
    const std::vector<float> out = layer.run_verified();
    std::vector<float> expected = out;
    for (float& value : expected) {
      value *= 4.0F;
    }
    std::vector<float> weights = weights_of(layer);
    const std::vector<std::int32_t> ids = ids_of(layer);
    for (float& weight : weights) {
      weight *= 4.0F;
    }
    layer.set_ids(ids, weights);
    EXPECT_TRUE(same_bits(expected, layer.run_verified()));
    for (float& weight : weights) {
      weight *= 0.25F;
    }
    layer.set_ids(ids, weights);
    layer.problem().routed_scaling = 4.0F;
    layer.problem().routed_scaling_place = ScalingPlace::kSum;
    layer.prepare();
    EXPECT_TRUE(same_bits(expected, layer.run_verified()));
  });
}

TEST(Properties, ThreadsChangeNoBit) {
  for_each_line([](const std::string& line) {
    LayerUnderTest layer = LayerUnderTest::make(line);
    const std::vector<float> out = layer.run();
    for (const int threads : {1, 3, 7}) {
      const Runtime runtime = Runtime::create({threads, {}}).value();
      EXPECT_TRUE(same_bits(out, layer.run(runtime))) << threads;
    }
  });
}

TEST(Properties, ChunksChangeNoBitInSlotOrder) {
  int chunked = 0;
  for_each_line([&chunked](const std::string& line) {
    LayerUnderTest layer = LayerUnderTest::make(line);
    const std::vector<float> out = layer.run_verified();
    Problem part = layer.problem();
    part.num_tokens = (layer.verify_case.num_tokens + 2) / 3;
    layer.problem().max_workspace_bytes =
        required_bytes(part, host_cpu(), layer.verify_case.overrides).value();
    layer.prepare();
    const Rung* rung = layer.plan->rung(layer.verify_case.num_tokens);
    ASSERT_NE(rung, nullptr);
    EXPECT_LT(rung->chunk_tokens, layer.verify_case.num_tokens);
    EXPECT_LE(layer.plan->workspace_bytes(), layer.problem().max_workspace_bytes);
    EXPECT_TRUE(same_bits(out, layer.run_verified()));
    ++chunked;
  });
  EXPECT_EQ(chunked, 12);
}

TEST(Properties, LargerCapacityChangesNoBitOfABatchInvariantPlan) {
  for (const RecipeInfo& info : kRecipes) {
    const std::string recipe(info.name);
    LayerUnderTest layer =
        LayerUnderTest::make("h=136 i=72 e=8 k=3 m=33 batch_invariant=1 recipe=" + recipe);
    const std::vector<float> out = layer.run_verified();
    layer.problem().num_tokens = 300;
    layer.prepare();
    EXPECT_TRUE(same_bits(out, layer.run_verified()));
    // Each token alone, under the same plan.
    const RunArguments all = layer.tensors.arguments;
    for (std::int64_t t = 0; t < 33; ++t) {
      const auto only = [t](const TensorView& view) {
        TensorView row = view;
        row.data = static_cast<const std::byte*>(view.data) +
                   t * view.strides[0] * dtype_bits(view.dtype) / 8;
        row.shape[0] = 1;
        return row;
      };
      layer.verify_case.num_tokens = 1;
      layer.tensors.arguments.x = only(all.x);
      layer.tensors.arguments.topk_ids = only(all.topk_ids);
      layer.tensors.arguments.topk_weights = only(all.topk_weights);
      layer.tensors.arguments.out.shape[0] = 1;
      EXPECT_TRUE(same_bits(layer.run(), row_of(out, t, 136))) << recipe << " token " << t;
    }
  }
}

TEST(Properties, WorkspaceMayHoldAnotherLayersRun) {
  LayerUnderTest one = LayerUnderTest::make("recipe=w4a16_nvfp4 h=136 i=72 e=8 k=3 m=41");
  LayerUnderTest two = LayerUnderTest::make("recipe=w16a16 h=64 i=352 e=5 k=2 m=20 io=f32");
  const std::vector<float> expected = one.run();
  two.run();
  verify::GuardedBuffer shared(std::max(one.plan->workspace_bytes(), two.plan->workspace_bytes()));
  const auto run_in_shared = [&shared](LayerUnderTest& layer) {
    Result<Binding> binding = moekit::bind(
        shared_runtime(), *layer.plan, layer.packed, shared.bytes(), layer.tensors.arguments);
    ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
    ASSERT_TRUE(moekit::run(shared_runtime(), *binding).ok());
  };
  std::vector<std::byte> first(one.tensors.out.bytes().begin(), one.tensors.out.bytes().end());
  for (int round = 0; round < 3; ++round) {
    run_in_shared(two);
    run_in_shared(one);
    EXPECT_TRUE(std::equal(first.begin(), first.end(), one.tensors.out.bytes().begin()));
  }
}

TEST(Properties, WorkspaceGrowsWithTokens) {
  int compared = 0;
  for_each_line([&compared](const std::string& line) {
    Problem problem = parse_verify_case(line)->problem;
    const PlanOverrides overrides = parse_verify_case(line)->overrides;
    std::int64_t before = 0;
    for (std::int64_t tokens = 0; tokens <= 600; tokens += tokens < 40 ? 1 : 37) {
      problem.num_tokens = tokens;
      const std::int64_t bytes = required_bytes(problem, host_cpu(), overrides).value();
      EXPECT_GE(bytes, before) << tokens;
      before = bytes;
      ++compared;
    }
  });
  EXPECT_GT(compared, 600);
}

}  // namespace
}  // namespace moekit::tests
