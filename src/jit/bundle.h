// SPDX-License-Identifier: Apache-2.0
#pragma once

// Whole folders of entries: what a bundle or a cache holds, and taking things out of it.

#include <string>
#include <string_view>
#include <vector>

#include "moekit/status.h"

#include "jit/files.h"
#include "jit/image.h"

namespace moekit::jit {

struct FolderEntry {
  std::string name{};
  Status status{};     // why the entry is bad; ok otherwise
  ImageFacts facts{};  // of a good entry
  std::int64_t cubin_bytes = 0;
};

/// Every entry, checked. Its name must be that of its key, as a bundle or as a cache names it.
/// Temporary folders are left out.
///
/// Errors  kIo  the folder cannot be listed
[[nodiscard]] Result<std::vector<FolderEntry>> read_folder(Files& files, const std::string& folder);

/// The name under which a bundle keeps an image.
[[nodiscard]] std::string bundle_entry_name(const ImageFacts& facts);

/// The name under which a cache keeps an image.
[[nodiscard]] std::string cache_entry_name(const ImageFacts& facts);

/// True for a folder that an interrupted writer left more than an hour ago. A live writer needs
/// milliseconds.
[[nodiscard]] bool is_abandoned(Files& files, const std::string& folder, const std::string& name);

/// True for names of the form of an entry's: a dotted name, `-` and 32 hex digits.
[[nodiscard]] bool looks_like_entry(std::string_view name);

}  // namespace moekit::jit
