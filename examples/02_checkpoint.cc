// SPDX-License-Identifier: Apache-2.0
// A layer of a real checkpoint, routed by the checkpoint's own router, against what the tool that
// made the checkpoint computes.
//
// Usage: 02_checkpoint FOLDER LAYER    (testdata/checkpoints/modelopt_nvfp4_qwen3_moe 1)

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "moekit/moekit.h"

namespace {

using namespace moekit;  // NOLINT(google-build-using-namespace): an example, not a header

Result<TensorView> tensor(const Checkpoint& file, const std::string& name) {
  const NamedTensor* found = file.find(name);
  if (found == nullptr) {
    return invalid_argument(file.summary().path + " has no tensor " + name);
  }
  return found->view;
}

/// |have - want| / |want| over all elements.
double relative_l2(const std::vector<std::uint16_t>& have_bf16, const TensorView& want_f32) {
  const auto* want = static_cast<const std::byte*>(want_f32.data);
  double error = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < have_bf16.size(); ++i) {
    float expected = 0.0F;
    std::memcpy(&expected, want + i * sizeof expected, sizeof expected);
    const auto bits = static_cast<std::uint32_t>(have_bf16[i]) << 16U;
    const double difference = static_cast<double>(std::bit_cast<float>(bits)) - expected;
    error += difference * difference;
    norm += static_cast<double>(expected) * expected;
  }
  return std::sqrt(error / norm);
}

/// A correction bias is f32 in every checkpoint that has one; bind takes a plain pointer.
const float* correction_bias_of(const CheckpointLayer& layer) {
  return static_cast<const float*>(layer.router.correction_bias.data);
}

Status run_layer(const std::string& folder, std::int64_t layer_id) {
  MOEKIT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  MOEKIT_ASSIGN_OR_RETURN(const CheckpointLayer layer, checkpoint.layer(layer_id));
  for (const std::string& fact : layer.inferred) {
    std::printf("inferred   %s\n", fact.c_str());
  }
  MOEKIT_ASSIGN_OR_RETURN(const Checkpoint expected,
                          Checkpoint::open(folder + "/expected.safetensors"));
  MOEKIT_ASSIGN_OR_RETURN(const TensorView x, tensor(expected, "hidden_states"));
  MOEKIT_ASSIGN_OR_RETURN(const TensorView want, tensor(expected, "output"));

  // The plan begins with a routing step, because the problem carries the checkpoint's rules.
  Problem problem = layer.problem;
  problem.num_tokens = x.shape[0];
  problem.routing = layer.routing;
  MOEKIT_ASSIGN_OR_RETURN(const Plan plan, make_plan(problem, host_cpu()));
  MOEKIT_ASSIGN_OR_RETURN(const std::string text, plan.to_text(problem.num_tokens));
  std::fputs(text.c_str(), stdout);
  MOEKIT_ASSIGN_OR_RETURN(const PackedExperts experts, prepare(plan, layer.source));

  const std::int64_t num_router_experts = layer.router.weight.shape[0];
  std::vector<float> logits(static_cast<std::size_t>(problem.num_tokens * num_router_experts));
  MOEKIT_RETURN_IF_ERROR(router_logits(
      x,
      layer.router.weight,
      nullptr,
      matrix_view(logits.data(), DType::kF32, problem.num_tokens, num_router_experts)));

  std::vector<std::uint16_t> out(
      static_cast<std::size_t>(problem.num_tokens * problem.hidden_size));
  RunArguments arguments;
  arguments.x = x;
  arguments.router_logits = matrix_view(
      static_cast<const void*>(logits.data()), DType::kF32, problem.num_tokens, num_router_experts);
  arguments.correction_bias = correction_bias_of(layer);
  arguments.out = matrix_view(out.data(), DType::kBf16, problem.num_tokens, problem.hidden_size);

  MOEKIT_ASSIGN_OR_RETURN(const Runtime runtime, Runtime::create());
  std::vector<std::byte> memory(static_cast<std::size_t>(plan.workspace_bytes()) +
                                kWorkspaceAlignment);
  void* aligned = memory.data();
  std::size_t space = memory.size();
  std::align(kWorkspaceAlignment, static_cast<std::size_t>(plan.workspace_bytes()), aligned, space);
  const std::span<std::byte> workspace(static_cast<std::byte*>(aligned), space);
  MOEKIT_ASSIGN_OR_RETURN(const Binding binding,
                          moekit::bind(runtime, plan, experts, workspace, arguments));
  MOEKIT_RETURN_IF_ERROR(run(runtime, binding));

  // The producer computes in float64 without rounding the intermediate; moekit rounds it once to
  // bf16, and the output once to bf16: at most 2^-8 each, 2^-9.3 each in the root mean square.
  const double error = relative_l2(out, want);
  std::printf(
      "relative error against the producer's output %.2e, expected at most %.2e\n", error, 0x1p-8);
  return error <= 0x1p-8 ? Status() : internal_error("the output differs from the producer's");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FOLDER LAYER\n", argv[0]);
    return 2;
  }
  const Status status = run_layer(argv[1], std::atoll(argv[2]));
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
  }
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
