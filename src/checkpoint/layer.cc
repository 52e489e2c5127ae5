// SPDX-License-Identifier: Apache-2.0
// One MoE layer: weights, then what the configuration says about them, then the router.
#include <array>
#include <optional>
#include <utility>

#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/layer_routing.h"
#include "checkpoint/layer_weights.h"
#include "checkpoint/model_facts.h"
#include "checkpoint/quantization_claims.h"
#include "checkpoint/state.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

constexpr std::string_view kDeepseekV4 = "deepseek_v4";

/// Names of activation functions in configurations.
struct ActivationAlias {
  std::string_view name;
  ActivationKind kind;
};

constexpr std::array kActivationAliases{
    ActivationAlias{"silu", ActivationKind::kSilu},
    ActivationAlias{"swish", ActivationKind::kSilu},
    ActivationAlias{"gelu_pytorch_tanh", ActivationKind::kGeluTanh},
    ActivationAlias{"gelu_tanh", ActivationKind::kGeluTanh},
    ActivationAlias{"gelu_new", ActivationKind::kGeluTanh},
    ActivationAlias{"relu2", ActivationKind::kRelu2},
    ActivationAlias{"situ", ActivationKind::kSitu},
    ActivationAlias{"swiglu_oai", ActivationKind::kSwigluOai},
};

struct NamedKind {
  ActivationKind kind = ActivationKind::kSilu;
  std::string origin{};
};

Result<NamedKind> activation_kind(const ModelConfig& config,
                                  const ModelFacts* facts,
                                  const LayerWeights& weights) {
  if (facts != nullptr && (facts->activation_is_fixed || !config.activation.has_value())) {
    return NamedKind{facts->activation, cat("config.json model_type ", facts->model_type)};
  }
  if (config.activation.has_value()) {
    for (const ActivationAlias& alias : kActivationAliases) {
      if (alias.name == config.activation->value) {
        return NamedKind{alias.kind, config.activation->origin};
      }
    }
    return unsupported(cat("activation ",
                           printable(config.activation->value),
                           " (",
                           config.activation->origin,
                           "), nearest supported: silu, gelu_pytorch_tanh, relu2"));
  }
  if (weights.row_order == RowOrder::kInterleaved) {
    return NamedKind{ActivationKind::kSwigluOai, "interleaved gate_up rows with biases (gpt-oss)"};
  }
  return weights.gated ? NamedKind{ActivationKind::kSilu, "assumption, no configuration names one"}
                       : NamedKind{ActivationKind::kRelu2, "assumption, there is no gate"};
}

/// swiglu_limit, absent where the model computes without one. Only DeepSeek-V4's own code reads 0
/// as no limit; elsewhere a limit of 0 would clamp everything away, so it is an error in the file.
Result<std::optional<float>> swiglu_limit(const ModelConfig& config,
                                          const MaybeFact<double>& named) {
  if (!named.has_value()) {
    return std::optional<float>();
  }
  const auto limit = static_cast<float>(named->value);
  if (limit > 0.0F) {
    return std::optional<float>(limit);
  }
  if (named->value == 0.0 && config.model_type == kDeepseekV4) {
    return std::optional<float>();
  }
  return invalid_argument(cat(named->origin, " is ", named->value, ", expected a positive number"));
}

/// The clamp of one layer: DeepSeek-V4's GGUF files list it layer by layer.
MaybeFact<double> layer_limit(const ModelConfig& config, std::int64_t layer) {
  const auto index = static_cast<std::size_t>(layer);
  if (config.model_type == kDeepseekV4 && index < config.swiglu_limits.size()) {
    return Fact<double>{config.swiglu_limits[index], config.swiglu_limits_origin};
  }
  return config.swiglu_limit;
}

