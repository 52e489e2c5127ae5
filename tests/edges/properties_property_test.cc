// SPDX-License-Identifier: Apache-2.0

// Properties that hold bit for bit, for both execution families and every recipe.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <numeric>
#include <set>
#include <span>

#include <gtest/gtest.h>

#include "device/numerics/bf16.h"
#include "tests/edges/layer_under_test.h"

namespace moekit::tests {
namespace {

constexpr std::int64_t kHidden = 136;

// Calls body(line) for formats, families and io dtypes; `line` lacks h, i, e, k and m no more.
template <typename Body>
void for_each_line(const Body& body) {
  std::size_t lines = 0;
  for (const RecipeInfo& info : kRecipes) {
    for (const char* const rest :
         {"m=5 family=direct io=f32", "m=5 family=grouped", "m=41", "m=41 io=f16 shared=f32"}) {
      const std::string line =
          "recipe=" + std::string(info.name) + " h=136 i=72 e=8 k=3 bias=both seed=11 " + rest;
      SCOPED_TRACE(line);
      body(line);
      ++lines;
    }
  }
  EXPECT_EQ(lines, 4 * kRecipes.size());
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

// Every block scale by half: the exponent of a byte before, or half the float. Experts share
// memory, so `done` says whose scales were halved already.
void halve_scales(WeightMatrix& matrix, std::set<const void*>& done) {
  if (!done.insert(matrix.scales).second) {
    return;
  }
  const DType dtype = matrix.scale_dtype.value_or(*format_info(matrix.format).scale);
  auto* bytes = static_cast<std::byte*>(const_cast<void*>(matrix.scales));
  for (std::int64_t row = 0; row < num_scale_rows(matrix); ++row) {
    for (std::int64_t group = 0; group < num_scale_cols(matrix); ++group) {
      std::byte* const at =
          bytes + row * matrix.scale_row_stride_bytes + group * (dtype_bits(dtype) / 8);
      if (dtype == DType::kF32) {
        float value = 0.0F;
        std::memcpy(&value, at, sizeof value);
        value *= 0.5F;
        std::memcpy(at, &value, sizeof value);
      } else if (dtype == DType::kBf16 || dtype == DType::kF16) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, at, sizeof bits);
        bits = dtype == DType::kBf16 ? device::bf16_from_f32(0.5F * device::bf16_to_f32(bits))
                                     : device::f16_from_f32(0.5F * device::f16_to_f32(bits));
        std::memcpy(at, &bits, sizeof bits);
      } else {
        const int byte = static_cast<int>(*at);
        const int step =
            dtype == DType::kE8m0 ? 1 : 8;  // three bits of fraction below the exponent
        ASSERT_GE(byte, 2 * step) << "a normal scale, whose half is exact";
        *at = static_cast<std::byte>(byte - step);
      }
    }
  }
}

// In every group whose codes are all below 15: code + 1 and zero point + 1. Codes and zero points
// get new memory; returns how many groups moved.
std::int64_t move_zero_points(WeightMatrix& matrix,
                              std::deque<std::vector<std::uint8_t>>& storage) {
  const std::int64_t group_size = scale_group_size(matrix);
  const std::int64_t groups = num_scale_cols(matrix);
  auto& codes = storage.emplace_back();
  auto& zeros = storage.emplace_back();
  std::int64_t moved = 0;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const auto* from =
        static_cast<const std::uint8_t*>(matrix.codes) + row * matrix.row_stride_bytes;
    codes.insert(codes.end(), from, from + matrix.cols / 2);
    std::uint8_t* const to = codes.data() + row * (matrix.cols / 2);
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::uint8_t zero =
          matrix.zero_points == nullptr
              ? std::uint8_t{8}
              : matrix.zero_points[row * matrix.zero_point_row_stride + group];
      const std::int64_t begin = group * group_size / 2;
      const std::int64_t end = std::min(matrix.cols, (group + 1) * group_size) / 2;
      const bool fits = std::none_of(to + begin, to + end, [](std::uint8_t pair) {
        return pair >> 4U == 15 || (pair & 15U) == 15;
      });
      if (fits && zero < 16) {
        std::for_each(to + begin, to + end, [](std::uint8_t& pair) {
          pair = static_cast<std::uint8_t>(pair + 0x11);
        });
        ++moved;
      }
      zeros.push_back(static_cast<std::uint8_t>(zero + (fits && zero < 16 ? 1 : 0)));
    }
  }
  matrix.codes = codes.data();
  matrix.row_stride_bytes = matrix.cols / 2;
  matrix.zero_points = zeros.data();
  matrix.zero_point_row_stride = groups;
  return moved;
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

