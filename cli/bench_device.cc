// SPDX-License-Identifier: Apache-2.0
// moekit bench on a GPU: graph replays with weights that come from memory, after the output was
// checked, beside a kernel that only reads the same bytes.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "moekit/moekit.h"

#include "cli/aligned_buffer.h"
#include "cli/bench_case.h"
#include "cli/layer_call.h"
#include "cli/options.h"
#include "cli/random_inputs.h"
#include "cli/reports.h"
#include "cli/subject.h"
#include "cli/verbs.h"

namespace moekit::cli {
namespace {

constexpr std::int64_t kRotatedBytes = std::int64_t{4} << 30U;  // far beyond any L2
constexpr std::int64_t kMinCalls = 16;                          // distinct routings in one replay
constexpr std::int64_t kMaxCopies = 64;

struct DeviceLayer {
  Subject subject;
  std::optional<RandomExperts> random_experts{};
  Runtime runtime;
  std::vector<PackedExperts> copies{};

  [[nodiscard]] const ExpertsSource& source() const {
    return subject.layer ? subject.layer->source : random_experts->source();
  }
};

Result<Plan> plan_for(const Subject& subject, std::int64_t num_tokens) {
  Problem problem = subject.problem;
  problem.num_tokens = num_tokens;
  problem.routing.reset();  // measured from top-k ids on
  return make_plan(problem, subject.device, subject.overrides);
}

Result<DeviceLayer> build_layer(Console& console, const BenchOptions& options) {
  MOEKIT_ASSIGN_OR_RETURN(Subject subject, resolve_subject(options.layer));
  MOEKIT_ASSIGN_OR_RETURN(const Plan plan, plan_for(subject, 1));  // any M has the same layout
  std::optional<RandomExperts> random_experts;
  if (!subject.layer) {
    RandomBits random(options.seed);
    MOEKIT_ASSIGN_OR_RETURN(random_experts, RandomExperts::make(plan.problem(), random));
  }
  MOEKIT_ASSIGN_OR_RETURN(Runtime runtime, create_runtime(options.layer));
  DeviceLayer layer{std::move(subject), std::move(random_experts), std::move(runtime)};
  MOEKIT_ASSIGN_OR_RETURN(const PackedExperts packed, prepare(plan, layer.source()));
  const std::int64_t bytes = std::max<std::int64_t>(1, plan->prepare.packed_bytes);
  const std::int64_t num_copies =
      std::clamp<std::int64_t>((kRotatedBytes + bytes - 1) / bytes, 2, kMaxCopies);
  for (std::int64_t i = 0; i < num_copies; ++i) {
    console.progress("uploading copies", i, num_copies);
    MOEKIT_ASSIGN_OR_RETURN(PackedExperts copy, upload(layer.runtime, packed));
    layer.copies.push_back(std::move(copy));
  }
  console.clear_progress();
  return layer;
}

std::string case_line(const BenchOptions& options, const DeviceLayer& layer, const Plan& plan) {
  VerifyCase verify_case;
  verify_case.problem = plan.problem();
  verify_case.num_tokens = plan.problem().num_tokens;
  verify_case.seed = options.seed;
  verify_case.quirk = "none";
  verify_case.overrides = layer.subject.overrides;
  return text_or_throw(verify_case_line(verify_case));
}

/// Checks the first call, then times. A failed check leaves the result without times.
Result<DeviceBenchResult> measure(const BenchOptions& options,
                                  const DeviceLayer& layer,
                                  const Plan& plan) {
  DeviceBenchResult result;
  result.subject = layer.subject.label.empty() ? "shape" : layer.subject.label;
  result.case_line = case_line(options, layer, plan);
  result.num_tokens = plan.problem().num_tokens;
  result.num_weight_copies = static_cast<std::int64_t>(layer.copies.size());
  RandomBits random(options.seed + 1);
  std::vector<RandomCall> calls;
  for (std::int64_t i = 0; i < std::max(kMinCalls, result.num_weight_copies); ++i) {
    MOEKIT_ASSIGN_OR_RETURN(RandomCall call,
                            random_call(plan.problem(), result.num_tokens, random));
    calls.push_back(std::move(call));
  }
  MOEKIT_ASSIGN_OR_RETURN(const AlignedBuffer workspace,
                          AlignedBuffer::allocate(plan.workspace_bytes()));
  const RunArguments& first = calls.front().arguments;
  MOEKIT_RETURN_IF_ERROR(
      run_host_tensors(layer.runtime, plan, layer.copies.front(), workspace.span(), first));
  MOEKIT_ASSIGN_OR_RETURN(result.check, verify_call(plan, layer.source(), first, workspace.span()));
  if (!result.check.passed) {
    return result;
  }
  std::vector<RunArguments> arguments;
  for (const RandomCall& call : calls) {
    arguments.push_back(call.arguments);
  }
  MOEKIT_ASSIGN_OR_RETURN(result.timing,
                          time_on_device(layer.runtime, plan, layer.copies, arguments));
  return result;
}

}  // namespace

Result<ExitCode> bench_on_device(Console& console,
                                 const BenchOptions& options,
                                 const std::vector<std::int64_t>& tokens) {
  MOEKIT_ASSIGN_OR_RETURN(const DeviceLayer layer, build_layer(console, options));
  ExitCode code = ExitCode::kOk;
  for (const std::int64_t num_tokens : tokens) {
    MOEKIT_ASSIGN_OR_RETURN(const Plan plan, plan_for(layer.subject, num_tokens));
    MOEKIT_ASSIGN_OR_RETURN(const DeviceBenchResult result, measure(options, layer, plan));
    if (!result.check.passed) {
      console.report(failed_check_line(options.command_line, num_tokens, result.check));
      code = ExitCode::kCheckFailed;
      continue;
    }
    console.report(options.layer.json ? device_bench_json(result, plan, options.command_line)
                                      : device_bench_text(result));
  }
  return code;
}

}  // namespace moekit::cli
