// SPDX-License-Identifier: Apache-2.0
#pragma once

// A small random layer that owns its memory, for the tests of prepare, bind and run.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "moekit/experts.h"
#include "moekit/runtime.h"

namespace moekit {

/// Heap memory at a multiple of 256 bytes.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::int64_t size, std::byte fill = std::byte{0})
      : memory_(static_cast<std::byte*>(std::aligned_alloc(256, rounded(size)))),
        size_(static_cast<std::size_t>(size)) {
    std::fill_n(memory_.get(), rounded(size), fill);
  }

  [[nodiscard]] std::span<std::byte> span() const { return {memory_.get(), size_}; }

 private:
  static std::size_t rounded(std::int64_t size) {
    return (static_cast<std::size_t>(size) + 511) / 256 * 256;
  }

  struct Free {
    void operator()(std::byte* pointer) const {
      std::free(pointer);
    }  // NOLINT(cppcoreguidelines-no-malloc)
  };

  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_;
};

/// Ragged against every group and tile, and quick to run.
inline Problem small_problem() {
  Problem problem;
  problem.num_tokens = 5;
  problem.num_experts = 4;
  problem.top_k = 2;
  problem.hidden_size = 48;
  problem.intermediate_size = 40;
  problem.recipe = Recipe::kW4a16Nvfp4;
  return problem;
}

/// Live and largest bytes of operator new in this test program, counted in bind_test.cc.
struct HeapCount {
  static inline std::atomic<std::int64_t> live{0};
  static inline std::atomic<std::int64_t> most{0};
  /// Allocations that still succeed; every one after them fails.
  static inline std::atomic<std::int64_t> allowed{std::numeric_limits<std::int64_t>::max()};
};

/// The most that was live beyond what was live when it was made.
class HeapPeak {
 public:
  HeapPeak() : start_(HeapCount::live.load()) { HeapCount::most.store(start_); }

  [[nodiscard]] std::int64_t bytes() const { return HeapCount::most.load() - start_; }

 private:
  std::int64_t start_;
};

struct TestLayer {
  explicit TestLayer(const Problem& wanted, std::uint32_t seed = 1)
      : problem(wanted), random(seed) {
    const Format format = recipe_info(problem.recipe).weights;
    source.experts.resize(static_cast<std::size_t>(problem.num_experts));
    for (ExpertWeights& expert : source.experts) {
      if (activation_is_gated(problem.activation.kind)) {
        expert.gate = matrix(format, problem.intermediate_size, problem.hidden_size);
      }
      expert.up = matrix(format, problem.intermediate_size, problem.hidden_size);
      expert.down = matrix(format, problem.hidden_size, problem.intermediate_size);
    }
  }

  WeightMatrix matrix(Format format, std::int64_t rows, std::int64_t cols) {
    std::normal_distribution<float> normal(0.0F, 0.1F);
    std::vector<float> values(static_cast<std::size_t>(rows * cols));
    for (float& value : values) {
      value = normal(random);
    }
    WeightMatrix result;
    result.format = format;
    result.rows = rows;
    result.cols = cols;
    result.row_stride_bytes = code_row_bytes(format, cols);
    result.scale_row_stride_bytes = num_scale_cols(result);
    storage.emplace_back(static_cast<std::size_t>(result.row_stride_bytes * rows));
    EncodedWeights encoded{storage.back(), {}, 1.0F};
    result.codes = storage.back().data();
    if (result.scale_row_stride_bytes != 0) {
      storage.emplace_back(static_cast<std::size_t>(result.scale_row_stride_bytes * rows));
      encoded.scales = storage.back();
      result.scales = storage.back().data();
    }
    if (!encode_weights(format, values, rows, encoded).ok()) {
      std::abort();
    }
    result.global_scale = encoded.global_scale;
    return result;
  }

  Problem problem;
  std::mt19937 random;
  std::vector<std::vector<std::byte>> storage{};
  ExpertsSource source{};
};

}  // namespace moekit
