// SPDX-License-Identifier: Apache-2.0
#pragma once

// One table per enumeration: value and name side by side, looked up both ways.

#include <cstddef>
#include <optional>
#include <string_view>

namespace moekit::base {

template <typename Enum>
struct Named {
  Enum value;
  std::string_view name;
};

template <typename Enum, std::size_t N>
[[nodiscard]] constexpr std::string_view name_of(const Named<Enum> (&table)[N], Enum value) {
  for (const Named<Enum>& row : table) {
    if (row.value == value) {
      return row.name;
    }
  }
  return "?";
}

template <typename Enum, std::size_t N>
[[nodiscard]] constexpr std::optional<Enum> value_of(const Named<Enum> (&table)[N],
                                                     std::string_view name) {
  for (const Named<Enum>& row : table) {
    if (row.name == name) {
      return row.value;
    }
  }
  return std::nullopt;
}

}  // namespace moekit::base
