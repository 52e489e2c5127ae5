// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/config_fields.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "checkpoint/json_text.h"

namespace moekit::checkpoint {

using base::cat;
using nlohmann::json;

namespace {

constexpr std::size_t kMaxListedFields = 1000;

/// A value as a message shows it; containers by their kind, since they may be large.
std::string shown(const json& value) {
  if (value.is_object() && value.size() == 1 && value.contains(kPythonFloatKey) &&
      value[kPythonFloatKey].is_string()) {
    return printable(value[kPythonFloatKey].get_ref<const std::string&>());
  }
  if (value.is_string()) {
    return printable(value.get_ref<const std::string&>());
  }
  return value.is_structured() ? cat("an ", value.type_name()) : value.dump();
}

/// A number that JSON does not have is wrapped in an object, and is none.
bool is_object(const json& value) {
  return value.is_object() && !(value.size() == 1 && value.contains(kPythonFloatKey));
}

}  // namespace

const json* ConfigFields::at_path(std::string_view path) {
  const json* node = &*root_;
  for (std::size_t begin = 0; begin <= path.size();) {
    if (node->is_null()) {
      return nullptr;
    }
    if (!is_object(*node)) {
      refuse({node, std::string(path.substr(0, begin - 1))}, "an object");
      return nullptr;
    }
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const auto found = node->find(std::string(path.substr(begin, end - begin)));
    if (found == node->end()) {
      return nullptr;
    }
    node = &*found;
    begin = end + 1;
  }
  return node;
}

const json* ConfigFields::object_at(std::string_view path) {
  const json* value = at_path(path);
  if (value == nullptr || value->is_null()) {
    return nullptr;
  }
  if (!is_object(*value)) {
    refuse({value, std::string(path)}, "an object");
    return nullptr;
  }
  return value;
}

ConfigFields::Located ConfigFields::locate(Names names) {
  Located located;
  for (const std::string_view name : names) {
    for (const std::string& path : {cat(prefix_, name), std::string(name)}) {
      const json* value = at_path(path);
      if (value == nullptr) {
        continue;
      }
      read_.insert(path);
      if (located.value == nullptr && !value->is_null()) {
        located = {value, path};
      }
    }
  }
  return located;
}

void ConfigFields::refuse(const Located& located, std::string_view expected) {
  if (status_.ok()) {
    status_ = invalid_argument(
        cat(file_, " ", located.path, " is ", shown(*located.value), ", expected ", expected));
  }
}

MaybeFact<std::int64_t> ConfigFields::integer(Names names) {
  const Located located = locate(names);
  if (located.value == nullptr) {
    return std::nullopt;
  }
  // 2^40 is beyond any extent and keeps products of two in 64 bits apart from sign.
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 40;
  if (!located.value->is_number_unsigned() || located.value->get<std::uint64_t>() > kLargest) {
    refuse(located, "an integer from 0 to 2^40");
    return std::nullopt;
  }
  return Fact<std::int64_t>{located.value->get<std::int64_t>(), cat(file_, " ", located.path)};
}

MaybeFact<double> ConfigFields::number(Names names) {
  const Located located = locate(names);
  if (located.value == nullptr) {
    return std::nullopt;
  }
  if (!located.value->is_number() ||
      !std::isfinite(static_cast<float>(located.value->get<double>()))) {
    refuse(located, "a number that f32 holds");
    return std::nullopt;
  }
  return Fact<double>{located.value->get<double>(), cat(file_, " ", located.path)};
}

MaybeFact<bool> ConfigFields::boolean(Names names) {
  const Located located = locate(names);
  if (located.value == nullptr) {
    return std::nullopt;
  }
  if (!located.value->is_boolean()) {
    refuse(located, "true or false");
    return std::nullopt;
  }
  return Fact<bool>{located.value->get<bool>(), cat(file_, " ", located.path)};
}

MaybeFact<std::string> ConfigFields::text(Names names) {
  const Located located = locate(names);
  if (located.value == nullptr) {
    return std::nullopt;
  }
  if (!located.value->is_string()) {
    refuse(located, "a string");
    return std::nullopt;
  }
  return Fact<std::string>{located.value->get<std::string>(), cat(file_, " ", located.path)};
}

MaybeFact<std::string> ConfigFields::first_text(std::string_view name) {
  const Located located = locate({name});
  if (located.value == nullptr || (located.value->is_array() && located.value->empty())) {
    return std::nullopt;
  }
  if (!located.value->is_array() || !located.value->front().is_string()) {
    refuse(located, "an array of strings");
    return std::nullopt;
  }
  return Fact<std::string>{located.value->front().get<std::string>(),
                           cat(file_, " ", located.path)};
}

std::vector<std::string> ConfigFields::texts(std::string_view name) {
  const Located located = locate({name});
  std::vector<std::string> found;
  if (located.value == nullptr) {
    return found;
  }
  if (!located.value->is_array()) {
    refuse(located, "an array of strings");
    return found;
  }
  for (const json& element : *located.value) {
    if (!element.is_string()) {
      refuse(located, "an array of strings");
      return found;
    }
    found.push_back(element.get<std::string>());
  }
  return found;
}

MaybeFact<std::vector<double>> ConfigFields::numbers(std::string_view name) {
  const Located located = locate({name});
  if (located.value == nullptr) {
    return std::nullopt;
  }
  Fact<std::vector<double>> found{{}, cat(file_, " ", located.path)};
  const bool fits =
      located.value->is_array() &&
      std::all_of(located.value->begin(), located.value->end(), [](const json& one) {
        return one.is_null() ||
               (one.is_number() && std::isfinite(static_cast<float>(one.get<double>())));
      });
  if (!fits) {
    refuse(located, "an array of numbers that f32 holds");
    return std::nullopt;
  }
  for (const json& element : *located.value) {
    found.value.push_back(element.is_null() ? 0.0 : element.get<double>());
  }
  return found;
}

std::vector<std::string> ConfigFields::keys(std::string_view path) {
  std::vector<std::string> names;
  if (const json* value = object_at(path); value != nullptr) {
    for (const auto& [key, inner] : value->items()) {
      names.push_back(key);
    }
  }
  return names;
}

bool ConfigFields::has_object(std::string_view path) {
  return object_at(path) != nullptr;
}

std::vector<std::string> ConfigFields::unread() const {
  std::vector<std::string> names;
  collect_unread(*root_, "", names);
  return names;
}

void ConfigFields::collect_unread(const json& object,
                                  const std::string& path,
                                  std::vector<std::string>& names) const {
  for (const auto& [key, value] : object.items()) {
    const std::string full = path.empty() ? key : cat(path, ".", key);
    if (read_.contains(full) || names.size() >= kMaxListedFields) {
      continue;
    }
    const auto inner = read_.lower_bound(cat(full, "."));
    if (value.is_object() && inner != read_.end() && inner->starts_with(cat(full, "."))) {
      collect_unread(value, full, names);
    } else {
      const std::string shown_name = printable(full);
      names.push_back(cat(file_, " ", shown_name.substr(1, shown_name.size() - 2)));
    }
  }
}

}  // namespace moekit::checkpoint
