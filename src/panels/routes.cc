// SPDX-License-Identifier: Apache-2.0
#include "panels/routes.h"

#include "device/routing/route_list.h"

namespace moekit::panels {

namespace {

using plan::CpuCall;
using plan::SliceId;

template <typename Id>
void map_ids(const CpuCall& call, const Id* ids, std::int64_t stride) {
  const Problem& problem = call.plan->problem;
  const std::int32_t* map = problem.expert_map ? call.arguments->expert_map : nullptr;
  auto* experts = call.slice<std::int32_t>(SliceId::kRouteExperts);
  for (std::int64_t token = 0; token < call.num_tokens; ++token) {
    for (std::int64_t slot = 0; slot < problem.top_k; ++slot) {
      experts[token * problem.top_k + slot] =
          device::local_expert(static_cast<std::int64_t>(ids[token * stride + slot]),
                               num_router_experts(problem),
                               problem.num_experts,
                               map);
    }
  }
}

void map_call_ids(const CpuCall& call) {
  const Problem& problem = call.plan->problem;
  if (problem.routing.has_value()) {
    map_ids(call, call.slice<std::int32_t>(SliceId::kTopkIds), problem.top_k);
    return;
  }
  const TensorView& ids = call.arguments->topk_ids;
  const std::int64_t first = call.token_begin * ids.strides[0];
  if (ids.dtype == DType::kI64) {
    map_ids(call, static_cast<const std::int64_t*>(ids.data) + first, ids.strides[0]);
  } else {
    map_ids(call, static_cast<const std::int32_t*>(ids.data) + first, ids.strides[0]);
  }
}

}  // namespace

Routes resolved_routes(const CpuCall& call) noexcept {
  const Problem& problem = call.plan->problem;
  Routes routes;
  routes.num_tokens = call.num_tokens;
  routes.top_k = problem.top_k;
  routes.num_experts = problem.num_experts;
  routes.experts = call.slice<std::int32_t>(SliceId::kRouteExperts);
  routes.offsets = call.slice<std::int32_t>(SliceId::kExpertOffsets);
  routes.order = call.slice<std::int32_t>(SliceId::kRouteOrder);
  if (problem.routing.has_value()) {
    routes.weights = call.slice<float>(SliceId::kTopkWeights);
    routes.weights_stride = problem.top_k;
  } else {
    const TensorView& weights = call.arguments->topk_weights;
    routes.weights =
        static_cast<const float*>(weights.data) + call.token_begin * weights.strides[0];
    routes.weights_stride = weights.strides[0];
  }
  if (problem.routed_scaling_place == ScalingPlace::kWeights) {
    routes.weight_scale = problem.routed_scaling;
  }
  return routes;
}

Routes resolve_routes(const CpuCall& call) noexcept {
  map_call_ids(call);
  const Routes routes = resolved_routes(call);
  device::sort_routes(routes.experts,
                      routes.num_routes(),
                      routes.num_experts,
                      call.slice<std::int32_t>(SliceId::kExpertOffsets),
                      call.slice<std::int32_t>(SliceId::kRouteOrder));
  return routes;
}

}  // namespace moekit::panels
