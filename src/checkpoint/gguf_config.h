// SPDX-License-Identifier: Apache-2.0
#pragma once

// What GGUF metadata says about the MoE layers, in the terms of a configuration.

#include "checkpoint/gguf.h"
#include "checkpoint/model_config.h"

namespace moekit::checkpoint {

/// Errors  kInvalidArgument  a known key of the wrong type or beyond 2^40
[[nodiscard]] Result<ModelConfig> read_gguf_config(const GgufContent& content);

}  // namespace moekit::checkpoint
