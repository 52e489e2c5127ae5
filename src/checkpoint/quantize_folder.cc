// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/quantize_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/files.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/state.h"

namespace moekit::checkpoint {
namespace {

using base::cat;
namespace fs = std::filesystem;

constexpr std::int64_t kMaxCopiedBytes = std::int64_t{256} << 20;
constexpr std::string_view kDiffers = "differs from what this conversion writes";

/// Weights and the configurations that say how to read them.
bool describes_weights(std::string_view name) {
  return name == "config.json" || name == "hf_quant_config.json" || name == kIndexFile ||
         name.ends_with(".safetensors") || name.ends_with(".gguf");
}

bool holds(const std::string& path, std::string_view text) {
  const Result<base::MappedFile> file = base::MappedFile::open(path);
  return file.has_value() && file->bytes().size() == text.size() &&
         (text.empty() || std::memcmp(file->bytes().data(), text.data(), text.size()) == 0);
}

bool same_bytes(const std::string& path, const std::string& other) {
  const Result<base::MappedFile> file = base::MappedFile::open(other);
  return file.has_value() &&
         holds(path, {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()});
}

std::string_view judge_weights(const std::string& path, const std::string& mark) {
  const Result<base::MappedFile> file = base::MappedFile::open(path);
  const Result<SafetensorsContent> content = file.has_value()
                                                 ? parse_safetensors(file->bytes())
                                                 : Result<SafetensorsContent>(file.status());
  if (!content.has_value() || !content->metadata.contains(kMarkKey)) {
    return "was not written by quantize";
  }
  return content->metadata.at(kMarkKey) == mark ? "" : "is of another source, format or naming";
}

std::string_view judge_index(const std::string& path, const FolderPlan& plan) {
  const Result<std::string> text = base::read_text_file(path, kMaxCopiedBytes);
  const Result<WeightIndex> index =
      text.has_value() ? parse_weight_index(*text) : Result<WeightIndex>(text.status());
  return index.has_value() && index->shard_of == plan.weight_map ? "" : kDiffers;
}

/// What stands in the way of the plan; empty: nothing.
std::string_view judge(const std::string& name, const FolderPlan& plan) {
  const std::string path = cat(plan.folder, "/", name);
  const auto mark = plan.marks.find(name);
  const auto text = plan.texts.find(name);
  const bool is_index = plan.has_index && name == kIndexFile;
  const bool is_copy = std::find(plan.copies.begin(), plan.copies.end(), name) != plan.copies.end();
  if (mark == plan.marks.end() && text == plan.texts.end() && !is_index && !is_copy) {
    return describes_weights(name) ? "is no part of this conversion" : "";
  }
  if (!base::is_regular_file(path)) {
    return "is no regular file";
  }
  if (mark != plan.marks.end()) {
    return judge_weights(path, mark->second);
  }
  if (is_index) {
    return judge_index(path, plan);
  }
  const bool same =
      is_copy ? same_bytes(path, cat(plan.source_folder, "/", name)) : holds(path, text->second);
  return same ? "" : kDiffers;
}

}  // namespace

std::string mark_of(std::span<const std::byte> file,
                    const std::string& name,
                    const QuantizeOptions& options) {
  constexpr std::size_t kSamples = 64;
  constexpr std::size_t kSampleBytes = 4096;
  base::Sha256 hash;
  hash.update_field(
      cat("1 ", format_info(options.format).name, " ", static_cast<int>(options.naming)));
  hash.update_field(name);
  hash.update_field(cat(file.size()));
  const std::size_t step = std::max(kSampleBytes, file.size() / kSamples);
  for (std::size_t at = 0; at < file.size(); at += step) {
    hash.update(file.subspan(at, std::min(kSampleBytes, file.size() - at)));
  }
  return hash.finish_hex();
}

Result<std::vector<std::string>> files_to_copy(const std::string& source_folder) {
  MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, base::list_folder(source_folder));
  std::vector<std::string> copies;
  for (const std::string& name : names) {
    const std::string path = cat(source_folder, "/", name);
    std::error_code error;
    if (!describes_weights(name) && fs::is_symlink(path, error) && !fs::exists(path, error)) {
      return invalid_argument(cat(path,
                                  " is a link that leads nowhere: what the quantised folder "
                                  "would need is missing"));
    }
    if (!describes_weights(name) && base::is_regular_file(path) &&
        fs::file_size(path, error) <= static_cast<std::uintmax_t>(kMaxCopiedBytes)) {
      copies.push_back(name);
    }
  }
  return copies;
}

Status check_destination(const FolderPlan& plan) {
  constexpr std::size_t kMaxListed = 8;
  MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, base::list_folder(plan.folder));
  std::vector<std::string> listed;
  std::size_t count = 0;
  for (const std::string& name : names) {
    const std::string_view reason = judge(name, plan);
    if (!reason.empty() && ++count <= kMaxListed) {
      listed.push_back(cat(printable(name), " ", reason));
    }
  }
  if (count == 0) {
    return {};
  }
  return invalid_argument(cat(plan.folder,
                              " holds ",
                              count,
                              count == 1 ? " file" : " files",
                              " of something else: ",
                              base::join(listed),
                              count > kMaxListed ? ", ..." : "",
                              "; remove what is not needed or name another folder"));
}

Status write_text(const std::string& folder, std::string_view name, const std::string& text) {
  const std::string path = cat(folder, "/", name);
  if (holds(path, text)) {
    return {};
  }
  MOEKIT_ASSIGN_OR_RETURN(base::PendingFile file, base::PendingFile::create(path));
  MOEKIT_RETURN_IF_ERROR(file.append(text));
  return file.publish();
}

Status copy_files(const FolderPlan& plan) {
  for (const std::string& name : plan.copies) {
    MOEKIT_ASSIGN_OR_RETURN(
        const std::string text,
        base::read_text_file(cat(plan.source_folder, "/", name), kMaxCopiedBytes));
    MOEKIT_RETURN_IF_ERROR(write_text(plan.folder, name, text));
  }
  return {};
}

}  // namespace moekit::checkpoint
