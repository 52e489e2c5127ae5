// SPDX-License-Identifier: Apache-2.0
#include "cuda/execute.h"

#include <array>

#include "base/text.h"
#include "cuda/launch.h"

namespace moekit::cuda {

Status execute(KernelTable& kernels,
               std::span<const StepWork> work,
               plan::CudaCall& call,
               CuStream stream) {
  if (work.size() > kMaxSteps) {
    return internal_error(base::cat("a rung of ", work.size(), " steps, at most ", kMaxSteps));
  }
  std::array<const LoadedKernel*, kMaxSteps> loaded{};
  for (std::size_t i = 0; i < work.size(); ++i) {
    loaded[i] = work[i].kernel;
    if (loaded[i] == nullptr) {
      MOEKIT_ASSIGN_OR_RETURN(loaded[i],
                              kernels.resolve(*work[i].family, work[i].step->kernel, stream));
    }
  }
  for (std::size_t i = 0; i < work.size(); ++i) {
    const Step& step = *work[i].step;
    plan::Launch launch;
    launch.geometry.grid = step.grid;
    launch.geometry.block = step.block;
    launch.geometry.smem_bytes = step.smem_bytes;
    launch.geometry.cooperative = step.cooperative;
    launch.geometry.pdl_edge = step.pdl_edge;
    call.step = &step;
    MOEKIT_RETURN_IF_ERROR(work[i].family->launch(call, launch));
    if (launch.num_tensor_maps != 0) {
      MOEKIT_RETURN_IF_ERROR(encode_tensor_maps(kernels.device().driver(), step.kernel, launch));
    }
    if (launch.cleared.size != 0) {
      MOEKIT_RETURN_IF_ERROR(clear_bytes(kernels.device(), step.kernel, launch.cleared, stream));
    }
    MOEKIT_RETURN_IF_ERROR(launch_kernel(
        kernels.device(), *loaded[i], launch.geometry, launch.arguments.bytes(), stream));
  }
  return {};
}

}  // namespace moekit::cuda
