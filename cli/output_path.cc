// SPDX-License-Identifier: Apache-2.0
#include "cli/output_path.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include <fmt/format.h>

namespace moekit::cli {
namespace {

namespace fs = std::filesystem;

/// Every file that opening `checkpoint` may read, and for a folder whatever else lies in it:
/// another loader reads the tokenizer.
std::vector<fs::path> files_of(const fs::path& checkpoint) {
  std::error_code error;
  std::vector<fs::path> files;
  if (fs::is_directory(checkpoint, error)) {
    for (fs::directory_iterator entry(checkpoint, error), end; !error && entry != end;
         entry.increment(error)) {
      files.push_back(entry->path());
    }
    return files;
  }
  files.push_back(checkpoint);
  for (const char* name : {"config.json", "hf_quant_config.json"}) {
    files.push_back(checkpoint.parent_path() / name);
  }
  return files;
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// The same bytes under whatever name, or the same name: a rename replaces a link, even a dangling
/// one.
bool same_file(const fs::path& output, const fs::path& source) {
  std::error_code ignored;
  if (fs::equivalent(output, source, ignored)) {
    return true;
  }
  return output.filename() == source.filename() &&
         fs::exists(fs::symlink_status(source, ignored)) &&
         fs::equivalent(folder_of(output), folder_of(source), ignored);
}

}  // namespace

Status check_output_path(const std::string& output,
                         const std::string& checkpoint,
                         const std::string& input) {
  std::error_code ignored;
  const fs::file_status status = fs::status(output, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    return failed_precondition(
        fmt::format("--output {} is there and is {}, not a regular file",
                    output,
                    fs::is_directory(status) ? "a folder" : "a device, FIFO or socket"));
  }
  std::vector<fs::path> sources = files_of(checkpoint);
  sources.emplace_back(input);
  for (const fs::path& source : sources) {
    if (same_file(output, source)) {
      return invalid_argument(
          fmt::format("--output {} is the same file as the source {}", output, source.string()));
    }
  }
  return {};
}

}  // namespace moekit::cli
