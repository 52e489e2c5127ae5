// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where events go: a sink that the program gives, or nothing. One line per event, `key=value`
// words after its name, never from a call that has been prewarmed.

#include <functional>
#include <memory>
#include <string_view>

#include "moekit/status.h"

namespace moekit::base {

using LogSink = std::function<void(LogLevel, std::string_view)>;

/// `error`, `warn`, `info` or `debug`.
[[nodiscard]] std::string_view log_level_name(LogLevel level) noexcept;

/// Cheap to copy; copies share the sink and the memory of warn_once. A Log without a sink drops
/// everything. The sink may be called from several threads at once.
class Log {
 public:
  Log() = default;
  explicit Log(LogSink sink);

  void write(LogLevel level, std::string_view line) const noexcept;

  void error(std::string_view line) const noexcept { write(LogLevel::kError, line); }

  void warn(std::string_view line) const noexcept { write(LogLevel::kWarn, line); }

  void info(std::string_view line) const noexcept { write(LogLevel::kInfo, line); }

  void debug(std::string_view line) const noexcept { write(LogLevel::kDebug, line); }

  /// Warns the first time that `subject` comes; later lines on it are dropped.
  void warn_once(std::string_view subject, std::string_view line) const noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Writes `moekit: level line` to stderr, down to `level`: what MOEKIT_LOG_LEVEL switches on.
[[nodiscard]] LogSink stderr_sink(LogLevel level);

}  // namespace moekit::base
