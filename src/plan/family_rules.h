// SPDX-License-Identifier: Apache-2.0
#pragma once

// What several families answer alike when they are asked for a plan. Reasons are empty where
// nothing is refused.

#include <cstdint>
#include <string>

#include "plan/family.h"

namespace moekit::plan {

/// Bytes of packed weights that `num_tokens` tokens read: every route another expert, as far as
/// there are experts.
[[nodiscard]] double active_weight_bytes(const FamilyContext& context, std::int64_t num_tokens);

/// Launches are chained from sm_90a on.
[[nodiscard]] std::string refused_pdl_first(const FamilyContext& context);

/// Kernels that multiply bf16 serve the recipes whose operands are bf16 values.
[[nodiscard]] std::string refused_operands(const FamilyContext& context);

}  // namespace moekit::plan
