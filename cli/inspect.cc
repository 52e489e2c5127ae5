// SPDX-License-Identifier: Apache-2.0
// moekit inspect: what a checkpoint is, what was inferred and from where, what nobody read.

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "moekit/checkpoint.h"

#include "cli/echo.h"
#include "cli/options.h"
#include "cli/reports.h"
#include "cli/subject.h"
#include "cli/verbs.h"

namespace moekit::cli {
namespace {

using Json = nlohmann::ordered_json;

Json layer_json(const CheckpointLayer& layer) {
  return Json{{"layer", layer.layer},
              {"scheme", layer.scheme},
              {"prefix", layer.prefix},
              {"problem", problem_json(layer.problem)},
              {"routing", layer.routing ? routing_json(*layer.routing) : Json(nullptr)},
              {"router",
               {{"weight", layer.router.weight.data != nullptr},
                {"bias", layer.router.bias.data != nullptr},
                {"correction_bias", layer.router.correction_bias.data != nullptr},
                {"expert_scale", layer.router.expert_scale.data != nullptr},
                {"hash_table_rows", layer.router.hash_table.shape[0]}}},
              {"input_scales", !layer.input_scales_down.empty()},
              {"inferred", layer.inferred}};
}

Json summary_json(const CheckpointSummary& summary) {
  return Json{{"path", summary.path},
              {"model_type", summary.model_type},
              {"quantization", summary.quantization},
              {"num_tensors", summary.num_tensors},
              {"num_files", summary.num_files},
              {"total_bytes", summary.total_bytes},
              {"moe_layers", summary.moe_layers},
              {"ignored_fields", summary.ignored_fields}};
}

std::string or_none(const std::string& text) {
  return text.empty() ? "none" : text;
}

std::string summary_text(const CheckpointSummary& summary) {
  return fmt::format(
      "checkpoint  {}\n"
      "model       {}\n"
      "quantised   {}\n"
      "tensors     {} in {} files, {} bytes\n"
      "MoE layers  {}\n"
      "ignored     {}\n",
      summary.path,
      or_none(shown(summary.model_type)),
      or_none(shown(summary.quantization)),
      summary.num_tensors,
      summary.num_files,
      summary.total_bytes,
      or_none(fmt::format("{}", fmt::join(summary.moe_layers, ", "))),
      or_none(fmt::format("{}", fmt::join(summary.ignored_fields, ", "))));
}

std::string layer_text(const CheckpointLayer& layer) {
  const Problem& problem = layer.problem;
  std::string text = fmt::format(
      "layer {}\n"
      "  scheme    {}, tensors {}*\n"
      "  problem   experts={} top_k={} hidden={} intermediate={} recipe={} activation={} "
      "row_order={}\n",
      layer.layer,
      layer.scheme,
      shown(layer.prefix),
      problem.num_experts,
      problem.top_k,
      problem.hidden_size,
      problem.intermediate_size,
      recipe_info(problem.recipe).name,
      activation_name(problem.activation.kind),
      row_order_name(problem.row_order));
  if (layer.routing) {
    text += fmt::format("  routing   {}\n", routing_text(*layer.routing));
  }
  for (const std::string& fact : layer.inferred) {
    text += fmt::format("  inferred  {}\n", fact);
  }
  return text;
}

}  // namespace

Result<ExitCode> inspect_verb(Console& console, const InspectOptions& options) {
  MOEKIT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_checkpoint(options.checkpoint));
  const CheckpointSummary& summary = checkpoint.summary();
  std::optional<std::int64_t> wanted = options.layer;
  if (!wanted && !summary.moe_layers.empty()) {
    wanted = summary.moe_layers.front();
  }
  Json json = summary_json(summary);
  json["layers"] = Json::array();
  std::string text = summary_text(summary);
  if (wanted) {
    MOEKIT_ASSIGN_OR_RETURN(const CheckpointLayer layer, checkpoint.layer(*wanted));
    json["layers"].push_back(layer_json(layer));
    text += layer_text(layer);
  }
  console.report(options.json ? json_text(json) : text);
  return ExitCode::kOk;
}

}  // namespace moekit::cli
