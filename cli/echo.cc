// SPDX-License-Identifier: Apache-2.0
#include "cli/echo.h"

#include <algorithm>

namespace moekit::cli {
namespace {

constexpr std::size_t kLongest = 200;  // paths of this length occur
constexpr std::size_t kHead = 80;
constexpr std::size_t kPathTail = 60;

/// The largest position up to `at` that begins a UTF-8 character.
std::size_t character_at(std::string_view text, std::size_t at) {
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) {
    --at;
  }
  return at;
}

}  // namespace

std::string shortened(std::string_view text) {
  if (text.size() <= kLongest) {
    return std::string(text);
  }
  std::string out(text.substr(0, character_at(text, kHead)));
  out += "...";
  if (text.find('/') != std::string_view::npos) {
    out += text.substr(character_at(text, text.size() - kPathTail));
  }
  return out + " (" + std::to_string(text.size()) + " characters)";
}

std::string shown(std::string_view text) {
  std::string plain(text);
  for (char& c : plain) {
    if (static_cast<unsigned char>(c) < 0x20U || c == 0x7F) {
      c = ' ';
    }
  }
  return shortened(plain);
}

std::string with_short_values(std::string message, const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    if (value.size() <= kLongest) {
      continue;
    }
    const std::string replacement = shortened(value);
    for (std::size_t at = message.find(value); at != std::string::npos;
         at = message.find(value, at + replacement.size())) {
      message.replace(at, value.size(), replacement);
    }
  }
  std::string out;
  for (std::size_t begin = 0; begin < message.size();) {
    const std::size_t space = std::min(message.find(' ', begin), message.size());
    out += shortened(std::string_view(message).substr(begin, space - begin));
    out.append(space < message.size() ? 1 : 0, ' ');
    begin = space + 1;
  }
  return out;
}

}  // namespace moekit::cli
