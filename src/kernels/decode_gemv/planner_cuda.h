// SPDX-License-Identifier: Apache-2.0
#pragma once

// The sm_90a column of the family's rules: what it serves, in which rungs, with how much workspace.

#include "plan/family.h"

namespace moekit::kernels::decode_gemv {

[[nodiscard]] plan::Verdict check_cuda(const plan::FamilyContext& context, std::int64_t m_max);
[[nodiscard]] std::vector<std::int64_t> breakpoints_cuda(const plan::FamilyContext& context);
[[nodiscard]] std::vector<plan::SliceRequest> slices_cuda(const plan::FamilyContext& context,
                                                          std::int64_t num_tokens);
[[nodiscard]] std::vector<Step> lower_cuda(const plan::FamilyContext& context, std::int64_t m_max);

}  // namespace moekit::kernels::decode_gemv
