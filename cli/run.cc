// SPDX-License-Identifier: Apache-2.0
// moekit run: one layer of a checkpoint on the hidden states of a file.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "moekit/moekit.h"

#include "cli/aligned_buffer.h"
#include "cli/layer_call.h"
#include "cli/options.h"
#include "cli/output_path.h"
#include "cli/reports.h"
#include "cli/subject.h"
#include "cli/verbs.h"

namespace moekit::cli {
namespace {

using Json = nlohmann::ordered_json;

/// The tensors of IN; data is null where the file has none of that name.
struct InputTensors {
  TensorView hidden_states{};
  TensorView topk_ids{};
  TensorView topk_weights{};
  TensorView router_logits{};
  TensorView token_ids{};
};

struct RunReport {
  std::vector<std::string> inferred;  // facts of the checkpoint, each with its source
  std::string routed_by;              // where ids and weights came from
  double first_us = 0.0;
  double second_us = 0.0;
  std::optional<VerifyReport> check{};
};

TensorView view_of(const Checkpoint& file, std::string_view name) {
  const NamedTensor* tensor = file.find(name);
  return tensor != nullptr ? tensor->view : TensorView{};
}

Status check_rank(const Checkpoint& file, std::string_view name, int rank) {
  const NamedTensor* tensor = file.find(name);
  if (tensor != nullptr && !tensor->foreign_dtype.empty()) {
    return invalid_argument(fmt::format("{}: {} has dtype {}, which moekit does not read",
                                        file.summary().path,
                                        name,
                                        tensor->foreign_dtype));
  }
  if (tensor != nullptr && tensor->view.rank != rank) {
    return invalid_argument(fmt::format(
        "{}: {} has rank {}, expected {}", file.summary().path, name, tensor->view.rank, rank));
  }
  return {};
}

Result<InputTensors> read_input(const Checkpoint& file) {
  for (const char* name : {"hidden_states", "topk_ids", "topk_weights", "router_logits"}) {
    MOEKIT_RETURN_IF_ERROR(check_rank(file, name, 2));
  }
  MOEKIT_RETURN_IF_ERROR(check_rank(file, "token_ids", 1));
  InputTensors input;
  input.token_ids = view_of(file, "token_ids");
  input.topk_ids = view_of(file, "topk_ids");
  input.topk_weights = view_of(file, "topk_weights");
  input.router_logits = view_of(file, "router_logits");
  if (file.find("hidden_states") == nullptr) {
    return invalid_argument(fmt::format("{} has no tensor hidden_states", file.summary().path));
  }
  input.hidden_states = view_of(file, "hidden_states");
  const bool has_ids = file.find("topk_ids") != nullptr;
  if (has_ids != (file.find("topk_weights") != nullptr)) {
    return invalid_argument(fmt::format("{} has {} without {}",
                                        file.summary().path,
                                        has_ids ? "topk_ids" : "topk_weights",
                                        has_ids ? "topk_weights" : "topk_ids"));
  }
  if (!has_ids) {
    input.topk_ids.data = nullptr;
  }
  return input;
}

/// True when the file has the tensor, even one without elements.
bool has(const Checkpoint& file, std::string_view name) {
  return file.find(name) != nullptr;
}

Status check_io_dtype(const RunOptions& options, const TensorView& hidden_states) {
  const std::string_view dtype = dtype_name(hidden_states.dtype);
  if (options.layer.io_dtype && *options.layer.io_dtype != dtype) {
    return invalid_argument(
        fmt::format("--io-dtype {}: hidden_states are {}, and the output takes their dtype",
                    *options.layer.io_dtype,
                    dtype));
  }
  return {};
}

struct Call {
  LayerSetup setup;
  RunArguments arguments;
  AlignedBuffer out;
};

/// Runs twice: the first call pays for page faults and sleeping threads. On a GPU each includes the
/// way of the tensors there and back.
Status run_layer(const Call& call, RunReport& report) {
  for (double* us : {&report.first_us, &report.second_us}) {
    const auto start = std::chrono::steady_clock::now();
    MOEKIT_RETURN_IF_ERROR(run_host_tensors(call.setup.runtime,
                                            call.setup.plan,
                                            call.setup.experts,
                                            call.setup.workspace.span(),
                                            call.arguments));
    const auto end = std::chrono::steady_clock::now();
    *us = std::chrono::duration<double, std::micro>(end - start).count();
  }
  return {};
}

Status write_output(const RunOptions& options, const Call& call, const RoutedCall& routed) {
  const MutableTensorView& out = call.arguments.out;
  std::vector<TensorToWrite> tensors{
      {"output",
       matrix_view(static_cast<const void*>(out.data), out.dtype, out.shape[0], out.shape[1])}};
  const std::int64_t num_tokens = out.shape[0];
  const std::int64_t top_k = call.setup.plan.problem().top_k;
  if (call.setup.plan.problem().routing) {
    tensors.push_back(
        {"topk_ids",
         matrix_view(static_cast<const void*>(routed.ids.data()), DType::kI32, num_tokens, top_k)});
    tensors.push_back(
        {"topk_weights",
         matrix_view(
             static_cast<const void*>(routed.weights.data()), DType::kF32, num_tokens, top_k)});
  }
  return write_safetensors(options.output, tensors);
}

std::string text_report(const RunOptions& options, const Call& call, const RunReport& report) {
  const std::int64_t num_tokens = call.arguments.x.shape[0];
  std::string text = text_or_throw(call.setup.plan.to_text(num_tokens));
  if (!text.empty() && text.back() != '\n') {
    text += '\n';
  }
  for (const std::string& fact : report.inferred) {
    text += fmt::format("inferred   {}\n", fact);
  }
  const std::optional<Routing>& routing = call.setup.plan.problem().routing;
  text += fmt::format("routing    {}{}\n",
                      report.routed_by,
                      routing ? ": " + routing_text(*routing) : std::string());
  text += fmt::format("time       {:.1f} us (first call {:.1f} us), {} tokens, {} threads\n",
                      report.second_us,
                      report.first_us,
                      num_tokens,
                      call.setup.runtime.num_threads());
  if (report.check) {
    text += report_text(*report.check, num_tokens);
  }
  text += fmt::format("output     {}\n", options.output);
  return text;
}

std::string json_report(const RunOptions& options, const Call& call, const RunReport& report) {
  const std::int64_t num_tokens = call.arguments.x.shape[0];
  const std::optional<Routing>& routing = call.setup.plan.problem().routing;
  return json_text(
      {{"schema", kPlanSchema},
       {"plan", Json::parse(text_or_throw(call.setup.plan.to_json(num_tokens)))},
       {"tokens", num_tokens},
       {"threads", call.setup.runtime.num_threads()},
       {"inferred", report.inferred},
       {"routed_by", report.routed_by},
       {"routing", routing ? routing_json(*routing) : Json(nullptr)},
       {"time_us", {{"first", report.first_us}, {"second", report.second_us}}},
       {"check", report.check ? report_json(*report.check, num_tokens) : Json(nullptr)},
       {"output", options.output}});
}

/// Fills problem and arguments with the routing that the input and the checkpoint ask for.
Result<RoutedCall> choose_routing(const Checkpoint& file,
                                  const Subject& subject,
                                  const InputTensors& input,
                                  Problem& problem,
                                  RunArguments& arguments) {
  if (has(file, "topk_ids")) {
    problem.routing.reset();
    problem.top_k = input.topk_ids.shape[1];
    arguments.topk_ids = input.topk_ids;
    arguments.topk_weights = input.topk_weights;
    return RoutedCall{};
  }
  MOEKIT_ASSIGN_OR_RETURN(
      RoutedCall routed,
      route_with_checkpoint(
          *subject.layer, input.hidden_states, {input.router_logits, input.token_ids}));
  problem.routing = subject.layer->routing;
  set_router_arguments(routed, arguments);
  return routed;
}

std::string routed_by(const Checkpoint& file) {
  if (has(file, "topk_ids")) {
    return has(file, "router_logits") ? "topk_ids of the input (its router_logits are not used)"
                                      : "topk_ids of the input";
  }
  return has(file, "router_logits") ? "router_logits of the input" : "router of the checkpoint";
}

}  // namespace

Result<ExitCode> run_verb(Console& console, const RunOptions& options) {
  MOEKIT_ASSIGN_OR_RETURN(const Subject subject, resolve_subject(options.layer));
  MOEKIT_ASSIGN_OR_RETURN(const Checkpoint file, Checkpoint::open(options.input));
  MOEKIT_ASSIGN_OR_RETURN(const InputTensors input, read_input(file));
  MOEKIT_RETURN_IF_ERROR(check_io_dtype(options, input.hidden_states));
  MOEKIT_RETURN_IF_ERROR(
      check_output_path(options.output, *options.layer.checkpoint, options.input));

  const std::int64_t num_tokens = input.hidden_states.shape[0];
  Problem problem = subject.problem;
  problem.num_tokens = num_tokens;
  problem.io_dtype = input.hidden_states.dtype;
  RunArguments arguments;
  arguments.x = input.hidden_states;
  MOEKIT_ASSIGN_OR_RETURN(const RoutedCall routed,
                          choose_routing(file, subject, input, problem, arguments));
  MOEKIT_ASSIGN_OR_RETURN(const Plan plan, make_plan(problem, subject.device, subject.overrides));
  MOEKIT_ASSIGN_OR_RETURN(
      AlignedBuffer out,
      AlignedBuffer::allocate(num_tokens * problem.hidden_size * dtype_bits(problem.io_dtype) / 8));
  arguments.out = matrix_view(
      static_cast<void*>(out.begin()), problem.io_dtype, num_tokens, problem.hidden_size);
  MOEKIT_ASSIGN_OR_RETURN(LayerSetup setup,
                          set_up_layer(console, plan, subject.layer->source, options.layer));
  const Call call{std::move(setup), arguments, std::move(out)};

  RunReport report;
  report.inferred = subject.layer->inferred;
  report.routed_by = routed_by(file);
  MOEKIT_RETURN_IF_ERROR(run_layer(call, report));
  if (options.check) {
    MOEKIT_ASSIGN_OR_RETURN(
        report.check,
        verify_call(plan, subject.layer->source, arguments, call.setup.workspace.span()));
  }
  if (const Status written = write_output(options, call, routed); !written.ok()) {
    console.error(written);
    return ExitCode::kFailed;
  }
  console.report(options.layer.json ? json_report(options, call, report)
                                    : text_report(options, call, report));
  return report.check && !report.check->passed ? ExitCode::kCheckFailed : ExitCode::kOk;
}

}  // namespace moekit::cli
