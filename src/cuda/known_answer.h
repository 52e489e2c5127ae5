// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tiny known answer of a kernel, computed by the device once, when prewarm loads the kernel.

#include "moekit/status.h"

#include "cuda/memory.h"
#include "plan/launch.h"

namespace moekit::cuda {

struct LoadedKernel;

/// Errors  kDevice  the first byte that differs, naming kernel, device, buffer and byte
[[nodiscard]] Status run_self_test(const DevicePointer& device,
                                   const LoadedKernel& kernel,
                                   const plan::SelfTest& test);

}  // namespace moekit::cuda
