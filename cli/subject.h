// SPDX-License-Identifier: Apache-2.0
#pragma once

// From the words of the command line to values: which layer, on which device, with which pins.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/moekit.h"

#include "cli/options.h"

namespace moekit::cli {

struct Subject {
  Problem problem{};  // num_tokens 0
  DeviceDescriptor device{};
  PlanOverrides overrides{};
  std::string label{};                     // preset name, checkpoint path, or empty
  std::optional<Checkpoint> checkpoint{};  // set with --checkpoint; keeps the mapping alive
  std::optional<CheckpointLayer> layer{};
};

/// Opens the checkpoint or looks the preset up, applies the options on top, finds the device.
///
/// Errors  kInvalidArgument  no subject or two of them, an unknown word (listing the known ones), a
///                           pin that does not exist
///         kUnsupported      a CUDA device this machine does not have
///         those of Checkpoint::open and Checkpoint::layer
[[nodiscard]] Result<Subject> resolve_subject(const LayerOptions& options);

/// Checkpoint::open; of a folder the slashes at the end go, so that every message names
/// `folder/file`.
[[nodiscard]] Result<Checkpoint> open_checkpoint(std::string path);

/// The layer that --layer names, or the only MoE layer there is.
[[nodiscard]] Result<std::int64_t> pick_layer(const CheckpointSummary& summary,
                                              const std::optional<std::int64_t>& layer);

[[nodiscard]] Result<DeviceDescriptor> resolve_device(const LayerOptions& options);

/// The rank of --tp and --ep, `RANK/SIZE` each; empty without either.
[[nodiscard]] Result<std::optional<Shard>> parse_shard(const LayerOptions& options);

/// `1,8,64`: at least one count, none below `minimum`.
[[nodiscard]] Result<std::vector<std::int64_t>> parse_token_list(const std::string& text,
                                                                 std::int64_t minimum);

[[nodiscard]] Result<PlanOverrides> parse_pins(const std::vector<std::string>& pins);

}  // namespace moekit::cli
