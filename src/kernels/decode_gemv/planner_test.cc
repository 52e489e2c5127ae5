// SPDX-License-Identifier: Apache-2.0

// What the CPU side of both execution families and of the router plans: names, verdicts, refusals.

#include "kernels/decode_gemv/planner.h"

#include <gtest/gtest.h>

#include "moekit/plan.h"

namespace moekit {
namespace {

Problem qwen() {
  Problem problem;
  problem.num_tokens = 512;
  problem.num_experts = 128;
  problem.top_k = 8;
  problem.hidden_size = 2048;
  problem.intermediate_size = 768;
  problem.recipe = Recipe::kW4a16Nvfp4;
  return problem;
}

DeviceDescriptor cpu(std::string_view isa) {
  auto device = device_from_name(std::string("cpu:") + std::string(isa));
  EXPECT_TRUE(device.has_value());
  device.value().num_threads = 2;
  return *device;
}

std::vector<std::string> kernels_of(const Plan& plan, std::int64_t tokens) {
  std::vector<std::string> names;
  for (const Step& step : plan.rung(tokens)->steps) {
    names.push_back(step.kernel);
  }
  return names;
}

TEST(CpuPlanning, NamesCarryFamilyRecipeRoleTileAndIsa) {
  const auto plan = make_plan(qwen(), cpu("avx2"));
  ASSERT_TRUE(plan.has_value()) << plan.status().to_string();
  EXPECT_EQ(kernels_of(*plan, 1),
            (std::vector<std::string>{"decode_gemv.w4a16_nvfp4.gate_up_m4n16.avx2",
                                      "decode_gemv.w4a16_nvfp4.down_m4n16.avx2"}));
  EXPECT_EQ(kernels_of(*plan, 512),
            (std::vector<std::string>{"grouped_gemm.w4a16_nvfp4.gate_up_m4n16.avx2",
                                      "grouped_gemm.w4a16_nvfp4.down_m4n16.avx2"}));
  EXPECT_TRUE((*plan)->deterministic);
  const auto avx512 = make_plan(qwen(), cpu("avx512"));
  ASSERT_TRUE(avx512.has_value());
  EXPECT_EQ(kernels_of(*avx512, 1).front(), "decode_gemv.w4a16_nvfp4.gate_up_m16n16.avx512");
  EXPECT_EQ(avx512->rung(1)->steps.front().status, StepStatus::kCompiled);
  const auto amx = make_plan(qwen(), cpu("amx"));
  ASSERT_TRUE(amx.has_value());
  EXPECT_EQ(kernels_of(*amx, 1).front(), "decode_gemv.w4a16_nvfp4.gate_up_m64n16.amx");
  Problem wide = qwen();  // f32 scales: the tiles of the AVX-512 body that serves them
  wide.recipe = Recipe::kW8a8Fp8Block128;
  const auto amx_wide = make_plan(wide, cpu("amx"));
  ASSERT_TRUE(amx_wide.has_value()) << amx_wide.status().to_string();
  EXPECT_EQ(kernels_of(*amx_wide, 1).front(), "decode_gemv.w8a8_fp8_block128.gate_up_m16n16.amx");
}

TEST(CpuPlanning, RoutingBecomesTheFirstStep) {
  Problem problem = qwen();
  problem.routing = Routing{.num_experts = 128, .top_k = 8};
  const auto plan = make_plan(problem, cpu("portable"));
  ASSERT_TRUE(plan.has_value()) << plan.status().to_string();
  EXPECT_EQ(kernels_of(*plan, 3).front(), "route_topk.w4a16_nvfp4.select_t1.portable");
  EXPECT_EQ(kernels_of(*plan, 3).size(), 3U);
}

TEST(CpuPlanning, PinsAreHonouredOrRefusedWithTheLegalValue) {
  const auto refusal = [](const PlanOverrides& overrides) {
    const auto plan = make_plan(qwen(), cpu("avx2"), overrides);
    EXPECT_FALSE(plan.has_value());
    return std::string(plan.status().message());
  };
  EXPECT_NE(refusal({.route_block_rows = 16}).find("route_block_rows=16"), std::string::npos);
  EXPECT_NE(refusal({.resident = true}).find("resident"), std::string::npos);
  EXPECT_NE(refusal({.pdl_first = true}).find("pdl_first"), std::string::npos);
  EXPECT_NE(refusal({.tile = "m16n16"}).find("is m4n16"), std::string::npos);
  EXPECT_TRUE(make_plan(qwen(), cpu("avx2"), {.tile = "m4n16"}).has_value());
  const auto pinned = make_plan(qwen(), cpu("avx2"), {.family = ExecutionFamily::kGrouped});
  ASSERT_TRUE(pinned.has_value());
  EXPECT_EQ(kernels_of(*pinned, 1).front(), "grouped_gemm.w4a16_nvfp4.gate_up_m4n16.avx2");
}

TEST(CpuPlanning, EveryPlannedStepHasABodyAndNoOther) {
  const plan::KernelFamily& family = kernels::decode_gemv::kFamily;
  int found = 0;
  for (const std::string isa : {"portable", "avx2", "avx512", "amx"}) {
    const auto plan = make_plan(qwen(), cpu(isa));
    ASSERT_TRUE(plan.has_value());
    for (const Step& step : plan->rung(1)->steps) {
      EXPECT_NE(family.cpu_kernel(step), nullptr) << step.kernel;
      ++found;
    }
  }
  EXPECT_EQ(found, 8);
  Step step;
  for (const char* name : {"",
                           "decode_gemv",
                           "decode_gemv.w4a16_nvfp4.gate_up_m4n16",
                           "decode_gemv.w4a16_nvfp4.gate_up_m4n16.sm90a",
                           "decode_gemv.w4a16_nvfp4.sideways_m4n16.avx2",
                           "grouped_gemm.w4a16_nvfp4.down_m4n16.avx2"}) {
    step.kernel = name;
    EXPECT_EQ(family.cpu_kernel(step), nullptr) << name;
  }
}

}  // namespace
}  // namespace moekit
