// SPDX-License-Identifier: Apache-2.0
#pragma once

// Exact decoding of weights and biases for the oracle, straight from what a checkpoint or an engine
// stores, never from a packed layout.

#include <cstdint>

#include "moekit/experts.h"
#include "moekit/format.h"

namespace moekit::reference {

/// out[k] = element[row, k] * scale[row, group(k)]; the global scale is not applied.
///
/// Shapes    out [matrix.cols] f32
/// Numerics  exact: every product of the three formats that validate_weights accepts is an f32
///           (E2M1 x E4M3 has 6 significant bits above 2^-10, E2M1 x E8M0 is at least 2^-128)
/// Source    OCP Microscaling Formats v1.0; spec section 1
void decode_weight_row(const WeightMatrix& matrix, std::int64_t row, float* out) noexcept;

/// Element `index` of a bias as stored; 0 where there is none.
[[nodiscard]] double bias_value(const BiasView& bias, std::int64_t index) noexcept;

}  // namespace moekit::reference
