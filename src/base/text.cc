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

std::string printable(std::string_view text) {
  constexpr std::size_t kMaxQuoted = 160;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "'";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.size() > kMaxQuoted && i == kMaxQuoted / 2) {
      out += "...";
      i = text.size() - kMaxQuoted / 2;
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte < 0x7F) {
      out += text[i];
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out + "'";
}

std::size_t utf8_sequence_length(std::string_view text) noexcept {
  const auto lead = static_cast<unsigned char>(text.empty() ? '\xFF' : text.front());
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xC2 ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                                           : 4;
  if (length == 0 || lead > 0xF4 || length > text.size()) {
    return 0;
  }
  std::uint32_t point = length == 1 ? lead : lead & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0U) != 0x80U) {
      return 0;
    }
    point = point << 6 | (next & 0x3FU);
  }
  const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
  const bool surrogate = point >= 0xD800 && point < 0xE000;
  return overlong || surrogate || point > 0x10FFFF ? 0 : length;
}

bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t length = utf8_sequence_length(text);
    if (length == 0) {
      return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

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
