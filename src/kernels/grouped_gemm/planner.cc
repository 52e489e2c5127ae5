// SPDX-License-Identifier: Apache-2.0
#include "kernels/grouped_gemm/planner.h"

#include "kernels/grouped_gemm/planner_cuda.h"
#include "panels/expert_steps.h"
#include "panels/planning.h"

namespace moekit::kernels::grouped_gemm {

namespace {

constexpr std::string_view kName = "grouped_gemm";

bool on_cpu(const plan::FamilyContext& context) {
  return context.device.arch == Arch::kCpu;
}

plan::Verdict check(const plan::FamilyContext& context, std::int64_t, std::int64_t m_max) {
  return on_cpu(context) ? panels::check_cpu(context, m_max) : check_cuda(context, m_max);
}

std::vector<std::int64_t> breakpoints(const plan::FamilyContext& context) {
  return on_cpu(context) ? std::vector<std::int64_t>() : breakpoints_cuda(context);
}

std::vector<plan::SliceRequest> slices(const plan::FamilyContext& context,
                                       std::int64_t num_tokens) {
  return on_cpu(context) ? panels::step_slices(context, num_tokens)
                         : slices_cuda(context, num_tokens);
}

std::vector<Step> lower(const plan::FamilyContext& context, std::int64_t, std::int64_t) {
  return on_cpu(context) ? panels::lower_cpu(context, kName) : lower_cuda(context);
}

plan::CpuKernel cpu_kernel(const Step& step) {
  return panels::cpu_kernel(step, kName, ExecutionFamily::kGrouped);
}

}  // namespace

const plan::KernelFamily kFamily{
    .name = kName,
    .summary = "many tokens: routes sorted by expert, bound by dot products",
    .job = plan::FamilyJob::kExperts,
    .execution = ExecutionFamily::kGrouped,
    .check = check,
    .breakpoints = breakpoints,
    .slices = slices,
    .lower = lower,
    .cpu_kernel = cpu_kernel,
    .cuda = nullptr};

}  // namespace moekit::kernels::grouped_gemm
