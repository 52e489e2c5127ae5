// SPDX-License-Identifier: Apache-2.0
#pragma once

// The router of one MoE layer: its tensors and how it selects.

#include <string>

#include "checkpoint/layer_weights.h"
#include "checkpoint/state.h"

namespace moekit::checkpoint {

/// Fills `layer.router`, `layer.routing` and the lines about them; `layer.problem` is filled
/// already. A layer without router tensors has no routing. A Q8_0 router is decoded into `storage`.
///
/// Errors  kInvalidArgument  router tensors or group numbers that do not fit the layer
[[nodiscard]] Status read_router(const Checkpoint::State& state,
                                 const std::string& prefix,
                                 LayerStorage& storage,
                                 CheckpointLayer& layer);

}  // namespace moekit::checkpoint
