// SPDX-License-Identifier: Apache-2.0
#pragma once

// Packing of FP4 weights for sm_90a: tiles of device/layout/fp4_tile.h, row tile by row tile, K
// ascending within a row tile, so that any run of K of one row tile is one contiguous copy. A panel
// is 16 rows of each part.

#include "formats/packing.h"

namespace moekit::formats {

extern const Packing kTile16Packing;

}  // namespace moekit::formats
