// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_config.h"

#include <array>
#include <utility>

#include "base/text.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/json_text.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

Result<ConfigFields> open_fields(const std::string& file, const std::string& text) {
  Result<Document> root = parse_json(wrap_python_literals(text));
  if (!root.has_value()) {
    return root.status().with_context(file);
  }
  if (!(*root)->is_object()) {
    return invalid_argument(cat(file, " is not a JSON object"));
  }
  return ConfigFields(file, std::move(*root));
}

std::string value_or_empty(const MaybeFact<std::string>& fact) {
  return fact.has_value() ? fact->value : std::string();
}

/// Multimodal configurations keep the language model in an inner object.
void choose_language_model(ConfigFields& fields) {
  for (const std::string_view name : {"text_config", "llm_config", "language_config"}) {
    if (fields.has_object(name)) {
      fields.look_under(cat(name, "."));
      return;
    }
  }
}

void read_sizes(ConfigFields& fields, ModelConfig& config) {
  config.hidden_size = fields.integer({"hidden_size"});
  config.latent_size = fields.integer({"moe_latent_size"});
  // Where every layer is MoE (Mixtral, gpt-oss, MiniMax) the expert width is intermediate_size.
  config.intermediate_size = fields.integer({"moe_intermediate_size", "intermediate_size"});
  config.num_experts =
      fields.integer({"n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"});
  config.top_k =
      fields.integer({"num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_top_k"});
}

void read_routing(ConfigFields& fields, ModelConfig& config) {
  config.num_groups = fields.integer({"n_group"});
  config.top_groups = fields.integer({"topk_group"});
  // The second of two names is Step-3.5's.
  config.renormalize = fields.boolean({"norm_topk_prob", "norm_expert_weight"});
  config.routed_scaling = fields.number({"routed_scaling_factor", "moe_router_scaling_factor"});
  config.scoring = fields.text({"scoring_func", "moe_router_activation"});
  config.topk_method = fields.text({"topk_method"});
  config.router_bias = fields.boolean({"use_routing_bias", "use_moe_router_bias"});
  config.num_hash_layers = fields.integer({"num_hash_layers"});
}

void read_activation(ConfigFields& fields, ModelConfig& config) {
  // Nemotron-H names the experts' activation mlp_hidden_act and has no hidden_act.
  config.activation = fields.text({"mlp_hidden_act", "hidden_act", "hidden_activation"});
  config.swiglu_limit = fields.number({"swiglu_limit"});
  config.swiglu_alpha = fields.number({"swiglu_alpha"});
  if (MaybeFact<std::vector<double>> limits = fields.numbers("swiglu_limits"); limits.has_value()) {
    config.swiglu_limits = std::move(limits->value);
    config.swiglu_limits_origin = std::move(limits->origin);
  }
}

QuantizationClaim read_claim(ConfigFields& fields, const std::string& object) {
  const auto in = [&](std::string_view name) { return cat(object, ".", name); };
  QuantizationClaim claim;
  claim.method = fields.text({in("quant_method")});
  claim.algo = fields.text({in("quant_algo")});
  claim.format = fields.text({in("format")});
  claim.group_size = fields.integer({in("group_size")});
  for (const std::string_view list :
       {"ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"}) {
    for (std::string& pattern : fields.texts(in(list))) {
      claim.excluded.push_back(std::move(pattern));
    }
  }
  const std::vector<std::string> groups = fields.keys(in("config_groups"));
  claim.mixed = groups.size() > 1 || fields.has_object(in("quantized_layers"));
  if (groups.size() == 1 && !claim.group_size.has_value()) {
    claim.group_size =
        fields.integer({cat(in("config_groups"), ".", groups.front(), ".weights.group_size")});
  }
  return claim;
}

Status read_config(const std::string& text, ModelConfig& config) {
  MOEKIT_ASSIGN_OR_RETURN(ConfigFields fields, open_fields("config.json", text));
  config.present = true;
  config.architecture = value_or_empty(fields.first_text("architectures"));
  choose_language_model(fields);
  config.model_type = value_or_empty(fields.text({"model_type"}));
  read_sizes(fields, config);
  read_routing(fields, config);
  read_activation(fields, config);
  config.expert_dtype = fields.text({"expert_dtype"});
  config.weight_bits = fields.integer({"quantization_config.bits"});
  config.gptq_whole_zeros =
      value_or_empty(fields.text({"quantization_config.checkpoint_format"})) == "gptq_v2";
  QuantizationClaim claim = read_claim(fields, "quantization_config");
  config.quant_method = value_or_empty(claim.method);
  config.quant_algo = value_or_empty(claim.algo.has_value() ? claim.algo : claim.format);
  config.quantization_claims.push_back(std::move(claim));
  MOEKIT_RETURN_IF_ERROR(fields.status());
  config.ignored_fields = fields.unread();
  return {};
}

Status read_hf_quant_config(const std::string& text, ModelConfig& config) {
  MOEKIT_ASSIGN_OR_RETURN(ConfigFields fields, open_fields("hf_quant_config.json", text));
  const std::string producer = value_or_empty(fields.text({"producer.name"}));
  QuantizationClaim claim = read_claim(fields, "quantization");
  const std::string algo = value_or_empty(claim.algo);
  config.quantization_claims.push_back(std::move(claim));
  MOEKIT_RETURN_IF_ERROR(fields.status());
  // ModelOpt writes the same facts into config.json; its own file is the elder and wins.
  config.quant_method = producer.empty() ? "modelopt" : producer;
  if (!algo.empty()) {
    config.quant_algo = algo;
  }
  for (std::string& name : fields.unread()) {
    config.ignored_fields.push_back(std::move(name));
  }
  return {};
}

}  // namespace

Result<ModelConfig> read_model_config(const std::optional<std::string>& config,
                                      const std::optional<std::string>& hf_quant_config) {
  ModelConfig result;
  if (config.has_value()) {
    MOEKIT_RETURN_IF_ERROR(read_config(*config, result));
  }
  if (hf_quant_config.has_value()) {
    MOEKIT_RETURN_IF_ERROR(read_hf_quant_config(*hf_quant_config, result));
  }
  return result;
}

}  // namespace moekit::checkpoint
