// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the grouped family plans for a GPU. No kernel is written yet: every step says `planned`, its
// geometry and workspace are those of spec.h and of the arch's tuning table.

#include <vector>

#include "plan/family.h"

namespace moekit::kernels::grouped_gemm {

[[nodiscard]] plan::Verdict check_cuda(const plan::FamilyContext& context, std::int64_t m_max);

[[nodiscard]] std::vector<std::int64_t> breakpoints_cuda(const plan::FamilyContext& context);

/// Padded route lists, the operands of a recipe that quantises, intermediates by route, and f32
/// results by route (by token where the combine is atomic).
[[nodiscard]] std::vector<plan::SliceRequest> slices_cuda(const plan::FamilyContext& context,
                                                          std::int64_t num_tokens);

/// pack, gate_up, down and combine; one cooperative step with the pin `resident`.
[[nodiscard]] std::vector<Step> lower_cuda(const plan::FamilyContext& context);

}  // namespace moekit::kernels::grouped_gemm
