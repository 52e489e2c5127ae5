// SPDX-License-Identifier: Apache-2.0
// moekit verify: what a layer computes against the float64 oracle; for one layer, one case line or
// a whole suite.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "moekit/moekit.h"

#include "cli/aligned_buffer.h"
#include "cli/layer_call.h"
#include "cli/options.h"
#include "cli/random_inputs.h"
#include "cli/reports.h"
#include "cli/subject.h"
#include "cli/verbs.h"

namespace moekit::cli {
namespace {

using Json = nlohmann::ordered_json;

/// One check that was made: what reproduces it, and what came out.
struct Checked {
  std::string command;  // reproduces the check
  Recipe recipe = Recipe::kW16a16;
  std::int64_t num_tokens = 0;
  Status error{};  // not ok: it could not be made
  VerifyReport report{};

  [[nodiscard]] bool passed() const noexcept { return error.ok() && report.passed; }

  [[nodiscard]] std::string failure() const {
    return error.ok() ? report.first_failure : error.to_string();
  }
};

std::string case_command(const VerifyOptions& options, const VerifyCase& verify_case) {
  std::string command =
      fmt::format("moekit verify --case '{}'", text_or_throw(verify_case_line(verify_case)));
  if (options.layer.device) {
    command += fmt::format(" --device {}", *options.layer.device);
  }
  if (options.layer.threads) {
    command += fmt::format(" --threads {}", *options.layer.threads);
  }
  return command;
}

Checked check_case(const VerifyOptions& options,
                   const Runtime& runtime,
                   const VerifyCase& verify_case,
                   const DeviceDescriptor& device) {
  Checked checked{
      case_command(options, verify_case), verify_case.problem.recipe, verify_case.num_tokens};
  Result<VerifyReport> report = run_verify_case(runtime, verify_case, device);
  if (report) {
    checked.report = std::move(*report);
  } else {
    checked.error = report.status();
  }
  return checked;
}

/// Collects results in any order and reports failures in the order of the cases, as soon as every
/// case before them is done.
class SuiteProgress {
 public:
  SuiteProgress(Console& console, std::size_t num_cases, bool json)
      : console_(console), results_(num_cases), json_(json) {}

  void add(std::size_t index, Checked checked) {
    const std::lock_guard lock(mutex_);
    results_[index] = std::move(checked);
    ++num_done_;
    for (; next_ < results_.size() && results_[next_]; ++next_) {
      if (!results_[next_]->passed() && !json_) {
        console_.report(fmt::format(
            "FAILED  {}\n        {}\n", results_[next_]->command, results_[next_]->failure()));
      }
    }
    console_.progress(
        "cases", static_cast<std::int64_t>(num_done_), static_cast<std::int64_t>(results_.size()));
  }

  /// What a worker threw, the exception being handled: it must not leave the worker's thread.
  void fail() {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_ = std::current_exception();
    }
  }

  /// Call when every worker has ended. Throws what the first failing worker threw.
  [[nodiscard]] std::vector<Checked> take() {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    std::vector<Checked> all;
    for (std::optional<Checked>& result : results_) {
      all.push_back(std::move(*result));
    }
    return all;
  }

