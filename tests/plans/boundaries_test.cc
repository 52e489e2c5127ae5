// SPDX-License-Identifier: Apache-2.0

// Where families and blocks change over, asked of whole plans; and that nothing but problem, device
// and overrides decides.

#include <algorithm>
#include <cstdlib>

#include "tests/plans/plan_cases.h"

namespace moekit::tests {
namespace {

constexpr ExecutionFamily kDirect = ExecutionFamily::kDirect;
constexpr ExecutionFamily kGrouped = ExecutionFamily::kGrouped;

// `gate_up_m16n128…` -> 16; 0 where the rung packs nothing.
std::int64_t block_of(const Rung& rung) {
  for (const Step& step : rung.steps) {
    const std::size_t at = step.kernel.find(".pack_m");
    if (at != std::string::npos) {
      return std::atoll(step.kernel.c_str() + at + 7);
    }
  }
  return 0;
}

struct Band {
  std::int64_t last;
  std::int64_t rows;  // 0: direct
};

void expect_bands(const Problem& problem, std::string_view device, const std::vector<Band>& bands) {
  const Plan plan = plan_of(problem, device);
  ASSERT_EQ(plan->ladder.size(), bands.size()) << *plan.to_text(1);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < bands.size(); ++i) {
    const Rung& rung = plan->ladder[i];
    EXPECT_EQ(rung.m_min, first);
    EXPECT_EQ(rung.m_max, bands[i].last);
    EXPECT_EQ(rung.family, bands[i].rows == 0 ? kDirect : kGrouped);
    EXPECT_EQ(block_of(rung), bands[i].rows) << rung.m_max;
    first = bands[i].last + 1;
  }
}

TEST(Boundaries, GlmAtSevenAndEightTokens) {
  const Plan plan = plan_of(glm_tp8(Recipe::kW4a4Nvfp4, 64), "sm_120a");
  EXPECT_EQ(plan.rung(7)->family, kDirect);   // 56 routed rows
  EXPECT_EQ(plan.rung(8)->family, kGrouped);  // 64
  EXPECT_TRUE(plan->deterministic);
  for (const Rung& rung : plan->ladder) {
    EXPECT_TRUE(rung.deterministic);
    for (const Step& step : rung.steps) {
      EXPECT_EQ(step.status, StepStatus::kPlanned) << step.kernel;
    }
  }
  Problem atomic = glm_tp8(Recipe::kW4a4Nvfp4, 8);
  atomic.allow_atomics = true;
  const Plan eight = plan_of(atomic, "sm_120a");
  EXPECT_FALSE(eight->deterministic);
  EXPECT_TRUE(eight.rung(7)->deterministic);
  EXPECT_FALSE(eight.rung(8)->deterministic);
  atomic.num_tokens = 7;
  EXPECT_TRUE(plan_of(atomic, "sm_120a")->deterministic);
}

TEST(Boundaries, AtomicsOnlyWhereTheTableHasThem) {
  Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 512);
  problem.allow_atomics = true;
  EXPECT_TRUE(plan_of(problem, "sm_120a")->deterministic);  // reference.md 3.9: W4A16 sums in order
  problem.intermediate_size = 264;  // the fused sum of few tokens, reference.md 3.6 path 2
  const Plan fused = plan_of(problem, "sm_120a");
  EXPECT_FALSE(fused.rung(8)->deterministic);
  EXPECT_TRUE(fused.rung(9)->deterministic);
  problem.allow_atomics = false;
  EXPECT_TRUE(plan_of(problem, "sm_120a")->deterministic);
  for (const std::string_view device : {"cpu:avx2", "sm_90a", "sm_80"}) {
    problem.allow_atomics = true;
    EXPECT_TRUE(plan_of(problem, device)->deterministic) << device;
  }
}

TEST(Boundaries, WorkedBandsOfNvfp4) {
  expect_bands(glm_tp8(Recipe::kW4a4Nvfp4, 8192),
               "sm_120a",
               {{7, 0}, {479, 16}, {1535, 32}, {3071, 64}, {8192, 128}});
}