Result<Activation> read_activation(const ModelConfig& config,
                                   const ModelFacts* facts,
                                   const LayerWeights& weights,
                                   const MaybeFact<double>& named_limit,
                                   std::vector<std::string>& inferred) {
  MOEKIT_ASSIGN_OR_RETURN(const NamedKind named, activation_kind(config, facts, weights));
  if (activation_is_gated(named.kind) != weights.gated) {
    return invalid_argument(cat("activation ",
                                activation_name(named.kind),
                                " (from ",
                                named.origin,
                                weights.gated ? ") has no gate, but " : ") has a gate, but ",
                                printable(weights.prefix),
                                weights.gated ? " has gate weights" : " has no gate weights"));
  }
  Activation activation{.kind = named.kind};
  inferred.push_back(cat("activation=", activation_name(named.kind), " from ", named.origin));
  const bool clamps =
      named.kind == ActivationKind::kSwigluOai || named.kind == ActivationKind::kSilu;
  MOEKIT_ASSIGN_OR_RETURN(const std::optional<float> limit, swiglu_limit(config, named_limit));
  if (clamps && limit.has_value()) {
    activation.limit = limit;
    inferred.push_back(cat("limit=", *activation.limit, " from ", named_limit->origin));
  }
  if (named.kind == ActivationKind::kSwigluOai) {
    // Constants of the gpt-oss modelling code; older configurations do not carry them.
    activation.limit = activation.limit.value_or(7.0F);
    activation.alpha = 1.702F;
    activation.beta = 1.0F;
    if (config.swiglu_alpha.has_value()) {
      activation.alpha = static_cast<float>(config.swiglu_alpha->value);
    }
    inferred.push_back(cat("alpha=", *activation.alpha, " beta=", *activation.beta));
  }
  return activation;
}

Status check_fact(const MaybeFact<std::int64_t>& fact, std::string_view what, std::int64_t found) {
  if (!fact.has_value() || fact->value == found) {
    return {};
  }
  return invalid_argument(
      cat(what, " ", found, " in the tensors, ", fact->value, " in ", fact->origin));
}

Status check_sizes(const ModelConfig& config, const LayerWeights& weights) {
  const bool latent = config.latent_size.has_value();
  MOEKIT_RETURN_IF_ERROR(check_fact(
      latent ? config.latent_size : config.hidden_size, "hidden size", weights.hidden_size));
  MOEKIT_RETURN_IF_ERROR(
      check_fact(config.intermediate_size, "expert intermediate size", weights.intermediate_size));
  return check_fact(
      config.num_experts, "number of experts", static_cast<std::int64_t>(weights.experts.size()));
}

/// Expert ids must be 0 .. E - 1, E as configured.
Result<std::int64_t> count_experts(const ModelConfig& config,
                                   const MoeModule& module,
                                   const std::string& prefix) {
  const auto count = static_cast<std::int64_t>(module.expert_ids.size());
  if (count > kMaxExperts) {
    return unsupported(cat(printable(prefix), " has ", count, " experts, at most ", kMaxExperts));
  }
  const std::int64_t wanted = config.num_experts.has_value() ? config.num_experts->value : count;
  if (*module.expert_ids.begin() != 0 || *module.expert_ids.rbegin() != count - 1 ||
      wanted != count) {
    return invalid_argument(
        cat(printable(prefix),
            " has ",
            count,
            " experts with ids ",
            *module.expert_ids.begin(),
            " to ",
            *module.expert_ids.rbegin(),
            ", expected ",
            wanted,
            config.num_experts.has_value() ? cat(" (", config.num_experts->origin, ")") : "",
            " with ids from 0"));
  }
  return count;
}

Result<LayerWeights> read_weights(const Checkpoint::State& state, const MoeModule& module) {
  const TensorReader tensors(state);
  if (module.prefixes.size() != 1) {
    std::vector<std::string> shown;
    for (const std::string& prefix : module.prefixes) {
      shown.push_back(printable(prefix));
    }
    return invalid_argument(cat("several modules claim the layer: ", base::join(shown)));
  }
  const std::string& prefix = *module.prefixes.begin();
  if (has_gguf_experts(tensors, prefix)) {
    return read_gguf_experts(state, prefix);
  }
  if (module.expert_ids.empty()) {
    return read_stacked_experts(tensors, prefix, state.config);
  }
  MOEKIT_ASSIGN_OR_RETURN(const std::int64_t num_experts,
                          count_experts(state.config, module, prefix));
  return read_linear_experts(tensors, state.config, prefix + "experts.", num_experts);
}

/// Step-3.5 clamps some of its layers behind the activation, min(silu(gate), L): none of our
/// activations does, and leaving it out would give other numbers without a word.
Status check_layer_clamp(const ModelConfig& config, std::int64_t layer) {
  const auto index = static_cast<std::size_t>(layer);
  if (config.model_type == kDeepseekV4 || index >= config.swiglu_limits.size() ||
      config.swiglu_limits[index] == 0.0) {
    return {};
  }
  return unsupported(cat(config.swiglu_limits_origin,
                         " clamps layer ",
                         layer,
                         " at ",
                         config.swiglu_limits[index],
                         " behind the activation, min(silu(gate), limit), while silu's limit stands"
                         " before it; nearest supported: layers whose entry is 0"));
}