 private:
  Console& console_;
  std::vector<std::optional<Checked>> results_;
  bool json_;
  std::mutex mutex_{};
  std::exception_ptr failure_{};
  std::size_t num_done_ = 0;
  std::size_t next_ = 0;
};

/// Cases are spread over `jobs` workers, each with a pool of its own: the oracle is most of the
/// work and runs on one thread.
Result<std::vector<Checked>> check_suite(Console& console,
                                         const VerifyOptions& options,
                                         const std::vector<VerifyCase>& cases) {
  constexpr int kMaxJobs = 64;
  const int num_cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int jobs = options.jobs.value_or(std::min(num_cores, kMaxJobs));
  if (jobs < 1 || jobs > kMaxJobs) {
    return invalid_argument(fmt::format("--jobs {}: expected 1 to {}", jobs, kMaxJobs));
  }
  MOEKIT_ASSIGN_OR_RETURN(const DeviceDescriptor device, resolve_device(options.layer));
  std::vector<Runtime> runtimes;
  for (int i = 0; i < jobs; ++i) {
    RuntimeOptions runtime_options;
    runtime_options.num_threads = options.layer.threads.value_or(2);
    MOEKIT_ASSIGN_OR_RETURN(Runtime runtime, Runtime::create(runtime_options));
    runtimes.push_back(std::move(runtime));
  }
  SuiteProgress progress(console, cases.size(), options.layer.json);
  std::atomic<std::size_t> next{0};
  const auto work = [&](const Runtime& runtime) {
    try {
      for (std::size_t i = next++; i < cases.size(); i = next++) {
        progress.add(i, check_case(options, runtime, cases[i], device));
      }
    } catch (...) {
      progress.fail();
      next = cases.size();
    }
  };
  Status started;
  {
    std::vector<std::jthread> workers;
    try {
      for (const Runtime& runtime : runtimes) {
        workers.emplace_back([&work, &runtime] { work(runtime); });
      }
    } catch (const std::exception& error) {
      next = cases.size();  // those that run end soon
      started = out_of_memory(fmt::format("--jobs {}: starting a thread: {}", jobs, error.what()));
    }
  }
  MOEKIT_RETURN_IF_ERROR(started);
  return progress.take();
}

/// Random token ids within a layer's hash table, and logits where none can be computed from x.
struct RandomRouterInput {
  std::vector<std::int32_t> token_ids{};
  std::vector<float> logits{};
  RouterInput views{};
};

RandomRouterInput random_router_input(const CheckpointLayer& layer,
                                      std::int64_t num_tokens,
                                      RandomBits& random) {
  RandomRouterInput input;
  if (layer.routing->hash_table) {
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      const std::int64_t id = random.below(layer.router.hash_table.shape[0]);
      input.token_ids.push_back(static_cast<std::int32_t>(id));
    }
    input.views.token_ids = {input.token_ids.data(), DType::kI32, 1, {num_tokens}, {1}};
  }
  if (layer.router.weight.data == nullptr) {
    const std::int64_t num_experts = layer.routing->num_experts;
    for (std::int64_t i = 0; i < num_tokens * num_experts; ++i) {
      input.logits.push_back(8.0F * random.unit() - 4.0F);
    }
    input.views.logits = matrix_view(
        static_cast<const void*>(input.logits.data()), DType::kF32, num_tokens, num_experts);
  }
  return input;
}

/// Random hidden states through the weights of a checkpoint, routed by its router where it has one.
Result<VerifyReport> check_checkpoint_call(Console& console,
                                           const VerifyOptions& options,
                                           const Subject& subject,
                                           std::int64_t num_tokens) {
  const CheckpointLayer& layer = *subject.layer;
  Problem problem = subject.problem;
  problem.num_tokens = num_tokens;
  problem.routing = layer.routing;
  RandomBits random(options.seed);
  std::vector<std::byte> hidden_states = random_hidden_states(problem, num_tokens, random);
  RunArguments arguments;
  arguments.x = matrix_view(static_cast<const void*>(hidden_states.data()),
                            problem.io_dtype,
                            num_tokens,
                            problem.hidden_size);
  RandomRouterInput router_input;
  RoutedCall routed;
  RandomRoutes routes;
  if (layer.routing) {
    router_input = random_router_input(layer, num_tokens, random);
    MOEKIT_ASSIGN_OR_RETURN(routed, route_with_checkpoint(layer, arguments.x, router_input.views));
    set_router_arguments(routed, arguments);
  } else {
    routes = random_routes(problem, num_tokens, random);
    arguments.topk_ids = matrix_view(
        static_cast<const void*>(routes.ids.data()), DType::kI32, num_tokens, problem.top_k);
    arguments.topk_weights = matrix_view(
        static_cast<const void*>(routes.weights.data()), DType::kF32, num_tokens, problem.top_k);
  }
  std::vector<std::byte> out(hidden_states.size());
  arguments.out = matrix_view(
      static_cast<void*>(out.data()), problem.io_dtype, num_tokens, problem.hidden_size);
  MOEKIT_ASSIGN_OR_RETURN(const Plan plan, make_plan(problem, subject.device, subject.overrides));
  MOEKIT_ASSIGN_OR_RETURN(const LayerSetup setup,
                          set_up_layer(console, plan, layer.source, options.layer));
  MOEKIT_RETURN_IF_ERROR(
      run_host_tensors(setup.runtime, plan, setup.experts, setup.workspace.span(), arguments));
  return verify_call(plan, layer.source, arguments, setup.workspace.span());
}

