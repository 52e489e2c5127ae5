// SPDX-License-Identifier: Apache-2.0
#include "moekit/checkpoint.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/border.h"
#include "base/files.h"
#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/state.h"

namespace moekit {
namespace {

using base::cat;
using checkpoint::SourceFile;
using checkpoint::WeightIndex;

constexpr std::int64_t kMaxIndexBytes = std::int64_t{256} << 20;
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kExtension = ".safetensors";
constexpr std::string_view kGgufExtension = ".gguf";

Result<std::optional<std::string>> read_if_present(const std::string& path, std::int64_t limit) {
  MOEKIT_ASSIGN_OR_RETURN(const bool present, base::has_file(path));
  if (!present) {
    return std::optional<std::string>();
  }
  MOEKIT_ASSIGN_OR_RETURN(std::string text, base::read_text_file(path, limit));
  return std::optional<std::string>(std::move(text));
}

Status read_configurations(const std::string& folder, Checkpoint::State& state) {
  MOEKIT_ASSIGN_OR_RETURN(const std::optional<std::string> config,
                          read_if_present(folder + "/config.json", checkpoint::kMaxConfigBytes));
  MOEKIT_ASSIGN_OR_RETURN(
      const std::optional<std::string> hf_quant_config,
      read_if_present(folder + "/hf_quant_config.json", checkpoint::kMaxConfigBytes));
  Result<checkpoint::ModelConfig> read = checkpoint::read_model_config(config, hf_quant_config);
  if (!read.has_value()) {
    return read.status().with_context(folder);
  }
  checkpoint::adopt_config(std::move(*read), state);
  return {};
}

Status map_file(const std::string& folder,
                const std::string& name,
                const WeightIndex* index,
                Checkpoint::State& state) {
  const std::string path = folder + "/" + name;
  MOEKIT_ASSIGN_OR_RETURN(base::MappedFile file, base::MappedFile::open(path));
  state.files.push_back(std::move(file));
  state.file_names.push_back(name);
  return checkpoint::add_tensors(
      SourceFile{.name = name, .bytes = state.files.back().bytes()}, index, state);
}

/// The names of a file split over several, of which `name` is one: NAME-00001-of-00003.EXTENSION
/// and on; one name for a file that is not split.
std::vector<std::string> parts_of(const std::string& name, std::string_view extension) {
  constexpr std::size_t kNumber = 5;
  constexpr std::string_view kOf = "-of-";
  const std::size_t tail = 1 + kNumber + kOf.size() + kNumber + extension.size();
  const auto is_number = [](const std::string& text) {
    return text.find_first_not_of("0123456789") == std::string::npos;
  };
  if (name.size() <= tail || !name.ends_with(extension)) {
    return {name};
  }
  const std::size_t dash = name.size() - tail;
  const std::string count_text = name.substr(dash + 1 + kNumber + kOf.size(), kNumber);
  if (name[dash] != '-' || name.compare(dash + 1 + kNumber, kOf.size(), kOf) != 0 ||
      !is_number(name.substr(dash + 1, kNumber)) || !is_number(count_text)) {
    return {name};
  }
  std::vector<std::string> names;
  const int count = std::stoi(count_text);
  if (count < 1) {
    return {name};
  }
  for (int part = 1; part <= count; ++part) {
    std::string digits = std::to_string(part);
    digits.insert(0, kNumber - digits.size(), '0');
    names.push_back(cat(name.substr(0, dash), "-", digits, kOf, count_text, extension));
  }
  return names;
}

/// Weight files of a folder without an index: model.safetensors, else every model*.safetensors,
/// else the only .safetensors there is.
Result<std::vector<std::string>> unindexed_files(const std::string& folder) {
  MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, base::list_folder(folder));
  std::vector<std::string> models;
  std::vector<std::string> others;
  for (const std::string& name : names) {
    if (name == "model.safetensors") {
      return std::vector<std::string>{name};
    }
    if (name.ends_with(kExtension)) {
      (name.starts_with("model") ? models : others).push_back(name);
    }
  }
  for (const std::string& name : models) {
    for (const std::string& part : parts_of(name, kExtension)) {
      if (std::find(models.begin(), models.end(), part) == models.end()) {
        return invalid_argument(cat("missing shard ",
                                    checkpoint::printable(part),
                                    " in ",
                                    folder,
                                    ", a part of what ",
                                    checkpoint::printable(name),
                                    " is one of"));
      }
    }
  }
  if (!models.empty()) {
    return models;
  }
  if (others.size() != 1) {
    return invalid_argument(cat(folder,
                                " holds ",
                                others.size(),
                                " .safetensors files and neither ",
                                kIndexName,
                                " nor model.safetensors"));
  }
  return others;
}

Status map_indexed_shards(const std::string& folder,
                          const std::string& text,
                          Checkpoint::State& state) {
  Result<WeightIndex> index = checkpoint::parse_weight_index(text);
  if (!index.has_value()) {
    return index.status().with_context(cat(folder, "/", kIndexName));
  }
  for (const std::string& shard : index->shards) {
    if (!base::is_regular_file(folder + "/" + shard)) {
      return invalid_argument(cat("missing shard ",
                                  checkpoint::printable(shard),
                                  " in ",
                                  folder,
                                  ", named by ",
                                  kIndexName));
    }
    MOEKIT_RETURN_IF_ERROR(map_file(folder, shard, &*index, state));
  }
  for (const std::string& field : index->ignored_fields) {
    state.summary.ignored_fields.push_back(field);
  }
  return checkpoint::check_index(*index, state);
}

Status open_gguf(const std::string& folder, const std::string& name, Checkpoint::State& state) {
  for (const std::string& part : parts_of(name, kGgufExtension)) {
    MOEKIT_ASSIGN_OR_RETURN(base::MappedFile file, base::MappedFile::open(folder + "/" + part));
    state.files.push_back(std::move(file));
    state.file_names.push_back(part);
    MOEKIT_RETURN_IF_ERROR(
        checkpoint::add_gguf({.name = part, .bytes = state.files.back().bytes()}, state));
  }
  checkpoint::find_modules(state);
  return {};
}

/// The GGUF of a folder that holds one and no model*.safetensors.
std::optional<std::string> gguf_of_folder(const std::string& folder) {
  const Result<std::vector<std::string>> names = base::list_folder(folder);
  std::optional<std::string> found;
  for (const std::string& name : names.has_value() ? *names : std::vector<std::string>()) {
    if (name.starts_with("model") && name.ends_with(kExtension)) {
      return std::nullopt;
    }
    const bool later_part = parts_of(name, kGgufExtension).front() != name;
    if (name.ends_with(kGgufExtension) && !later_part) {
      if (found.has_value()) {
        return std::nullopt;
      }
      found = name;
    }
  }
  return found;
}

Status open_folder(const std::string& folder, Checkpoint::State& state) {
  MOEKIT_ASSIGN_OR_RETURN(const std::optional<std::string> index,
                          read_if_present(cat(folder, "/", kIndexName), kMaxIndexBytes));
  if (index.has_value()) {
    MOEKIT_RETURN_IF_ERROR(map_indexed_shards(folder, *index, state));
  } else if (const std::optional<std::string> gguf = gguf_of_folder(folder); gguf.has_value()) {
    return open_gguf(folder, *gguf, state);
  } else {
    MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, unindexed_files(folder));
    for (const std::string& name : names) {
      MOEKIT_RETURN_IF_ERROR(map_file(folder, name, nullptr, state));
    }
  }
  checkpoint::find_modules(state);
  return read_configurations(folder, state);
}

