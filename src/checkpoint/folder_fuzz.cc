// SPDX-License-Identifier: Apache-2.0
// The three JSON files of a Hugging Face folder from hostile bytes, beside well-formed tensors:
// config.json, hf_quant_config.json and model.safetensors.index.json, separated by 0x1E.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moekit/checkpoint.h"

#include "checkpoint/composed_files_test.h"
#include "checkpoint/fuzz_inputs_test.h"
#include "checkpoint/state.h"

namespace {

using moekit::Checkpoint;
using moekit::Status;
using moekit::checkpoint::ComposedTensor;
using moekit::checkpoint::FuzzTexts;

std::vector<ComposedTensor> linear_experts() {
  std::vector<ComposedTensor> tensors{
      {"model.layers.1.mlp.gate.weight", "BF16", {4, 16}},
      {"model.layers.1.mlp.gate.e_score_correction_bias", "F32", {4}}};
  for (int expert = 0; expert < 4; ++expert) {
    const std::string base = "model.layers.1.mlp.experts." + std::to_string(expert) + ".";
    tensors.push_back({base + "gate_proj.weight", "BF16", {8, 16}});
    tensors.push_back({base + "up_proj.weight", "BF16", {8, 16}});
    tensors.push_back({base + "down_proj.weight", "BF16", {16, 8}});
  }
  return tensors;
}

std::vector<ComposedTensor> ungated_experts() {
  std::vector<ComposedTensor> tensors{{"backbone.layers.2.mixer.gate.weight", "F32", {2, 16}}};
  for (int expert = 0; expert < 2; ++expert) {
    const std::string base = "backbone.layers.2.mixer.experts." + std::to_string(expert) + ".";
    tensors.push_back({base + "up_proj.weight", "BF16", {8, 16}});
    tensors.push_back({base + "down_proj.weight", "BF16", {16, 8}});
  }
  return tensors;
}

std::vector<ComposedTensor> stacked_experts() {
  const std::string base = "model.layers.0.mlp.";
  return {{base + "router.weight", "BF16", {3, 40}},
          {base + "router.bias", "BF16", {3}},
          {base + "experts.gate_up_proj_blocks", "U8", {3, 16, 2, 16}},
          {base + "experts.gate_up_proj_scales", "U8", {3, 16, 2}},
          {base + "experts.gate_up_proj_bias", "BF16", {3, 16}},
          {base + "experts.down_proj_blocks", "U8", {3, 40, 1, 16}},
          {base + "experts.down_proj_scales", "U8", {3, 40, 1}},
          {base + "experts.down_proj_bias", "BF16", {3, 40}}};
}

void require_one_line(const Status& status) {
  if (status.message().find('\n') != std::string_view::npos) {
    __builtin_trap();
  }
}

/// Opens a file of tensors; with an index, as the shard that it may or may not describe.
void open_file(const std::string& file,
               const moekit::checkpoint::WeightIndex* index,
               Checkpoint::State& state) {
  Status status = moekit::checkpoint::add_tensors(
      {.name = "model.safetensors", .bytes = moekit::checkpoint::as_bytes(file)}, index, state);
  if (status.ok() && index != nullptr) {
    status = moekit::checkpoint::check_index(*index, state);
  }
  require_one_line(status);
  moekit::checkpoint::find_modules(state);
}

/// Files of every scheme, open: an input changes their configuration only, and parsing their
/// headers for each input would be most of its time.
std::vector<Checkpoint::State>& open_states() {
  static const std::vector<std::string> files = [] {
    std::vector<std::string> made{moekit::checkpoint::compose_zeros(linear_experts()),
                                  moekit::checkpoint::compose_zeros(ungated_experts()),
                                  moekit::checkpoint::compose_zeros(stacked_experts())};
    for (const moekit::checkpoint::FuzzFile& file : moekit::checkpoint::scheme_files()) {
      made.push_back(file.bytes);
    }
    return made;
  }();
  static std::vector<Checkpoint::State> states = [] {
    std::vector<Checkpoint::State> made(files.size());
    for (std::size_t i = 0; i < files.size(); ++i) {
      open_file(files[i], nullptr, made[i]);
    }
    return made;
  }();
  return states;
}

void read_layers(const moekit::checkpoint::ModelConfig& config, Checkpoint::State& state) {
  state.summary.ignored_fields.clear();
  moekit::checkpoint::adopt_config(config, state);
  for (const auto& [layer, module] : state.modules) {
    require_one_line(moekit::checkpoint::read_layer(state, layer).status());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  const FuzzTexts texts =
      moekit::checkpoint::fuzzed_texts({reinterpret_cast<const char*>(input), size});
  const moekit::Result<moekit::checkpoint::ModelConfig> config =
      moekit::checkpoint::read_model_config(texts.config, texts.hf_quant_config);
  require_one_line(config.status());
  if (texts.index.has_value()) {
    const moekit::Result<moekit::checkpoint::WeightIndex> index =
        moekit::checkpoint::parse_weight_index(*texts.index);
    require_one_line(index.status());
    static const std::string file = moekit::checkpoint::compose_zeros(linear_experts());
    Checkpoint::State state;
    open_file(file, index.has_value() ? &*index : nullptr, state);
    if (config.has_value()) {
      read_layers(*config, state);
    }
  } else if (config.has_value()) {
    for (Checkpoint::State& state : open_states()) {
      read_layers(*config, state);
    }
  }
  return 0;
}
