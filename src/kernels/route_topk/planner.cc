// SPDX-License-Identifier: Apache-2.0
#include "kernels/route_topk/planner.h"

#include <algorithm>

#include "base/text.h"
#include "kernels/route_topk/launch_cuda.h"
#include "kernels/route_topk/route.h"

namespace moekit::kernels::route_topk {

namespace {

constexpr std::string_view kName = "route_topk";

plan::Verdict check(const plan::FamilyContext& context, std::int64_t, std::int64_t m_max) {
  const Routing& routing = *context.problem.routing;
  if (context.device.arch != Arch::kCpu && (routing.hash_table || routing.expert_scale)) {
    return plan::Verdict::refuse(
        base::cat("routing asks for ",
                  routing.hash_table ? "a hash table" : "a scale per expert",
                  ", which kernels for ",
                  arch_name(context.device.arch),
                  " do not read; route() on the host serves it"));
  }
  // Of the order of one nanosecond per logit: it ranks, nothing is read off it.
  constexpr double kUsPerLogit = 1e-3;
  const auto logits = static_cast<double>(m_max * num_router_experts(context.problem));
  return plan::Verdict::accept(logits * kUsPerLogit);
}

std::vector<plan::SliceRequest> slices(const plan::FamilyContext& context,
                                       std::int64_t num_tokens) {
  const std::int64_t routes = num_tokens * context.problem.top_k;
  return {{plan::SliceId::kTopkIds, routes * 4}, {plan::SliceId::kTopkWeights, routes * 4}};
}

std::vector<Step> lower(const plan::FamilyContext& context, std::int64_t, std::int64_t m_max) {
  if (context.device.arch != Arch::kCpu) {
    return {cuda_step(*context.problem.routing, context.device.arch, m_max)};
  }
  Step step;
  step.family = kName;
  step.kernel = plan::make_kernel_name({std::string(kName),
                                        std::string(recipe_info(context.problem.recipe).name),
                                        "select_t1",
                                        std::string(isa_name(Isa::kPortable))});
  step.grid.x = std::max<std::int64_t>(1, context.device.num_threads);
  return {step};
}

void select(const plan::CpuCall& call, base::ThreadPool& pool) {
  const Problem& problem = call.plan->problem;
  const device::RoutingParams params = routing_params(*problem.routing);
  auto* ids = call.slice<std::int32_t>(plan::SliceId::kTopkIds);
  auto* weights = call.slice<float>(plan::SliceId::kTopkWeights);
  pool.parallel([&](int worker, int num_workers) {
    const std::int64_t begin = call.num_tokens * worker / num_workers;
    const std::int64_t end = call.num_tokens * (worker + 1) / num_workers;
    route_tokens(params,
                 call.arguments->router_logits,
                 {problem.routing->correction_bias ? call.arguments->correction_bias : nullptr,
                  problem.routing->expert_scale ? call.arguments->router_expert_scale : nullptr,
                  problem.routing->hash_table ? &call.arguments->router_hash_table : nullptr},
                 {call.token_begin + begin,
                  call.token_begin + end,
                  ids + begin * problem.top_k,
                  problem.top_k,
                  weights + begin * problem.top_k,
                  problem.top_k});
  });
}

plan::CpuKernel cpu_kernel(const Step& step) {
  const std::string_view name = step.kernel;
  const bool ours = name.starts_with("route_topk.") && name.ends_with(".select_t1.portable");
  return ours ? select : nullptr;
}

}  // namespace

const plan::KernelFamily kFamily{.name = kName,
                                 .summary = "logits to expert ids and router weights",
                                 .job = plan::FamilyJob::kRoute,
                                 .execution = ExecutionFamily::kDirect,
                                 .check = check,
                                 .breakpoints = nullptr,
                                 .slices = slices,
                                 .lower = lower,
                                 .cpu_kernel = cpu_kernel,
                                 .cuda = &kCuda};

}  // namespace moekit::kernels::route_topk
