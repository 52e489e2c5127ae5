// SPDX-License-Identifier: Apache-2.0
#pragma once

// The support matrix: what make_plan answers for every recipe, device and activation. The README's
// table is this text.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moekit/plan.h"
#include "moekit/problem.h"

namespace moekit::cli {

struct SupportCell {
  Recipe recipe;
  std::string device;
  ActivationKind activation;
  std::optional<StepStatus> status{};  // the least proven step over all rungs; nullopt: refused
  std::vector<std::pair<std::int64_t, StepStatus>>
      ranges{};          // last M of a range, its least proven step
  std::string reason{};  // of the refusal
};

using SupportMatrix = std::vector<SupportCell>;

/// What the planner is asked about with every recipe and activation.
struct MatrixRequest {
  Problem problem{};
  PlanOverrides overrides{};
  std::vector<std::pair<std::string, DeviceDescriptor>> devices{};  // name, figures
};

/// Every device that a plan can be made for by name. The CPU by instruction set, so that the matrix
/// does not depend on the machine that prints it.
[[nodiscard]] Result<std::vector<std::pair<std::string, DeviceDescriptor>>> matrix_devices();

/// Errors  kInvalidArgument  what no planner can answer, e.g. a token count out of range
[[nodiscard]] Result<SupportMatrix> support_matrix(const MatrixRequest& request);

/// One row per recipe, one column per device; the shape and refusal reasons below the table.
[[nodiscard]] std::string matrix_markdown(const MatrixRequest& request,
                                          const SupportMatrix& matrix);

[[nodiscard]] std::string matrix_json(const MatrixRequest& request, const SupportMatrix& matrix);

}  // namespace moekit::cli
