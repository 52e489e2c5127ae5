// SPDX-License-Identifier: Apache-2.0
#pragma once

// Problems and devices that the tests of plans share.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/plan.h"

namespace moekit::tests {

inline constexpr std::array<std::string_view, 7> kGpus{
    "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a", "sm_121a"};

/// A GPU by name, or a CPU of eight threads whatever this machine is.
inline DeviceDescriptor device_of(std::string_view name) {
  DeviceDescriptor device = device_from_name(name).value();
  if (device.arch == Arch::kCpu) {
    device.name.clear();
    device.num_threads = 8;
    device.l1d_bytes = 32 << 10;
    device.l2_per_core_bytes = 512 << 10;
  }
  return device;
}

/// GLM-5.2 as one of eight GPUs sees it: 6144, 2048 / 8, 256 experts, top-8.
inline Problem glm_tp8(Recipe recipe, std::int64_t tokens) {
  Problem problem;
  problem.num_tokens = tokens;
  problem.num_experts = 256;
  problem.top_k = 8;
  problem.hidden_size = 6144;
  problem.intermediate_size = 256;
  problem.recipe = recipe;
  return problem;
}

inline Plan plan_of(const Problem& problem,
                    std::string_view device,
                    const PlanOverrides& overrides = {}) {
  Result<Plan> plan = make_plan(problem, device_of(device), overrides);
  EXPECT_TRUE(plan.has_value()) << plan.status().to_string();
  return std::move(plan).value();
}

inline std::string refusal_of(const Problem& problem,
                              std::string_view device,
                              const PlanOverrides& overrides = {}) {
  const Result<Plan> plan = make_plan(problem, device_of(device), overrides);
  EXPECT_FALSE(plan.has_value());
  return plan.has_value() ? std::string() : plan.status().to_string();
}

}  // namespace moekit::tests