std::vector<float> decoded(const WeightMatrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const std::span<float> out = std::span(values).subspan(
        static_cast<std::size_t>(row * matrix.cols), static_cast<std::size_t>(matrix.cols));
    EXPECT_TRUE(decode_row(matrix, row, out).ok());
  }
  return values;
}

// unpack after pack: the values of every element, on every grid of scales that a format may have.
TEST(Properties, UnpackedWeightsAreTheSourcesBits) {
  std::size_t layers = 0;
  for (const RecipeInfo& info : kRecipes) {
    const FormatInfo& format = format_info(info.weights);
    std::vector<std::string> grids{""};
    if (format.scale.has_value()) {
      grids.emplace_back(" group_offset=8");
    }
    if (format.group_rows > 1) {
      grids.emplace_back(" row_offset=57");
      grids.emplace_back(" row_offset=120 group_offset=104");
    }
    if (format.element == DType::kI4) {
      grids.insert(grids.end(), {" group_size=32", " group_size=64 group_offset=40"});
    }
    for (const std::string& grid : grids) {
      LayerUnderTest layer = LayerUnderTest::make(
          "h=136 i=72 e=3 k=2 m=2 quirk=raw_codes recipe=" + std::string(info.name) + grid);
      layer.prepare();
      for (std::size_t e = 0; e < 3; ++e) {
        std::vector<std::byte> storage;
        const Result<ExpertWeights> back =
            unpack_expert(layer.packed, static_cast<std::int64_t>(e), storage);
        ASSERT_TRUE(back.has_value()) << back.status().to_string();
        const ExpertWeights& want = layer.weights.source.experts[e];
        for (WeightMatrix ExpertWeights::*const matrix :
             {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down}) {
          EXPECT_EQ((want.*matrix).global_scale, (*back.*matrix).global_scale);
          EXPECT_TRUE(same_bits(decoded(want.*matrix), decoded(*back.*matrix)))
              << info.name << grid;
        }
      }
      ++layers;
    }
  }
  EXPECT_EQ(layers, 19U);
}

// relu2 is homogeneous of degree 2, and a quantiser's groups scale with what they hold: x times 2
// makes the intermediate 4 times, the output 4 times, bit for bit. The input scales of w4a4 belong
// to what they quantise and scale with it.
TEST(Properties, ScalingXByTwoScalesBits) {
  std::size_t layers = 0;
  for (const RecipeInfo& info : kRecipes) {
    for (const char* const tokens : {"m=5", "m=41"}) {
      LayerUnderTest layer = LayerUnderTest::make(
          "h=136 i=72 e=8 k=3 io=f32 activation=relu2 recipe=" + std::string(info.name) + " " +
          tokens);
      std::vector<float> expected = layer.run_verified();
      for (float& value : expected) {
        value *= 4.0F;
      }
      const TensorView& x = layer.tensors.arguments.x;
      auto* values = static_cast<float*>(const_cast<void*>(x.data));
      for (std::int64_t t = 0; t < x.shape[0]; ++t) {
        for (std::int64_t k = 0; k < x.shape[1]; ++k) {
          values[t * x.strides[0] + k] *= 2.0F;
        }
      }
      for (ExpertsSource* source : {&layer.weights.source, &layer.weights.prepared}) {
        for (ExpertWeights& expert : source->experts) {
          if (expert.up.input_scale.has_value()) {
            *expert.up.input_scale *= 2.0F;
            *expert.down.input_scale *= 4.0F;
          }
        }
      }
      layer.prepare();
      EXPECT_TRUE(same_bits(expected, layer.run_verified())) << info.name << " " << tokens;
      ++layers;
    }
  }
  EXPECT_EQ(layers, 2 * kRecipes.size());
}

