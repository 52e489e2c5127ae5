// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/layer_routing.h"

#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/layer_weights.h"
#include "checkpoint/model_facts.h"
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

const NamedTensor* find_any(const TensorReader& tensors,
                            const std::string& prefix,
                            std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    if (const NamedTensor* found = tensors.find(cat(prefix, name)); found != nullptr) {
      return found;
    }
  }
  return nullptr;
}

Status check_router_tensor(const TensorReader& tensors,
                           const NamedTensor& tensor,
                           std::initializer_list<std::int64_t> shape) {
  const DType dtype = tensor.view.dtype;
  if (!tensor.foreign_dtype.empty() ||
      (dtype != DType::kF32 && dtype != DType::kBf16 && dtype != DType::kF16)) {
    return invalid_argument(cat("router tensor ",
                                printable(tensor.name),
                                " has dtype ",
                                dtype_text(tensor),
                                ", expected f32, bf16 or f16"));
  }
  return tensors.require(tensor.name, dtype, shape).status();
}

/// IEEE binary16, finite or not.
float f16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const auto fraction = static_cast<float>(bits & 0x3FF);
  const float magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                          : exponent == 31 ? (fraction == 0.0F ? HUGE_VALF : NAN)
                                           : std::ldexp(1024.0F + fraction, exponent - 25);
  return (bits >> 15) != 0 ? -magnitude : magnitude;
}

/// A GGUF router in Q8_0 as f32: 32 elements of one f16 scale and signed bytes, exact in f32.
Result<TensorView> decode_q8_0(const TensorEntry& entry,
                               std::int64_t rows,
                               std::int64_t cols,
                               LayerStorage& storage) {
  constexpr std::int64_t kElems = 32;
  if (entry.dtype->name != "Q8_0") {
    return unsupported(cat("router tensor ",
                           printable(entry.name),
                           " has GGUF type ",
                           entry.dtype->name,
                           ", nearest supported: Q8_0, F32, F16, BF16"));
  }
  if (entry.shape != std::vector<std::int64_t>{rows, cols}) {
    return invalid_argument(cat("router tensor ",
                                printable(entry.name),
                                " has shape [",
                                base::join(entry.shape),
                                "], expected [",
                                rows,
                                ", ",
                                cols,
                                "]"));
  }
  auto* values = reinterpret_cast<float*>(storage.take(rows * cols * 4));
  const std::byte* at = entry.bytes.data();
  for (std::int64_t block = 0; block < rows * cols / kElems; ++block) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, at, sizeof bits);
    const float scale = f16_value(bits);
    at += sizeof bits;
    for (std::int64_t i = 0; i < kElems; ++i) {
      values[block * kElems + i] = scale * static_cast<float>(static_cast<std::int8_t>(at[i]));
    }
    at += kElems;
  }
  return matrix_view(static_cast<const void*>(values), DType::kF32, rows, cols);
}

/// [vocabulary, top_k] expert ids, i32 in the file or i64 (transformers), as i32.
Result<TensorView> read_hash_table(const NamedTensor& table,
                                   const Problem& problem,
                                   LayerStorage& storage) {
  const TensorView& view = table.view;
  const DType dtype = view.dtype;
  if (!table.foreign_dtype.empty() || (dtype != DType::kI32 && dtype != DType::kI64)) {
    return invalid_argument(cat("router tensor ",
                                printable(table.name),
                                " has dtype ",
                                dtype_text(table),
                                ", expected i32 or i64"));
  }
  if (view.rank != 2 || view.shape[0] < 1 || view.shape[1] != problem.top_k) {
    return invalid_argument(cat("router tensor ",
                                printable(table.name),
                                " has shape ",
                                shape_text(view),
                                ", expected [vocabulary, top_k = ",
                                problem.top_k,
                                "]"));
  }
  const std::int64_t count = view.shape[0] * view.shape[1];
  auto* ids = reinterpret_cast<std::int32_t*>(storage.take(count * 4));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t id = dtype == DType::kI64 ? static_cast<const std::int64_t*>(view.data)[i]
                                                 : static_cast<const std::int32_t*>(view.data)[i];
    if (id < 0 || id >= problem.num_experts) {
      return invalid_argument(cat("router tensor ",
                                  printable(table.name),
                                  " names expert ",
                                  id,
                                  " for token id ",
                                  i / problem.top_k,
                                  ", expected 0 to ",
                                  problem.num_experts - 1));
    }
    ids[i] = static_cast<std::int32_t>(id);
  }
  return matrix_view(static_cast<const void*>(ids), DType::kI32, view.shape[0], view.shape[1]);
}

