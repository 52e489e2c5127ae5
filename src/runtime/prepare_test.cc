// SPDX-License-Identifier: Apache-2.0
// prepare as an engine uses it: saved and mapped again, reloaded in place under a live binding,
// cancelled, and within its memory.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "plan/packed_layout.h"
#include "runtime/test_layer.h"

namespace moekit {
namespace {

namespace fs = std::filesystem;

Problem problem_of(Recipe recipe, bool bias = false) {
  Problem problem;
  problem.num_tokens = 4;
  problem.num_experts = 3;
  problem.top_k = 2;
  problem.hidden_size = 96;
  problem.intermediate_size = 64;
  problem.recipe = recipe;
  problem.gate_up_bias = bias;
  return problem;
}

std::string scratch_file(const std::string& name) {
  return testing::TempDir() + "moekit_" + std::to_string(::getpid()) + "_" + name;
}

std::vector<std::byte> copy_of(const PackedExperts& packed) {
  return {packed.bytes().begin(), packed.bytes().end()};
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

/// A layer whose experts repeat the first `num_drawn`: drawing weights takes longer than packing
/// them.
TestLayer repeated_layer(const Problem& problem, std::int64_t num_drawn) {
  Problem drawn = problem;
  drawn.num_experts = num_drawn;
  TestLayer layer(drawn);
  layer.problem = problem;
  std::vector<ExpertWeights>& experts = layer.source.experts;
  while (std::ssize(experts) < problem.num_experts) {
    const ExpertWeights again = experts[experts.size() - static_cast<std::size_t>(num_drawn)];
    experts.push_back(again);
  }
  return layer;
}

/// The output of one call over `experts`, tokens of ones; or why bind refused it.
Result<std::vector<std::uint16_t>> call_once(const Plan& plan, const PackedExperts& experts) {
  const Problem& problem = plan.problem();
  const std::int64_t tokens = problem.num_tokens;
  const std::vector<std::uint16_t> x(static_cast<std::size_t>(tokens * problem.hidden_size),
                                     0x3F80);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < tokens * problem.top_k; ++i) {
    ids.push_back(static_cast<std::int32_t>(i % problem.num_experts));
  }
  const std::vector<float> weights(ids.size(), 0.5F);
  std::vector<std::uint16_t> out(x.size());
  RunArguments arguments;
  arguments.x = matrix_view(x.data(), DType::kBf16, tokens, problem.hidden_size);
  arguments.topk_ids = matrix_view(std::as_const(ids).data(), DType::kI32, tokens, problem.top_k);
  arguments.topk_weights = matrix_view(weights.data(), DType::kF32, tokens, problem.top_k);
  arguments.out = matrix_view(out.data(), DType::kBf16, tokens, problem.hidden_size);
  Result<Runtime> runtime = Runtime::create({.num_threads = 1});
  EXPECT_TRUE(runtime.has_value());
  const AlignedBytes workspace(plan.workspace_bytes());
  const Result<Binding> binding =
      moekit::bind(*runtime, plan, experts, workspace.span(), arguments);
  MOEKIT_RETURN_IF_ERROR(binding.status());
  EXPECT_TRUE(run(*runtime, *binding).ok());
  return out;
}

std::vector<std::uint16_t> run_once(const Plan& plan, const PackedExperts& experts) {
  const Result<std::vector<std::uint16_t>> out = call_once(plan, experts);
  EXPECT_TRUE(out.has_value()) << out.status().to_string();
  return out.has_value() ? *out : std::vector<std::uint16_t>();
}

Status bind_once(const Plan& plan, const PackedExperts& experts) {
  return call_once(plan, experts).status();
}

TEST(PackedFile, saved_and_mapped_experts_are_the_same_bytes_and_results) {
  for (const Recipe recipe : {Recipe::kW4a16Nvfp4, Recipe::kW4a16Mxfp4, Recipe::kW16a16}) {
    TestLayer layer(problem_of(recipe));
    const Plan plan = *make_plan(layer.problem, host_cpu());
    const PackedExperts packed = *prepare(plan, layer.source);
    const std::string path = scratch_file("packed");
    ASSERT_TRUE(save_packed_experts(packed, path).ok());
    const Result<PackedExperts> mapped = map_packed_experts(plan, path);
    ASSERT_TRUE(mapped.has_value()) << mapped.status().to_string();
    fs::remove(path);  // the mapping keeps the file
    EXPECT_EQ(mapped->layout_id(), packed.layout_id());
    EXPECT_EQ(copy_of(*mapped), copy_of(packed));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mapped->bytes().data()) % kPackedAlignment, 0U);
    EXPECT_EQ(run_once(plan, *mapped), run_once(plan, packed));
  }
}

