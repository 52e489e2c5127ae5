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

// Who plans: bodies for a CPU, kernels for sm_90a, and for other GPUs what is to be written.
enum class Column : std::uint8_t { kCpu, kCuda, kPlanned };

Column column_of(const plan::FamilyContext& context) {
  switch (context.device.arch) {
    case Arch::kCpu:
      return Column::kCpu;
    case Arch::kSm90a:
      return Column::kCuda;
    default:
      return Column::kPlanned;
  }
}

plan::Verdict check(const plan::FamilyContext& context, std::int64_t, std::int64_t m_max) {
  switch (column_of(context)) {
    case Column::kCpu:
      return panels::check_cpu(context, m_max);
    case Column::kCuda:
      return check_cuda(context, m_max);
    case Column::kPlanned:
      break;
  }
  return check_planned(context, m_max);
}

std::vector<std::int64_t> breakpoints(const plan::FamilyContext& context) {
  switch (column_of(context)) {
    case Column::kCpu:
      return {};
    case Column::kCuda:
      return breakpoints_cuda(context);
    case Column::kPlanned:
      break;
  }
  return breakpoints_planned(context);
}

std::vector<plan::SliceRequest> slices(const plan::FamilyContext& context,
                                       std::int64_t num_tokens) {
  switch (column_of(context)) {
    case Column::kCpu:
      return panels::step_slices(context, num_tokens);
    case Column::kCuda:
      return slices_cuda(context, num_tokens);
    case Column::kPlanned:
      break;
  }
  return slices_planned(context, num_tokens);
}

std::vector<Step> lower(const plan::FamilyContext& context, std::int64_t, std::int64_t m_max) {
  switch (column_of(context)) {
    case Column::kCpu:
      return panels::lower_cpu(context, kName);
    case Column::kCuda:
      return lower_cuda(context, m_max);
    case Column::kPlanned:
      break;
  }
  return lower_planned(context);
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
