// SPDX-License-Identifier: Apache-2.0
#pragma once

// The five activations in double, and how far a value computed in f32 from inexact arguments may
// lie from them.

#include "moekit/recipe.h"

namespace moekit::reference {

/// An Activation with every default filled in.
struct ResolvedActivation {
  ActivationKind kind = ActivationKind::kSilu;
  double limit = __builtin_inf();
  double alpha = 1.0;
  double beta = 0.0;
  double gate_scale = 1.0;
  double up_scale = 1.0;
};

[[nodiscard]] ResolvedActivation resolve(const Activation& activation) noexcept;

/// a = activation(gate, up); relu2 reads `up` alone. NaN propagates.
///
/// Source  spec section 3
[[nodiscard]] double activate(const ResolvedActivation& activation,
                              double gate,
                              double up) noexcept;

/// The largest distance between activate(gate, up) and what an f32 implementation may return when
/// its arguments are off by at most gate_error and up_error. Derivation beside the definition.
[[nodiscard]] double activation_error(const ResolvedActivation& activation,
                                      double gate,
                                      double up,
                                      double gate_error,
                                      double up_error) noexcept;

}  // namespace moekit::reference