TEST(PackedFile, another_layout_is_refused_naming_both) {
  TestLayer layer(problem_of(Recipe::kW4a16Nvfp4));
  const Plan plan = *make_plan(layer.problem, host_cpu());
  const std::string path = scratch_file("layout");
  ASSERT_TRUE(save_packed_experts(*prepare(plan, layer.source), path).ok());
  Problem more = layer.problem;
  more.num_experts = 4;
  for (const Problem& other :
       {problem_of(Recipe::kW4a16Mxfp4), more, problem_of(Recipe::kW4a16Nvfp4, true)}) {
    const Plan needs = *make_plan(other, host_cpu());
    const Status status = map_packed_experts(needs, path).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(plan->layout_id), std::string::npos) << status.to_string();
    EXPECT_NE(status.message().find(needs->layout_id), std::string::npos) << status.to_string();
  }
  fs::remove(path);
}

// w4a16 and w4a4 share a layout_id, so what one prepared the other binds; the input scales that
// only w4a4 needs may be missing from it, in memory or in a file.
TEST(PackedFile, input_scales_that_nobody_stored_are_missed_at_bind) {
  TestLayer layer(problem_of(Recipe::kW4a16Nvfp4));
  const Plan wide = *make_plan(layer.problem, host_cpu());
  Problem narrow_problem = layer.problem;
  narrow_problem.recipe = Recipe::kW4a4Nvfp4;
  const Plan narrow = *make_plan(narrow_problem, host_cpu());
  ASSERT_EQ(wide->layout_id, narrow->layout_id);
  const std::string path = scratch_file("input_scales");
  const auto expect_refused = [&](std::string_view expert) {
    const PackedExperts packed = *prepare(wide, layer.source);
    ASSERT_TRUE(save_packed_experts(packed, path).ok());
    for (const PackedExperts& experts : {packed, *map_packed_experts(narrow, path)}) {
      const Status status = bind_once(narrow, experts);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      for (const std::string_view words :
           {expert, std::string_view("w4a4_nvfp4"), std::string_view("nearest: w4a16_nvfp4")}) {
        EXPECT_NE(status.message().find(words), std::string::npos) << status.to_string();
      }
      EXPECT_TRUE(bind_once(wide, experts).ok()) << "w4a16 asks for none";
    }
  };
  expect_refused("no input scales of expert 0,");
  for (ExpertWeights& expert : layer.source.experts) {
    expert.gate.input_scale = 0.01F;
    expert.up.input_scale = 0.02F;
    expert.down.input_scale = 0.5F;
  }
  const std::size_t last = layer.source.experts.size() - 1;
  for (WeightMatrix ExpertWeights::*const matrix :
       {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down}) {
    const std::optional<float> kept = (layer.source.experts[last].*matrix).input_scale;
    (layer.source.experts[last].*matrix).input_scale.reset();
    expect_refused("no input scales of expert " + std::to_string(last) + ",");
    (layer.source.experts[last].*matrix).input_scale = kept;
  }
  // Stored by a w4a16 plan, they serve w4a4 with the bits of its own preparation.
  const PackedExperts packed = *prepare(wide, layer.source);
  ASSERT_TRUE(save_packed_experts(packed, path).ok());
  const auto own = run_once(narrow, *prepare(narrow, layer.source));
  EXPECT_EQ(run_once(narrow, packed), own);
  EXPECT_EQ(run_once(narrow, *map_packed_experts(narrow, path)), own);
  EXPECT_NE(run_once(wide, packed), own);
  fs::remove(path);
}

TEST(PackedFile, every_damaged_byte_is_found) {
  TestLayer layer(problem_of(Recipe::kW4a16Nvfp4));
  const Plan plan = *make_plan(layer.problem, host_cpu());
  const std::string path = scratch_file("damage");
  ASSERT_TRUE(save_packed_experts(*prepare(plan, layer.source), path).ok());
  std::ifstream file(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  const std::size_t text = whole.find('\0');
  ASSERT_GT(text, 64U);
  ASSERT_GT(whole.size(), 4096U);
  int tried = 0;
  // Every byte of the header's text, then a stride of the content.
  for (std::size_t at = 0; at < whole.size(); at += at < text ? 1 : at < 4096 ? 4096 - at : 997) {
    if (at >= text && at < 4096) {
      continue;
    }
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_FALSE(map_packed_experts(plan, path).has_value()) << at;
    ++tried;
  }
  EXPECT_GT(tried, 100);
  for (const std::size_t size : {std::size_t{0}, text, std::size_t{4096}, whole.size() - 1}) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, size);
    EXPECT_EQ(map_packed_experts(plan, path).status().code(), StatusCode::kInvalidArgument) << size;
  }
  EXPECT_EQ(map_packed_experts(plan, path + ".none").status().code(), StatusCode::kIo);
  fs::remove(path);
}

