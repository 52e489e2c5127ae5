// SPDX-License-Identifier: Apache-2.0
#pragma once

// Named shapes: the files of bench/presets, built into the program.

#include <string>
#include <string_view>
#include <vector>

#include "moekit/problem.h"
#include "moekit/status.h"

namespace moekit::cli {

/// A line of a preset file: `NAME case-line`, the case line as in `moekit verify --case`.
struct Preset {
  std::string name;
  std::string case_line;
  std::string file;  // which preset file, for listings
};

[[nodiscard]] std::vector<Preset> list_presets();

/// The problem of a preset, num_tokens 0.
///
/// Errors  kInvalidArgument  an unknown name, listing the known ones
[[nodiscard]] Result<Problem> preset_problem(std::string_view name);

}  // namespace moekit::cli
