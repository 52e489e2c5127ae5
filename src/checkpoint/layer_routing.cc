// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/layer_routing.h"

#include <array>
#include <optional>

#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/model_facts.h"
#include "checkpoint/router_tensors.h"
#include "checkpoint/schemes.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

struct ScoringAlias {
  std::string_view name;
  Scoring scoring;
};

constexpr std::array kScoringAliases{
    ScoringAlias{"softmax", Scoring::kSoftmax},
    ScoringAlias{"sigmoid", Scoring::kSigmoid},
    ScoringAlias{"sqrtsoftplus", Scoring::kSqrtSoftplus},
};

bool renormalizes(const ModelConfig& config, const ModelFacts* facts) {
  const Renormalize rule = facts != nullptr ? facts->renormalize : Renormalize::kFieldElseFalse;
  const bool named = config.renormalize.has_value();
  switch (rule) {
    case Renormalize::kNever:
      return false;
    case Renormalize::kAlways:
      return true;
    case Renormalize::kFieldElseFalse:
      return named && config.renormalize->value;
    case Renormalize::kFieldElseTrue:
      return !named || config.renormalize->value;
  }
  return false;
}

/// The scoring function and where it was found; nullopt with a reason where moekit has none.
struct ScoringChoice {
  std::optional<Scoring> scoring;
  std::string origin;
};

ScoringChoice choose_scoring(const ModelConfig& config,
                             const ModelFacts* facts,
                             bool correction_bias) {
  if (facts != nullptr && facts->scoring == Scoring::kSoftmaxSelected) {
    return {facts->scoring, cat("model_type ", facts->model_type)};
  }
  if (config.scoring.has_value()) {
    for (const ScoringAlias& alias : kScoringAliases) {
      if (alias.name == config.scoring->value) {
        return {alias.scoring, config.scoring->origin};
      }
    }
    return {std::nullopt,
            cat("scoring ", printable(config.scoring->value), " of ", config.scoring->origin)};
  }
  if (facts != nullptr) {
    return {facts->scoring, cat("model_type ", facts->model_type)};
  }
  return correction_bias
             ? ScoringChoice{Scoring::kSigmoid, "assumption, there is a correction bias"}
             : ScoringChoice{Scoring::kSoftmax, "assumption, no configuration names one"};
}

/// How experts are selected; `refusal` says why where moekit has no such selection.
struct SelectionChoice {
  bool groups = true;
  std::string refusal{};
};

SelectionChoice choose_selection(const ModelConfig& config, const CheckpointLayer& layer) {
  if (layer.router.hash_table.data != nullptr) {
    return {.groups = false};  // topk_method is that of the layers without a table
  }
  const bool correction_bias = layer.router.correction_bias.data != nullptr;
  const bool grouped = config.num_groups.has_value() && config.num_groups->value > 1;
  if (!config.topk_method.has_value()) {
    // The default of DeepSeek-V2's configuration class; other model types have one method.
    return {.groups = config.model_type != "deepseek_v2"};
  }
  const std::string& method = config.topk_method->value;
  const std::string origin = cat(printable(method), " of ", config.topk_method->origin);
  if (method == "greedy") {
    return {.groups = false,
            .refusal = correction_bias
                           ? cat(origin, " has no correction bias, but the files hold one")
                           : ""};
  }
  if (method == "noaux_tc") {
    return {.refusal = correction_bias
                           ? ""
                           : cat(origin, " needs a correction bias, but the files hold none")};
  }
  if (method == "group_limited_greedy") {
    // DeepSeek-V2 scores a group by its best expert, moekit by its best two.
    return {.refusal = grouped ? cat(origin, " groups by maximum, which is not served") : ""};
  }
  return {.refusal = cat("selection ", origin, " is not served")};
}

Status check_groups(const Routing& routing) {
  if (routing.num_groups < 1 || routing.num_experts % routing.num_groups != 0 ||
      routing.top_groups < 1 || routing.top_groups > routing.num_groups) {
    return invalid_argument(cat("n_group ",
                                routing.num_groups,
                                " and topk_group ",
                                routing.top_groups,
                                " do not divide ",
                                routing.num_experts,
                                " experts"));
  }
  const std::int64_t eligible = routing.num_experts / routing.num_groups * routing.top_groups;
  if (routing.top_k > eligible) {
    return invalid_argument(cat("top_k ",
                                routing.top_k,
                                " exceeds the ",
                                eligible,
                                " experts of ",
                                routing.top_groups,
                                " groups"));
  }
  return {};
}