Status open_file(const std::string& path, Checkpoint::State& state) {
  const std::string parent = base::parent_folder(path);
  const std::string folder = parent == "/" ? "" : parent;  // names are written folder/name
  const std::string name = path.substr(path.find_last_of('/') + 1);
  if (name.ends_with(kGgufExtension)) {
    return open_gguf(folder, name, state);
  }
  MOEKIT_RETURN_IF_ERROR(map_file(folder, name, nullptr, state));
  checkpoint::find_modules(state);
  // Inputs and outputs of a run may lie beside a configuration that has nothing to do with them.
  return state.modules.empty() ? Status() : read_configurations(folder, state);
}

}  // namespace

Result<Checkpoint> Checkpoint::open(std::string_view path) noexcept {
  return base::at_border([&]() -> Result<Checkpoint> {
    auto state = std::make_shared<State>();
    state->summary.path = std::string(path);
    std::string place(path);
    while (place.size() > 1 && place.ends_with('/')) {
      place.pop_back();
    }
    MOEKIT_RETURN_IF_ERROR(base::is_folder(place) ? open_folder(place, *state)
                                                  : open_file(place, *state));
    return Checkpoint(std::move(state));
  });
}

const CheckpointSummary& Checkpoint::summary() const noexcept {
  return state_->summary;
}

const std::map<std::string, NamedTensor, std::less<>>& Checkpoint::tensors() const noexcept {
  return state_->tensors;
}

const NamedTensor* Checkpoint::find(std::string_view name) const noexcept {
  const auto found = state_->tensors.find(name);
  return found == state_->tensors.end() ? nullptr : &found->second;
}

Result<CheckpointLayer> Checkpoint::layer(std::int64_t layer) const noexcept {
  return base::at_border([&]() { return checkpoint::read_layer(*state_, layer); });
}

}  // namespace moekit
