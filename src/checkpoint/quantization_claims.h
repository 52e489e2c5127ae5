// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the configurations say about the quantisation of the weights, held against the tensors.

#include "checkpoint/layer_weights.h"
#include "checkpoint/model_config.h"

namespace moekit::checkpoint {

/// Packed experts must have the format that every configuration names for them. A claim that mixes
/// formats, or that lists the experts as excluded, says nothing about them.
///
/// Errors  kInvalidArgument  a method, an algorithm or a group size of another format
[[nodiscard]] Status check_quantization(const ModelConfig& config, const LayerWeights& weights);

}  // namespace moekit::checkpoint
