// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <array>
#include <charconv>
#include <unistd.h>

#include "base/text.h"

namespace moekit::base {
namespace {

constexpr std::array kVariables = {
    EnvironmentVariable{"MOEKIT_CACHE",
                        "folder",
                        "`$XDG_CACHE_HOME/moekit`, else `~/.cache/moekit`",
                        "where compiled kernel images are kept"},
    EnvironmentVariable{"MOEKIT_CACHE_MODE",
                        "`read_write`, `read_only` or `off`",
                        "`read_write`",
                        "whether that folder is written, only read, or left alone"},
    EnvironmentVariable{"MOEKIT_BUNDLE",
                        "folder or `none`",
                        "`moekit/kernels` beside the library",
                        "kernel images that were compiled ahead; `none` looks nowhere"},
    EnvironmentVariable{"MOEKIT_LOG_LEVEL",
                        "`off`, `error`, `warn`, `info` or `debug`",
                        "`off`",
                        "what goes to stderr when the program gave no log sink"},
    EnvironmentVariable{"MOEKIT_THREADS",
                        "1 to 1024",
                        "every core available to the process",
                        "threads of a CPU runtime that was not told a number"},
    EnvironmentVariable{"MOEKIT_DEVICES",
                        "list such as `0,2`, or `none`",
                        "all",
                        "CUDA devices, by the driver's number, that may be used"},
    EnvironmentVariable{"MOEKIT_CUDA_LIBRARY",
                        "file or `none`",
                        "`libcuda.so.1` as the loader finds it",
                        "the CUDA driver library; `none` behaves as a machine without one"},
    EnvironmentVariable{"MOEKIT_NVRTC_LIBRARY",
                        "file or `none`",
                        "`libnvrtc.so` as the loader finds it, then the toolkit's folders",
                        "the CUDA run-time compiler; `none` behaves as a machine without one"},
};
static_assert(kVariables.size() <= 10, "ten variables at most: a knob needs an owner");

constexpr std::string_view kPrefix = "MOEKIT_";

/// What the process said, before defaults that depend on other variables.
struct Reading {
  Config config{};
  std::string xdg_cache_home{};
  std::string home{};
  std::string cuda_path{};

  void reject(std::string_view name, std::string_view value, std::string_view legal) {
    config.problems.push_back(
        cat(name, "=", value, " is not understood, expected ", legal, "; the default is used"));
  }
};

std::optional<int> parse_int(std::string_view text, int low, int high) {
  int value = 0;
  const std::from_chars_result end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size() || value < low ||
      value > high) {
    return std::nullopt;
  }
  return value;
}

void read_cache_mode(Reading& reading, std::string_view value) {
  for (const CacheMode mode : {CacheMode::kReadWrite, CacheMode::kReadOnly, CacheMode::kOff}) {
    if (value == cache_mode_name(mode)) {
      reading.config.cache_mode = mode;
      return;
    }
  }
  reading.reject("MOEKIT_CACHE_MODE", value, kVariables[1].type);
}

void read_log_level(Reading& reading, std::string_view value) {
  constexpr std::array<std::string_view, 4> kLevels = {"error", "warn", "info", "debug"};
  if (value == "off") {
    return;
  }
  for (std::size_t i = 0; i < kLevels.size(); ++i) {
    if (value == kLevels[i]) {
      reading.config.log_level = static_cast<LogLevel>(i);
      return;
    }
  }
  reading.reject("MOEKIT_LOG_LEVEL", value, kVariables[3].type);
}

void read_threads(Reading& reading, std::string_view value) {
  if (const std::optional<int> threads = parse_int(value, 1, 1024)) {
    reading.config.num_threads = *threads;
    return;
  }
  reading.reject("MOEKIT_THREADS", value, kVariables[4].type);
}

void read_devices(Reading& reading, std::string_view value) {
  std::vector<int> devices;
  std::string_view rest = value == "none" ? std::string_view() : value;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::optional<int> ordinal = parse_int(rest.substr(0, comma), 0, 1023);
    if (!ordinal || comma + 1 == rest.size()) {
      reading.reject("MOEKIT_DEVICES", value, kVariables[5].type);
      return;
    }
    devices.push_back(*ordinal);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  reading.config.devices = std::move(devices);
}

void read_entry(Reading& reading, std::string_view name, std::string_view value) {
  Config& config = reading.config;
  if (name == "MOEKIT_CACHE") {
    config.cache_folder = value;
  } else if (name == "MOEKIT_CACHE_MODE") {
    read_cache_mode(reading, value);
  } else if (name == "MOEKIT_BUNDLE") {
    config.bundle_folder = value;
  } else if (name == "MOEKIT_LOG_LEVEL") {
    read_log_level(reading, value);
  } else if (name == "MOEKIT_THREADS") {
    read_threads(reading, value);
  } else if (name == "MOEKIT_DEVICES") {
    read_devices(reading, value);
  } else if (name == "MOEKIT_CUDA_LIBRARY") {
    config.cuda_library = value;
  } else if (name == "MOEKIT_NVRTC_LIBRARY") {
    config.nvrtc_library = value;
  } else if (name == "XDG_CACHE_HOME") {
    reading.xdg_cache_home = value;
  } else if (name == "HOME") {
    reading.home = value;
  } else if (name == "CUDA_HOME") {
    config.toolkit_folder = value;
  } else if (name == "CUDA_PATH") {
    reading.cuda_path = value;
  } else if (name.starts_with(kPrefix)) {
    std::vector<std::string_view> known;
    for (const EnvironmentVariable& variable : kVariables) {
      known.push_back(variable.name);
    }
    const std::string nearest = nearest_name(name, known);
    config.problems.push_back(
        cat(name,
            " is not a variable of moekit",
            nearest.empty() ? std::string() : cat(", the nearest is ", nearest)));
  }
}

}  // namespace

