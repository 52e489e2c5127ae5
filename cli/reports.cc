// SPDX-License-Identifier: Apache-2.0
#include "cli/reports.h"

#include <cmath>
#include <new>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace moekit::cli {
namespace {

using Json = nlohmann::ordered_json;

Json optional_json(const std::optional<float>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// JSON has no NaN: a cosine over an empty output becomes null.
Json number_json(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

}  // namespace

std::string text_or_throw(Result<std::string> text) {
  if (!text.has_value()) {
    throw std::bad_alloc();
  }
  return *std::move(text);
}

std::vector<NamedDevice> named_devices() {
  std::vector<NamedDevice> named;
  std::int64_t num_cuda = 0;
  for (const DeviceDescriptor& device : list_devices()) {
    named.push_back(
        {device.arch == Arch::kCpu ? "cpu" : fmt::format("cuda:{}", num_cuda++), device});
  }
  return named;
}

Json device_json(const NamedDevice& named) {
  const DeviceDescriptor& device = named.device;
  Json json{{"device", named.name}, {"name", device.name}, {"arch", arch_name(device.arch)}};
  if (device.arch == Arch::kCpu) {
    json["isa"] = isa_name(device.isa);
    json["num_threads"] = device.num_threads;
    json["l1d_bytes"] = device.l1d_bytes;
    json["l2_per_core_bytes"] = device.l2_per_core_bytes;
  } else {
    json["num_sms"] = device.num_sms;
    json["smem_per_block_bytes"] = device.smem_per_block_bytes;
    json["l2_bytes"] = device.l2_bytes;
  }
  return json;
}

Json routing_json(const Routing& routing) {
  return Json{{"scoring", scoring_name(routing.scoring)},
              {"num_experts", routing.num_experts},
              {"top_k", routing.top_k},
              {"num_groups", routing.num_groups},
              {"top_groups", routing.top_groups},
              {"renormalize", routing.renormalize},
              {"scale", routing.scale},
              {"correction_bias", routing.correction_bias},
              {"expert_scale", routing.expert_scale},
              {"hash_table", routing.hash_table}};
}

Json problem_json(const Problem& problem) {
  const Activation& activation = problem.activation;
  return Json{{"num_experts", problem.num_experts},
              {"top_k", problem.top_k},
              {"hidden_size", problem.hidden_size},
              {"intermediate_size", problem.intermediate_size},
              {"recipe", recipe_info(problem.recipe).name},
              {"activation",
               {{"kind", activation_name(activation.kind)},
                {"limit", optional_json(activation.limit)},
                {"alpha", optional_json(activation.alpha)},
                {"beta", optional_json(activation.beta)},
                {"gate_scale", optional_json(activation.gate_scale)},
                {"up_scale", optional_json(activation.up_scale)}}},
              {"row_order", row_order_name(problem.row_order)},
              {"gate_up_bias", problem.gate_up_bias},
              {"down_bias", problem.down_bias},
              {"routed_scaling", problem.routed_scaling},
              {"routed_scaling_place", scaling_place_name(problem.routed_scaling_place)},
              {"router_weight_on_input", problem.router_weight_on_input},
              {"io_dtype", dtype_name(problem.io_dtype)},
              {"combine_order", combine_order_name(problem.combine_order)}};
}

std::string routing_text(const Routing& routing) {
  return fmt::format(
      "{} top {} of {}, groups {} of {}, renormalize={} scale={} correction_bias={}{}{}",
      scoring_name(routing.scoring),
      routing.top_k,
      routing.num_experts,
      routing.top_groups,
      routing.num_groups,
      routing.renormalize,
      routing.scale,
      routing.correction_bias,
      routing.expert_scale ? " expert_scale=true" : "",
      routing.hash_table ? " hash_table=true" : "");
}

Json report_json(const VerifyReport& report, std::int64_t num_tokens) {
  return Json{{"passed", report.passed},
              {"tokens_checked", report.tokens_checked},
              {"tokens", num_tokens},
              {"tokens_not_sampled", report.tokens_not_sampled},
              {"tokens_overwritten", report.tokens_overwritten},
              {"tokens_out_of_range", report.tokens_out_of_range},
              {"tokens_not_finite", report.tokens_not_finite},
              {"tokens_inactive", report.tokens_inactive},
              {"routes_checked", report.routes_checked},
              {"intermediates_checked", report.intermediates_checked},
              {"intermediates_differing", report.intermediates_differing},
              {"intermediates_out_of_bound", report.intermediates_out_of_bound},
              {"outputs_checked", report.outputs_checked},
              {"outputs_out_of_bound", report.outputs_out_of_bound},
              {"max_abs_error", number_json(report.max_abs_error)},
              {"rms_error", number_json(report.rms_error)},
              {"max_bound_fraction", number_json(report.max_bound_fraction)},
              {"cosine", number_json(report.cosine)},
              {"end_to_end_relative_l2", number_json(report.end_to_end_relative_l2)},
              {"first_failure", report.first_failure}};
}

namespace {

struct TokenCount {
  std::int64_t count;
  const char* what;
};

/// `unchecked  3 tokens: 1 whose ..., 2 ...`; empty where every count is 0.
std::string counts_line(const char* label, const std::vector<TokenCount>& counts) {
  std::int64_t total = 0;
  std::string parts;
  for (const TokenCount& part : counts) {
    if (part.count > 0) {
      total += part.count;
      parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", part.count, part.what);
    }
  }
  return total == 0
             ? std::string()
             : fmt::format("{:<10} {} token{}: {}\n", label, total, total == 1 ? "" : "s", parts);
}

std::string tokens_text(const VerifyReport& report) {
  return counts_line("rows",
                     {{report.tokens_not_finite, "with a non-finite x, whose rows must be NaN"},
                      {report.tokens_inactive,
                       "without an active route, whose rows must be exactly 0 or shared"}}) +
         counts_line("unchecked",
                     {{report.tokens_out_of_range,
                       "with weights that are not finite or sums that may leave the range of f32"},
                      {report.tokens_overwritten,
                       "of earlier chunks, whose quantised intermediate is overwritten"},
                      {report.tokens_not_sampled, "beyond the 64 that are sampled"}});
}

}  // namespace

std::string report_text(const VerifyReport& report, std::int64_t num_tokens) {
  std::string text = fmt::format(
      "check      {}, {} of {} tokens checked, {} outputs against the float64 oracle\n"
      "error      max {:.3e}, rms {:.3e}, {:.1f} % of the bound, cosine {:.9f}, end to end {:.2e}\n"
      "stage 1    {} of {} intermediates differ from the rounded oracle, {} beyond a rounding "
      "tie\n",
      report.passed ? "passed" : "FAILED",
      report.tokens_checked,
      num_tokens,
      report.outputs_checked,
      report.max_abs_error,
      report.rms_error,
      100.0 * report.max_bound_fraction,
      report.cosine,
      report.end_to_end_relative_l2,
      report.intermediates_differing,
      report.intermediates_checked,
      report.intermediates_out_of_bound);
  text += tokens_text(report);
  if (!report.passed) {
    text += fmt::format("failure    {}\n", report.first_failure);
  }
  return text;
}

std::string json_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string json_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace moekit::cli
