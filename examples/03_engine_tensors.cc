// SPDX-License-Identifier: Apache-2.0
// What a serving engine does: fused w13 and w2 tensors in BF16, int64 ids from its own router, one
// workspace for all layers and both plans (decode and prefill), a shared expert's output added
// before the one rounding, an expert map (expert parallel) with ids that live elsewhere.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "moekit/moekit.h"

namespace {

using namespace moekit;  // NOLINT(google-build-using-namespace): an example, not a header

constexpr std::int64_t kHidden = 256;
constexpr std::int64_t kIntermediate = 176;  // any multiple of 8: a shard of a wider layer
constexpr std::int64_t kLocalExperts = 6;
constexpr std::int64_t kRouterExperts = 12;  // the other six live on another rank
constexpr std::int64_t kTopK = 3;

std::uint16_t to_bf16(float value) {  // truncation is enough for random weights
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U);
}

std::vector<std::uint16_t> random_bf16(std::int64_t count, float scale, std::minstd_rand& random) {
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::uint16_t& value : values) {
    value = to_bf16(uniform(random));
  }
  return values;
}

/// What the engine owns: weights and an expert map. vLLM's layout: w13 [E, 2I, H], w2 [E, H, I].
struct Engine {
  explicit Engine(std::minstd_rand& random)
      : w13(random_bf16(kLocalExperts * 2 * kIntermediate * kHidden, 0.1F, random)),
        w2(random_bf16(kLocalExperts * kHidden * kIntermediate, 0.1F, random)),
        expert_map(kRouterExperts, -1) {
    for (std::size_t local = 0; local < kLocalExperts; ++local) {
      expert_map[2 * local] = static_cast<std::int32_t>(local);  // this rank: the even experts
    }
  }

  std::vector<std::uint16_t> w13;
  std::vector<std::uint16_t> w2;
  std::vector<std::int32_t> expert_map;
};

Problem problem_for(std::int64_t capacity) {
  Problem problem;
  problem.num_tokens = capacity;
  problem.num_experts = kLocalExperts;
  problem.router_experts = kRouterExperts;
  problem.expert_map = true;
  problem.top_k = kTopK;
  problem.hidden_size = kHidden;
  problem.intermediate_size = kIntermediate;
  problem.recipe = Recipe::kW16a16;
  problem.row_order = RowOrder::kGateUp;
  problem.shared = SharedInput::kF32;
  return problem;
}

/// The tensors of one step of the engine.
struct EngineStep {
  EngineStep(std::int64_t count, std::minstd_rand& random)
      : num_tokens(count),
        x(random_bf16(count * kHidden, 1.0F, random)),
        shared(static_cast<std::size_t>(count * kHidden), 0.25F),
        out(x.size()) {
    for (std::int64_t i = 0; i < count * kTopK; ++i) {
      ids.push_back((5 * i + i / kTopK) % kRouterExperts);
      weights.push_back(1.0F / kTopK);
    }
  }

  [[nodiscard]] RunArguments arguments(const Engine& engine) {
    RunArguments arguments;
    arguments.x =
        matrix_view(static_cast<const void*>(x.data()), DType::kBf16, num_tokens, kHidden);
    arguments.topk_ids =
        matrix_view(static_cast<const void*>(ids.data()), DType::kI64, num_tokens, kTopK);
    arguments.topk_weights =
        matrix_view(static_cast<const void*>(weights.data()), DType::kF32, num_tokens, kTopK);
    arguments.shared =
        matrix_view(static_cast<const void*>(shared.data()), DType::kF32, num_tokens, kHidden);
    arguments.expert_map = engine.expert_map.data();
    arguments.out = matrix_view(static_cast<void*>(out.data()), DType::kBf16, num_tokens, kHidden);
    return arguments;
  }

  std::int64_t num_tokens;
  std::vector<std::uint16_t> x;
  std::vector<std::int64_t> ids{};
  std::vector<float> weights{};
  std::vector<float> shared;
  std::vector<std::uint16_t> out;
};

Status serve() {
  std::minstd_rand random(1);
  const Engine engine(random);
  const Problem decode = problem_for(8);
  const Problem prefill = problem_for(256);

  // One workspace, sized before anything is planned in earnest; monotone in tokens.
  MOEKIT_ASSIGN_OR_RETURN(const std::int64_t decode_bytes, required_bytes(decode, host_cpu()));
  MOEKIT_ASSIGN_OR_RETURN(const std::int64_t prefill_bytes, required_bytes(prefill, host_cpu()));
  std::printf("workspace: decode %lld bytes, prefill %lld bytes\n",
              static_cast<long long>(decode_bytes),
              static_cast<long long>(prefill_bytes));
  const auto workspace_bytes = static_cast<std::size_t>(std::max(decode_bytes, prefill_bytes));
  std::vector<std::byte> memory(workspace_bytes + kWorkspaceAlignment);
  void* aligned = memory.data();
  std::size_t space = memory.size();
  std::align(kWorkspaceAlignment, workspace_bytes, aligned, space);
  const std::span<std::byte> workspace(static_cast<std::byte*>(aligned), workspace_bytes);

  MOEKIT_ASSIGN_OR_RETURN(const Plan decode_plan, make_plan(decode, host_cpu()));
  MOEKIT_ASSIGN_OR_RETURN(const Plan prefill_plan, make_plan(prefill, host_cpu()));

  FusedExperts fused;
  fused.format = Format::kBf16;
  fused.gate_up_codes = engine.w13.data();
  fused.down_codes = engine.w2.data();
  MOEKIT_ASSIGN_OR_RETURN(const ExpertsSource source, split_fused(decode, fused));

  // Packed once: both plans have the same layout_id.
  MOEKIT_ASSIGN_OR_RETURN(const PackedExperts experts, prepare(decode_plan, source));
  MOEKIT_ASSIGN_OR_RETURN(const Runtime runtime, Runtime::create());

  for (const auto& [plan, num_tokens] : {std::pair{decode_plan, 3}, std::pair{prefill_plan, 200}}) {
    EngineStep step(num_tokens, random);
    MOEKIT_ASSIGN_OR_RETURN(
        const Binding binding,
        moekit::bind(runtime, plan, experts, workspace, step.arguments(engine)));
    MOEKIT_RETURN_IF_ERROR(run(runtime, binding));
    MOEKIT_ASSIGN_OR_RETURN(const VerifyReport report,
                            verify_call(plan, source, step.arguments(engine), workspace));
    std::printf("%d tokens: family %s, %lld outputs checked, largest error %.3g\n",
                num_tokens,
                std::string(execution_family_name(plan.rung(num_tokens)->family)).c_str(),
                static_cast<long long>(report.outputs_checked),
                report.max_abs_error);
    if (!report.passed) {
      return internal_error(report.first_failure);
    }
  }
  return {};
}

}  // namespace

int main() {
  const Status status = serve();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
  }
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
