// SPDX-License-Identifier: Apache-2.0
#include "recipes/activation_params.h"

#include <limits>

namespace moekit::recipes {

device::ActivationParams activation_params(const Activation& activation) noexcept {
  static_assert(static_cast<int>(ActivationKind::kSilu) ==
                static_cast<int>(device::ActivationKind::kSilu));
  static_assert(static_cast<int>(ActivationKind::kRelu2) ==
                static_cast<int>(device::ActivationKind::kRelu2));
  // Defaults: spec section 3. Only swiglu_oai has a limit unless told otherwise.
  const float default_limit =
      activation.kind == ActivationKind::kSwigluOai ? 7.0F : std::numeric_limits<float>::infinity();
  return {static_cast<device::ActivationKind>(activation.kind),
          activation.limit.value_or(default_limit),
          activation.alpha.value_or(1.702F),
          activation.beta.value_or(1.0F),
          activation.gate_scale.value_or(4.0F),
          activation.up_scale.value_or(25.0F)};
}

}  // namespace moekit::recipes
