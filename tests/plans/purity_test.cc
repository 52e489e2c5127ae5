// SPDX-License-Identifier: Apache-2.0

// Planning is a pure function: equal input, equal text, whatever the process; quick; and without a
// driver.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/plans/plan_cases.h"

namespace moekit::tests {
namespace {

struct Asked {
  std::string device;
  std::string recipe;
  std::int64_t tokens;
};

std::vector<Asked> asked() {
  std::vector<Asked> made;
  for (const std::string_view device : kGpus) {
    for (const std::string_view recipe : {"w4a16_nvfp4", "w4a16_mxfp4"}) {
      made.push_back({std::string(device), std::string(recipe), 1});
      made.push_back({std::string(device), std::string(recipe), 1024});
    }
  }
  for (const std::string_view recipe : {"w4a4_nvfp4", "w4a8_nvfp4", "w4a8_mxfp4"}) {
    made.push_back({"sm_120a", std::string(recipe), 8});
  }
  return made;
}

struct Process {
  int exit_code = -1;
  std::string out{};
};

// The program in a process of its own, with a CUDA driver whose every entry ends the process.
Process run_program(const std::string& arguments) {
  const std::string command = std::string("MOEKIT_CUDA_LIBRARY='")
                                  .append(MOEKIT_DEADLY_DRIVER)
                                  .append("' '")
                                  .append(MOEKIT_CLI)
                                  .append("' ")
                                  .append(arguments)
                                  .append(" 2>/dev/null");
  Process process;
  FILE* pipe = popen(command.c_str(), "r");  // NOLINT(cert-env33-c): another process is the point
  if (pipe == nullptr) {
    return process;
  }
  std::array<char, 4096> buffer{};
  for (std::size_t got = 0; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    process.out.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  process.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return process;
}

Problem problem_of(const Asked& row) {
  return glm_tp8(recipe_from_name(row.recipe).value(), row.tokens);
}

TEST(Purity, AnotherProcessWithoutADriverGivesTheSameText) {
  int compared = 0;
  for (const Asked& row : asked()) {
    const Plan plan = plan_of(problem_of(row), row.device);
    const std::string options = std::string("plan --experts 256 --top-k 8 --hidden 6144 ")
                                    .append("--intermediate 256 --device ")
                                    .append(row.device)
                                    .append(" --recipe ")
                                    .append(row.recipe)
                                    .append(" --tokens ")
                                    .append(std::to_string(row.tokens));
    const Process text = run_program(options);
    EXPECT_EQ(text.exit_code, 0);
    EXPECT_EQ(text.out, *plan.to_text(row.tokens)) << options;
    const Process json = run_program(options + " --json");
    EXPECT_EQ(json.exit_code, 0);
    EXPECT_EQ(json.out, *plan.to_json(row.tokens) + "\n") << options;
    ++compared;
  }
  EXPECT_EQ(compared, 31);
}

TEST(Purity, TheDeadlyDriverIsDeadly) {
  EXPECT_EQ(run_program("devices").exit_code, 97);
}

TEST(Purity, JsonRoundTripGivesTheSameText) {
  int compared = 0;
  for (const Asked& row : asked()) {
    const Plan plan = plan_of(problem_of(row), row.device);
    const Result<Plan> back = Plan::from_json(*plan.to_json(row.tokens));
    ASSERT_TRUE(back.has_value()) << back.status().to_string();
    EXPECT_EQ(*back, plan);
    EXPECT_EQ(back->hash(), plan.hash());
    EXPECT_EQ(*back->to_text(row.tokens), *plan.to_text(row.tokens));
    EXPECT_EQ(*back->to_json(1), *plan.to_json(1));
    EXPECT_EQ(plan_of(problem_of(row), row.device), plan);
    ++compared;
  }
  EXPECT_EQ(compared, 31);
}

#if !defined(MOEKIT_SANITIZED) && defined(NDEBUG)
/// A quartile of 21 plannings in microseconds: a busy machine is not the planner either.
double planning_us(const Problem& problem, const DeviceDescriptor& device) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> microseconds;
  for (int i = 0; i < 21; ++i) {
    const Clock::time_point begin = Clock::now();
    const Result<Plan> plan = make_plan(problem, device);
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    EXPECT_TRUE(plan.has_value()) << plan.status().to_string();
  }
  std::sort(microseconds.begin(), microseconds.end());
  return microseconds[5];
}
#endif

TEST(Purity, PlanningTakesLessThanAMillisecond) {
#if defined(MOEKIT_SANITIZED) || !defined(NDEBUG)
  GTEST_SKIP() << "the time of a sanitizer or of unoptimised code is not the planner's";
#else
  double worst = 0.0;
  std::string slowest;
  const auto take =
      [&](const Problem& problem, const std::string& device, const std::string& name) {
        const double microseconds = planning_us(problem, device_of(device));
        if (microseconds > worst) {
          worst = microseconds;
          slowest = name;
        }
      };
  for (const Asked& row : asked()) {
    Problem problem = problem_of(row);
    problem.num_tokens = 65536;
    take(problem, row.device, row.device + " " + row.recipe);
  }
  // A budget searches for the chunk that fits, which prices every rung again.
  for (const std::int64_t budget : {70000000, 200000000}) {
    Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 200000);
    problem.top_k = 32;
    problem.intermediate_size = 2048;
    problem.max_workspace_bytes = budget;
    take(problem, "sm_90a", "budget " + std::to_string(budget));
  }
  RecordProperty("worst_us", static_cast<int>(worst));
  EXPECT_LT(worst, 1000.0) << slowest;
#endif
}

}  // namespace
}  // namespace moekit::tests
