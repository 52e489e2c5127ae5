// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/router_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/model_facts.h"
#include "checkpoint/schemes.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

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
  MOEKIT_RETURN_IF_ERROR(tensors.require(tensor.name, dtype, shape).status());
  return check_finite(tensor.name, tensor.view);
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
  const TensorView view = matrix_view(static_cast<const void*>(values), DType::kF32, rows, cols);
  MOEKIT_RETURN_IF_ERROR(check_finite(entry.name, view));
  return view;
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
    const std::int64_t first = i - i % problem.top_k;
    if (std::find(ids + first, ids + i, ids[i]) != ids + i) {
      return invalid_argument(cat("router tensor ",
                                  printable(table.name),
                                  " names expert ",
                                  id,
                                  " twice for token id ",
                                  i / problem.top_k));
    }
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

/// The learned scale of each expert. Gemma-4's GGUF files give it the name of down's globals.
const NamedTensor* find_expert_scale(const Checkpoint::State& state,
                                     const std::string& prefix,
                                     const CheckpointLayer& layer) {
  const TensorReader tensors(state);
  const ModelFacts* facts = find_model_facts(state.config.model_type);
  if (facts != nullptr && facts->own_router_input && layer.scheme.starts_with("gguf_")) {
    return tensors.find(cat(prefix, kGgufExpertScale));
  }
  return find_any(tensors, prefix, kExpertScales);
}

}  // namespace

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
  if (const NamedTensor* scale = find_expert_scale(state, prefix, layer); scale != nullptr) {
    MOEKIT_RETURN_IF_ERROR(check_router_tensor(tensors, *scale, {experts}));
    // In quantised GGUF files the down projection's globals are the scales, applied already.
    if (!layer.scheme.starts_with("gguf_") || layer.scheme == "gguf_bf16") {
      layer.router.expert_scale = scale->view;
    }
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
    const MaybeFact<std::int64_t>& hashed = state.config.num_hash_layers;
    if (hashed.has_value() && layer.layer >= hashed->value) {
      return invalid_argument(cat(printable(table->name),
                                  " selects by token id, but ",
                                  hashed->origin,
                                  " is ",
                                  hashed->value,
                                  ": only layers below it have a table"));
    }
  }
  return {};
}

/// Why the files do not route as their model does; empty: nothing is missing.
std::string missing_router_part(const Checkpoint::State& state,
                                const std::string& prefix,
                                const CheckpointLayer& layer,
                                std::optional<Scoring> scoring) {
  const ModelConfig& config = state.config;
  if (layer.router.hash_table.data != nullptr) {
    return {};
  }
  if (config.num_hash_layers.has_value() && layer.layer < config.num_hash_layers->value) {
    return cat(config.num_hash_layers->origin,
               " is ",
               config.num_hash_layers->value,
               ", so that this layer selects by token id, but the files hold no table");
  }
  if (config.router_bias.has_value() && config.router_bias->value &&
      layer.router.correction_bias.data == nullptr) {
    return cat(config.router_bias->origin, " is true, but the files hold no correction bias");
  }
  const ModelFacts* facts = find_model_facts(config.model_type);
  for (const RequiredRouterPart& required : kRequiredRouterParts) {
    // GGUF names DeepSeek-V2 and V3 alike; only V3 scores by sigmoid and has the bias.
    if (facts == nullptr || facts->model_type != required.model_type || facts->scoring != scoring) {
      continue;
    }
    const bool corrects = required.part == RouterPart::kCorrectionBias;
    const bool present =
        required.part == RouterPart::kBias ? layer.router.bias.data != nullptr
        : corrects ? layer.router.correction_bias.data != nullptr || config.router_bias.has_value()
                   : find_expert_scale(state, prefix, layer) != nullptr;
    if (!present) {
      return cat("the router of model_type ",
                 required.model_type,
                 " needs its ",
                 required.name,
                 ", but the files hold none");
    }
  }
  return {};
}

}  // namespace moekit::checkpoint
