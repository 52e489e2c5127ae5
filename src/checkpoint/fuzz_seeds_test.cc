// SPDX-License-Identifier: Apache-2.0
// The committed seeds of the fuzz targets reach what they are for: every naming scheme, every
// quantisation configuration, every kind of GGUF layer.
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/checkpoint.h"

#include "checkpoint/fuzz_inputs_test.h"
#include "checkpoint/state.h"

namespace moekit::checkpoint {
namespace {

struct Seed {
  std::string name;
  std::string bytes;
};

std::vector<Seed> seeds_of(const std::string& target) {
  std::vector<Seed> seeds;
  const std::string folder = std::string(MOEKIT_SOURCE_DIR) + "/testdata/fuzz/" + target;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    seeds.push_back({entry.path().filename().string(),
                     {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}});
    EXPECT_LE(seeds.back().bytes.size(), 65536U) << "longer than the target reads";
  }
  return seeds;
}

/// Schemes of the layers of `state` that are read without an error.
std::set<std::string> schemes_read(const Checkpoint::State& state) {
  std::set<std::string> schemes;
  for (const auto& [layer, module] : state.modules) {
    if (const Result<CheckpointLayer> read = read_layer(state, layer); read.has_value()) {
      schemes.insert(read->scheme);
    }
  }
  return schemes;
}

std::set<std::string> every_scheme() {
  std::set<std::string> names;
  for (const FuzzFile& file : scheme_files()) {
    names.insert(file.scheme);
  }
  return names;
}

TEST(FuzzSeeds, composed_files_are_read_in_their_own_scheme) {
  for (const FuzzFile& file : scheme_files()) {
    Checkpoint::State state;
    ASSERT_TRUE(add_tensors({.name = "f", .bytes = as_bytes(file.bytes)}, nullptr, state).ok());
    find_modules(state);
    if (file.scheme != "bf16") {  // Llama-4's names need its model_type
      EXPECT_EQ(schemes_read(state), (std::set<std::string>{file.scheme}));
    }
  }
  EXPECT_GE(every_scheme().size(), 13U);
}

TEST(FuzzSeeds, safetensors_seeds_reach_every_scheme) {
  std::set<std::string> reached;
  for (const Seed& seed : seeds_of("safetensors_fuzz")) {
    const std::string file = fuzzed_file(seed.bytes);
    Checkpoint::State state;
    if (add_tensors({.name = "f", .bytes = as_bytes(file)}, nullptr, state).ok()) {
      find_modules(state);
      reached.merge(schemes_read(state));
    }
  }
  EXPECT_EQ(reached, every_scheme());
}

TEST(FuzzSeeds, folder_seeds_describe_every_scheme) {
  std::set<std::string> reached;
  std::set<std::string> quantizations;
  for (const Seed& seed : seeds_of("folder_fuzz")) {
    const FuzzTexts texts = fuzzed_texts(seed.bytes);
    for (const FuzzFile& file : scheme_files()) {
      Result<ModelConfig> config = read_model_config(texts.config, texts.hf_quant_config);
      if (!config.has_value() || !config->top_k.has_value()) {
        continue;
      }
      Checkpoint::State state;
      ASSERT_TRUE(add_tensors({.name = "f", .bytes = as_bytes(file.bytes)}, nullptr, state).ok());
      find_modules(state);
      const std::string quantization = config->quant_method;
      adopt_config(std::move(*config), state);
      const std::set<std::string> schemes = schemes_read(state);
      if (!schemes.empty()) {
        quantizations.insert(quantization);
      }
      reached.insert(schemes.begin(), schemes.end());
    }
  }
  EXPECT_EQ(reached, every_scheme());
  for (const char* method :
       {"", "awq", "gptq", "compressed-tensors", "quark", "fp8", "mxfp4", "modelopt"}) {
    EXPECT_TRUE(quantizations.contains(method)) << method;
  }
}

TEST(FuzzSeeds, gguf_seeds_reach_every_kind_of_layer) {
  std::set<std::string> reached;
  std::set<std::string> models;
  bool hash_table = false;
  bool clamp = false;
  for (const Seed& seed : seeds_of("gguf_fuzz")) {
    Checkpoint::State state;
    if (!add_gguf({.name = "f", .bytes = as_bytes(seed.bytes)}, state).ok()) {
      continue;
    }
    find_modules(state);
    models.insert(state.config.model_type);
    reached.merge(schemes_read(state));
    for (const auto& [layer, module] : state.modules) {
      const Result<CheckpointLayer> read = read_layer(state, layer);
      hash_table |= read.has_value() && read->routing.has_value() && read->routing->hash_table;
      clamp |= read.status().message().find("behind the activation") != std::string_view::npos;
    }
  }
  EXPECT_EQ(reached, (std::set<std::string>{"gguf_bf16", "gguf_mxfp4", "gguf_nvfp4"}));
  for (const char* model : {"step3p5", "deepseek_v4", "gemma4"}) {
    EXPECT_TRUE(models.contains(model)) << model;
  }
  EXPECT_TRUE(hash_table);
  EXPECT_TRUE(clamp);
}

}  // namespace
}  // namespace moekit::checkpoint
