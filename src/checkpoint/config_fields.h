// SPDX-License-Identifier: Apache-2.0
#pragma once

// Typed reading of a JSON object by dotted path, remembering what was read, so that the rest can be
// listed as ignored. The first field of a wrong type is kept as the error, and so is a value that
// is no object where a path leads through it; null counts as absent everywhere.

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/json_text.h"
#include "checkpoint/model_config.h"

namespace moekit::checkpoint {

class ConfigFields {
 public:
  using Names = std::initializer_list<std::string_view>;

  ConfigFields(std::string file, Document root) : file_(std::move(file)), root_(std::move(root)) {}

  /// Later names are looked up under `prefix` first (text_config of multimodal models), then at the
  /// root.
  void look_under(std::string_view prefix) { prefix_ = prefix; }

  /// The first of `names` that is present and not null.
  [[nodiscard]] MaybeFact<std::int64_t> integer(Names names);
  [[nodiscard]] MaybeFact<double> number(Names names);
  [[nodiscard]] MaybeFact<bool> boolean(Names names);
  [[nodiscard]] MaybeFact<std::string> text(Names names);

  /// First element of an array of strings.
  [[nodiscard]] MaybeFact<std::string> first_text(std::string_view name);

  /// An array of strings; empty when absent.
  [[nodiscard]] std::vector<std::string> texts(std::string_view name);

  /// An array of numbers, null as 0; nullopt when absent.
  [[nodiscard]] MaybeFact<std::vector<double>> numbers(std::string_view name);

  /// Keys of the object at `path`, which counts as read only where its fields are.
  [[nodiscard]] std::vector<std::string> keys(std::string_view path);

  [[nodiscard]] bool has_object(std::string_view path);

  [[nodiscard]] const Status& status() const { return status_; }

  /// Fields nobody asked for, as `file path`.
  [[nodiscard]] std::vector<std::string> unread() const;

 private:
  struct Located {
    const nlohmann::json* value = nullptr;
    std::string path{};
  };

  [[nodiscard]] const nlohmann::json* at_path(std::string_view path);
  [[nodiscard]] const nlohmann::json* object_at(std::string_view path);
  [[nodiscard]] Located locate(Names names);
  void refuse(const Located& located, std::string_view expected);
  void collect_unread(const nlohmann::json& object,
                      const std::string& path,
                      std::vector<std::string>& names) const;

  std::string file_;
  Document root_;
  std::string prefix_;
  std::set<std::string, std::less<>> read_;
  Status status_;
};

}  // namespace moekit::checkpoint
