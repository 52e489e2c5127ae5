// SPDX-License-Identifier: Apache-2.0
#pragma once

// Exact decoding of weights and biases for the oracle, straight from what a checkpoint or an engine
// stores, never from a packed layout.

#include <cstdint>

#include "moekit/experts.h"
#include "moekit/format.h"

namespace moekit::reference {

/// out[k] = element[row, k] * scale[row, group(k)], for int4 (element - zero point) * scale; the
/// global scale is not applied.
///
/// Shapes    out [matrix.cols]
/// Numerics  exact in double: the widest product has 4 bits of E4M3 and 24 of an f32 scale
/// Source    OCP Microscaling Formats v1.0; spec section 1
void decode_weight_row(const WeightMatrix& matrix, std::int64_t row, double* out) noexcept;

/// Element `index` of a bias as stored; 0 where there is none.
[[nodiscard]] double bias_value(const BiasView& bias, std::int64_t index) noexcept;

}  // namespace moekit::reference