Status read_router_weight(const Checkpoint::State& state,
                          const std::string& prefix,
                          LayerStorage& storage,
                          CheckpointLayer& layer) {
  const TensorReader tensors(state);
  const NamedTensor* weight = find_any(tensors, prefix, kRouterWeights);
  const ModelFacts* facts = find_model_facts(state.config.model_type);
  if (weight == nullptr || (facts != nullptr && facts->own_router_input)) {
    return {};
  }
  // Experts behind a latent projection are narrower than the router's input.
  const bool latent = state.config.latent_size.has_value() && state.config.hidden_size.has_value();
  const std::int64_t width = latent ? state.config.hidden_size->value : layer.problem.hidden_size;
  const std::int64_t experts = layer.problem.num_experts;
  if (const auto block = state.blocks.find(weight->name); block != state.blocks.end()) {
    MOEKIT_ASSIGN_OR_RETURN(layer.router.weight,
                            decode_q8_0(block->second, experts, width, storage));
    return {};
  }
  MOEKIT_RETURN_IF_ERROR(check_router_tensor(tensors, *weight, {experts, width}));
  layer.router.weight = weight->view;
  return {};
}

Status read_router_tensors(const Checkpoint::State& state,
                           const std::string& prefix,
                           LayerStorage& storage,
                           CheckpointLayer& layer) {
  MOEKIT_RETURN_IF_ERROR(read_router_weight(state, prefix, storage, layer));
  const TensorReader tensors(state);
  const std::int64_t experts = layer.problem.num_experts;
  // DeepSeek-V4's own files name the correction bias gate.bias; its router has no other.
  const bool corrects = state.config.model_type == "deepseek_v4";
  if (const NamedTensor* bias = find_any(tensors, prefix, kRouterBiases); bias != nullptr) {
    MOEKIT_RETURN_IF_ERROR(check_router_tensor(tensors, *bias, {experts}));
    (corrects ? layer.router.correction_bias : layer.router.bias) = bias->view;
  }
  if (const NamedTensor* bias = find_any(tensors, prefix, kCorrectionBiases); bias != nullptr) {
    MOEKIT_RETURN_IF_ERROR(check_router_tensor(tensors, *bias, {experts}));
    layer.router.correction_bias = bias->view;
  }
  const NamedTensor* scale = find_any(tensors, prefix, kExpertScales);
  if (const ModelFacts* facts = find_model_facts(state.config.model_type);
      facts != nullptr && facts->own_router_input && layer.scheme == "gguf_bf16") {
    scale = tensors.find(cat(prefix, kGgufExpertScale));
  }
  if (scale != nullptr) {
    MOEKIT_RETURN_IF_ERROR(check_router_tensor(tensors, *scale, {experts}));
    layer.router.expert_scale = scale->view;
  }
  // Without a configuration nobody knows top_k, and nothing is routed.
  if (const NamedTensor* table = find_any(tensors, prefix, kHashTables);
      table != nullptr && layer.problem.top_k > 0) {
    MOEKIT_ASSIGN_OR_RETURN(layer.router.hash_table,
                            read_hash_table(*table, layer.problem, storage));
    if (layer.router.correction_bias.data != nullptr) {
      return invalid_argument(cat(printable(table->name),
                                  " selects by token id, and the layer has a correction bias too"));
    }
  }
  return {};
}

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
