// SPDX-License-Identifier: Apache-2.0
#pragma once

// One generated layer that a test changes and runs again: every step goes through the public API,
// every failure of a step fails the test.

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "moekit/moekit.h"

#include "runtime/verify_quirks.h"
#include "runtime/verify_tensors.h"
#include "runtime/verify_weights.h"

namespace moekit::tests {

/// Two worker threads, made once.
[[nodiscard]] const Runtime& shared_runtime();

struct LayerUnderTest {
  VerifyCase verify_case{};
  DeviceDescriptor device = host_cpu();
  verify::CaseWeights weights{};
  verify::CaseTensors tensors{};
  std::vector<std::int32_t> ids{};  // i32 ids that a test gave with set_ids
  std::vector<float> router_weights{};
  std::optional<Plan> plan{};
  PackedExperts packed{};
  verify::GuardedBuffer workspace{};

  /// From a verify case line.
  static LayerUnderTest make(std::string_view line);

  [[nodiscard]] Problem& problem() { return verify_case.problem; }

  [[nodiscard]] std::int64_t top_k() const { return verify_case.problem.top_k; }

  /// Replaces ids [num_tokens, top_k] and, where given, weights.
  void set_ids(std::vector<std::int32_t> new_ids, std::vector<float> new_weights = {});

  /// Plans and packs; run() does so when it was not done. Call again after changing the problem or
  /// the weights.
  void prepare();

  /// NaN-fills workspace and output, runs, returns the output row by row, widened to f32.
  std::vector<float> run(const Runtime& runtime = shared_runtime());

  /// The same, asking the oracle too: the report must say passed.
  std::vector<float> run_verified();

  [[nodiscard]] VerifyReport verify() const;
};

/// Row `token` of what run() returned.
[[nodiscard]] std::vector<float> row_of(const std::vector<float>& out,
                                        std::int64_t token,
                                        std::int64_t hidden);

/// Bit equality; NaN equals NaN.
[[nodiscard]] bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace moekit::tests