TEST(Boundaries, WorkedBandsOfMxfp4WithEightBitActivations) {
  Problem problem = glm_tp8(Recipe::kW4a8Mxfp4, 8192);
  problem.intermediate_size = 1024;
  expect_bands(
      problem, "sm_120a", {{4, 0}, {47, 16}, {288, 32}, {512, 16}, {1151, 32}, {8192, 64}});
  problem.intermediate_size = 2048;
  expect_bands(problem, "sm_120a", {{4, 0}, {512, 16}, {1151, 32}, {8192, 64}});
}

TEST(Boundaries, WorkedBandsOfSixteenBitActivations) {
  expect_bands(glm_tp8(Recipe::kW4a16Nvfp4, 8192),
               "sm_120a",
               {{8, 0}, {230, 8}, {460, 16}, {921, 32}, {1382, 48}, {8192, 64}});
  Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 8192);
  problem.num_experts = 160;
  expect_bands(problem, "sm_120a", {{8, 0}, {143, 8}, {287, 16}, {575, 32}, {863, 48}, {8192, 64}});
}

TEST(Boundaries, RungsOfASmallerCapacityAreThoseOfALarger) {
  int compared = 0;
  for (const std::string_view device : {"sm_90a", "sm_120a", "cpu:avx2"}) {
    const Plan large = plan_of(glm_tp8(Recipe::kW4a16Nvfp4, 4096), device);
    for (const std::int64_t capacity : {1, 7, 8, 64, 65, 230, 231, 1024}) {
      const Plan small = plan_of(glm_tp8(Recipe::kW4a16Nvfp4, capacity), device);
      for (std::size_t i = 0; i + 1 < small->ladder.size(); ++i) {
        EXPECT_EQ(small->ladder[i], large->ladder[i]) << device << " " << capacity;
        ++compared;
      }
      EXPECT_EQ(small->ladder.back().m_min, large.rung(capacity)->m_min);
    }
  }
  EXPECT_GT(compared, 20);
}

TEST(Boundaries, NothingIsReadFromTheEnvironment) {
  std::vector<std::string> before;
  const auto texts = [] {
    std::vector<std::string> made;
    for (const std::string_view device : kGpus) {
      for (const Recipe recipe : {Recipe::kW4a16Nvfp4, Recipe::kW4a16Mxfp4}) {
        const Plan plan = plan_of(glm_tp8(recipe, 4096), device);
        made.push_back(*plan.to_text(8) + *plan.to_json(8));
      }
    }
    for (const Recipe recipe :
         {Recipe::kW4a4Nvfp4, Recipe::kW4a8Nvfp4, Recipe::kW4a8Mxfp4, Recipe::kW4a16Nvfp4}) {
      made.push_back(*plan_of(glm_tp8(recipe, 4096), "sm_120a").to_json(8));
    }
    return made;
  };
  before = texts();
  // Knobs that systems of this kind read, and our own infrastructure variables, all set to junk.
  for (const char* name : {"MICRO_DYNAMIC_CUTOVER_PAIRS",
                           "DYNAMIC_DETERMINISTIC_OUTPUT",
                           "DYNAMIC_WORK_SOURCE",
                           "DYNAMIC_TILE_MN",
                           "MOE_TILE_MN",
                           "DYNAMIC_SWAP_AB",
                           "DYNAMIC_ENABLE_MULTICTA",
                           "W4A8_TINY_DECODE",
                           "NVFP4_SPLIT_DECODE",
                           "W4A16_SMALL_M_DIRECT",
                           "W4A16_SMALL_M_HOST_BARRIER_RESET",
                           "W4A16_SMALL_M_SPLITK",
                           "FORCE_A8",
                           "FORCE_A16",
                           "FAST_MATH",
                           "ENABLE_FP6_MICRO",
                           "CUDA_VISIBLE_DEVICES",
                           "MOEKIT_THREADS",
                           "MOEKIT_DEVICES",
                           "MOEKIT_CACHE",
                           "MOEKIT_BUNDLE",
                           "MOEKIT_CUDA_LIBRARY",
                           "MOEKIT_NVRTC_LIBRARY",
                           "MOEKIT_TILE",
                           "MOEKIT_DETERMINISTIC"}) {
    ASSERT_EQ(setenv(name, "128;junk", 1), 0);
  }
  EXPECT_EQ(texts(), before);
  EXPECT_EQ(before.size(), 18U);
}

