// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes JSON piece by piece into whatever takes text: a string, or a hash, which then needs no
// memory. Two blanks a level, one member a line.

#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace moekit::base {

class JsonWriter {
 public:
  /// `sink(std::string_view)` is called for each piece, in order; it must outlive the writer.
  template <typename Sink>
  explicit JsonWriter(Sink& sink)
      : target_(&sink),
        write_([](void* target, std::string_view piece) { (*static_cast<Sink*>(target))(piece); }) {
  }

  void begin_object() { begin('{'); }

  void end_object() { end('}'); }

  void begin_array() { begin('['); }

  void end_array() { end(']'); }

  /// The name of the value that is written next.
  void key(std::string_view name);

  /// Text (bytes that are no UTF-8 become U+FFFD), truth values and numbers. A number that JSON
  /// does not have becomes null.
  template <typename T>
  void value(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      literal(value ? "true" : "false");
    } else if constexpr (std::is_floating_point_v<T>) {
      number(static_cast<double>(value));
    } else if constexpr (std::signed_integral<T>) {
      number(static_cast<std::int64_t>(value));
    } else {
      text(std::string_view(value));
    }
  }

  template <typename T>
  void member(std::string_view name, const T& content) {
    key(name);
    value(content);
  }

 private:
  void begin(char bracket);
  void end(char bracket);
  void separate();
  void break_line();
  void literal(std::string_view digits);
  void number(std::int64_t value);
  void number(double value);
  void text(std::string_view value);
  void quote(std::string_view content);

  void put(std::string_view piece) { write_(target_, piece); }

  void* target_;
  void (*write_)(void* target, std::string_view piece);
  int depth_ = 0;
  bool empty_ = true;       // nothing stands yet in the innermost container
  bool after_key_ = false;  // the value follows on the same line
};

}  // namespace moekit::base
