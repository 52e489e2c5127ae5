// SPDX-License-Identifier: Apache-2.0
#pragma once

// What config.json and hf_quant_config.json say about the MoE layers, each fact with the field it
// came from. Unknown fields are listed, not refused; a known field of the wrong type is an error.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moekit/status.h"

namespace moekit::checkpoint {

/// A value and where it stands: `config.json num_experts_per_tok`.
template <typename T>
struct Fact {
  T value{};
  std::string origin{};
};

template <typename T>
using MaybeFact = std::optional<Fact<T>>;

/// What one configuration file says about how the weights are quantised.
struct QuantizationClaim {
  MaybeFact<std::string> method{};
  MaybeFact<std::string> algo{};
  MaybeFact<std::string> format{};
  MaybeFact<std::int64_t> group_size{};
  std::vector<std::string> excluded{};  // module name patterns
  bool mixed = false;                   // several formats, layer by layer
};

struct ModelConfig {
  bool present = false;  // a config.json was read
  std::string model_type{};
  std::string architecture{};
  std::string quant_method{};
  std::string quant_algo{};
  MaybeFact<std::int64_t> hidden_size{};
  MaybeFact<std::int64_t>
      latent_size{};  // the experts' own width where they sit behind a projection
  MaybeFact<std::int64_t> intermediate_size{};
  MaybeFact<std::int64_t> num_experts{};
  MaybeFact<std::int64_t> top_k{};
  MaybeFact<std::int64_t> num_groups{};
  MaybeFact<std::int64_t> top_groups{};
  MaybeFact<bool> renormalize{};
  MaybeFact<double> routed_scaling{};
  MaybeFact<double> swiglu_limit{};
  std::vector<double> swiglu_limits{};  // one a layer, 0: none
  std::string swiglu_limits_origin{};
  MaybeFact<double> swiglu_alpha{};
  MaybeFact<std::string> expert_dtype{};      // DeepSeek-V4: fp4 or fp8
  MaybeFact<bool> router_bias{};              // MiniMax, Step-3.5: whether a correction bias exists
  MaybeFact<std::int64_t> num_hash_layers{};  // DeepSeek-V4: the first so many select by token id
  MaybeFact<std::int64_t> weight_bits{};      // AWQ, GPTQ
  bool gptq_whole_zeros = false;              // checkpoint_format gptq_v2: zero points not less one
  MaybeFact<std::string> activation{};
  MaybeFact<std::string> scoring{};
  MaybeFact<std::string> topk_method{};
  std::vector<QuantizationClaim> quantization_claims{};
  std::vector<std::string> ignored_fields{};
};

inline constexpr std::int64_t kMaxConfigBytes = std::int64_t{64} << 20;

/// Texts of config.json and hf_quant_config.json; either may be absent.
///
/// Errors  kInvalidArgument  not JSON, not an object, a known field of the wrong type or sign
[[nodiscard]] Result<ModelConfig> read_model_config(
    const std::optional<std::string>& config, const std::optional<std::string>& hf_quant_config);

}  // namespace moekit::checkpoint