TEST(PackedFile, nothing_prepared_and_unwritable_places_are_errors) {
  EXPECT_EQ(save_packed_experts({}, scratch_file("none")).code(), StatusCode::kInvalidArgument);
  TestLayer layer(problem_of(Recipe::kW4a16Nvfp4));
  const Plan plan = *make_plan(layer.problem, host_cpu());
  const PackedExperts packed = *prepare(plan, layer.source);
  EXPECT_EQ(save_packed_experts(packed, scratch_file("no/such/folder")).code(), StatusCode::kIo);
}

// https://github.com/vllm-project/vllm/pull/48438: weights reloaded at other addresses.
TEST(Prepare, report_c7_61_reload_in_place_serves_a_live_binding) {
  TestLayer first(problem_of(Recipe::kW4a16Nvfp4), 1);
  TestLayer second(problem_of(Recipe::kW4a16Nvfp4), 2);
  const Plan plan = *make_plan(first.problem, host_cpu());
  const AlignedBytes memory(plan->prepare.packed_bytes);
  const PackedExperts packed = *prepare(plan, first.source, {.destination = memory.span()});
  const std::vector<std::uint16_t> before = run_once(plan, packed);
  // The same view of the same addresses now holds the second layer.
  ASSERT_TRUE(prepare(plan, second.source, {.destination = memory.span()}).has_value());
  const std::vector<std::uint16_t> after = run_once(plan, packed);
  EXPECT_NE(before, after);
  EXPECT_EQ(after, run_once(plan, *prepare(plan, second.source)));
}

TEST(Prepare, a_callback_cancels_or_throws_and_nothing_aborts) {
  TestLayer layer(problem_of(Recipe::kW4a16Nvfp4));
  const Plan plan = *make_plan(layer.problem, host_cpu());
  const Status cancelled =
      prepare(plan,
              layer.source,
              {.progress = [](const PrepareProgress& p) { return p.experts_done < 2; }})
          .status();
  EXPECT_EQ(cancelled.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(cancelled.message().find("after 2 of 3 experts"), std::string::npos);
  const auto throwing = [&](auto value) {
    return prepare(plan, layer.source, {.progress = [value](const PrepareProgress&) -> bool {
                     throw value;
                   }})
        .status();
  };
  EXPECT_EQ(throwing(7).code(), StatusCode::kInternal);
  EXPECT_EQ(throwing(std::runtime_error("mine")).code(), StatusCode::kInternal);
}

TEST(Prepare, regions_of_several_experts_pack_what_each_alone_does) {
  Problem problem = problem_of(Recipe::kW4a16Nvfp4);
  problem.num_experts = 80;  // 0.45 MB each: a region of 32 MiB ends inside
  problem.hidden_size = 1024;
  problem.intermediate_size = 264;  // a short panel
  TestLayer layer = repeated_layer(problem, 7);
  layer.source.experts[70].down.global_scale = 0.0F;  // dormant
  const Plan plan = *make_plan(problem, host_cpu());
  const plan::PackedLayout layout = *plan::packed_layout(problem, plan->device);
  ASSERT_GT(plan->prepare.packed_bytes, std::int64_t{33} << 20) << "one region holds all";
  std::vector<std::int64_t> seen;
  const Result<PackedExperts> one = prepare(plan,
                                            layer.source,
                                            {.progress =
                                                 [&](const PrepareProgress& progress) {
                                                   seen.push_back(progress.experts_done);
                                                   return true;
                                                 },
                                             .num_threads = 1});
  ASSERT_TRUE(one.has_value()) << one.status().to_string();
  ASSERT_EQ(seen.size(), 80U);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i], static_cast<std::int64_t>(i) + 1);
  }
  for (const int threads : {2, 3, 16}) {
    const Result<PackedExperts> several = prepare(plan, layer.source, {.num_threads = threads});
    ASSERT_TRUE(several.has_value());
    EXPECT_TRUE(same_bytes(one->bytes(), several->bytes())) << threads << " threads";
  }
  Problem alone = problem;
  alone.num_experts = 1;
  alone.top_k = 1;
  const Plan small = *make_plan(alone, host_cpu());
  const plan::PackedLayout small_layout = *plan::packed_layout(alone, small->device);
  for (const std::size_t expert :
       {std::size_t{0}, std::size_t{37}, std::size_t{70}, std::size_t{79}}) {
    ExpertsSource source;
    source.experts = {layer.source.experts[expert]};
    const Result<PackedExperts> packed = prepare(small, source, {});
    ASSERT_TRUE(packed.has_value()) << packed.status().to_string();
    for (const auto& [large, little] : {std::pair(&layout.gate_up, &small_layout.gate_up),
                                        std::pair(&layout.down, &small_layout.down)}) {
      const auto bytes = static_cast<std::size_t>(large->expert_stride_bytes);
      ASSERT_EQ(little->expert_stride_bytes, large->expert_stride_bytes);
      const std::byte* have =
          one->bytes().data() + large->offset + static_cast<std::ptrdiff_t>(expert * bytes);
      EXPECT_EQ(std::memcmp(have, packed->bytes().data() + little->offset, bytes), 0) << expert;
    }
  }
}

