// SPDX-License-Identifier: Apache-2.0
#pragma once

// Names of the plan's enumerations, for text, JSON and the command line alike.

#include "moekit/plan.h"

#include "base/named.h"

namespace moekit::plan {

inline constexpr base::Named<ExecutionFamily> kExecutionFamilies[] = {
    {ExecutionFamily::kDirect, "direct"}, {ExecutionFamily::kGrouped, "grouped"}};
inline constexpr base::Named<StepStatus> kStepStatuses[] = {{StepStatus::kMeasured, "measured"},
                                                            {StepStatus::kCompiled, "compiled"},
                                                            {StepStatus::kPlanned, "planned"}};
inline constexpr base::Named<OverlapVerdict> kOverlapVerdicts[] = {
    {OverlapVerdict::kSafe, "safe"},
    {OverlapVerdict::kJoinFirst, "join_first"},
    {OverlapVerdict::kUnsafe, "unsafe"}};
inline constexpr base::Named<PreparePolicy> kPreparePolicies[] = {
    {PreparePolicy::kViewSource, "view_source"}, {PreparePolicy::kRepack, "repack"}};

}  // namespace moekit::plan
