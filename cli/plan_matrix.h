// SPDX-License-Identifier: Apache-2.0
#pragma once

// The support matrix: what make_plan answers for every recipe, device and activation. The README's
// table is this text.

#include <optional>
#include <string>
#include <vector>

#include "moekit/plan.h"
#include "moekit/problem.h"

namespace moekit::cli {

struct SupportCell {
  Recipe recipe;
  std::string device;
  ActivationKind activation;
  std::optional<StepStatus> status{};  // the least proven step over all rungs; nullopt: refused
  std::string reason{};                // of the refusal
};

using SupportMatrix = std::vector<SupportCell>;

/// Asks the planner about `problem` with every recipe, device and activation.
[[nodiscard]] SupportMatrix support_matrix(const Problem& problem);

/// One row per recipe, one column per device; refusal reasons below the table.
[[nodiscard]] std::string matrix_markdown(const SupportMatrix& matrix);

[[nodiscard]] std::string matrix_json(const SupportMatrix& matrix);

}  // namespace moekit::cli
