// SPDX-License-Identifier: Apache-2.0
#include "kernels/route_topk/launch_cuda.h"

#include <algorithm>
#include <cstddef>

#include "base/text.h"
#include "kernels/route_topk/args.h"
#include "kernels/route_topk/route.h"
#include "kernels/route_topk/spec.h"

namespace moekit::kernels::route_topk {
namespace {

using base::cat;

// Four warps a block: a decode call of up to 4 tokens is one block, 512 are one wave of 132 SMs.
constexpr Spec kSpec{.tokens_per_block = 4};

// The kernel does not depend on a recipe; the name keeps its four parts.
std::string kernel_name(Arch arch) {
  return plan::make_kernel_name(
      {"route_topk", "any", cat("select_t", kSpec.tokens_per_block), plan::arch_suffix(arch)});
}

Result<plan::KernelSource> source(std::string_view kernel) {
  MOEKIT_ASSIGN_OR_RETURN(const plan::KernelName name, plan::parse_kernel_name(kernel));
  plan::KernelSource made;
  MOEKIT_ASSIGN_OR_RETURN(made.arch, plan::arch_from_suffix(name.arch));
  if (kernel != kernel_name(made.arch)) {
    return invalid_argument(cat("'", kernel, "' is no kernel of route_topk"));
  }
  made.kernel = kernel;
  made.entry = plan::entry_symbol(kernel);
  made.num_threads = num_threads(kSpec);
  made.smem_bytes = smem_bytes(
      kSpec.tokens_per_block, static_cast<int>(kMaxExperts), static_cast<int>(kMaxExperts));
  made.prelude =
      cat("#include \"kernels/route_topk/device/kernel.cuh\"\n"
          "using namespace moekit::kernels::route_topk;\n"
          "constexpr Spec kSpec{.tokens_per_block = ",
          kSpec.tokens_per_block,
          "};\n"
          "extern \"C\" __global__ void __launch_bounds__(num_threads(kSpec))\n",
          made.entry,
          "(const __grid_constant__ Args args) {\n"
          "  extern __shared__ float smem[];\n"
          "  route_topk<kSpec>(args, smem);\n"
          "}\n");
  return made;
}

std::vector<plan::KernelSource> catalog(Arch arch) {
  return {*source(kernel_name(arch))};
}

LogitType logit_type(DType dtype) {
  return dtype == DType::kF32    ? LogitType::kF32
         : dtype == DType::kBf16 ? LogitType::kBf16
                                 : LogitType::kF16;
}

void describe(const Args& args, plan::Launch& out) {
  out.geometry.block = {num_threads(kSpec), 1, 1};
  out.geometry.grid = {
      (args.num_tokens + kSpec.tokens_per_block - 1) / kSpec.tokens_per_block, 1, 1};
  out.geometry.smem_bytes =
      smem_bytes(kSpec.tokens_per_block, args.params.num_experts, args.params.num_groups);
  out.arguments.set(args);
}

Status launch(const plan::CudaCall& call, plan::Launch& out) {
  const Problem& problem = call.plan->problem;
  const TensorView& logits = call.arguments->router_logits;
  Args args{};
  args.logits = static_cast<const std::byte*>(logits.data) +
                call.token_begin * logits.strides[0] * dtype_bits(logits.dtype) / 8;
  args.bias = problem.routing->correction_bias ? call.arguments->correction_bias : nullptr;
  args.ids = call.slice<std::int32_t>(plan::SliceId::kTopkIds);
  args.weights = call.slice<float>(plan::SliceId::kTopkWeights);
  args.num_tokens = call.num_tokens;
  args.logits_stride = logits.strides[0];
  args.logit_type = logit_type(logits.dtype);
  args.params = routing_params(*problem.routing);
  describe(args, out);
  return {};
}

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

Result<plan::SelfTest> self_test(std::string_view kernel) {
  MOEKIT_RETURN_IF_ERROR(source(kernel).status());
  constexpr std::int64_t kTokens = 5;  // two blocks, the second short
  constexpr std::int64_t kExperts = 48;
  const Routing routing = {.scoring = Scoring::kSoftmax,
                           .num_experts = kExperts,
                           .top_k = 6,
                           .num_groups = 8,
                           .top_groups = 4,
                           .renormalize = true,
                           .scale = 2.5F,
                           .correction_bias = true};
  std::vector<float> logits;
  std::vector<float> bias;
  std::uint32_t state = 99;
  for (std::int64_t i = 0; i < (kTokens + 1) * kExperts; ++i) {
    state = state * 1664525U + 1013904223U;
    // Sixteenths between -8 and 8: many ties.
    const float value = static_cast<float>(state >> 24U) / 16.0F - 8.0F;
    (i < kTokens * kExperts ? logits : bias).push_back(value);
  }
  std::vector<std::int32_t> ids(static_cast<std::size_t>(kTokens * routing.top_k));
  std::vector<float> weights(ids.size());
  plan::SelfTest test;
  test.buffers = {{.before = bytes_of(logits)},
                  {.before = bytes_of(bias)},
                  {.before = bytes_of(ids)},
                  {.before = bytes_of(weights)}};
  route_tokens(routing_params(routing),
               matrix_view(static_cast<const void*>(logits.data()), DType::kF32, kTokens, kExperts),
               {.correction_bias = bias.data()},
               {0, kTokens, ids.data(), routing.top_k, weights.data(), routing.top_k});
  test.buffers[2].after = bytes_of(ids);
  test.buffers[3].after = bytes_of(weights);
  test.pointers = {{offsetof(Args, logits), 0, 0},
                   {offsetof(Args, bias), 1, 0},
                   {offsetof(Args, ids), 2, 0},
                   {offsetof(Args, weights), 3, 0}};
  Args args{};
  args.num_tokens = kTokens;
  args.logits_stride = kExperts;
  args.params = routing_params(routing);
  plan::Launch described;
  describe(args, described);
  test.geometry = described.geometry;
  test.arguments.assign(described.arguments.bytes().begin(), described.arguments.bytes().end());
  return test;
}

}  // namespace

Step cuda_step(const Routing& routing, Arch arch, std::int64_t num_tokens) {
  Step step;
  step.family = "route_topk";
  step.kernel = kernel_name(arch);
  step.grid.x =
      std::max<std::int64_t>(1, (num_tokens + kSpec.tokens_per_block - 1) / kSpec.tokens_per_block);
  step.block.x = num_threads(kSpec);
  step.smem_bytes = smem_bytes(kSpec.tokens_per_block,
                               static_cast<int>(routing.num_experts),
                               static_cast<int>(routing.num_groups));
  step.status = StepStatus::kCompiled;
  return step;
}

const plan::CudaFamily kCuda{
    .catalog = catalog, .source = source, .launch = launch, .self_test = self_test};

}  // namespace moekit::kernels::route_topk
