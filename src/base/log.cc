// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include "base/text.h"

namespace moekit::base {

struct Log::State {
  LogSink sink{};
  std::mutex mutex{};  // guards `warned`
  std::set<std::string, std::less<>> warned{};
};

std::string_view log_level_name(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kDebug:
      return "debug";
  }
  return "unknown";
}

Log::Log(LogSink sink) : state_(sink ? std::make_shared<State>() : nullptr) {
  if (state_ != nullptr) {
    state_->sink = std::move(sink);
  }
}

void Log::write(LogLevel level, std::string_view line) const noexcept {
  if (state_ == nullptr) {
    return;
  }
  try {
    state_->sink(level, line);
  } catch (...) {
    // A sink is the caller's code: what it throws must not cross into the library.
    return;
  }
}

void Log::warn_once(std::string_view subject, std::string_view line) const noexcept {
  if (state_ == nullptr) {
    return;
  }
  try {
    const std::lock_guard lock(state_->mutex);
    if (!state_->warned.emplace(subject).second) {
      return;
    }
  } catch (...) {
    return;  // out of memory: one warning less
  }
  warn(line);
}

LogSink stderr_sink(LogLevel level) {
  return [level](LogLevel event, std::string_view line) {
    if (event <= level) {
      const std::string text = cat("moekit: ", log_level_name(event), " ", line, "\n");
      static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
    }
  };
}

}  // namespace moekit::base
