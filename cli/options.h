// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the user typed, verb by verb. Values stay as typed; subject.h turns them into a Problem. The
// only code that knows the words of the command line is command_line.cc.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moekit::cli {

struct LayerOptions {
  // SUBJECT
  std::optional<std::string> checkpoint{};
  std::optional<std::int64_t> layer{};
  std::optional<std::string> preset{};
  std::optional<std::int64_t> experts{};
  std::optional<std::int64_t> top_k{};
  std::optional<std::int64_t> hidden{};
  std::optional<std::int64_t> intermediate{};
  // OPTIONS
  std::optional<std::string> recipe{};
  std::optional<std::string> device{};
  std::optional<std::string> activation{};
  std::optional<float> limit{};
  std::optional<float> alpha{};
  std::optional<float> beta{};
  std::optional<std::string> row_order{};
  bool bias = false;
  std::optional<float> routed_scaling{};
  bool router_weight_on_input = false;
  std::optional<std::string> io_dtype{};
  std::optional<std::string> tp{};  // RANK/SIZE
  std::optional<std::string> ep{};  // RANK/SIZE
  bool allow_atomics = false;
  bool batch_invariant = false;
  std::optional<std::int64_t> max_workspace{};
  std::vector<std::string> pins{};
  std::optional<int> threads{};
  bool json = false;
};

struct DevicesOptions {
  bool json = false;
};

struct KernelsOptions {
  std::string action{};  // build, list, verify, prune or clear
  std::string folder{};  // of list, verify, prune and clear
  std::vector<std::string> archs{};
  std::string output{};
  int threads = 0;
  bool json = false;
};

struct InspectOptions {
  std::string checkpoint{};
  std::optional<std::int64_t> layer{};
  bool json = false;
};

struct QuantizeVerbOptions {
  std::string source{};
  std::string format{};
  std::string naming = "modelopt";
  std::string output{};
  std::optional<int> threads{};
  bool json = false;
};

struct PlanOptions {
  LayerOptions layer{};
  std::optional<std::int64_t> tokens{};
  bool matrix = false;
};

struct RunOptions {
  LayerOptions layer{};
  std::string input{};
  std::string output{};
  bool check = false;
};

struct VerifyOptions {
  LayerOptions layer{};
  std::string tokens = "1,2,7,8,33";
  std::optional<std::string> suite{};
  std::optional<std::string> case_line{};
  std::uint64_t seed = 1;
  std::optional<int> jobs{};
  std::string command_line{};        // as typed, for lines that reproduce a failure
  std::vector<std::string> given{};  // names of the options that were typed
};

struct BenchOptions {
  LayerOptions layer{};
  std::string tokens = "1,8,64";
  double seconds = 2.0;
  std::vector<std::string> isas{};  // take turns in one run; empty: the device's own
  bool on_request = false;
  std::uint64_t seed = 1;
  std::string command_line{};  // as typed, for benchmark rows
};

/// True when any of the four extents was given.
[[nodiscard]] inline bool has_shape(const LayerOptions& options) noexcept {
  return options.experts || options.top_k || options.hidden || options.intermediate;
}

/// True when a subject was named at all.
[[nodiscard]] inline bool has_subject(const LayerOptions& options) noexcept {
  return options.checkpoint || options.preset || has_shape(options);
}

}  // namespace moekit::cli
