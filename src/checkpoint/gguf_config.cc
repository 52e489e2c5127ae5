// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_config.h"

#include <array>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "checkpoint/json_text.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

/// What an architecture's graph fixes where the metadata is silent. `model_type` is the row of
/// kModelFacts whose router and activation it shares.
struct GgufArchitecture {
  std::string_view name;
  std::string_view model_type;
  bool renormalizes;         // without expert_weights_norm
  std::string_view scoring;  // without expert_gating_func
  bool dense_width = false;  // feed_forward_length is the experts' width too
};

// Names of the gguf package 0.19; routing as llama.cpp's graphs of these architectures compute it.
constexpr std::array kGgufArchitectures{
    GgufArchitecture{"llama", "mixtral", true, "softmax", true},
    GgufArchitecture{"qwen2moe", "qwen2_moe", false, "softmax"},
    GgufArchitecture{"qwen3moe", "qwen3_moe", true, "softmax"},
    GgufArchitecture{"qwen3vlmoe", "qwen3_moe", true, "softmax"},
    GgufArchitecture{"qwen3next", "qwen3_next", true, "softmax"},
    GgufArchitecture{"qwen35moe", "qwen3_5_moe", true, "softmax"},
    GgufArchitecture{"olmoe", "olmoe", false, "softmax"},
    GgufArchitecture{"deepseek2", "deepseek_v3", false, "softmax"},
    GgufArchitecture{"glm4moe", "glm4_moe", false, "sigmoid"},
    GgufArchitecture{"glm-dsa", "glm_moe_dsa", false, "sigmoid"},
    GgufArchitecture{"minimax-m2", "minimax_m2", true, "sigmoid"},
    GgufArchitecture{"nemotron_h_moe", "nemotron_h", false, "sigmoid"},
    GgufArchitecture{"gpt-oss", "gpt_oss", false, "softmax_selected"},
    GgufArchitecture{"step35", "step3p5", true, "sigmoid"},
    GgufArchitecture{"llama4", "llama4", false, "sigmoid"},
    GgufArchitecture{"deepseek4", "deepseek_v4", true, "sqrtsoftplus"},
    GgufArchitecture{"gemma4", "gemma4", true, "softmax"},
};

// Values of expert_gating_func. 3 (softmax over the selected) is what gpt-oss does.
constexpr std::array<std::string_view, 5> kGatingNames{
    "", "softmax", "sigmoid", "softmax_selected", "sqrtsoftplus"};

const GgufArchitecture* find_architecture(std::string_view name) {
  for (const GgufArchitecture& row : kGgufArchitectures) {
    if (row.name == name) {
      return &row;
    }
  }
  return nullptr;
}

/// Typed look-ups of `ARCH.key`; the first of a wrong type is kept as the error.
class Metadata {
 public:
  Metadata(const GgufContent& content, std::string_view architecture)
      : content_(&content), architecture_(architecture) {}

  [[nodiscard]] MaybeFact<std::int64_t> integer(std::string_view key) {
    const GgufValue* value = find(key);
    constexpr std::uint64_t kLargest = std::uint64_t{1} << 40;
    if (value == nullptr || !value->numbers.empty()) {
      return std::nullopt;  // an array: one value a layer, checked by the tensors themselves
    }
    if (!value->integer.has_value() || *value->integer > kLargest) {
      refuse(key, "an integer from 0 to 2^40");
      return std::nullopt;
    }
    return Fact<std::int64_t>{static_cast<std::int64_t>(*value->integer), origin(key)};
  }

  [[nodiscard]] MaybeFact<double> number(std::string_view key) {
    const GgufValue* value = find(key);
    if (value == nullptr) {
      return std::nullopt;
    }
    if (!value->number.has_value() || !std::isfinite(static_cast<float>(*value->number))) {
      refuse(key, "a number that f32 holds");
      return std::nullopt;
    }
    return Fact<double>{*value->number, origin(key)};
  }

  [[nodiscard]] MaybeFact<bool> boolean(std::string_view key) {
    const GgufValue* value = find(key);
    if (value == nullptr) {
      return std::nullopt;
    }
    if (!value->boolean.has_value()) {
      refuse(key, "a boolean");
      return std::nullopt;
    }
    return Fact<bool>{*value->boolean, origin(key)};
  }

