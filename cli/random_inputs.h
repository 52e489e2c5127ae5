// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reproducible inputs for verify and bench: the same seed gives the same bytes on every machine.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "moekit/experts.h"
#include "moekit/problem.h"
#include "moekit/runtime.h"
#include "moekit/status.h"

#include "cli/aligned_buffer.h"

namespace moekit::cli {

/// SplitMix64: one multiply chain per 8 bytes, so that filling a large layer takes seconds.
class RandomBits {
 public:
  explicit RandomBits(std::uint64_t seed) noexcept : state_(seed) {}

  [[nodiscard]] std::uint64_t next_bits() noexcept;

  /// 0 … bound-1, bound >= 1.
  [[nodiscard]] std::int64_t below(std::int64_t bound) noexcept;

  /// [0, 1)
  [[nodiscard]] float unit() noexcept;

 private:
  std::uint64_t state_;
};

/// [num_tokens, hidden] of `dtype` (bf16, f16 or f32), multiples of 1/128 in (-2, 2), which all
/// three hold exactly.
[[nodiscard]] std::vector<std::byte> random_hidden_states(const Problem& problem,
                                                          std::int64_t num_tokens,
                                                          RandomBits& random);

/// Distinct uniform expert ids and positive weights that sum to about 1, per token.
struct RandomRoutes {
  std::vector<std::int32_t> ids{};  // [num_tokens, top_k]
  std::vector<float> weights{};     // [num_tokens, top_k]
};

[[nodiscard]] RandomRoutes random_routes(const Problem& problem,
                                         std::int64_t num_tokens,
                                         RandomBits& random);

/// One call's tensors in host memory, with a routing of its own.
struct RandomCall {
  std::vector<std::byte> hidden_states;
  RandomRoutes routes;
  AlignedBuffer out;
  RunArguments arguments{};  // views of the three
};

[[nodiscard]] Result<RandomCall> random_call(const Problem& problem,
                                             std::int64_t num_tokens,
                                             RandomBits& random);

/// Expert weights for timing. Experts share a few sets of codes and differ in their globals and
/// biases, so that the source of a large layer stays small; prepare gives each its own packed
/// bytes.
class RandomExperts {
 public:
  [[nodiscard]] static Result<RandomExperts> make(const Problem& problem, RandomBits& random);

  [[nodiscard]] const ExpertsSource& source() const noexcept { return source_; }

 private:
  struct Storage;
  std::shared_ptr<const Storage> storage_{};
  ExpertsSource source_{};
};

}  // namespace moekit::cli
