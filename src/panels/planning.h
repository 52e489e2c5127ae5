// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the planners of the execution families say about a CPU. The families share the steps
// (expert_steps.h), so they share this too; each passes its own name.

#include <string_view>
#include <vector>

#include "plan/family.h"

namespace moekit::panels {

/// Accepts every problem that has a packed layout. Refuses pins that mean nothing on a CPU.
[[nodiscard]] plan::Verdict check_cpu(const plan::FamilyContext& context, std::int64_t num_tokens);

/// gate_up and down, named `<family>.<recipe>.<role>_m<tokens of a tile>n16.<isa>`.
[[nodiscard]] std::vector<Step> lower_cpu(const plan::FamilyContext& context,
                                          std::string_view family);

/// The body that a step of `family` names; null when the name is none of lower_cpu's.
[[nodiscard]] plan::CpuKernel cpu_kernel(const Step& step,
                                         std::string_view family,
                                         ExecutionFamily execution) noexcept;

}  // namespace moekit::panels