Status fill_problem(const Checkpoint::State& state,
                    const LayerWeights& weights,
                    CheckpointLayer& layer) {
  const ModelConfig& config = state.config;
  Problem& problem = layer.problem;
  problem.num_experts = static_cast<std::int64_t>(weights.experts.size());
  problem.hidden_size = weights.hidden_size;
  problem.intermediate_size = weights.intermediate_size;
  problem.recipe = default_recipe(weights.format);
  if (const ModelFacts* facts = find_model_facts(config.model_type);
      facts != nullptr && facts->weight_on_input) {
    problem.router_weight_on_input = true;
    layer.inferred.push_back(
        cat("router_weight_on_input=true from config.json model_type ", facts->model_type));
  }
  if (const std::int64_t group = weights.experts.front().up.group_size; group != 0) {
    problem.weight_group_size = group;
    layer.inferred.push_back(cat("weight_group_size=", group, " from the shape of the scales"));
  }
  problem.row_order = weights.row_order;
  problem.gate_up_bias = weights.gate_up_bias;
  problem.down_bias = weights.down_bias;
  MOEKIT_ASSIGN_OR_RETURN(problem.activation,
                          read_activation(config,
                                          find_model_facts(config.model_type),
                                          weights,
                                          layer_limit(config, layer.layer),
                                          layer.inferred));
  layer.inferred.push_back(
      cat("recipe=", recipe_info(problem.recipe).name, " from tensors of scheme ", weights.scheme));
  if (config.top_k.has_value()) {
    problem.top_k = config.top_k->value;
    layer.inferred.push_back(cat("top_k=", problem.top_k, " from ", config.top_k->origin));
    if (problem.top_k < 1 || problem.top_k > problem.num_experts) {
      return invalid_argument(cat("top_k ",
                                  problem.top_k,
                                  " (",
                                  config.top_k->origin,
                                  "), expected 1 to num_experts = ",
                                  problem.num_experts));
    }
  }
  return {};
}

// Where every expert has one (a partial list was dropped), the matrices carry theirs.
void set_input_scales(const LayerWeights& weights, ExpertsSource& source) {
  const std::pair<const std::vector<float>*, WeightMatrix ExpertWeights::*> projections[] = {
      {&weights.input_scales_gate, &ExpertWeights::gate},
      {&weights.input_scales_up, &ExpertWeights::up},
      {&weights.input_scales_down, &ExpertWeights::down}};
  for (const auto& [scales, matrix] : projections) {
    for (std::size_t e = 0; e < source.experts.size() && scales->size() == source.experts.size();
         ++e) {
      (source.experts[e].*matrix).input_scale = (*scales)[e];
    }
  }
}

}  // namespace

Result<CheckpointLayer> read_layer(const Checkpoint::State& state, std::int64_t layer_id) {
  const auto found = state.modules.find(layer_id);
  if (found == state.modules.end()) {
    return invalid_argument(
        cat("no MoE layer ",
            layer_id,
            "; MoE layers: ",
            state.modules.empty() ? "none" : base::join(state.summary.moe_layers)));
  }
  const auto context = [layer_id](const Status& status) {
    return status.with_context(cat("layer ", layer_id));
  };
  Result<LayerWeights> weights = read_weights(state, found->second);
  if (!weights.has_value()) {
    return context(weights.status());
  }
  CheckpointLayer layer;
  layer.layer = layer_id;
  layer.scheme = std::string(weights->scheme);
  layer.prefix = weights->prefix;
  Status status = check_sizes(state.config, *weights);
  if (status.ok()) {
    status = check_quantization(state.config, *weights);
  }
  if (status.ok()) {
    status = check_layer_clamp(state.config, layer_id);
  }
  if (status.ok()) {
    status = fill_problem(state, *weights, layer);
  }
  if (status.ok()) {
    if (weights->storage == nullptr) {  // stacked experts are viewed in place
      weights->storage = std::make_shared<LayerStorage>();
    }
    status = read_router(state, *found->second.prefixes.begin(), *weights->storage, layer);
  }
  if (!status.ok()) {
    return context(status);
  }
  layer.source.experts = std::move(weights->experts);
  layer.storage = std::move(weights->storage);
  set_input_scales(*weights, layer.source);
  layer.input_scales_gate = std::move(weights->input_scales_gate);
  layer.input_scales_up = std::move(weights->input_scales_up);
  layer.input_scales_down = std::move(weights->input_scales_down);
  return layer;
}

}  // namespace moekit::checkpoint
