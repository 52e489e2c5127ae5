// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

namespace moekit::base {
namespace text_detail {

namespace {
template <typename T>
void append_number(std::string& out, T value) {
  std::array<char, 40> buffer{};
  const std::to_chars_result end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  out.append(buffer.data(), end.ptr);
}
}  // namespace

void append(std::string& out, std::string_view text) {
  out.append(text);
}

void append_signed(std::string& out, std::int64_t value) {
  append_number(out, value);
}

void append_unsigned(std::string& out, std::uint64_t value) {
  append_number(out, value);
}

void append_float(std::string& out, double value) {
  // A float that was widened prints with the digits of a float, not with 17 of a double.
  if (static_cast<double>(static_cast<float>(value)) == value) {
    append_number(out, static_cast<float>(value));
  } else {
    append_number(out, value);
  }
}

}  // namespace text_detail

std::size_t edit_distance(std::string_view left, std::string_view right) {
  std::vector<std::size_t> row(right.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 0; i < left.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < right.size(); ++j) {
      const std::size_t substitute = diagonal + (left[i] == right[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substitute, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace moekit::base