TEST(Boundaries, BatchInvariantPlansHaveOneFamilyAndOneKOrder) {
  int checked = 0;
  for (const std::string_view device : {"cpu:avx2", "sm_80", "sm_90a", "sm_100a", "sm_120a"}) {
    Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 4096);
    problem.batch_invariant = true;
    const Plan plan = plan_of(problem, device);
    EXPECT_TRUE(plan->deterministic);
    for (const Rung& rung : plan->ladder) {
      EXPECT_EQ(rung.family, kGrouped) << device;
      ++checked;
    }
    // Where direct splits K by the whole call's routes, a pin for it is refused.
    if (device != "cpu:avx2") {
      problem.num_tokens = 4;
      EXPECT_NE(refusal_of(problem, device, {.family = kDirect}).find("batch_invariant"),
                std::string::npos);
    }
  }
  EXPECT_GT(checked, 20);
}

TEST(Boundaries, BatchInvarianceTakesNoAtomicsThatAreAllowed) {
  Problem problem = glm_tp8(Recipe::kW4a4Nvfp4, 64);
  problem.allow_atomics = true;
  EXPECT_FALSE(plan_of(problem, "sm_120a")->deterministic);
  problem.batch_invariant = true;
  EXPECT_TRUE(plan_of(problem, "sm_120a")->deterministic);
}

TEST(Boundaries, NoDeviceHasMoreSharedMemoryThanItsArch) {
  DeviceDescriptor device = device_of("sm_120a");
  device.smem_per_block_bytes = 101376;
  EXPECT_TRUE(make_plan(glm_tp8(Recipe::kW4a16Nvfp4, 4), device, {.resident = true}).has_value());
  // More than a multiprocessor has: no block of it would be resident.
  for (const std::int64_t bytes : {101377, 110000, 232448}) {
    device.smem_per_block_bytes = bytes;
    const Status status =
        make_plan(glm_tp8(Recipe::kW4a16Nvfp4, 4), device, {.resident = true}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bytes;
    EXPECT_NE(status.message().find("0..101376"), std::string::npos) << status.to_string();
  }
}

TEST(Boundaries, PinsAreHonouredOrRefusedWithTheLegalValues) {
  const Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 1024);
  for (const std::int64_t rows : {8, 16, 32, 48, 64}) {
    const Plan plan = plan_of(problem, "sm_120a", {.route_block_rows = rows});
    ASSERT_EQ(plan->ladder.size(), 1U);  // direct does not pack, so it does not take part
    EXPECT_EQ(block_of(plan->ladder[0]), rows);
    EXPECT_EQ(plan->ladder[0].family, kGrouped);
    EXPECT_NE(plan->refused.at(0).reason.find("routes are not padded"), std::string::npos);
  }
  for (const std::int64_t rows : {0, 4, 12, 128, -8}) {
    EXPECT_NE(refusal_of(problem, "sm_120a", {.route_block_rows = rows})
                  .find("expected one of 8, 16, 32, 48, 64"),
              std::string::npos)
        << rows;
  }
  // History: 64 planned, 48 live. A plan's block is the rung's, whatever the live M.
  EXPECT_EQ(block_of(*plan_of(problem, "sm_120a").rung(1024)), 48);
  EXPECT_EQ(block_of(*plan_of(problem, "sm_120a", {.route_block_rows = 64}).rung(1024)), 64);
  EXPECT_NE(refusal_of(problem, "sm_120a", {.family = kGrouped, .tile = "n7"})
                .find("pin tile=n7, expected one of n"),
            std::string::npos);
  EXPECT_NE(refusal_of(problem, "sm_80", {.pdl_first = true}).find("nearest: sm_90a"),
            std::string::npos);
  EXPECT_TRUE(plan_of(problem, "sm_120a", {.pdl_first = true}).rung(1)->steps[0].pdl_edge);
}

TEST(Boundaries, EveryTileOfTheLadderCanBePinned) {
  int pinned = 0;
  for (const char* tile : {"n128k128s4w8", "n128k64s4w4", "n64k128s4w4"}) {
    for (const std::int64_t rows : {8, 16}) {
      const Plan plan = plan_of(
          glm_tp8(Recipe::kW4a16Nvfp4, 256), "sm_120a", {.route_block_rows = rows, .tile = tile});
      EXPECT_NE(plan.rung(1)->steps[1].kernel.find(tile), std::string::npos);
      ++pinned;
    }
  }
  EXPECT_EQ(pinned, 6);
}

