// SPDX-License-Identifier: Apache-2.0
#pragma once

// For the oracle's own tests: a small random layer that owns its tensors, and a plain f32
// implementation of it that is written without the oracle's code, one scalar at a time.

#include <cstdint>
#include <random>
#include <vector>

#include "moekit/experts.h"
#include "moekit/problem.h"
#include "moekit/runtime.h"

namespace moekit::reference {

struct LayerFixture {
  Problem problem{};
  std::int64_t num_tokens = 0;
  std::vector<std::vector<unsigned char>> storage{};
  ExpertsSource source{};
  std::vector<unsigned char> x{};
  std::vector<std::int32_t> ids{};
  std::vector<float> weights{};
  std::vector<float> shared{};
  std::vector<unsigned char> out{};
  std::vector<std::uint16_t> intermediate{};
  RunArguments arguments{};

  /// Random weights, inputs and routes of `problem`; every field of it is honoured.
  static LayerFixture make(const Problem& problem, std::int64_t num_tokens, std::uint32_t seed);

  /// Points `arguments` at the vectors; call after changing their sizes.
  void bind();

  /// Fills `intermediate` and `out` in f32 arithmetic.
  void run_plain();
};

}  // namespace moekit::reference
