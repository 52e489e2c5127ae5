// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a packing cannot hold exactly, found before anything is packed.

#include "formats/packing.h"

namespace moekit::formats {

/// `tile16x64` keeps an mxfp4 row as operands w * 2^-e with one e per row: weights more than 126
/// binades below the row's largest scale would flush.
///
/// Errors  kUnsupported  naming row, group and both scales
[[nodiscard]] Status check_exact_range(const Packing& packing, const WeightMatrix& matrix);

}  // namespace moekit::formats
