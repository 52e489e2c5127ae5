// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which tensors of a checkpoint quantize_checkpoint replaces, and by what.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "moekit/experts.h"

#include "checkpoint/state.h"

namespace moekit::checkpoint {

/// One matrix under the name that it gets: `<module>experts.<e>.<projection>.`
struct MatrixToQuantize {
  std::string base{};
  WeightMatrix matrix{};
};

/// A bias of a stacked source, which must be told apart by expert too.
struct BiasToSplit {
  std::string name{};
  BiasView bias{};
};

/// What stands in the place of one source tensor.
struct Replacement {
  std::vector<MatrixToQuantize> matrices{};
  std::vector<BiasToSplit> biases{};
};

struct QuantizePlan {
  std::map<std::string, Replacement, std::less<>> replacements{};  // by source tensor
  std::int64_t num_layers = 0;
  std::int64_t num_matrices = 0;
};

/// Errors  kUnsupported      experts that are not bf16 in a safetensors file
///         kInvalidArgument  no MoE layer, or one that cannot be read
[[nodiscard]] Result<QuantizePlan> plan_quantization(const Checkpoint::State& state);

}  // namespace moekit::checkpoint
