// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plan::to_json read back, field by field. Plan::from_json is this plus planning again: what a text
// claims about workspace and steps is believed only when this library would say the same.

#include <string_view>

#include "moekit/plan.h"
#include "moekit/status.h"

namespace moekit::plan {

/// Errors  kInvalidArgument  not a plan's JSON, with the place
///         kUnsupported      a plan of another schema
[[nodiscard]] Result<Plan> read_plan_json(std::string_view json_text);

}  // namespace moekit::plan