// https://github.com/vllm-project/vllm/pull/47851: repacking doubles memory.
TEST(Prepare, report_c7_54_memory_beyond_source_and_destination_is_bounded) {
  Problem problem = problem_of(Recipe::kW4a16Nvfp4);
  problem.num_experts = 16;
  problem.hidden_size = 1024;
  problem.intermediate_size = 512;
  TestLayer layer = repeated_layer(problem, 2);
  const Plan plan = *make_plan(problem, host_cpu());
  const AlignedBytes memory(plan->prepare.packed_bytes);
  const HeapPeak peak;  // operator new, everywhere in this program
  const Result<PackedExperts> packed =
      prepare(plan, layer.source, {.destination = memory.span(), .num_threads = 16});
  const std::int64_t bytes = peak.bytes();
  ASSERT_TRUE(packed.has_value()) << packed.status().to_string();
  EXPECT_LE(bytes, std::int64_t{64} << 20);
  EXPECT_LE(bytes, plan->prepare.peak_extra_bytes) << "more than the plan states";
  // What prepare counted are its buffers: the rest is threads, their state and the result's.
  EXPECT_GE(packed->peak_extra_bytes(), problem.hidden_size / 2);
  EXPECT_LE(packed->peak_extra_bytes(), bytes);
  EXPECT_LE(bytes - packed->peak_extra_bytes(), std::int64_t{64} << 10);
  // One expert packed is a seventeenth of this; a staged copy of one would show.
  EXPECT_LT(bytes, plan->prepare.packed_bytes / 16);
  EXPECT_GT(bytes, 0);
}

// https://github.com/sgl-project/sglang/issues/38074: 0.66 GiB lost per layer, then out of memory.
TEST(Prepare, report_c7_54_nothing_but_the_packed_bytes_stays) {
  Problem problem = problem_of(Recipe::kW4a16Nvfp4);
  problem.hidden_size = 512;
  problem.intermediate_size = 256;
  TestLayer layer(problem);
  const Plan plan = *make_plan(problem, host_cpu());
  constexpr int kLayers = 12;
  std::vector<AlignedBytes> memory;
  std::vector<PackedExperts> packed;
  memory.reserve(kLayers);
  packed.reserve(kLayers);
  for (int i = 0; i < kLayers; ++i) {
    memory.emplace_back(plan->prepare.packed_bytes);
  }
  ASSERT_TRUE(prepare(plan, layer.source, {.destination = memory[0].span()}).has_value());
  const std::int64_t before = HeapCount::live.load();
  for (int i = 0; i < kLayers; ++i) {
    Result<PackedExperts> made =
        prepare(plan, layer.source, {.destination = memory[static_cast<std::size_t>(i)].span()});
    ASSERT_TRUE(made.has_value()) << made.status().to_string();
    packed.push_back(*made);
  }
  // The record of a layer: its layout, names and counters.
  EXPECT_GT(HeapCount::live.load(), before);
  EXPECT_LE(HeapCount::live.load() - before, kLayers * std::int64_t{4096});
  packed.clear();
  EXPECT_EQ(HeapCount::live.load(), before);
}

}  // namespace
}  // namespace moekit
