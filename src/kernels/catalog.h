// SPDX-License-Identifier: Apache-2.0
#pragma once

// The only list of kernel families, in order of preference.

#include <span>

#include "plan/family.h"

namespace moekit::kernels {

[[nodiscard]] std::span<const plan::KernelFamily* const> catalog() noexcept;

}  // namespace moekit::kernels
