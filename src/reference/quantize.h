// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a recipe's quantiser makes of a row of bf16 values, for the oracle: written from spec
// section 2 over double and the tables of small_floats.h, one step of IEEE f32 after another. A
// quotient of two f32 that is rounded in double first and to f32 then is the f32 quotient: 53 bits
// are more than twice 24 and two.

#include <cstdint>
#include <span>

#include "moekit/recipe.h"

namespace moekit::reference {

/// out[k] = what `row`[k] counts as in the products, block scales applied, the global not. With
/// kNone a copy. `global` is the dequant-side input scale of kQ4.
///
/// Numerics  bit-defined; a group that holds NaN or an infinity is NaN throughout
void quantize_row(Quantizer quantizer,
                  double global,
                  std::span<const double> row,
                  std::span<double> out);

}  // namespace moekit::reference
