// SPDX-License-Identifier: Apache-2.0
#pragma once

// The configurations beside a quantised checkpoint: config.json with its quantization_config, and
// ModelOpt's hf_quant_config.json.

#include <string>

#include "moekit/checkpoint.h"

namespace moekit::checkpoint {

/// `config` is the text of the source's config.json, empty where it has none.
///
/// Errors  kInvalidArgument  not a JSON object
[[nodiscard]] Result<std::string> quantized_config(const std::string& config,
                                                   const QuantizeOptions& options);

/// Empty for compressed-tensors, which has config.json alone.
[[nodiscard]] std::string quantized_hf_config(const QuantizeOptions& options);

}  // namespace moekit::checkpoint
