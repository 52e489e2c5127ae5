// SPDX-License-Identifier: Apache-2.0

// The text of every preset's plan on every device, as it was last agreed: a launch geometry, a
// boundary or a workspace that changes is seen here. `scripts/update_golden_plans` writes the
// files.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "moekit/verify.h"

#include "tests/plans/plan_cases.h"

namespace moekit::tests {
namespace {

constexpr std::int64_t kTokens[] = {1, 7, 8, 64, 4096};

struct Preset {
  std::string name;
  Problem problem;
  PlanOverrides pins{};
};

std::string source_file(const std::string& name) {
  return std::string(MOEKIT_SOURCE_DIR).append("/").append(name);
}

std::vector<Preset> presets() {
  std::vector<Preset> made;
  for (const char* const file : {"bench/presets/gpu.txt", "bench/presets/cpu.txt"}) {
    std::ifstream lines(source_file(file));
    for (std::string line; std::getline(lines, line);) {
      if (line.empty() || line.front() == '#') {
        continue;
      }
      const std::size_t space = line.find(' ');
      made.push_back({line.substr(0, space),
                      parse_verify_case(line.substr(space) + " m=1").value().problem,
                      {}});
    }
  }
  // The recipes with quantised activations, in the shapes that reference.md gives boundaries for.
  for (const auto& [name, recipe, inner] :
       {std::tuple("glm52_tp8_w4a4", Recipe::kW4a4Nvfp4, 256),
        std::tuple("glm52_tp8_w4a8_nvfp4", Recipe::kW4a8Nvfp4, 256),
        std::tuple("glm52_tp2_w4a8_mxfp4", Recipe::kW4a8Mxfp4, 1024)}) {
    made.push_back({name, glm_tp8(recipe, 1), {}});
    made.back().problem.intermediate_size = inner;
  }
  made.push_back({"glm52_tp8_resident", glm_tp8(Recipe::kW4a16Nvfp4, 1), {.resident = true}});
  return made;
}

std::string golden_text(const Preset& preset) {
  std::string text;
  std::vector<std::string_view> devices{"cpu:avx2"};
  if (!preset.name.starts_with("cpu_")) {
    devices.insert(devices.end(), kGpus.begin(), kGpus.end());
  }
  for (const std::string_view device : devices) {
    for (const std::int64_t tokens : kTokens) {
      Problem problem = preset.problem;
      problem.num_tokens = tokens;
      text.append("== ").append(device).append(" M=").append(std::to_string(tokens)).append("\n");
      const Result<Plan> plan = make_plan(problem, device_of(device), preset.pins);
      text += plan.has_value() ? *plan->to_text(tokens) : plan.status().to_string() + "\n";
    }
  }
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

// Which plan, then the lines that went and came: enough to read, not a minimal edit.
std::string difference(const std::string& before, const std::string& after) {
  const std::vector<std::string> old_lines = lines_of(before);
  const std::vector<std::string> new_lines = lines_of(after);
  std::string text;
  std::string header;
  std::string shown;
  int count = 0;
  for (std::size_t i = 0; i < std::max(old_lines.size(), new_lines.size()) && count < 40; ++i) {
    const std::string was = i < old_lines.size() ? old_lines[i] : std::string();
    const std::string is = i < new_lines.size() ? new_lines[i] : std::string();
    header = is.starts_with("==") ? is : header;
    if (was != is) {
      if (shown != header) {
        text.append(header).append("\n");
        shown = header;
      }
      text.append("- ").append(was).append("\n+ ").append(is).append("\n");
      ++count;
    }
  }
  return text;
}

TEST(GoldenPlans, TextOfEveryPresetOnEveryDevice) {
  const bool update = std::getenv("MOEKIT_UPDATE_GOLDEN_PLANS") != nullptr;
  int compared = 0;
  for (const Preset& preset : presets()) {
    const std::string file = source_file("tests/plans/golden/" + preset.name + ".txt");
    const std::string text = golden_text(preset);
    if (update) {
      std::filesystem::create_directories(source_file("tests/plans/golden"));
      std::ofstream(file, std::ios::binary) << text;
    }
    std::ifstream stream(file, std::ios::binary);
    std::stringstream agreed;
    agreed << stream.rdbuf();
    EXPECT_TRUE(agreed.str() == text)
        << file << " differs; when that is meant, scripts/update_golden_plans\n"
        << difference(agreed.str(), text);
    ++compared;
  }
  EXPECT_GE(compared, 14);
}

}  // namespace
}  // namespace moekit::tests
