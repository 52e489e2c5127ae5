// SPDX-License-Identifier: Apache-2.0
#pragma once

// The CUDA backend's run: the steps of one rung for one chunk of tokens, in order, on one stream.

#include <span>

#include "moekit/plan.h"
#include "moekit/status.h"

#include "cuda/kernel_table.h"
#include "plan/launch.h"

namespace moekit::cuda {

/// A step joined to its family, and to its kernel where that was loaded when the call was bound.
struct StepWork {
  const plan::CudaFamily* family = nullptr;
  const Step* step = nullptr;
  const LoadedKernel* kernel = nullptr;
};

inline constexpr std::size_t kMaxSteps = 8;

/// Submits every step of `work` for `call` (its `step` is set here). Kernels are resolved before
/// the first launch, so that a refusal leaves nothing half done.
///
/// Errors  kFailedPrecondition  KernelTable::resolve, naming the step
///         kDevice              a launch failed, or an earlier fault lost the context
/// Effects for loaded kernels: one driver call a step, two where a barrier is cleared; no
///         allocation, no lock
[[nodiscard]] Status execute(KernelTable& kernels,
                             std::span<const StepWork> work,
                             plan::CudaCall& call,
                             CuStream stream);

}  // namespace moekit::cuda
