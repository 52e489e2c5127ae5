// SPDX-License-Identifier: Apache-2.0
#pragma once

// The only list of kernel families, in order of preference.

#include <span>
#include <string_view>

#include "plan/family.h"
#include "plan/launch.h"

namespace moekit::kernels {

[[nodiscard]] std::span<const plan::KernelFamily* const> catalog() noexcept;

/// The CUDA half of a family.
struct CudaEntry {
  std::string_view family;
  const plan::CudaFamily* cuda = nullptr;
};

/// Everything that has CUDA kernels, whether or not a plan lowers to it yet: what a bundle holds.
[[nodiscard]] std::span<const CudaEntry> cuda_catalog() noexcept;

}  // namespace moekit::kernels
