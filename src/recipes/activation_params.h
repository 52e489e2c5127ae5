// SPDX-License-Identifier: Apache-2.0
#pragma once

// The activation of a problem as kernels receive it: defaults filled in.

#include "moekit/recipe.h"

#include "device/numerics/activation.h"

namespace moekit::recipes {

[[nodiscard]] device::ActivationParams activation_params(const Activation& activation) noexcept;

}  // namespace moekit::recipes
