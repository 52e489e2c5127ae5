// SPDX-License-Identifier: Apache-2.0
#include "cli/presets.h"

#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "moekit/verify.h"

#include "cli/preset_files.h"

namespace moekit::cli {

std::vector<Preset> list_presets() {
  std::vector<Preset> presets;
  for (const PresetFile& file : preset_files()) {
    std::istringstream lines{std::string(file.content)};
    for (std::string line; std::getline(lines, line);) {
      const std::size_t space = line.find(' ');
      if (line.empty() || line.front() == '#' || space == std::string::npos) {
        continue;
      }
      const std::size_t start = line.find_first_not_of(' ', space);
      presets.push_back({line.substr(0, space), line.substr(start), std::string(file.name)});
    }
  }
  return presets;
}

Result<Problem> preset_problem(std::string_view name) {
  std::vector<std::string> names;
  for (const Preset& preset : list_presets()) {
    if (preset.name == name) {
      // A preset is a shape: the token count comes from the command line.
      MOEKIT_ASSIGN_OR_RETURN(const VerifyCase parsed,
                              parse_verify_case(preset.case_line + " m=1"));
      Problem problem = parsed.problem;
      problem.num_tokens = 0;
      return problem;
    }
    names.push_back(preset.name);
  }
  return invalid_argument(
      fmt::format("--preset {}: unknown, one of {}", name, fmt::join(names, ", ")));
}

}  // namespace moekit::cli
