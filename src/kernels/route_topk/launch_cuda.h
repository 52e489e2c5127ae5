// SPDX-License-Identifier: Apache-2.0
#pragma once

// The CUDA routing kernel as data.

#include "moekit/problem.h"

#include "plan/launch.h"

namespace moekit::kernels::route_topk {

/// The step that routes up to `num_tokens` tokens on a GPU.
[[nodiscard]] Step cuda_step(const Routing& routing, Arch arch, std::int64_t num_tokens);

extern const plan::CudaFamily kCuda;

}  // namespace moekit::kernels::route_topk
