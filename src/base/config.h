// SPDX-License-Identifier: Apache-2.0
#pragma once

// The environment, read once into an immutable value. Infrastructure only (where things lie, how
// much is said); nothing here can change a plan or a result. The table in config.cc is the whole
// list, docs/environment.md is generated from it.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/status.h"

namespace moekit::base {

enum class CacheMode : std::uint8_t { kReadWrite, kReadOnly, kOff };

/// `read_write`, `read_only` or `off`.
[[nodiscard]] std::string_view cache_mode_name(CacheMode mode) noexcept;

struct Config {
  std::string cache_folder{};  // empty: nowhere to keep images (no HOME either)
  CacheMode cache_mode = CacheMode::kReadWrite;
  std::string bundle_folder{};                // empty: beside the library; `none`: no bundle
  std::optional<LogLevel> log_level{};        // unset: nothing goes to stderr
  int num_threads = 0;                        // 0: every core available to the process
  std::optional<std::vector<int>> devices{};  // CUDA ordinals that may be used; unset: all
  std::string cuda_library{};                 // `none`: behave as if there were no driver
  std::string nvrtc_library{};                // `none`: behave as if there were no compiler
  std::string toolkit_folder{};               // CUDA_HOME or CUDA_PATH, a place to look for NVRTC
  /// One line per variable that was not understood; the value above is then the default.
  std::vector<std::string> problems{};
};

/// A row of the table.
struct EnvironmentVariable {
  std::string_view name;
  std::string_view type;
  std::string_view default_value;
  std::string_view meaning;
};

/// At most ten rows.
[[nodiscard]] std::span<const EnvironmentVariable> environment_variables() noexcept;

/// The text of docs/environment.md.
[[nodiscard]] std::string environment_markdown();

/// What `entries` (each `NAME=value`) say. Unknown MOEKIT_* names become problems that name the
/// nearest known variable; the last entry of a name wins.
[[nodiscard]] Config parse_config(std::span<const std::string_view> entries);

/// The process's environment as it was at the first call.
[[nodiscard]] const Config& environment_config();

}  // namespace moekit::base
