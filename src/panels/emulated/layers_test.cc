// SPDX-License-Identifier: Apache-2.0

// Whole layers of every recipe over emulated instructions, judged by the library's own check: what
// `moekit verify` does on a processor that has these instructions.

#include <utility>

#include <gtest/gtest.h>

#include "moekit/verify.h"

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
        SCOPED_TRACE(isa + " " + verify_case_line(layer));
        const auto report = run_verify_case(*runtime, layer, device);
        ASSERT_TRUE(report.has_value()) << report.status().to_string();
        EXPECT_TRUE(report->passed) << report->first_failure;
        checked += report->outputs_checked;
      }
    }
  }
  EXPECT_GE(checked, 100000);
}

}  // namespace
}  // namespace moekit::panels
