// SPDX-License-Identifier: Apache-2.0
#pragma once

// Negative scales of int4 (AutoRound's symmetric GPTQ exports): (q - z) * s is
// ((c - q) - (c - z)) * -s for every c, so a group turns round without a rounding.

#include "checkpoint/layer_weights.h"

namespace moekit::checkpoint {

/// Turns round every group of an int4 matrix whose scale is negative; what changes is copied into
/// `storage`. A group that no c turns within codes 0..15 and zero points 0..16 keeps its scale, and
/// validate_weights then refuses it by row and group.
void turn_negative_scales(WeightMatrix& matrix, LayerStorage& storage);

}  // namespace moekit::checkpoint
