// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/state.h"

#include <charconv>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/json_text.h"
#include "checkpoint/schemes.h"

namespace moekit::checkpoint {
namespace {

using base::cat;
using nlohmann::json;

// Writers align tensors since safetensors 0.3; copying the rest is for old, hence small, files.
constexpr std::int64_t kMaxAlignedCopies = std::int64_t{256} << 20;

/// The entry's bytes, copied when they are not aligned to their element.
Result<const void*> aligned_start(const TensorEntry& entry, Checkpoint::State& state) {
  const auto element = static_cast<std::uintptr_t>(entry.dtype->bits) / 8;
  const auto address = reinterpret_cast<std::uintptr_t>(entry.bytes.data());
  if (element <= 1 || entry.bytes.empty() || address % element == 0) {
    return static_cast<const void*>(entry.bytes.data());
  }
  state.aligned_bytes += static_cast<std::int64_t>(entry.bytes.size());
  if (state.aligned_bytes > kMaxAlignedCopies) {
    return invalid_argument(cat("tensor ",
                                printable(entry.name),
                                " of ",
                                entry.bytes.size(),
                                " bytes is not aligned to its ",
                                element,
                                "-byte elements; at most ",
                                kMaxAlignedCopies,
                                " bytes of unaligned tensors are copied"));
  }
  auto copy = std::make_unique<std::byte[]>(entry.bytes.size());
  std::memcpy(copy.get(), entry.bytes.data(), entry.bytes.size());
  state.aligned_copies.push_back(std::move(copy));
  return static_cast<const void*>(state.aligned_copies.back().get());
}

Result<NamedTensor> make_tensor(const TensorEntry& entry,
                                const std::string& file,
                                Checkpoint::State& state) {
  NamedTensor tensor;
  tensor.name = entry.name;
  tensor.bytes = static_cast<std::int64_t>(entry.bytes.size());
  tensor.file = file;
  if (!entry.dtype->dtype.has_value()) {
    tensor.foreign_dtype = entry.dtype->name;
    return tensor;
  }
  TensorView& view = tensor.view;
  view.rank = static_cast<int>(entry.shape.size());
  view.dtype = *entry.dtype->dtype;
  if (entry.shape.size() > view.shape.size()) {
    return tensor;
  }
  std::int64_t stride = 1;
  for (std::size_t axis = entry.shape.size(); axis-- > 0;) {
    view.shape[axis] = entry.shape[axis];
    view.strides[axis] = stride;
    stride *= entry.shape[axis];  // fits: the product was checked against the file
  }
  MOEKIT_ASSIGN_OR_RETURN(view.data, aligned_start(entry, state));
  return tensor;
}

bool is_digits(std::string_view text) {
  // 15 digits fit an int64 and no checkpoint has more layers or experts.
  return !text.empty() && text.size() <= 15 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::int64_t to_integer(std::string_view digits) {
  std::int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

/// The last all-digit segment of `model.layers.3.mlp.`, unless the module belongs to a
/// multi-token-prediction head, whose layers are counted apart.
std::optional<std::int64_t> layer_number(std::string_view prefix) {
  std::optional<std::int64_t> number;
  while (!prefix.empty()) {
    const std::size_t dot = prefix.find('.');
    const std::string_view segment = prefix.substr(0, dot);
    if (segment == "mtp") {
      return std::nullopt;
    }
    if (is_digits(segment)) {
      number = to_integer(segment);
    }
    prefix = dot == std::string_view::npos ? std::string_view() : prefix.substr(dot + 1);
  }
  return number;
}

void note_module(std::string_view prefix,
                 std::optional<std::int64_t> expert_id,
                 Checkpoint::State& state) {
  const std::optional<std::int64_t> layer = layer_number(prefix);
  if (!layer.has_value()) {
    return;
  }
  MoeModule& module = state.modules[*layer];
  module.prefixes.emplace(prefix);
  if (expert_id.has_value()) {
    module.expert_ids.insert(*expert_id);
  }
}

/// `<module>experts.<e>.…`
void note_numbered_expert(std::string_view name, Checkpoint::State& state) {
  constexpr std::string_view kExperts = "experts.";
  for (std::size_t at = name.find(kExperts); at != std::string_view::npos;
       at = name.find(kExperts, at + 1)) {
    if (at != 0 && name[at - 1] != '.') {
      continue;
    }
    const std::string_view rest = name.substr(at + kExperts.size());
    const std::string_view digits = rest.substr(0, rest.find('.'));
    if (digits.size() < rest.size() && is_digits(digits)) {
      note_module(name.substr(0, at), to_integer(digits), state);
    }
    return;
  }
}

void note_stacked_experts(std::string_view name, Checkpoint::State& state) {
  for (const StackedScheme& scheme : kStackedSchemes) {
    if (name.ends_with(scheme.gate_up_codes)) {
      const std::string_view prefix = name.substr(0, name.size() - scheme.gate_up_codes.size());
      if (fits_module(scheme, prefix)) {
        note_module(prefix, std::nullopt, state);
      }
    }
  }
}

/// `blk.L.ffn_up_exps.weight` and its fused form.
void note_gguf_experts(std::string_view name, Checkpoint::State& state) {
  for (const std::string_view ending : {kGgufUp, kGgufGateUp}) {
    if (name.ends_with(ending) && name.starts_with("blk.")) {
      note_module(name.substr(0, name.size() - ending.size()), std::nullopt, state);
    }
  }
}

Status add_tensor(const TensorEntry& entry, const std::string& file, Checkpoint::State& state) {
  MOEKIT_ASSIGN_OR_RETURN(NamedTensor tensor, make_tensor(entry, file, state));
  state.summary.total_bytes += tensor.bytes;
  const auto [position, inserted] = state.tensors.emplace(entry.name, std::move(tensor));
  if (!inserted) {
    return invalid_argument(cat(
        "tensor ", printable(entry.name), " lies in ", position->second.file, " and in ", file));
  }
  return {};
}

/// A shard name from an index must not lead out of the folder.
Status check_shard_name(const std::string& name) {
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
    return invalid_argument(cat("shard name ", printable(name), " is not a plain file name"));
  }
  return {};
}

}  // namespace

Result<WeightIndex> parse_weight_index(std::string_view text) {
  MOEKIT_ASSIGN_OR_RETURN(const Document document, parse_json(text));
  const json& root = *document;
  if (!root.is_object() || !root.contains("weight_map")) {
    return invalid_argument("no weight_map object");
  }
  for (const char* key : {"weight_map", "metadata"}) {
    if (root.contains(key) && !root[key].is_object()) {
      return invalid_argument(cat(key, " is ", root[key].type_name(), ", expected an object"));
    }
  }
  WeightIndex index;
  for (const auto& [name, shard] : root["weight_map"].items()) {
    if (!shard.is_string()) {
      return invalid_argument(
          cat("weight_map ", printable(name), " is ", shard.type_name(), ", expected a string"));
    }
    const auto& file = shard.get_ref<const std::string&>();
    MOEKIT_RETURN_IF_ERROR(check_shard_name(file));
    index.shard_of.emplace(name, file);
    index.shards.insert(file);
  }
  for (const auto& [key, value] : root.items()) {
    if (key != "weight_map" && key != "metadata") {
      index.ignored_fields.push_back(cat("model.safetensors.index.json ", printable(key)));
    }
  }
  return index;
}

Status add_tensors(const SourceFile& file, const WeightIndex* index, Checkpoint::State& state) {
  Result<SafetensorsContent> content = parse_safetensors(file.bytes);
  if (!content.has_value()) {
    return content.status().with_context(file.name);
  }
  for (const std::string& field : content->ignored_fields) {
    state.summary.ignored_fields.push_back(cat(file.name, " ", field));
  }
  for (const TensorEntry& entry : content->tensors) {
    if (index != nullptr) {
      const auto placed = index->shard_of.find(entry.name);
      if (placed != index->shard_of.end() && placed->second != file.name) {
        continue;
      }
    }
    MOEKIT_RETURN_IF_ERROR(add_tensor(entry, file.name, state));
  }
  ++state.summary.num_files;
  return {};
}

Status add_gguf(const SourceFile& file, Checkpoint::State& state) {
  Result<GgufContent> content = parse_gguf(file.bytes);
  if (!content.has_value()) {
    return content.status().with_context(file.name);
  }
  for (TensorEntry& entry : content->tensors) {
    MOEKIT_RETURN_IF_ERROR(add_tensor(entry, file.name, state));
    if (!entry.dtype->dtype.has_value()) {
      state.blocks.emplace(entry.name, std::move(entry));
    }
  }
  if (state.summary.num_files++ > 0) {
    return {};
  }
  Result<ModelConfig> config = read_gguf_config(*content);
  if (!config.has_value()) {
    return config.status().with_context(file.name);
  }
  adopt_config(std::move(*config), state);
  return {};
}

Status check_index(const WeightIndex& index, const Checkpoint::State& state) {
  for (const auto& [name, shard] : index.shard_of) {
    const auto found = state.tensors.find(name);
    if (found == state.tensors.end() || found->second.file != shard) {
      return invalid_argument(cat("tensor ",
                                  printable(name),
                                  " is not in ",
                                  printable(shard),
                                  ", where model.safetensors.index.json places it"));
    }
  }
  return {};
}

void find_modules(Checkpoint::State& state) {
  for (const auto& [name, tensor] : state.tensors) {
    note_numbered_expert(name, state);
    note_stacked_experts(name, state);
    note_gguf_experts(name, state);
  }
  state.summary.num_tensors = static_cast<std::int64_t>(state.tensors.size());
  for (const auto& [layer, module] : state.modules) {
    state.summary.moe_layers.push_back(layer);
  }
}

void adopt_config(ModelConfig config, Checkpoint::State& state) {
  CheckpointSummary& summary = state.summary;
  summary.model_type = config.model_type;
  if (!config.architecture.empty()) {
    summary.model_type += summary.model_type.empty() ? "" : ", ";
    summary.model_type += config.architecture;
  }
  summary.quantization = config.quant_method;
  if (!config.quant_algo.empty()) {
    summary.quantization += summary.quantization.empty() ? "" : " ";
    summary.quantization += config.quant_algo;
  }
  summary.ignored_fields.insert(
      summary.ignored_fields.end(), config.ignored_fields.begin(), config.ignored_fields.end());
  state.config = std::move(config);
}

}  // namespace moekit::checkpoint