/// The subject at every token count. An error is the user's to read, so it ends the verb.
Result<std::vector<Checked>> check_subject(Console& console, const VerifyOptions& options) {
  MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::int64_t> tokens,
                          parse_token_list(options.tokens, 0));
  MOEKIT_ASSIGN_OR_RETURN(const Subject subject, resolve_subject(options.layer));
  MOEKIT_ASSIGN_OR_RETURN(const Runtime runtime, create_runtime(options.layer));
  std::vector<Checked> results;
  for (const std::int64_t num_tokens : tokens) {
    Checked checked;
    if (subject.layer) {
      checked.num_tokens = num_tokens;
      checked.recipe = subject.problem.recipe;
      checked.command =
          fmt::format("{} --tokens {} --seed {}", options.command_line, num_tokens, options.seed);
      MOEKIT_ASSIGN_OR_RETURN(checked.report,
                              check_checkpoint_call(console, options, subject, num_tokens));
    } else {
      VerifyCase verify_case;
      verify_case.problem = subject.problem;
      verify_case.problem.num_tokens = num_tokens;
      verify_case.num_tokens = num_tokens;
      verify_case.seed = options.seed;
      verify_case.quirk = "none";
      verify_case.overrides = subject.overrides;
      checked = check_case(options, runtime, verify_case, subject.device);
      MOEKIT_RETURN_IF_ERROR(checked.error);
    }
    if (!options.layer.json) {
      console.report(
          fmt::format("{} tokens\n{}", num_tokens, report_text(checked.report, num_tokens)));
      if (!checked.passed()) {
        console.report(fmt::format("FAILED  {}\n        {}\n", checked.command, checked.failure()));
      }
    }
    results.push_back(std::move(checked));
  }
  return results;
}

Result<std::vector<Checked>> check_one_line(Console& console, const VerifyOptions& options) {
  MOEKIT_ASSIGN_OR_RETURN(const VerifyCase verify_case, parse_verify_case(*options.case_line));
  MOEKIT_ASSIGN_OR_RETURN(const DeviceDescriptor device, resolve_device(options.layer));
  MOEKIT_ASSIGN_OR_RETURN(const Runtime runtime, create_runtime(options.layer));
  Checked checked = check_case(options, runtime, verify_case, device);
  MOEKIT_RETURN_IF_ERROR(checked.error);
  if (!options.layer.json) {
    console.report(fmt::format("case       {}\n{}",
                               text_or_throw(verify_case_line(verify_case)),
                               report_text(checked.report, checked.num_tokens)));
  }
  return std::vector<Checked>{std::move(checked)};
}

Result<std::vector<VerifyCase>> cases_of_suite(const std::string& name) {
  if (name != "quick" && name != "full") {
    return invalid_argument(fmt::format("--suite {}: unknown, one of quick, full", name));
  }
  MOEKIT_ASSIGN_OR_RETURN(std::vector<VerifyCase> cases,
                          verify_suite(name == "quick" ? VerifySuite::kQuick : VerifySuite::kFull));
  if (cases.empty()) {
    return internal_error(fmt::format("suite {} has no cases", name));
  }
  return cases;
}

