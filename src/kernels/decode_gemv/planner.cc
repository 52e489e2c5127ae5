// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode_gemv/planner.h"

#include "base/text.h"
#include "panels/expert_steps.h"
#include "panels/planning.h"

namespace moekit::kernels::decode_gemv {

namespace {

constexpr std::string_view kName = "decode_gemv";

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
    .summary = "few tokens: routes straight from top-k, bound by weight bytes",
    .job = plan::FamilyJob::kExperts,
    .execution = ExecutionFamily::kDirect,
    .check = check,
    .breakpoints = nullptr,
    .slices = slices,
    .lower = lower,
    .cpu_kernel = cpu_kernel,
    .cuda = nullptr};

}  // namespace moekit::kernels::decode_gemv