// Half of every scale of down is half of the output, in each format's own scale type.
TEST(Properties, HalvingDownsScalesHalvesBits) {
  std::size_t layers = 0;
  for (const RecipeInfo& info : kRecipes) {
    const FormatInfo& format = format_info(info.weights);
    if (!format.scale.has_value()) {
      continue;
    }
    LayerUnderTest layer =
        LayerUnderTest::make("h=136 i=72 e=8 k=3 m=9 io=f32 recipe=" + std::string(info.name));
    std::vector<float> expected = layer.run_verified();
    for (float& value : expected) {
      value *= 0.5F;
    }
    std::set<const void*> done;
    for (ExpertWeights& expert : layer.weights.source.experts) {
      halve_scales(expert.down, done);
    }
    layer.weights.prepared = layer.weights.source;
    layer.prepare();
    EXPECT_TRUE(same_bits(expected, layer.run_verified())) << info.name;
    ++layers;
  }
  EXPECT_EQ(layers, kRecipes.size() - 1);
}

// int4 stands for code - zero point: one more of both changes nothing.
TEST(Properties, Int4CodesAndZeroPointsMoveTogether) {
  for (const char* const group_size : {"32", "64", "128"}) {
    LayerUnderTest layer = LayerUnderTest::make(
        std::string("recipe=w4a16_int4 h=136 i=72 e=8 k=3 m=9 group_size=") + group_size);
    const std::vector<float> out = layer.run_verified();
    std::deque<std::vector<std::uint8_t>> storage;
    std::int64_t moved = 0;
    for (ExpertWeights& expert : layer.weights.source.experts) {
      for (WeightMatrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
        moved += move_zero_points(*matrix, storage);
      }
    }
    EXPECT_GT(moved, 1000) << "groups whose codes all leave room for one more";
    layer.weights.prepared = layer.weights.source;
    layer.prepare();
    EXPECT_TRUE(same_bits(out, layer.run_verified())) << group_size;
  }
}

// Every body that this processor has, with as many workers as threads: a plan for two threads would
// leave the others idle.
TEST(Properties, ThreadsAndRepeatsChangeNoBitOnAnyInstructionSet) {
  constexpr std::array<int, 4> kThreads{1, 2, 4, 7};
  std::vector<Runtime> runtimes;
  for (const int threads : kThreads) {
    runtimes.push_back(Runtime::create({threads, {}}).value());
  }
  std::size_t compared = 0;
  for_each_line([&](const std::string& line) {
    LayerUnderTest layer = LayerUnderTest::make(line);
    for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
      if (isa > host_cpu().isa) {
        continue;
      }
      layer.device.isa = isa;
      layer.device.num_threads = 1;
      layer.prepare();
      const std::vector<float> out = layer.run_verified();
      for (std::size_t i = 0; i < kThreads.size(); ++i) {
        layer.device.num_threads = kThreads[i];
        layer.prepare();
        for (int repeat = 0; repeat < 2; ++repeat) {
          EXPECT_TRUE(same_bits(out, layer.run(runtimes[i])))
              << isa_name(isa) << ", " << kThreads[i] << " threads";
          ++compared;
        }
      }
    }
  });
  EXPECT_GE(compared, 4 * kRecipes.size() * kThreads.size() * 2);
}

TEST(Properties, ChunksChangeNoBitInSlotOrder) {
  std::size_t chunked = 0;
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
  EXPECT_EQ(chunked, 4 * kRecipes.size());
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