// One PackedExperts serves decode and prefill, and every recipe of its format.
TEST(Boundaries, LayoutIsThatOfFormatAndShapeAlone) {
  int compared = 0;
  for (const std::string_view device : {"sm_90a", "sm_120a", "cpu:avx2"}) {
    const std::string id = plan_of(glm_tp8(Recipe::kW4a16Nvfp4, 1), device)->layout_id;
    for (const std::int64_t tokens : {8, 64, 4096}) {
      for (const Recipe recipe : {Recipe::kW4a16Nvfp4, Recipe::kW4a4Nvfp4, Recipe::kW4a8Nvfp4}) {
        const Result<Plan> plan = make_plan(glm_tp8(recipe, tokens), device_of(device));
        if (plan.has_value()) {
          EXPECT_EQ((*plan)->layout_id, id);
          ++compared;
        }
      }
    }
    EXPECT_NE(plan_of(glm_tp8(Recipe::kW4a16Mxfp4, 1), device)->layout_id, id);
  }
  EXPECT_GE(compared, 3 * 3 + 2 * 3);
}

TEST(Boundaries, PinsForUnwrittenKernelsAreRefused) {
  const Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 8);
  for (const PlanOverrides& pins :
       {PlanOverrides{.route_block_rows = 64}, PlanOverrides{.family = kGrouped}}) {
    EXPECT_NE(refusal_of(problem, "sm_90a", pins).find("no grouped kernel is written for sm_90a"),
              std::string::npos);
  }
  // Without a pin, what is not written says so.
  const Plan plan = plan_of(glm_tp8(Recipe::kW4a16Nvfp4, 128), "sm_90a");
  EXPECT_NE(plan.rung(64)->steps[0].status, StepStatus::kPlanned);
  EXPECT_EQ(plan.rung(65)->steps[0].status, StepStatus::kPlanned);
}

TEST(Boundaries, UnsupportedCombinationsNameTheNearest) {
  for (const std::string_view device : kGpus) {
    EXPECT_NE(refusal_of(glm_tp8(Recipe::kW16a16, 8), device).find("nearest: device cpu"),
              std::string::npos);
    EXPECT_NE(refusal_of(glm_tp8(Recipe::kW4a16Int4, 8), device).find("nearest: "),
              std::string::npos);
  }
  // Without FP4 tensor cores a quantised operand is a bf16 value: planned, and priced so.
  for (const std::string_view device : {"sm_80", "sm_86", "sm_89", "sm_90a"}) {
    for (const Recipe recipe : {Recipe::kW4a4Nvfp4, Recipe::kW4a8Nvfp4, Recipe::kW4a8Mxfp4}) {
      const Plan plan = plan_of(glm_tp8(recipe, 512), device);
      EXPECT_EQ(plan.rung(512)->steps[1].status, StepStatus::kPlanned);
      const auto slice =
          std::find_if(plan->workspace.begin(), plan->workspace.end(), [](const WorkspaceSlice& s) {
            return s.name == "x_operand";
          });
      ASSERT_NE(slice, plan->workspace.end());
      EXPECT_EQ(slice->bytes, 512 * 6144 * 2) << device;
    }
    EXPECT_NE(refusal_of(glm_tp8(Recipe::kW8a8Fp8Block128, 8), device).find("nearest: "),
              std::string::npos);
  }
  // Blocks of 64 routes would fit no tile; fewer do, and are named.
  DeviceDescriptor small = device_of("sm_120a");
  small.smem_per_block_bytes = 40960;
  const Status status =
      make_plan(glm_tp8(Recipe::kW4a16Nvfp4, 512), small, {.route_block_rows = 64}).status();
  EXPECT_NE(status.message().find("no tile for blocks of 64 routes fits 40960 bytes"),
            std::string::npos)
      << status.to_string();
  EXPECT_NE(status.message().find("nearest: pin route_block_rows="), std::string::npos)
      << status.to_string();
  Problem wide = glm_tp8(Recipe::kW4a16Nvfp4, 8);
  wide.num_experts = 1032;
  EXPECT_NE(refusal_of(wide, "sm_120a").find("at most 1024"), std::string::npos);
}

}  // namespace
}  // namespace moekit::tests
