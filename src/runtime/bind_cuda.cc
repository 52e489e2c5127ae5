// SPDX-License-Identifier: Apache-2.0

// bind, run and upload for CUDA plans.

#include <algorithm>

#include "base/border.h"
#include "base/text.h"
#include "cuda/execute.h"
#include "runtime/binding.h"

namespace moekit {
namespace {

using base::cat;

Status check_pointers(const cuda::Device& device,
                      const Binding& binding,
                      const RunArguments& arguments,
                      std::span<std::byte> workspace) {
  const std::pair<std::string_view, const void*> pointers[] = {
      {"x", arguments.x.data},
      {"topk_ids", arguments.topk_ids.data},
      {"topk_weights", arguments.topk_weights.data},
      {"router_logits", arguments.router_logits.data},
      {"correction_bias", arguments.correction_bias},
      {"expert_map", arguments.expert_map},
      {"shared", arguments.shared.data},
      {"out", arguments.out.data},
      {"workspace", workspace.data()},
  };
  for (const auto& [name, pointer] : pointers) {
    // What a problem needs is non-null by now; an empty tensor may point anywhere.
    if (pointer != nullptr && binding.num_tokens() > 0) {
      MOEKIT_RETURN_IF_ERROR(device.check_pointer(pointer, name));
    }
  }
  return {};
}

// Which M of the plan have kernels, for a message.
std::string runnable_tokens(const Plan& plan) {
  std::string text;
  for (const Rung& rung : plan->ladder) {
    const bool runs = std::none_of(rung.steps.begin(), rung.steps.end(), [](const Step& step) {
      return step.status == StepStatus::kPlanned;
    });
    if (runs) {
      text += cat(text.empty() ? "M " : ", ", rung.m_min, "..", rung.m_max);
    }
  }
  return text.empty() ? "no M of this plan runs" : cat("nearest: ", text);
}

}  // namespace

Status BindingAccess::resolve_cuda(Binding& binding,
                                   CudaRuntime& cuda,
                                   std::span<std::byte> workspace) {
  const Arch have = cuda.device()->descriptor().arch;
  if (binding.plan_->device.arch != have) {
    return invalid_argument(cat("the plan is for ",
                                arch_name(binding.plan_->device.arch),
                                ", cuda:",
                                cuda.device()->ordinal(),
                                " is ",
                                arch_name(have)));
  }
  MOEKIT_RETURN_IF_ERROR(resolve_slices(binding, workspace));
  MOEKIT_RETURN_IF_ERROR(check_pointers(*cuda.device(), binding, binding.arguments_, workspace));
  for (std::size_t i = 0; i < binding.rung_->steps.size(); ++i) {
    const Step& step = binding.rung_->steps[i];
    if (step.status == StepStatus::kPlanned) {
      return unsupported(cat("step ",
                             step.kernel,
                             " is planned, its kernel is not written yet; ",
                             runnable_tokens(binding.plan_)));
    }
    const plan::CudaFamily* family = cuda_family(step.family);
    if (family == nullptr) {
      return unsupported(cat("step ", step.kernel, " has no CUDA kernel in this library"));
    }
    if (family->check_call != nullptr) {
      MOEKIT_RETURN_IF_ERROR(family->check_call(call_of(binding)));
    }
    binding.cuda_steps_[i] = {family, cuda.kernels().find(step.kernel)};
  }
  return {};
}

Status BindingAccess::run_cuda(const Runtime& runtime,
                               const Binding& binding,
                               Stream stream) noexcept {
  return base::at_border([&]() -> Status {
    // Opened by bind, and never replaced.
    CudaRuntime& cuda = *runtime.state()->cuda;
    plan::CudaCall call = call_of(binding);
    std::array<cuda::StepWork, Binding::kMaxSteps> work{};
    const Rung& rung = *binding.rung_;
    for (std::size_t i = 0; i < rung.steps.size(); ++i) {
      work[i] = {static_cast<const plan::CudaFamily*>(binding.cuda_steps_[i].family),
                 &rung.steps[i],
                 static_cast<const cuda::LoadedKernel*>(binding.cuda_steps_[i].kernel)};
    }
    const std::span<const cuda::StepWork> steps = std::span(work).first(rung.steps.size());
    for (std::int64_t begin = 0; begin < binding.num_tokens_; begin += rung.chunk_tokens) {
      call.token_begin = begin;
      call.num_tokens = std::min(rung.chunk_tokens, binding.num_tokens_ - begin);
      MOEKIT_RETURN_IF_ERROR(
          cuda::execute(cuda.kernels(), steps, call, static_cast<cuda::CuStream>(stream.handle)));
    }
    return {};
  });
}

namespace {

Result<PackedExperts> upload_to(CudaRuntime& cuda,
                                const PackedExperts::State& source,
                                std::span<std::byte> destination) {
  auto state = std::make_shared<PackedExperts::State>();
  state->layout_id = source.layout_id;
  state->layout = source.layout;
  state->problem = source.problem;
  state->bytes = source.bytes;
  state->expert_without_input_scale = source.expert_without_input_scale;
  state->on_device = true;
  if (destination.empty()) {
    MOEKIT_ASSIGN_OR_RETURN(
        state->device_memory,
        cuda::DeviceBuffer::allocate(cuda.device(), static_cast<std::size_t>(source.bytes)));
    state->base = state->device_memory.pointer();
  } else {
    if (static_cast<std::int64_t>(destination.size()) < source.bytes) {
      return invalid_argument(cat(
          "destination has ", destination.size(), " bytes, packed experts need ", source.bytes));
    }
    if (reinterpret_cast<std::uintptr_t>(destination.data()) % kPackedAlignment != 0) {
      return invalid_argument(cat("destination is not aligned to ", kPackedAlignment, " bytes"));
    }
    MOEKIT_RETURN_IF_ERROR(cuda.device()->check_pointer(destination.data(), "destination"));
    state->base = destination.data();
  }
  MOEKIT_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create(cuda.device()));
  MOEKIT_RETURN_IF_ERROR(stream.upload(reinterpret_cast<std::uintptr_t>(state->base),
                                       {source.base, static_cast<std::size_t>(source.bytes)}));
  MOEKIT_RETURN_IF_ERROR(stream.synchronize());
  return PackedExperts(std::move(state));
}

}  // namespace

Result<PackedExperts> upload(const Runtime& runtime,
                             const PackedExperts& experts,
                             std::span<std::byte> destination) noexcept {
  return base::at_border([&]() -> Result<PackedExperts> {
    if (runtime.state() == nullptr || experts.state() == nullptr) {
      return invalid_argument(experts.state() == nullptr ? "experts were not prepared"
                                                         : "runtime was not created");
    }
    if (experts.state()->on_device) {
      return invalid_argument("experts are on a device already");
    }
    if (experts.layout_id().starts_with("cpu.")) {
      return invalid_argument(
          cat("experts are packed as ", experts.layout_id(), ", which is for the cpu"));
    }
    MOEKIT_ASSIGN_OR_RETURN(CudaRuntime* const cuda, runtime.state()->cuda_runtime());
    return upload_to(*cuda, *experts.state(), destination);
  });
}

}  // namespace moekit
