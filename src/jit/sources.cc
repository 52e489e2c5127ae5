// SPDX-License-Identifier: Apache-2.0
#include "jit/sources.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/text.h"

namespace moekit::jit {
namespace {

std::string_view trim_left(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

/// What an include line names, its delimiter first: `"x` or `<x`; nothing for other lines.
std::optional<std::string_view> include_target(std::string_view line) {
  line = trim_left(line);
  if (!line.starts_with('#')) {
    return std::nullopt;
  }
  line = trim_left(line.substr(1));
  constexpr std::string_view kInclude = "include";
  if (!line.starts_with(kInclude)) {
    return std::nullopt;
  }
  line = trim_left(line.substr(kInclude.size()));
  const std::size_t end = line.find_first_of("\">", 1);
  return end == std::string_view::npos ? std::nullopt : std::optional(line.substr(0, end));
}

class Walk {
 public:
  explicit Walk(std::span<const SourceFile> sources) {
    for (const SourceFile& file : sources) {
      known_.emplace(file.name, &file);
    }
  }

  Status visit(std::string_view from, std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      const std::optional<std::string_view> target = include_target(text.substr(0, end));
      if (target) {
        MOEKIT_RETURN_IF_ERROR(reach(from, *target));
      }
      text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    }
    return {};
  }

  [[nodiscard]] std::vector<SourceFile> reached() const {
    std::vector<SourceFile> files;
    for (const auto& [name, file] : reached_) {
      files.push_back(*file);
    }
    return files;
  }

 private:
  Status reach(std::string_view from, std::string_view target) {
    const std::string_view name = target.substr(1);
    if (target.front() == '<') {
      return internal_error(base::cat("device source ",
                                      from,
                                      " includes <",
                                      name,
                                      ">: device sources include only our own headers"));
    }
    const auto found = known_.find(name);
    if (found == known_.end()) {
      return internal_error(base::cat("device source ",
                                      from,
                                      " includes \"",
                                      name,
                                      "\", which is not among the ",
                                      known_.size(),
                                      " embedded sources"));
    }
    if (!reached_.emplace(name, found->second).second) {
      return {};
    }
    return visit(name, found->second->text);
  }

  std::map<std::string_view, const SourceFile*> known_;
  std::map<std::string_view, const SourceFile*> reached_;
};

}  // namespace

Result<std::vector<SourceFile>> reached_sources(std::string_view text,
                                                std::span<const SourceFile> sources) {
  Walk walk(sources);
  MOEKIT_RETURN_IF_ERROR(walk.visit("prelude", text));
  return walk.reached();
}

}  // namespace moekit::jit