Status check_words(const VerifyOptions& options) {
  if (options.case_line && (options.suite || has_subject(options.layer))) {
    return invalid_argument("--case stands alone: it names problem, tokens and seed itself");
  }
  if (options.jobs && (options.case_line || has_subject(options.layer))) {
    return invalid_argument(
        "--jobs is of suites: a SUBJECT or a case is checked one call at a time");
  }
  if (has_subject(options.layer)) {
    return {};
  }
  constexpr std::array<std::string_view, 6> kWithoutSubject{
      "--suite", "--case", "--device", "--threads", "--jobs", "--json"};
  for (const std::string& name : options.given) {
    if (std::find(kWithoutSubject.begin(), kWithoutSubject.end(), name) == kWithoutSubject.end()) {
      return invalid_argument(
          fmt::format("{} needs a SUBJECT (--checkpoint, --preset or a shape): suites and --case "
                      "name problem, tokens and seed themselves",
                      name));
    }
  }
  return {};
}

/// How many checks passed in each recipe that had any.
Json passed_by_recipe(const std::vector<Checked>& results) {
  Json counts = Json::object();
  for (const RecipeInfo& info : kRecipes) {
    const auto of_recipe = [&info](const Checked& c) { return c.recipe == info.recipe; };
    if (std::any_of(results.begin(), results.end(), of_recipe)) {
      counts[std::string(info.name)] =
          std::count_if(results.begin(), results.end(), [&of_recipe](const Checked& c) {
            return of_recipe(c) && c.passed();
          });
    }
  }
  return counts;
}

std::string summary(const std::vector<Checked>& results, double seconds, bool json) {
  const auto passed =
      std::count_if(results.begin(), results.end(), [](const Checked& c) { return c.passed(); });
  const auto failed = static_cast<std::int64_t>(results.size()) - passed;
  const Json by_recipe = passed_by_recipe(results);
  if (!json) {
    std::string text;
    for (const auto& [recipe, count] : by_recipe.items()) {
      text += fmt::format("{} {}", text.empty() ? "passed    " : ",", recipe);
      text += fmt::format(" {}", count.get<std::int64_t>());
    }
    return text + fmt::format("{}{} checks passed, {} failed, {:.1f} s\n",
                              text.empty() ? "" : "\n",
                              passed,
                              failed,
                              seconds);
  }
  Json rows = Json::array();
  for (const Checked& checked : results) {
    Json row{{"command", checked.command}, {"passed", checked.passed()}};
    row["error"] = checked.error.ok() ? Json(nullptr) : Json(checked.error.to_string());
    row["report"] =
        checked.error.ok() ? report_json(checked.report, checked.num_tokens) : Json(nullptr);
    rows.push_back(std::move(row));
  }
  return json_text({{"schema", kPlanSchema},
                    {"passed", passed},
                    {"failed", failed},
                    {"passed_by_recipe", by_recipe},
                    {"seconds", seconds},
                    {"results", std::move(rows)}});
}

}  // namespace

Result<ExitCode> verify_verb(Console& console, const VerifyOptions& options) {
  MOEKIT_RETURN_IF_ERROR(check_words(options));
  const auto start = std::chrono::steady_clock::now();
  const bool subject = has_subject(options.layer);
  // A suite comes after the SUBJECT where both are asked for, and alone where nothing else is.
  const bool suite = options.suite || (!subject && !options.case_line);
  std::vector<VerifyCase> cases;
  if (suite) {
    MOEKIT_ASSIGN_OR_RETURN(cases, cases_of_suite(options.suite.value_or("quick")));
  }
  std::vector<Checked> results;
  if (options.case_line) {
    MOEKIT_ASSIGN_OR_RETURN(results, check_one_line(console, options));
  } else if (subject) {
    MOEKIT_ASSIGN_OR_RETURN(results, check_subject(console, options));
  }
  if (suite) {
    MOEKIT_ASSIGN_OR_RETURN(std::vector<Checked> more, check_suite(console, options, cases));
    std::move(more.begin(), more.end(), std::back_inserter(results));
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  console.report(summary(results, elapsed.count(), options.layer.json));
  const bool passed =
      std::all_of(results.begin(), results.end(), [](const Checked& c) { return c.passed(); });
  return passed ? ExitCode::kOk : ExitCode::kCheckFailed;
}

}  // namespace moekit::cli
