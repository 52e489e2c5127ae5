// SPDX-License-Identifier: Apache-2.0
#pragma once

// The factors of the verify suites, apart from verify_suite() so that a test can count pairs.

#include <string_view>
#include <vector>

#include "moekit/verify.h"

#include "runtime/covering_array.h"

namespace moekit::verify {

enum class Factor : int {
  kRecipe,
  kActivation,
  kRowOrder,
  kBias,
  kIo,
  kShared,
  kScaling,
  kWeightOnInput,
  kMap,
  kOrder,
  kPlan,
  kWeights,
  kRoutes,
  kInputs,
  kViews,
  kTokens,
  kTopK,
  kExperts,
  kIntermediate,
  kHidden,
  kCount,
};

[[nodiscard]] CoveringProblem suite_problem(VerifySuite suite);

/// The case of one row; `index` seeds it.
[[nodiscard]] VerifyCase suite_case(VerifySuite suite, const LevelRow& row, std::uint64_t index);

/// Whole shapes of published models, few experts each, appended to kFull.
[[nodiscard]] std::vector<VerifyCase> model_cases();

}  // namespace moekit::verify