std::string describe(const Routing& routing, std::string_view scoring, const std::string& origin) {
  return cat("routing=",
             scoring,
             " groups=",
             routing.top_groups,
             "/",
             routing.num_groups,
             " renormalize=",
             routing.renormalize,
             " scale=",
             routing.scale,
             " correction_bias=",
             routing.correction_bias,
             routing.expert_scale ? " expert_scale=true" : "",
             routing.hash_table ? " hash_table=true" : "",
             " from ",
             origin);
}

std::string_view scoring_word(Scoring scoring) {
  switch (scoring) {
    case Scoring::kSoftmax:
      return "softmax";
    case Scoring::kSigmoid:
      return "sigmoid";
    case Scoring::kSoftmaxSelected:
      return "softmax_selected";
    case Scoring::kSqrtSoftplus:
      return "sqrt_softplus";
    case Scoring::kNone:
      break;
  }
  return "none";
}

Result<Routing> make_routing(const ModelConfig& config,
                             const ModelFacts* facts,
                             const CheckpointLayer& layer,
                             bool groups) {
  Routing routing;
  routing.num_experts = layer.problem.num_experts;
  routing.top_k = layer.problem.top_k;
  if (groups) {
    routing.num_groups = config.num_groups.has_value() ? config.num_groups->value
                         : facts != nullptr            ? facts->num_groups
                                                       : 1;
    routing.top_groups = config.top_groups.has_value() ? config.top_groups->value
                         : facts != nullptr            ? facts->top_groups
                                                       : 1;
  }
  routing.renormalize = renormalizes(config, facts);
  routing.scale =
      static_cast<float>(config.routed_scaling.has_value() ? config.routed_scaling->value
                         : facts != nullptr                ? facts->routed_scaling
                                                           : 1.0);
  routing.correction_bias = layer.router.correction_bias.data != nullptr;
  routing.expert_scale = layer.router.expert_scale.data != nullptr;
  routing.hash_table = layer.router.hash_table.data != nullptr;
  MOEKIT_RETURN_IF_ERROR(check_groups(routing));
  return routing;
}

}  // namespace

Status read_router(const Checkpoint::State& state,
                   const std::string& prefix,
                   LayerStorage& storage,
                   CheckpointLayer& layer) {
  MOEKIT_RETURN_IF_ERROR(read_router_tensors(state, prefix, storage, layer));
  const ModelConfig& config = state.config;
  const ModelFacts* facts = find_model_facts(config.model_type);
  const bool own_input = facts != nullptr && facts->own_router_input &&
                         find_any(TensorReader(state), prefix, kOwnInputRouters) != nullptr;
  const bool has_router = layer.router.weight.data != nullptr || own_input;
  if (!has_router || layer.problem.top_k == 0) {
    layer.inferred.emplace_back(has_router ? "routing=none: no configuration names top_k"
                                           : "routing=none: the files hold no router");
    return {};
  }
  const ScoringChoice choice =
      choose_scoring(config, facts, layer.router.correction_bias.data != nullptr);
  if (const std::string missing = missing_router_part(state, prefix, layer, choice.scoring);
      !missing.empty()) {
    layer.inferred.push_back(cat("routing=none: ", missing));
    return {};
  }
  const SelectionChoice selection = choose_selection(config, layer);
  if (!selection.refusal.empty()) {
    layer.inferred.push_back(cat("routing=none: ", selection.refusal));
    return {};
  }
  MOEKIT_ASSIGN_OR_RETURN(Routing routing, make_routing(config, facts, layer, selection.groups));
  if (!choice.scoring.has_value()) {
    layer.inferred.push_back(cat("routing=none: ", choice.origin, " is not served"));
    return {};
  }
  routing.scoring = *choice.scoring;
  layer.inferred.push_back(describe(routing, scoring_word(routing.scoring), choice.origin));
  layer.routing = routing;
  if (own_input) {
    layer.inferred.push_back(cat("router_logits=of the caller: the router of model_type ",
                                 facts->model_type,
                                 " reads a norm of its own, not x"));
  }
  return {};
}

}  // namespace moekit::checkpoint
