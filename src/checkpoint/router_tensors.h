// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tensors of one MoE layer's router: found by their names, checked element by element.

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/layer_weights.h"
#include "checkpoint/state.h"

namespace moekit::checkpoint {

/// The first of `names` behind `prefix` that the files hold, or null.
[[nodiscard]] const NamedTensor* find_any(const TensorReader& tensors,
                                          const std::string& prefix,
                                          std::span<const std::string_view> names);

/// Fills `layer.router`. A Q8_0 router is decoded into `storage`.
///
/// Errors  kInvalidArgument  tensors that do not fit the layer or hold what is not finite, tables
///                           that name an expert that is not there or twice for a token
///         kUnsupported      a router weight in another block type of GGUF
[[nodiscard]] Status read_router_tensors(const Checkpoint::State& state,
                                         const std::string& prefix,
                                         LayerStorage& storage,
                                         CheckpointLayer& layer);

/// Why the files would not route as their model does; empty: nothing is missing.
[[nodiscard]] std::string missing_router_part(const Checkpoint::State& state,
                                              const std::string& prefix,
                                              const CheckpointLayer& layer,
                                              std::optional<Scoring> scoring);

}  // namespace moekit::checkpoint
