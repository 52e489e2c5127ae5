// SPDX-License-Identifier: Apache-2.0
#pragma once

// One timed case of `moekit bench` and what is reported of it.

#include <cstdint>
#include <string>
#include <vector>

#include "moekit/moekit.h"

namespace moekit::cli {

struct Spread {
  double median = 0.0;
  double p10 = 0.0;
  double p90 = 0.0;
};

/// Median and deciles of the samples (nearest rank); zeros for none.
[[nodiscard]] Spread spread_of(std::vector<double> samples);

struct BenchResult {
  std::string subject;    // preset name, checkpoint or `shape`
  std::string case_line;  // reproduces the check
  std::int64_t num_tokens = 0;
  int num_threads = 0;
  std::int64_t num_weight_copies = 0;
  std::int64_t num_routings = 0;  // distinct ones, taken in turn
  Isa isa = Isa::kPortable;
  std::vector<std::string> turns{};  // instruction sets that took turns in this run
  std::int64_t flops = 0;
  VerifyReport check{};
  std::vector<double> time_us{};       // one per call
  std::vector<double> active_bytes{};  // weight bytes of the experts that call used
  std::vector<double> probe_gbps{};    // linear reads of as many bytes, interleaved
  // Of multiplying instructions in registers, interleaved; empty where the ISA has none.
  std::vector<double> probe_gflops{};       // dot products of vectors
  std::vector<double> probe_fma_gflops{};   // f32 multiply-adds
  std::vector<double> probe_tile_gflops{};  // dot products of tiles
  std::vector<double> probe_int8_gops{};    // dot products of bytes, which engines with 8-bit
                                            // activations have; no bound of this layer
};

/// Median of active_bytes / time, in GB/s.
[[nodiscard]] Spread layer_gbps(const BenchResult& result);

/// Each of the limits alone, as the probes of this run have it: the share of the time that the
/// medians leave to it. 1 means that nothing but this limit can be felt.
struct BoundFractions {
  double memory = 0.0;
  double dots = 0.0;
  double tiles = 0.0;  // 0 where the ISA has none
};

[[nodiscard]] BoundFractions bound_fractions(const BenchResult& result);

/// Why the fractions of a row say little, a line each with values: a probe whose rounds disagree, a
/// layer faster than its limits. Empty where nothing disturbed the run.
[[nodiscard]] std::vector<std::string> probe_doubts(const BenchResult& result);

/// Weight bytes of one expert as the checkpoint stores it: codes and scales, no padding.
[[nodiscard]] std::int64_t expert_bytes(const Problem& problem);

/// One timed case on a GPU.
struct DeviceBenchResult {
  std::string subject;
  std::string case_line;  // reproduces the check
  std::int64_t num_tokens = 0;
  std::int64_t num_weight_copies = 0;
  VerifyReport check{};
  DeviceTiming timing{};
};

[[nodiscard]] std::string device_bench_text(const DeviceBenchResult& result);

/// One line of JSON, with plan, device, driver, commit and command.
[[nodiscard]] std::string device_bench_json(const DeviceBenchResult& result,
                                            const Plan& plan,
                                            const std::string& command_line);

/// The lines that name a failed check and what reproduces it.
[[nodiscard]] std::string failed_check_line(const std::string& command_line,
                                            std::int64_t num_tokens,
                                            const VerifyReport& check);

/// Multiply-adds of both products count two.
[[nodiscard]] std::int64_t layer_flops(const Problem& problem, std::int64_t num_tokens);

[[nodiscard]] std::string bench_text(const BenchResult& result);

/// One line of JSON, with plan, device, commit and command.
[[nodiscard]] std::string bench_json(const BenchResult& result,
                                     const Plan& plan,
                                     const std::string& command_line);

}  // namespace moekit::cli