  [[nodiscard]] std::vector<double> numbers(std::string_view key) {
    const GgufValue* value = find(key);
    if (value != nullptr && (value->number.has_value() || value->text.has_value())) {
      refuse(key, "an array of numbers");
    }
    return value == nullptr ? std::vector<double>() : value->numbers;
  }

  [[nodiscard]] std::string origin(std::string_view key) const {
    return cat("GGUF ", architecture_, ".", key);
  }

  [[nodiscard]] const Status& status() const { return status_; }

 private:
  [[nodiscard]] const GgufValue* find(std::string_view key) const {
    const auto found = content_->metadata.find(cat(architecture_, ".", key));
    return found == content_->metadata.end() ? nullptr : &found->second;
  }

  void refuse(std::string_view key, std::string_view expected) {
    if (status_.ok()) {
      status_ = invalid_argument(cat(origin(key), " is not ", expected));
    }
  }

  const GgufContent* content_;
  std::string architecture_;
  Status status_{};
};

MaybeFact<std::string> read_scoring(Metadata& metadata, const GgufArchitecture* architecture) {
  constexpr std::string_view kKey = "expert_gating_func";
  const MaybeFact<std::int64_t> gating = metadata.integer(kKey);
  if (gating.has_value() && gating->value != 0) {
    const auto index = static_cast<std::size_t>(gating->value);
    return Fact<std::string>{index < kGatingNames.size() ? std::string(kGatingNames[index])
                                                         : cat("gating function ", gating->value),
                             gating->origin};
  }
  if (architecture == nullptr) {
    return std::nullopt;
  }
  return Fact<std::string>{std::string(architecture->scoring),
                           cat("GGUF architecture ", architecture->name)};
}

void read_routing(Metadata& metadata, const GgufArchitecture* architecture, ModelConfig& config) {
  config.scoring = read_scoring(metadata, architecture);
  config.num_groups = metadata.integer("expert_group_count");
  config.top_groups = metadata.integer("expert_group_used_count");
  config.renormalize = metadata.boolean("expert_weights_norm");
  config.routed_scaling = metadata.number("expert_weights_scale");
  // What a GGUF leaves out is not done; the defaults of Hugging Face configurations do not apply.
  const auto absent = [&](std::string_view key) { return cat("GGUF without ", key); };
  if (!config.num_groups.has_value()) {
    config.num_groups = Fact<std::int64_t>{1, absent("expert_group_count")};
    config.top_groups = Fact<std::int64_t>{1, absent("expert_group_count")};
  }
  if (!config.renormalize.has_value()) {
    config.renormalize = Fact<bool>{architecture != nullptr && architecture->renormalizes,
                                    absent("expert_weights_norm")};
  }
  if (!config.routed_scaling.has_value() || config.routed_scaling->value == 0.0) {
    config.routed_scaling = Fact<double>{1.0, absent("expert_weights_scale")};
  }
}

}  // namespace

Result<ModelConfig> read_gguf_config(const GgufContent& content) {
  ModelConfig config;
  const auto named = content.metadata.find("general.architecture");
  if (named == content.metadata.end()) {
    return config;
  }
  if (!named->second.text.has_value()) {
    return invalid_argument("GGUF general.architecture is not a text");
  }
  const std::string& name = *named->second.text;
  const GgufArchitecture* architecture = find_architecture(name);
  config.present = true;
  config.model_type =
      architecture != nullptr ? std::string(architecture->model_type) : printable(name);
  config.architecture = cat("GGUF ", printable(name));
  Metadata metadata(content, name);
  config.hidden_size = metadata.integer("embedding_length");
  config.latent_size = metadata.integer("moe_latent_size");
  config.intermediate_size = metadata.integer("expert_feed_forward_length");
  if (!config.intermediate_size.has_value() && architecture != nullptr &&
      architecture->dense_width) {
    config.intermediate_size = metadata.integer("feed_forward_length");
  }
  config.num_experts = metadata.integer("expert_count");
  config.top_k = metadata.integer("expert_used_count");
  config.swiglu_limits = metadata.numbers("swiglu_clamp_exp");
  config.swiglu_limits_origin = metadata.origin("swiglu_clamp_exp");
  read_routing(metadata, architecture, config);
  MOEKIT_RETURN_IF_ERROR(metadata.status());
  return config;
}

}  // namespace moekit::checkpoint
