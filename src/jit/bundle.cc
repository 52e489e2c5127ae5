// SPDX-License-Identifier: Apache-2.0
#include "jit/bundle.h"

#include <algorithm>

#include "base/text.h"

namespace moekit::jit {
namespace {

constexpr std::int64_t kAbandonedSeconds = 3600;
constexpr std::size_t kKeyDigits = 32;

FolderEntry read_one(Files& files, const std::string& folder, const std::string& name) {
  FolderEntry entry{.name = name};
  Result<std::optional<EntryContents>> contents = files.read_entry(folder, name);
  if (!contents || !contents->has_value()) {
    entry.status = contents ? invalid_argument("the entry vanished") : contents.status();
    return entry;
  }
  Result<Image> image = decode_entry(std::move(**contents), "");
  if (!image) {
    entry.status = image.status();
    return entry;
  }
  if (name != bundle_entry_name(image->facts) && name != cache_entry_name(image->facts)) {
    entry.status = invalid_argument(base::cat("the entry holds kernel ",
                                              image->facts.kernel,
                                              ", whose name would be ",
                                              bundle_entry_name(image->facts)));
    return entry;
  }
  entry.cubin_bytes = static_cast<std::int64_t>(image->cubin.size());
  entry.facts = std::move(image->facts);
  return entry;
}

}  // namespace

Result<std::vector<FolderEntry>> read_folder(Files& files, const std::string& folder) {
  MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(folder));
  std::vector<FolderEntry> entries;
  for (const std::string& name : names) {
    if (!name.starts_with(kTemporaryPrefix)) {
      entries.push_back(read_one(files, folder, name));
    }
  }
  return entries;
}

std::string bundle_entry_name(const ImageFacts& facts) {
  return entry_name(facts.kernel, facts.image_id);
}

std::string cache_entry_name(const ImageFacts& facts) {
  return entry_name(facts.kernel, cache_key(facts.image_id, facts.nvrtc_version));
}

bool is_abandoned(Files& files, const std::string& folder, const std::string& name) {
  return name.starts_with(kTemporaryPrefix) &&
         files.age_seconds(folder, name).value_or(0) > kAbandonedSeconds;
}

bool looks_like_entry(std::string_view name) {
  if (name.size() < kKeyDigits + 2 || name[name.size() - kKeyDigits - 1] != '-' ||
      name.find('.') == std::string_view::npos || name.front() == '.') {
    return false;
  }
  const std::string_view digits = name.substr(name.size() - kKeyDigits);
  return digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace moekit::jit
