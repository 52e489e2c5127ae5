// SPDX-License-Identifier: Apache-2.0
#pragma once

// What an open checkpoint holds, and the steps that fill it. The steps work on bytes in memory, so
// that tests and fuzzers need no files.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/checkpoint.h"

#include "base/files.h"
#include "checkpoint/gguf.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"

namespace moekit::checkpoint {

/// model.safetensors.index.json: which shard each tensor lies in.
struct WeightIndex {
  std::map<std::string, std::string, std::less<>> shard_of{};
  std::set<std::string> shards{};
  std::vector<std::string> ignored_fields{};
};

/// Errors  kInvalidArgument  not JSON, no weight_map, a shard name that is no plain file name
[[nodiscard]] Result<WeightIndex> parse_weight_index(std::string_view text);

/// The tensors of one MoE layer share `prefix` (`model.layers.3.mlp.`).
struct MoeModule {
  std::set<std::string> prefixes{};  // more than one is an error when the layer is asked for
  std::set<std::int64_t> expert_ids{};
};

struct SourceFile {
  std::string name;
  std::span<const std::byte> bytes;
};

}  // namespace moekit::checkpoint

namespace moekit {

struct Checkpoint::State {
  CheckpointSummary summary{};
  std::map<std::string, NamedTensor, std::less<>> tensors{};
  std::map<std::int64_t, checkpoint::MoeModule> modules{};
  checkpoint::ModelConfig config{};
  std::vector<base::MappedFile> files{};
  std::vector<std::string> file_names{};                       // of `files`
  std::vector<std::unique_ptr<std::byte[]>> aligned_copies{};  // of tensors that lie unaligned
  std::int64_t aligned_bytes = 0;
  // GGUF tensors in blocks of codes and scales: bytes without a view.
  std::map<std::string, checkpoint::TensorEntry, std::less<>> blocks{};
};

}  // namespace moekit

namespace moekit::checkpoint {

/// Adds every tensor of `file`; with an index, only those that the index places there.
[[nodiscard]] Status add_tensors(const SourceFile& file,
                                 const WeightIndex* index,
                                 Checkpoint::State& state);

/// Adds every tensor of a GGUF file and, from the first file of several, takes over its metadata.
[[nodiscard]] Status add_gguf(const SourceFile& file, Checkpoint::State& state);

/// Every tensor that the index names must have been added.
[[nodiscard]] Status check_index(const WeightIndex& index, const Checkpoint::State& state);

/// Finds the MoE layers by their tensor names.
void find_modules(Checkpoint::State& state);

/// Takes over a configuration and finishes the summary.
void adopt_config(ModelConfig config, Checkpoint::State& state);

/// Everything about one layer; see Checkpoint::layer.
[[nodiscard]] Result<CheckpointLayer> read_layer(const Checkpoint::State& state,
                                                 std::int64_t layer);

}  // namespace moekit::checkpoint
