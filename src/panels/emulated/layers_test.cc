// SPDX-License-Identifier: Apache-2.0

// Whole layers of every recipe over emulated instructions, judged by the library's own check: what
// `moekit verify` does on a processor that has these instructions.

#include <utility>

#include <gtest/gtest.h>

#include "moekit/verify.h"

#include "panels/emulated/test_amx.h"
#include "panels/test_bodies.h"

namespace moekit::panels {
namespace {

// Few experts, so that they get tiles of 1, of some, of more than 16 and of more than 64 tokens;
// extents with tails of blocks, groups and panels.
VerifyCase layer_of(Recipe recipe, std::int64_t tokens) {
  VerifyCase layer;
  layer.problem.num_tokens = tokens;
  layer.problem.num_experts = 3;
  layer.problem.top_k = 2;
  layer.problem.hidden_size = 136;
  layer.problem.intermediate_size = 72;
  layer.problem.recipe = recipe;
  layer.num_tokens = tokens;
  layer.seed = static_cast<std::uint64_t>(tokens);
  layer.quirk = "none";
  return layer;
}

TEST(EmulatedLayers, EveryRecipeIsWithinItsBounds) {
  std::int64_t checked = 0;
  for (const auto& [threads, tokens] : {std::pair{1, 110}, {2, 1}, {2, 40}, {4, 12}}) {
    const auto runtime = Runtime::create({.num_threads = threads});
    ASSERT_TRUE(runtime.has_value());
    for (const std::string& isa : testable_isas()) {
      DeviceDescriptor device = *device_from_name(select_body(isa));
      device.num_threads = threads;
      for (const RecipeInfo& recipe : kRecipes) {
        const VerifyCase layer = layer_of(recipe.recipe, tokens);
        SCOPED_TRACE(isa + " " + *verify_case_line(layer));
        const auto report = run_verify_case(*runtime, layer, device);
        ASSERT_TRUE(report.has_value()) << report.status().to_string();
        EXPECT_TRUE(report->passed) << report->first_failure;
        checked += report->outputs_checked;
      }
    }
  }
  EXPECT_GE(checked, 100000);
}

// Whoever computes with tiles in this thread next finds them free.
TEST(EmulatedLayers, TilesAreGivenBackWithEveryCall) {
  const auto runtime = Runtime::create({.num_threads = 1});
  ASSERT_TRUE(runtime.has_value());
  DeviceDescriptor device = *device_from_name(select_body("amx_emulated"));
  device.num_threads = 1;
  VerifyCase layer = layer_of(Recipe::kW4a16Mxfp4, 12);
  layer.overrides.family = ExecutionFamily::kGrouped;
  const std::int64_t before = num_configurations();
  const auto report = run_verify_case(*runtime, layer, device);
  ASSERT_TRUE(report.has_value()) << report.status().to_string();
  EXPECT_GT(num_configurations(), before);
  EXPECT_FALSE(holds_tiles());
}

// A rank's part: down begins inside a scale group, and inside a block of rows where there are such.
void begin_inside_a_group(Problem& problem) {
  const FormatInfo& format = format_info(recipe_info(problem.recipe).weights);
  if (format.element == DType::kI4) {
    problem.weight_group_size = 64;
    problem.down_group_offset = 40;
  } else if (format.group_size != 0) {
    problem.down_group_offset = format.group_size - 8;
    problem.gate_up_row_offset = format.group_rows > 1 ? 120 : 0;
  }
}

// Inputs of other sizes, and weights that begin anywhere: each body has its own way with these.
TEST(EmulatedLayers, ShardsAndExtremesAreWithinTheirBounds) {
  constexpr int kThreads = 2;
  const auto runtime = Runtime::create({.num_threads = kThreads});
  ASSERT_TRUE(runtime.has_value());
  std::int64_t checked = 0;
  for (const std::string& isa : testable_isas()) {
    DeviceDescriptor device = *device_from_name(select_body(isa));
    device.num_threads = kThreads;
    for (const RecipeInfo& recipe : kRecipes) {
      for (const char* quirk :
           {"none", "large_x", "subnormal_x", "nan_token", "subnormal_scales", "wide_scales"}) {
        VerifyCase layer = layer_of(recipe.recipe, 5);
        begin_inside_a_group(layer.problem);
        layer.quirk = quirk;
        SCOPED_TRACE(isa + " " + *verify_case_line(layer));
        const auto report = run_verify_case(*runtime, layer, device);
        if (!report.has_value()) {  // formats without scales have no extreme ones
          EXPECT_EQ(report.status().code(), StatusCode::kInvalidArgument)
              << report.status().to_string();
          continue;
        }
        EXPECT_TRUE(report->passed) << report->first_failure;
        checked += report->outputs_checked;
      }
    }
  }
  EXPECT_GE(checked, 3 * 8 * 4 * 136);
}

}  // namespace
}  // namespace moekit::panels
