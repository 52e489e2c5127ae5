// SPDX-License-Identifier: Apache-2.0
#include "base/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/text.h"

namespace moekit::base {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

std::string_view short_escape(char c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return {};
  }
}

}  // namespace

void JsonWriter::break_line() {
  put("\n");
  for (int level = 0; level < depth_; ++level) {
    put("  ");
  }
}

void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (depth_ > 0) {
    put(empty_ ? "" : ",");
    break_line();
  }
}

void JsonWriter::begin(char bracket) {
  separate();
  put(std::string_view(&bracket, 1));
  ++depth_;
  empty_ = true;
}

void JsonWriter::end(char bracket) {
  --depth_;
  if (!empty_) {
    break_line();
  }
  put(std::string_view(&bracket, 1));
  empty_ = false;
}

void JsonWriter::key(std::string_view name) {
  separate();
  quote(name);
  put(": ");
  empty_ = false;
  after_key_ = true;
}

void JsonWriter::literal(std::string_view digits) {
  separate();
  put(digits);
  empty_ = false;
}

void JsonWriter::text(std::string_view value) {
  separate();
  quote(value);
  empty_ = false;
}

void JsonWriter::number(std::int64_t value) {
  std::array<char, 24> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  literal({buffer.data(), end.ptr});
}

// The shortest digits that read back as `value`; a point or an exponent says that it is no integer.
// Decimal where at most 15 digits stand before the point and at most 3 zeros behind it: the form in
// which plans were written first, and on which their hashes rest.
void JsonWriter::number(double value) {
  if (!std::isfinite(value)) {
    literal("null");
    return;
  }
  const double size = std::fabs(value);
  const bool decimal = size == 0.0 || (size >= 1e-4 && size < 1e15);
  std::array<char, 48> buffer{};
  const auto end =
      std::to_chars(buffer.data(),
                    buffer.data() + buffer.size() - 2,
                    value,
                    decimal ? std::chars_format::fixed : std::chars_format::scientific);
  char* last = end.ptr;
  if (std::string_view(buffer.data(), last).find_first_of(".e") == std::string_view::npos) {
    *last++ = '.';
    *last++ = '0';
  }
  literal({buffer.data(), last});
}

void JsonWriter::quote(std::string_view content) {
  put("\"");
  while (!content.empty()) {
    const std::size_t length = utf8_sequence_length(content);
    const char first = content.front();
    if (const std::string_view escape = short_escape(first); !escape.empty()) {
      put(escape);
    } else if (length == 0) {
      put("\xEF\xBF\xBD");
    } else if (static_cast<unsigned char>(first) < 0x20) {
      const auto code = static_cast<unsigned char>(first);
      put("\\u00");
      put(kHexDigits.substr(code >> 4, 1));
      put(kHexDigits.substr(code & 15, 1));
    } else {
      put(content.substr(0, length));
    }
    content.remove_prefix(length == 0 ? 1 : length);
  }
  put("\"");
}

}  // namespace moekit::base
