// SPDX-License-Identifier: Apache-2.0
#pragma once

// The inside of a Binding, for bind and run alone.

#include <span>

#include "moekit/runtime.h"

#include "cpu/execute.h"
#include "runtime/state.h"

namespace moekit {

struct BindingAccess {
  static Binding make(const Plan& plan,
                      const PackedExperts& experts,
                      const RunArguments& arguments,
                      const Rung* rung) {
    Binding binding(plan, experts);
    binding.arguments_ = arguments;
    binding.num_tokens_ = arguments.x.shape[0];
    // The rung lives in the plan's shared state, which the binding keeps alive.
    binding.rung_ = rung;
    return binding;
  }

  [[gnu::visibility("hidden")]] static Status resolve_slices(Binding& binding,
                                                             std::span<std::byte> workspace);

  /// Slice pointers and one body per step. Hidden: the struct is named in a public header, but is
  /// nobody else's.
  [[gnu::visibility("hidden")]] static Status resolve(Binding& binding,
                                                      std::span<std::byte> workspace);

  /// The same for a CUDA plan, and where every pointer must be (bind_cuda.cc).
  [[gnu::visibility("hidden")]] static Status resolve_cuda(Binding& binding,
                                                           CudaRuntime& cuda,
                                                           std::span<std::byte> workspace);
  [[gnu::visibility("hidden")]] static Status run_cuda(const Runtime& runtime,
                                                       const Binding& binding,
                                                       Stream stream) noexcept;

  static plan::CpuCall call_of(const Binding& binding) noexcept {
    plan::CpuCall call;
    const PackedExperts::State& experts = *binding.experts_.state();
    call.plan = &*binding.plan_;
    call.arguments = &binding.arguments_;
    call.weights = {&experts.layout, experts.base};
    for (std::size_t i = 0; i < plan::kNumSlices; ++i) {
      call.slices[i] = binding.slices_[i];
    }
    return call;
  }

  static Status run(const Runtime& runtime, const Binding& binding, Stream stream) noexcept {
    if (binding.plan_->device.arch != Arch::kCpu) {
      return run_cuda(runtime, binding, stream);
    }
    cpu::execute(call_of(binding),
                 *binding.rung_,
                 binding.kernels_,
                 binding.num_tokens_,
                 *runtime.state()->pool);
    return {};
  }
};

}  // namespace moekit
