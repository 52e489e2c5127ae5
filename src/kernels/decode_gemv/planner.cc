// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode_gemv/planner.h"

#include "kernels/decode_gemv/launch_cuda.h"
#include "kernels/decode_gemv/planner_cuda.h"
#include "panels/expert_steps.h"
#include "panels/planning.h"

namespace moekit::kernels::decode_gemv {

namespace {

constexpr std::string_view kName = "decode_gemv";

plan::Verdict check(const plan::FamilyContext& context, std::int64_t, std::int64_t m_max) {
  if (context.device.arch == Arch::kCpu) {
    return panels::check_cpu(context, m_max);
  }
  return check_cuda(context, m_max);
}

std::vector<std::int64_t> breakpoints(const plan::FamilyContext& context) {
  return context.device.arch == Arch::kCpu ? std::vector<std::int64_t>()
                                           : breakpoints_cuda(context);
}

std::vector<plan::SliceRequest> slices(const plan::FamilyContext& context,
                                       std::int64_t num_tokens) {
  return context.device.arch == Arch::kCpu ? panels::step_slices(context, num_tokens)
                                           : slices_cuda(context, num_tokens);
}

std::vector<Step> lower(const plan::FamilyContext& context, std::int64_t, std::int64_t m_max) {
  return context.device.arch == Arch::kCpu ? panels::lower_cpu(context, kName)
                                           : lower_cuda(context, m_max);
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
    .breakpoints = breakpoints,
    .slices = slices,
    .lower = lower,
    .cpu_kernel = cpu_kernel,
    .cuda = &kCuda};

}  // namespace moekit::kernels::decode_gemv
