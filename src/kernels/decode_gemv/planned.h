// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the direct family plans for a GPU that it has no kernels for yet: every step says `planned`,
// its geometry and workspace are those of spec.h and geometry.h, its boundaries those of the arch's
// tuning table.

#include <vector>

#include "plan/family.h"

namespace moekit::kernels::decode_gemv {

[[nodiscard]] plan::Verdict check_planned(const plan::FamilyContext& context, std::int64_t m_max);

[[nodiscard]] std::vector<std::int64_t> breakpoints_planned(const plan::FamilyContext& context);

[[nodiscard]] std::vector<plan::SliceRequest> slices_planned(const plan::FamilyContext& context,
                                                             std::int64_t num_tokens);

/// gate_up and down; one cooperative step with the pin `resident`.
[[nodiscard]] std::vector<Step> lower_planned(const plan::FamilyContext& context);

}  // namespace moekit::kernels::decode_gemv
