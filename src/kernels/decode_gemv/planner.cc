// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode_gemv/planner.h"

#include "kernels/decode_gemv/launch_cuda.h"
#include "kernels/decode_gemv/planned.h"
#include "kernels/decode_gemv/planner_cuda.h"
#include "panels/expert_steps.h"
#include "panels/planning.h"

namespace moekit::kernels::decode_gemv {

namespace {

constexpr std::string_view kName = "decode_gemv";

/// What the family plans for one kind of device.
struct Column {
  plan::Verdict (*check)(const plan::FamilyContext& context, std::int64_t m_max);
  std::vector<std::int64_t> (*breakpoints)(const plan::FamilyContext& context);
  std::vector<plan::SliceRequest> (*slices)(const plan::FamilyContext& context,
                                            std::int64_t num_tokens);
  std::vector<Step> (*lower)(const plan::FamilyContext& context, std::int64_t m_max);
};

constexpr Column kCpu{panels::check_cpu,
                      [](const plan::FamilyContext&) { return std::vector<std::int64_t>(); },
                      panels::step_slices,
                      [](const plan::FamilyContext& context, std::int64_t) {
                        return panels::lower_cpu(context, kName);
                      }};
constexpr Column kSm90a{check_cuda, breakpoints_cuda, slices_cuda, lower_cuda};
constexpr Column kPlanned{
    check_planned,
    breakpoints_planned,
    slices_planned,
    [](const plan::FamilyContext& context, std::int64_t) { return lower_planned(context); }};

// Bodies for a CPU, kernels for sm_90a, and for other GPUs what is to be written.
const Column& column_of(const plan::FamilyContext& context) {
  switch (context.device.arch) {
    case Arch::kCpu:
      return kCpu;
    case Arch::kSm90a:
      return kSm90a;
    default:
      return kPlanned;
  }
}

plan::Verdict check(const plan::FamilyContext& context, std::int64_t, std::int64_t m_max) {
  return column_of(context).check(context, m_max);
}

std::vector<std::int64_t> breakpoints(const plan::FamilyContext& context) {
  return column_of(context).breakpoints(context);
}

std::vector<plan::SliceRequest> slices(const plan::FamilyContext& context,
                                       std::int64_t num_tokens) {
  return column_of(context).slices(context, num_tokens);
}

std::vector<Step> lower(const plan::FamilyContext& context, std::int64_t, std::int64_t m_max) {
  return column_of(context).lower(context, m_max);
}

plan::CpuKernel cpu_kernel(const Step& step) {
  return panels::cpu_kernel(step, kName, ExecutionFamily::kDirect);
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
    .cuda = &kCuda,
    // On GPUs warps take equal shares of the steps of all routes of the call.
    .may_be_cut = [](const plan::FamilyContext& context) {
      return context.device.arch == Arch::kCpu;
    }};

}  // namespace moekit::kernels::decode_gemv
