// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench_case.h"
#include "cli/build_facts.h"
#include "cli/reports.h"

namespace moekit::cli {
namespace {

using Json = nlohmann::ordered_json;

Json spread_json(const Spread& spread) {
  return Json{{"median", spread.median}, {"p10", spread.p10}, {"p90", spread.p90}};
}

double gflops(const BenchResult& result) {
  const double us = spread_of(result.time_us).median;
  return us > 0.0 ? static_cast<double>(result.flops) / us / 1e3 : 0.0;
}

// A neighbour on the same core takes half of it: beyond that a median depends on whether it was
// there in more rounds than not. Single rounds move neither deciles nor medians.
void doubt_unsteady(const char* probe,
                    const std::vector<double>& samples,
                    std::vector<std::string>& doubts) {
  constexpr double kMost = 2.0;
  if (const Spread spread = spread_of(samples); spread.p90 > kMost * spread.p10) {
    doubts.push_back(fmt::format(
        "{}: p90 {:.4g} is more than {} times p10 {:.4g}", probe, spread.p90, kMost, spread.p10));
  }
}

// Calls and probes take turns: more than a steady machine leaves between them is no fraction.
void doubt_impossible(const char* limit, double fraction, std::vector<std::string>& doubts) {
  constexpr double kMost = 1.15;
  if (fraction > kMost) {
    doubts.push_back(fmt::format("{:.2f} of {}, more than {} cannot be", fraction, limit, kMost));
  }
}

}  // namespace

Spread spread_of(std::vector<double> samples) {
  if (samples.empty()) {
    return {};
  }
  std::sort(samples.begin(), samples.end());
  const auto at = [&samples](double quantile) {
    const double rank = std::round(quantile * static_cast<double>(samples.size() - 1));
    return samples[static_cast<std::size_t>(rank)];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

Spread layer_gbps(const BenchResult& result) {
  std::vector<double> samples;
  for (std::size_t i = 0; i < result.time_us.size(); ++i) {
    samples.push_back(result.active_bytes[i] / result.time_us[i] / 1e3);
  }
  return spread_of(std::move(samples));
}

BoundFractions bound_fractions(const BenchResult& result) {
  const double read = spread_of(result.probe_gbps).median;
  const auto of_peak = [&result](const std::vector<double>& probe) {
    const double peak = spread_of(probe).median;
    return peak > 0.0 ? gflops(result) / peak : 0.0;
  };
  return {read > 0.0 ? layer_gbps(result).median / read : 0.0,
          of_peak(result.probe_gflops),
          of_peak(result.probe_tile_gflops)};
}

std::vector<std::string> probe_doubts(const BenchResult& result) {
  std::vector<std::string> doubts;
  doubt_unsteady("probe_gbps", result.probe_gbps, doubts);
  double peak = 0.0;
  for (const auto& [name, samples] : {std::pair{"probe_gflops", &result.probe_gflops},
                                      {"probe_fma_gflops", &result.probe_fma_gflops},
                                      {"probe_tile_gflops", &result.probe_tile_gflops},
                                      {"probe_int8_gops", &result.probe_int8_gops}}) {
    doubt_unsteady(name, *samples, doubts);
    // Bodies multiply with whatever is fastest, byte products of digits included.
    peak = std::max(peak, spread_of(*samples).median);
  }
  doubt_impossible("a linear read", bound_fractions(result).memory, doubts);
  doubt_impossible("the highest peak", peak > 0.0 ? gflops(result) / peak : 0.0, doubts);
  return doubts;
}

std::int64_t expert_bytes(const Problem& problem) {
  const auto bytes = [](const WeightMatrix& shape) {
    return shape.rows * code_row_bytes(shape.format, shape.cols) +
           num_scale_rows(shape) * num_scale_cols(shape) * scale_elem_bytes(shape);
  };
  const WeightMatrix projection{.format = recipe_info(problem.recipe).weights,
                                .rows = problem.intermediate_size,
                                .cols = problem.hidden_size,
                                .group_size = problem.weight_group_size};
  WeightMatrix down = projection;
  down.rows = problem.hidden_size;
  down.cols = problem.intermediate_size;
  return (activation_is_gated(problem.activation.kind) ? 2 : 1) * bytes(projection) + bytes(down);
}

std::string failed_check_line(const std::string& command_line,
                              std::int64_t num_tokens,
                              const VerifyReport& check) {
  return fmt::format(
      "FAILED  {} --tokens {}\n        {}\n", command_line, num_tokens, check.first_failure);
}

std::int64_t layer_flops(const Problem& problem, std::int64_t num_tokens) {
  return 2 * num_tokens * problem.top_k * (num_gate_up_rows(problem) + problem.intermediate_size) *
         problem.hidden_size;
}

std::string bench_text(const BenchResult& result) {
  const Spread time = spread_of(result.time_us);
  const Spread probe = spread_of(result.probe_gbps);
  const std::string tiles = result.probe_tile_gflops.empty()
                                ? std::string()
                                : fmt::format(", {:.2f} of the tiles' ({:.1f})",
                                              bound_fractions(result).tiles,
                                              spread_of(result.probe_tile_gflops).median);
  return fmt::format(
      "{:<16} M {:>5}  {:>10.1f} us ({:.1f} .. {:.1f})  {:>6.2f} GB/s of weights, {:.2f} of a "
      "linear read ({:.2f} GB/s)  {:>7.1f} GFLOP/s, {:.2f} of the peak ({:.1f}){}  error {:.2e}  "
      "{}, "
      "{} "
      "threads, {} calls{}\n",
      result.subject,
      result.num_tokens,
      time.median,
      time.p10,
      time.p90,
      layer_gbps(result).median,
      bound_fractions(result).memory,
      probe.median,
      gflops(result),
      bound_fractions(result).dots,
      spread_of(result.probe_gflops).median,
      tiles,
      result.check.end_to_end_relative_l2,
      isa_name(result.isa),
      result.num_threads,
      result.time_us.size(),
      probe_doubts(result).empty() ? "" : ", fractions in doubt");
}

std::string bench_json(const BenchResult& result,
                       const Plan& plan,
                       const std::string& command_line) {
  const DeviceDescriptor& device = plan->device;
  const auto probe_or_null = [](const std::vector<double>& samples) {
    return samples.empty() ? Json() : spread_json(spread_of(samples));
  };
  return json_line(
      {{"subject", result.subject},
       {"case", result.case_line},
       {"tokens", result.num_tokens},
       {"recipe", recipe_info(plan.problem().recipe).name},
       {"device", device_json({device.arch == Arch::kCpu ? "cpu" : "cuda", device})},
       {"threads", result.num_threads},
       {"version", build_version()},
       {"commit", build_commit()},
       {"dirty", build_is_dirty()},
       {"command", command_line},
       {"plan", text_or_throw(plan.to_text(result.num_tokens))},
       {"weight_copies", result.num_weight_copies},
       {"routings", result.num_routings},
       {"turns", result.turns},
       {"time_us", spread_json(spread_of(result.time_us))},
       {"active_weight_bytes", spread_of(result.active_bytes).median},
       {"gbps", spread_json(layer_gbps(result))},
       {"probe_gbps", spread_json(spread_of(result.probe_gbps))},
       {"fraction_of_probe", bound_fractions(result).memory},
       {"gflops", gflops(result)},
       {"probe_gflops", spread_json(spread_of(result.probe_gflops))},
       {"fraction_of_dot_peak", bound_fractions(result).dots},
       {"probe_fma_gflops", spread_json(spread_of(result.probe_fma_gflops))},
       {"probe_tile_gflops", probe_or_null(result.probe_tile_gflops)},
       {"fraction_of_tile_peak",
        result.probe_tile_gflops.empty() ? Json() : Json(bound_fractions(result).tiles)},
       {"probe_int8_gops", probe_or_null(result.probe_int8_gops)},
       {"doubts", probe_doubts(result)},
       {"relative_l2", result.check.end_to_end_relative_l2},
       {"check", report_json(result.check, result.num_tokens)},
       {"samples_us", result.time_us}});
}

namespace {

double ratio_to_floor(const DeviceTiming& timing) {
  const double floor = spread_of(timing.floor_us).median;
  return floor > 0.0 ? spread_of(timing.layer_us).median / floor : 0.0;
}

double active_gbps(const DeviceTiming& timing) {
  const double us = spread_of(timing.layer_us).median;
  return us > 0.0 ? timing.active_bytes / us / 1e3 : 0.0;
}

}  // namespace

std::string device_bench_text(const DeviceBenchResult& result) {
  const DeviceTiming& timing = result.timing;
  const Spread time = spread_of(timing.layer_us);
  return fmt::format(
      "{:<16} M {:>3}  {:>8.2f} us ({:.2f} .. {:.2f})  floor {:>8.2f} us  ratio {:.3f}  {:>6.0f} "
      "GB/s of {:.1f} MB  {} calls a replay, {} weight copies\n",
      result.subject,
      result.num_tokens,
      time.median,
      time.p10,
      time.p90,
      spread_of(timing.floor_us).median,
      ratio_to_floor(timing),
      active_gbps(timing),
      timing.active_bytes / 1e6,
      timing.calls_per_replay,
      result.num_weight_copies);
}

std::string device_bench_json(const DeviceBenchResult& result,
                              const Plan& plan,
                              const std::string& command_line) {
  const DeviceTiming& timing = result.timing;
  return json_line(
      {{"subject", result.subject},
       {"case", result.case_line},
       {"tokens", result.num_tokens},
       {"recipe", recipe_info(plan.problem().recipe).name},
       {"device", device_json({"cuda", plan->device})},
       {"driver", timing.driver_version},
       {"version", build_version()},
       {"commit", build_commit()},
       {"dirty", build_is_dirty()},
       {"command", command_line},
       {"plan", text_or_throw(plan.to_text(result.num_tokens))},
       {"method", "graph replay, own routing per call, cold rotating weight copies, ids to output"},
       {"weight_copies", result.num_weight_copies},
       {"calls_per_replay", timing.calls_per_replay},
       {"time_us", spread_json(spread_of(timing.layer_us))},
       {"floor_us", spread_json(spread_of(timing.floor_us))},
       {"floor_kernel", timing.floor_kernel},
       {"ratio", ratio_to_floor(timing)},
       {"active_weight_bytes", timing.active_bytes},
       {"gbps", active_gbps(timing)},
       {"check", report_json(result.check, result.num_tokens)},
       {"samples_us", timing.layer_us}});
}

}  // namespace moekit::cli
