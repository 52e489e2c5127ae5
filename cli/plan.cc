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
LayerOptions with_matrix_shape(LayerOptions options) {
  if (!has_subject(options)) {
    options.experts = 128;
    options.top_k = 8;
    options.hidden = 2048;
    options.intermediate = 768;
  }
  return options;
}

Result<ExitCode> report_matrix(Console& console, const PlanOptions& options) {
  MOEKIT_ASSIGN_OR_RETURN(const Subject subject, resolve_subject(with_matrix_shape(options.layer)));
  if (options.layer.tp || options.layer.ep) {
    return invalid_argument("--matrix is of a whole layer: --tp and --ep have no meaning with it");
  }
  MatrixRequest request{subject.problem, subject.overrides, {}};
  request.problem.num_tokens = options.tokens.value_or(1024);
  if (options.layer.device) {
    request.devices.emplace_back(*options.layer.device, subject.device);
  } else {
    MOEKIT_ASSIGN_OR_RETURN(request.devices, matrix_devices());
  }
  MOEKIT_ASSIGN_OR_RETURN(const SupportMatrix matrix, support_matrix(request));
  console.report(options.layer.json ? matrix_json(request, matrix)
                                    : matrix_markdown(request, matrix));
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
  MOEKIT_ASSIGN_OR_RETURN(
      std::string text,
      options.layer.json ? plan.to_json(*options.tokens) : plan.to_text(*options.tokens));
  if (text.empty() || text.back() != '\n') {
    text.push_back('\n');
  }
  console.report(text);
  return ExitCode::kOk;
}

}  // namespace moekit::cli