std::string_view cache_mode_name(CacheMode mode) noexcept {
  switch (mode) {
    case CacheMode::kReadWrite:
      return "read_write";
    case CacheMode::kReadOnly:
      return "read_only";
    case CacheMode::kOff:
      return "off";
  }
  return "unknown";
}

std::span<const EnvironmentVariable> environment_variables() noexcept {
  return kVariables;
}

std::string environment_markdown() {
  std::string text =
      "# Environment\n\n"
      "Generated from the table in `src/base/config.cc`; a test compares the two. Read once per\n"
      "process. Infrastructure only: no variable changes a plan or a result. An unknown "
      "`MOEKIT_*`\n"
      "name is reported with the nearest known one. An empty value counts as unset.\n\n"
      "| name | value | default | meaning |\n|---|---|---|---|\n";
  for (const EnvironmentVariable& variable : kVariables) {
    text += cat("| `",
                variable.name,
                "` | ",
                variable.type,
                " | ",
                variable.default_value,
                " | ",
                variable.meaning,
                " |\n");
  }
  text +=
      "\nOther names that are read: `XDG_CACHE_HOME` and `HOME` (the cache folder's default),\n"
      "`CUDA_HOME` and `CUDA_PATH` (places to look for the run-time compiler).\n";
  return text;
}

Config parse_config(std::span<const std::string_view> entries) {
  Reading reading;
  for (const std::string_view entry : entries) {
    const std::size_t equals = entry.find('=');
    if (equals != std::string_view::npos && equals + 1 < entry.size()) {
      read_entry(reading, entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  Config& config = reading.config;
  if (config.cache_folder.empty()) {
    // The XDG base directory rules: a relative XDG_CACHE_HOME is to be ignored.
    if (reading.xdg_cache_home.starts_with('/')) {
      config.cache_folder = reading.xdg_cache_home + "/moekit";
    } else if (!reading.home.empty()) {
      config.cache_folder = reading.home + "/.cache/moekit";
    }
  }
  if (config.toolkit_folder.empty()) {
    config.toolkit_folder = reading.cuda_path;
  }
  return std::move(reading.config);
}

const Config& environment_config() {
  static const Config config = [] {
    std::vector<std::string_view> entries;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
      entries.emplace_back(*entry);
    }
    return parse_config(entries);
  }();
  return config;
}

}  // namespace moekit::base
