// SPDX-License-Identifier: Apache-2.0
#pragma once

// The folder that quantize_checkpoint writes into. What a call puts there is known before anything
// is encoded, so that a folder that holds something else is refused as it is.

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/checkpoint.h"

namespace moekit::checkpoint {

inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kMarkKey = "moekit.quantize";  // in the metadata of a weight file

struct FolderPlan {
  std::string folder{};
  std::string source_folder{};
  std::map<std::string, std::string> marks{};  // weight file -> mark_of its source
  std::map<std::string, std::string, std::less<>> weight_map{};  // tensor -> weight file
  bool has_index = false;
  std::map<std::string, std::string> texts{};  // configurations and what they hold
  std::vector<std::string> copies{};           // files of the source, taken as they are
};

/// What one output file is made of: formats, names and the source's header, size and samples of its
/// bytes. Hashing every byte would cost more than quantising.
[[nodiscard]] std::string mark_of(std::span<const std::byte> file,
                                  const std::string& name,
                                  const QuantizeOptions& options);

/// Tokenizer, generation defaults and whatever else lies beside the weights: small files.
///
/// Errors  kInvalidArgument  a link that leads nowhere, as a cache leaves that lost its files
[[nodiscard]] Result<std::vector<std::string>> files_to_copy(const std::string& source_folder);

/// Nothing in the folder that the call would overwrite with something else, and no weights or
/// configuration that a reader would take for a part of the result. What an interrupted or finished
/// call of the same source and options left is not in the way.
///
/// Errors  kInvalidArgument  such files, each with what it is
[[nodiscard]] Status check_destination(const FolderPlan& plan);

/// Publishes `text` unless the file holds it already.
[[nodiscard]] Status write_text(const std::string& folder,
                                std::string_view name,
                                const std::string& text);

/// write_text of every file of `plan.copies`.
[[nodiscard]] Status copy_files(const FolderPlan& plan);

}  // namespace moekit::checkpoint
