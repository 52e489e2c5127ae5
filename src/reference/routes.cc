// SPDX-License-Identifier: Apache-2.0
#include "reference/routes.h"

#include <cstring>

namespace moekit::reference {
namespace {

std::int64_t load_id(const TensorView& ids, std::int64_t token, std::int64_t slot) {
  const std::int64_t index = token * ids.strides[0] + slot * ids.strides[1];
  const auto* bytes = static_cast<const unsigned char*>(ids.data);
  if (ids.dtype == DType::kI64) {
    std::int64_t id = 0;
    std::memcpy(&id, bytes + index * 8, sizeof id);
    return id;
  }
  std::int32_t id = 0;
  std::memcpy(&id, bytes + index * 4, sizeof id);
  return id;
}

}  // namespace

std::int64_t local_expert(const Problem& problem,
                          const RunArguments& arguments,
                          std::int64_t token,
                          std::int64_t slot) noexcept {
  const std::int64_t id = load_id(arguments.topk_ids, token, slot);
  if (id < 0 || id >= num_router_experts(problem)) {
    return -1;
  }
  const std::int64_t local =
      problem.expert_map ? static_cast<std::int64_t>(arguments.expert_map[id]) : id;
  return local < 0 || local >= problem.num_experts ? -1 : local;
}

std::vector<Route> active_routes(const Problem& problem,
                                 const RunArguments& arguments,
                                 const std::vector<std::int64_t>& tokens) {
  std::vector<Route> routes;
  const TensorView& weights = arguments.topk_weights;
  for (const std::int64_t token : tokens) {
    for (std::int64_t slot = 0; slot < problem.top_k; ++slot) {
      const std::int64_t expert = local_expert(problem, arguments, token, slot);
      if (expert < 0) {
        continue;
      }
      float weight = 0.0F;
      std::memcpy(&weight,
                  static_cast<const unsigned char*>(weights.data) +
                      (token * weights.strides[0] + slot * weights.strides[1]) * 4,
                  sizeof weight);
      routes.push_back({token, slot, expert, static_cast<double>(weight)});
    }
  }
  return routes;
}

}  // namespace moekit::reference
