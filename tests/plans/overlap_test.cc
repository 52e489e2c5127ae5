// SPDX-License-Identifier: Apache-2.0

// May work on other streams run beside a plan? From the lowered steps alone.

#include "plan/concurrency.h"
#include "tests/plans/plan_cases.h"

namespace moekit::tests {
namespace {

enum class Variant : std::uint8_t { kDefault, kResident, kAtomics };

struct Case {
  Recipe recipe;
  Variant variant;
  OverlapVerdict verdict;
};

constexpr Case kCases[] = {
    {Recipe::kW4a4Nvfp4, Variant::kDefault, OverlapVerdict::kSafe},
    {Recipe::kW4a4Nvfp4, Variant::kResident, OverlapVerdict::kJoinFirst},
    {Recipe::kW4a4Nvfp4, Variant::kAtomics, OverlapVerdict::kSafe},
    {Recipe::kW4a16Nvfp4, Variant::kDefault, OverlapVerdict::kSafe},
    {Recipe::kW4a16Nvfp4, Variant::kResident, OverlapVerdict::kJoinFirst},
    {Recipe::kW4a16Nvfp4, Variant::kAtomics, OverlapVerdict::kSafe},
    {Recipe::kW4a8Mxfp4, Variant::kDefault, OverlapVerdict::kSafe},
    {Recipe::kW4a8Mxfp4, Variant::kResident, OverlapVerdict::kJoinFirst},
    {Recipe::kW4a8Mxfp4, Variant::kAtomics, OverlapVerdict::kSafe},
};

Plan plan_of_case(const Case& row, std::int64_t tokens, std::string_view device = "sm_120a") {
  Problem problem = glm_tp8(row.recipe, tokens);
  problem.allow_atomics = row.variant == Variant::kAtomics;
  PlanOverrides overrides;
  overrides.resident = row.variant == Variant::kResident;
  return plan_of(problem, device, overrides);
}

TEST(Overlap, TableOfRecipesTokensAndVariants) {
  int plans = 0;
  for (const Case& row : kCases) {
    for (const std::int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 64}) {
      SCOPED_TRACE(std::string(recipe_info(row.recipe).name) + " M=" + std::to_string(tokens));
      const Plan plan = plan_of_case(row, tokens);
      const Rung& rung = *plan.rung(tokens);
      EXPECT_EQ(plan->aux_stream_overlap.verdict, row.verdict);
      EXPECT_EQ(rung.aux_stream_overlap.verdict, row.verdict);
      const bool resident = row.variant == Variant::kResident;
      EXPECT_EQ(rung.concurrency.grid_barrier, resident);
      EXPECT_EQ(rung.concurrency.cooperative, resident);
      EXPECT_EQ(rung.concurrency.launches,
                resident                                  ? 1
                : rung.family == ExecutionFamily::kDirect ? 2
                                                          : 4);
      EXPECT_EQ(rung.concurrency.resident_blocks, resident ? rung.steps[0].grid.x : 0);
      if (resident) {
        EXPECT_NE(plan->aux_stream_overlap.reason.find(".resident_"), std::string::npos);
      }
      EXPECT_EQ(rung.deterministic, !rung.concurrency.atomics);
      ++plans;
    }
  }
  EXPECT_EQ(plans, 90);
}

TEST(Overlap, GridBarrierWithoutACooperativeLaunchIsUnsafeAndNamesTheStep) {
  int flipped = 0;
  for (const Case& row : kCases) {
    for (const std::int64_t tokens : {1, 9, 64}) {
      const Plan plan = plan_of_case(row, tokens);
      std::vector<Step> steps = plan.rung(tokens)->steps;
      for (Step& step : steps) {
        const Step kept = step;
        step.grid_barrier = true;
        step.cooperative = false;
        const AuxStreamOverlap overlap = plan::overlap_of(steps, plan->device);
        EXPECT_EQ(overlap.verdict, OverlapVerdict::kUnsafe);
        EXPECT_NE(overlap.reason.find(step.kernel), std::string::npos) << overlap.reason;
        step = kept;
        ++flipped;
      }
    }
  }
  EXPECT_GT(flipped, 60);
}

TEST(Overlap, MoreBlocksThanTheDeviceHoldsIsUnsafe) {
  const Plan plan = plan_of_case({Recipe::kW4a4Nvfp4, Variant::kResident, {}}, 64);
  std::vector<Step> steps = plan.rung(64)->steps;
  steps[0].grid.x = plan::resident_blocks(plan->device, steps[0].block.x, steps[0].smem_bytes);
  EXPECT_EQ(plan::overlap_of(steps, plan->device).verdict, OverlapVerdict::kJoinFirst);
  ++steps[0].grid.x;
  const AuxStreamOverlap overlap = plan::overlap_of(steps, plan->device);
  EXPECT_EQ(overlap.verdict, OverlapVerdict::kUnsafe);
  EXPECT_NE(overlap.reason.find("at once"), std::string::npos);
}

TEST(Overlap, FewerSmsShrinkTheResidentGrid) {
  int shrunk = 0;
  for (const Case& row : kCases) {
    if (row.variant != Variant::kResident) {
      continue;
    }
    for (const std::int64_t tokens : {1, 7, 9, 64, 1024}) {
      const Plan whole = plan_of_case(row, tokens);
      const Plan part = plan_of_case(row, tokens, "sm_120a:num_sms=16");
      EXPECT_EQ(part->aux_stream_overlap.verdict, OverlapVerdict::kJoinFirst);
      const Step& step = part.rung(tokens)->steps[0];
      EXPECT_LT(step.grid.x, whole.rung(tokens)->steps[0].grid.x);
      EXPECT_LE(step.grid.x, plan::resident_blocks(part->device, step.block.x, step.smem_bytes));
      ++shrunk;
    }
  }
  EXPECT_EQ(shrunk, 15);
}

TEST(Overlap, EveryDefaultPlanIsSafe) {
  int plans = 0;
  for (const std::string_view device : kGpus) {
    for (const RecipeInfo& recipe : kRecipes) {
      const Result<Plan> plan = make_plan(glm_tp8(recipe.recipe, 4096), device_of(device));
      if (plan.has_value()) {
        EXPECT_EQ((*plan)->aux_stream_overlap.verdict, OverlapVerdict::kSafe) << device;
        EXPECT_TRUE((*plan)->deterministic);
        ++plans;
      }
    }
  }
  EXPECT_GE(plans, 14 + 9);
}

}  // namespace
}  // namespace moekit::tests
