// SPDX-License-Identifier: Apache-2.0
#include "cli/console.h"

#include <cstdio>
#include <string>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "cli/echo.h"

namespace moekit::cli {

Console::Console(std::vector<std::string> words) noexcept
    : words_(std::move(words)), stderr_is_terminal_(isatty(STDERR_FILENO) == 1) {}

void Console::report(std::string_view text) noexcept {
  clear_progress();
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    report_failed_ = true;
  }
}

void Console::error(const Status& status) noexcept {
  complain("moekit: " + with_short_values(status.to_string(), words_));
}

void Console::warning(std::string_view message) noexcept {
  complain(fmt::format("moekit: warning: {}", message));
}

void Console::complain(std::string line) noexcept {
  clear_progress();
  for (char& c : line) {
    // File names and JSON keys from hostile inputs may hold line breaks or terminal escapes.
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      c = ' ';
    }
  }
  line.push_back('\n');
  // Nothing is left to tell the user with when stderr itself fails.
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
}

void Console::progress(std::string_view what, std::int64_t done, std::int64_t total) noexcept {
  if (!stderr_is_terminal_) {
    return;
  }
  const std::string line = fmt::format("\r\x1b[K{} {}/{}", what, done, total);
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
  progress_shown_ = true;
}

void Console::clear_progress() noexcept {
  if (progress_shown_) {
    static_cast<void>(std::fputs("\r\x1b[K", stderr));
    progress_shown_ = false;
  }
}

bool Console::finish() noexcept {
  clear_progress();
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && !report_failed_;
}

}  // namespace moekit::cli
