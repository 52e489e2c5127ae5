// SPDX-License-Identifier: Apache-2.0
#pragma once

// Text for messages: values joined without a format string, numbers printed so that they read back.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace moekit::base {

namespace text_detail {
void append(std::string& out, std::string_view text);
void append_signed(std::string& out, std::int64_t value);
void append_unsigned(std::string& out, std::uint64_t value);
void append_float(std::string& out, double value);

template <typename T>
void append_value(std::string& out, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    append(out, value ? "true" : "false");
  } else if constexpr (std::is_same_v<T, char>) {
    out.push_back(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    append_float(out, static_cast<double>(value));
  } else if constexpr (std::signed_integral<T>) {
    append_signed(out, static_cast<std::int64_t>(value));
  } else if constexpr (std::unsigned_integral<T>) {
    append_unsigned(out, static_cast<std::uint64_t>(value));
  } else {
    append(out, std::string_view(value));
  }
}
}  // namespace text_detail

/// `cat("rows ", 3, ", expected ", 4)`. Floating point prints shortest round trip.
template <typename... Parts>
[[nodiscard]] std::string cat(const Parts&... parts) {
  std::string out;
  (text_detail::append_value(out, parts), ...);
  return out;
}

/// Comma-separated list of anything `cat` takes.
template <typename Range>
[[nodiscard]] std::string join(const Range& range, std::string_view separator = ", ") {
  std::string out;
  for (const auto& item : range) {
    if (!out.empty()) {
      text_detail::append(out, separator);
    }
    text_detail::append_value(out, item);
  }
  return out;
}

/// `text` with everything but printable ASCII escaped and the middle of long texts cut, in quotes:
/// what a name from a file looks like inside a one-line message.
[[nodiscard]] std::string printable(std::string_view text);

/// Bytes of the well-formed UTF-8 sequence that `text` begins with; 0 where it begins with none.
[[nodiscard]] std::size_t utf8_sequence_length(std::string_view text) noexcept;
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

/// The entry of `candidates` with the smallest edit distance to `name`; empty when nothing is near.
template <typename Range>
[[nodiscard]] std::string nearest_name(std::string_view name, const Range& candidates);

/// Levenshtein distance, for nearest_name.
[[nodiscard]] std::size_t edit_distance(std::string_view left, std::string_view right);

template <typename Range>
std::string nearest_name(std::string_view name, const Range& candidates) {
  std::string best;
  std::size_t best_distance = name.size() / 2 + 1;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = std::string(candidate);
    }
  }
  return best;
}

}  // namespace moekit::base
