// SPDX-License-Identifier: Apache-2.0
// moekit plan: how a layer would run, on any device, without it.

#include "moekit/plan.h"

#include <string>

#include <fmt/format.h>

#include "cli/options.h"
#include "cli/plan_matrix.h"
#include "cli/subject.h"
#include "cli/verbs.h"

namespace moekit::cli {
namespace {

/// Shape of the matrix where no subject is given: every format divides it, every family accepts it.
Problem matrix_problem() {
  Problem problem;
  problem.num_experts = 128;
  problem.top_k = 8;
  problem.hidden_size = 2048;
  problem.intermediate_size = 768;
  return problem;
}

Result<ExitCode> report_matrix(Console& console, const PlanOptions& options) {
  Problem problem = matrix_problem();
  if (has_subject(options.layer)) {
    MOEKIT_ASSIGN_OR_RETURN(const Subject subject, resolve_subject(options.layer));
    problem = subject.problem;
  }
  problem.num_tokens = options.tokens.value_or(1024);
  const SupportMatrix matrix = support_matrix(problem);
  console.report(options.layer.json ? matrix_json(matrix) : matrix_markdown(matrix));
  return ExitCode::kOk;
}

}  // namespace

Result<ExitCode> plan_verb(Console& console, const PlanOptions& options) {
  if (options.matrix) {
    return report_matrix(console, options);
  }
  if (!options.tokens) {
    return invalid_argument("--tokens is required");
  }
  MOEKIT_ASSIGN_OR_RETURN(const Subject subject, resolve_subject(options.layer));
  Problem problem = subject.problem;
  problem.num_tokens = *options.tokens;
  if (subject.layer) {
    problem.routing = subject.layer->routing;  // as `run` does with the checkpoint's own router
  }
  MOEKIT_ASSIGN_OR_RETURN(const std::optional<Shard> shard, parse_shard(options.layer));
  if (shard) {
    MOEKIT_ASSIGN_OR_RETURN(problem, local_problem(problem, *shard));
  }
  MOEKIT_ASSIGN_OR_RETURN(const Plan plan, make_plan(problem, subject.device, subject.overrides));
  std::string text =
      options.layer.json ? plan.to_json(*options.tokens) : plan.to_text(*options.tokens);
  if (text.empty() || text.back() != '\n') {
    text.push_back('\n');
  }
  console.report(text);
  return ExitCode::kOk;
}

}  // namespace moekit::cli
