// SPDX-License-Identifier: Apache-2.0
#pragma once

// The only code of the project that prints: reports on stdout, one-line errors, warnings and
// progress on stderr.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/status.h"

namespace moekit::cli {

class Console {
 public:
  /// `words`: the command line. Messages that repeat one of them show a long one shortened.
  explicit Console(std::vector<std::string> words) noexcept;

  /// Writes to stdout; a failure is remembered for `finish`.
  void report(std::string_view text) noexcept;

  /// `moekit: code: message` on stderr, always one line. Nobody's value fills the screen.
  void error(const Status& status) noexcept;

  /// `moekit: warning: message` on stderr, always one line. The exit code stays what it was.
  void warning(std::string_view message) noexcept;

  /// Overwrites one line on stderr, when that is a terminal.
  void progress(std::string_view what, std::int64_t done, std::int64_t total) noexcept;

  /// Removes the progress line.
  void clear_progress() noexcept;

  /// Flushes stdout. False when anything could not be written.
  [[nodiscard]] bool finish() noexcept;

 private:
  void complain(std::string line) noexcept;

  std::vector<std::string> words_;
  bool stderr_is_terminal_ = false;
  bool progress_shown_ = false;
  bool report_failed_ = false;
};

}  // namespace moekit::cli
