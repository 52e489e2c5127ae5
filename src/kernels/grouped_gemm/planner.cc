// SPDX-License-Identifier: Apache-2.0
#include "kernels/grouped_gemm/planner.h"

#include "base/text.h"
#include "panels/expert_steps.h"
#include "panels/planning.h"

namespace moekit::kernels::grouped_gemm {

namespace {

constexpr std::string_view kName = "grouped_gemm";

plan::Verdict check(const plan::FamilyContext& context, std::int64_t, std::int64_t m_max) {
  if (context.device.arch == Arch::kCpu) {
    return panels::check_cpu(context, m_max);
  }
  return plan::Verdict::refuse(
      base::cat("device is ", arch_name(context.device.arch), ", bodies exist for cpu"));
}

std::vector<plan::SliceRequest> slices(const plan::FamilyContext& context,
                                       std::int64_t num_tokens) {
  return panels::step_slices(context, num_tokens);
}

std::vector<Step> lower(const plan::FamilyContext& context, std::int64_t, std::int64_t) {
  return panels::lower_cpu(context, kName);
}

plan::CpuKernel cpu_kernel(const Step& step) {
  return panels::cpu_kernel(step, kName);
}

}  // namespace

const plan::KernelFamily kFamily{
    .name = kName,
    .summary = "many tokens: routes sorted by expert, bound by dot products",
    .job = plan::FamilyJob::kExperts,
    .execution = ExecutionFamily::kGrouped,
    .check = check,
    .breakpoints = nullptr,
    .slices = slices,
    .lower = lower,
    .cpu_kernel = cpu_kernel,
    .cuda = nullptr};

}  // namespace moekit::kernels::grouped_gemm
