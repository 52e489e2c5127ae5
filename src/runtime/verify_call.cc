// SPDX-License-Identifier: Apache-2.0

// verify_call: finds what a run left behind (the plan's `intermediate` slice, the routes, the
// output) and hands it to the oracle.

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "moekit/verify.h"

#include "base/border.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "plan/family.h"
#include "reference/check.h"
#include "reference/routing.h"

namespace moekit {
namespace {

using base::cat;

// Below this many terms a thread costs more than it saves.
constexpr std::int64_t kTermsPerThread = std::int64_t{8} << 20;

struct RunInView {
  const Plan& plan;
  const RunArguments& arguments;
  std::span<const std::byte> workspace;
  std::int64_t num_tokens = 0;
  std::int64_t first_token = 0;  // of the last chunk: the one the slices still hold
};

const void* slice_of(const RunInView& view, plan::SliceId id) {
  for (const WorkspaceSlice& slice : view.plan->workspace) {
    if (slice.name == plan::slice_name(id)) {
      return view.workspace.data() + slice.offset;
    }
  }
  return nullptr;
}

Status check_view(const RunInView& view, const ExpertsSource& source) {
  const Problem& problem = view.plan.problem();
  if (view.plan.rung(view.num_tokens) == nullptr) {
    return invalid_argument(
        cat("x has ", view.num_tokens, " tokens, the plan's capacity is ", problem.num_tokens));
  }
  if (static_cast<std::int64_t>(view.workspace.size()) < view.plan.workspace_bytes()) {
    return invalid_argument(cat("workspace has ",
                                view.workspace.size(),
                                " bytes, the plan needs ",
                                view.plan.workspace_bytes()));
  }
  if (static_cast<std::int64_t>(source.experts.size()) != problem.num_experts) {
    return invalid_argument(cat(
        "source has ", source.experts.size(), " experts, the plan needs ", problem.num_experts));
  }
  const RunArguments& arguments = view.arguments;
  const bool routed = problem.routing.has_value();
  const bool missing =
      arguments.x.data == nullptr || arguments.out.data == nullptr ||
      (routed ? arguments.router_logits.data == nullptr
              : arguments.topk_ids.data == nullptr || arguments.topk_weights.data == nullptr) ||
      (problem.expert_map && arguments.expert_map == nullptr) ||
      (problem.shared != SharedInput::kNone && arguments.shared.data == nullptr);
  if (view.num_tokens > 0 && missing) {
    return invalid_argument("a tensor that the run used is null");
  }
  return {};
}

// Ids and weights of every token where the plan routes: those of the last chunk as the run left
// them, earlier ones selected again by the same function.
struct Routes {
  std::vector<std::int32_t> ids{};
  std::vector<float> weights{};
};

Result<Routes> routes_of(const RunInView& view) {
  const Problem& problem = view.plan.problem();
  const std::int64_t top_k = problem.top_k;
  Routes routes;
  routes.ids.resize(static_cast<std::size_t>(view.num_tokens * top_k));
  routes.weights.resize(routes.ids.size());
  RouteArguments again;
  again.logits = view.arguments.router_logits;
  again.correction_bias = view.arguments.correction_bias;
  again.expert_scale = view.arguments.router_expert_scale;
  again.hash_table = view.arguments.router_hash_table;
  again.topk_ids =
      matrix_view(static_cast<void*>(routes.ids.data()), DType::kI32, view.num_tokens, top_k);
  again.topk_weights =
      matrix_view(static_cast<void*>(routes.weights.data()), DType::kF32, view.num_tokens, top_k);
  MOEKIT_RETURN_IF_ERROR(route(*problem.routing, again));
  const void* ids = slice_of(view, plan::SliceId::kTopkIds);
  const void* weights = slice_of(view, plan::SliceId::kTopkWeights);
  if (ids == nullptr || weights == nullptr) {
    return invalid_argument("the plan routes but has no slices topk_ids and topk_weights");
  }
  const auto begin = static_cast<std::size_t>(view.first_token * top_k);
  std::memcpy(routes.ids.data() + begin, ids, (routes.ids.size() - begin) * sizeof(std::int32_t));
  std::memcpy(
      routes.weights.data() + begin, weights, (routes.weights.size() - begin) * sizeof(float));
  return routes;
}

// A token id outside the table names no expert.
reference::RoutingExtras extras_of(const RunInView& view, std::int64_t token) {
  static constexpr auto kNobody = [] {
    std::array<std::int32_t, kMaxTopK> ids{};
    ids.fill(-1);
    return ids;
  }();
  const Routing& routing = *view.plan.problem().routing;
  reference::RoutingExtras extras;
  extras.expert_scale = routing.expert_scale ? view.arguments.router_expert_scale : nullptr;
  if (routing.hash_table) {
    const HashTable& table = view.arguments.router_hash_table;
    const std::int64_t at = token * table.token_ids.strides[0];
    const std::int64_t id = table.token_ids.dtype == DType::kI64
                                ? static_cast<const std::int64_t*>(table.token_ids.data)[at]
                                : static_cast<const std::int32_t*>(table.token_ids.data)[at];
    extras.hashed_ids =
        id < 0 || id >= table.num_rows ? kNobody.data() : table.expert_ids + id * routing.top_k;
  }
  return extras;
}

// The first token whose selection no f32 evaluation of the rules gives.
std::string judge_routes(const RunInView& view, const Routes& routes) {
  const Problem& problem = view.plan.problem();
  for (const std::int64_t token : reference::sample_tokens(view.num_tokens, view.first_token)) {
    const std::vector<double> logits = reference::read_logits(view.arguments.router_logits, token);
    reference::Selection selection;
    for (std::int64_t slot = 0; slot < problem.top_k; ++slot) {
      const auto at = static_cast<std::size_t>(token * problem.top_k + slot);
      selection.ids.push_back(routes.ids[at]);
      selection.weights.push_back(static_cast<double>(routes.weights[at]));
    }
    const float* bias = problem.routing->correction_bias ? view.arguments.correction_bias : nullptr;
    const std::string failure = reference::judge_selection(
        *problem.routing, logits, bias, selection, extras_of(view, token));
    if (!failure.empty()) {
      return cat("routing of token ", token, ": ", failure);
    }
  }
  return {};
}

// Unit roundoff of the accumulator (spec section 2): BF16 MMA sums in fewer bits than f32.
double accumulator_epsilon(const Plan& plan) {
  return plan->device.arch == Arch::kCpu ? 0x1p-24 : 0x1p-22;
}

std::int64_t num_threads_for(const RunInView& view) {
  const Problem& problem = view.plan.problem();
  const std::int64_t tokens = std::min(view.num_tokens, reference::kSampledTokens);
  const std::int64_t terms =
      tokens * problem.top_k * 3 * problem.hidden_size * problem.intermediate_size;
  const auto available = static_cast<std::int64_t>(std::thread::hardware_concurrency());
  return std::clamp<std::int64_t>(terms / kTermsPerThread, 1, std::max<std::int64_t>(available, 1));
}

Result<VerifyReport> judge(const RunInView& view, const ExpertsSource& source) {
  const Problem& problem = view.plan.problem();
  RunArguments arguments = view.arguments;
  Routes routes;
  std::string routing_failure;
  if (problem.routing.has_value() && view.num_tokens > 0) {
    MOEKIT_ASSIGN_OR_RETURN(routes, routes_of(view));
    routing_failure = judge_routes(view, routes);
    arguments.topk_ids = matrix_view(
        static_cast<const void*>(routes.ids.data()), DType::kI32, view.num_tokens, problem.top_k);
    arguments.topk_weights = matrix_view(static_cast<const void*>(routes.weights.data()),
                                         DType::kF32,
                                         view.num_tokens,
                                         problem.top_k);
  }
  MOEKIT_ASSIGN_OR_RETURN(const auto pool,
                          base::ThreadPool::create(static_cast<int>(num_threads_for(view))));
  const reference::LayerCall call{
      problem, source, arguments, accumulator_epsilon(view.plan), pool.get()};
  reference::Evidence evidence;
  evidence.num_tokens = view.num_tokens;
  evidence.out = arguments.out;
  evidence.intermediate = slice_of(view, plan::SliceId::kIntermediate);
  evidence.first_token = view.first_token;
  VerifyReport report = reference::check_layer(call, evidence);
  if (!routing_failure.empty()) {
    report.passed = false;
    report.first_failure = routing_failure;
  }
  return report;
}

}  // namespace

Result<VerifyReport> verify_call(const Plan& plan,
                                 const ExpertsSource& source,
                                 const RunArguments& arguments,
                                 std::span<const std::byte> workspace) noexcept {
  return base::at_border([&]() -> Result<VerifyReport> {
    RunInView view{plan, arguments, workspace};
    view.num_tokens = arguments.x.rank == 2 ? arguments.x.shape[0] : -1;
    MOEKIT_RETURN_IF_ERROR(check_view(view, source));
    const std::int64_t chunk = plan.rung(view.num_tokens)->chunk_tokens;
    if (view.num_tokens > 0 && chunk > 0) {
      view.first_token = (view.num_tokens - 1) / chunk * chunk;
    }
    return judge(view, source);
  });
}

}  // namespace moekit
