// SPDX-License-Identifier: Apache-2.0
#pragma once

// Test equipment: one random layer with every tensor a call can take, run through the public API on
// a chosen body and thread count, and what a plain double computation makes of the same numbers.

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "moekit/experts.h"
#include "moekit/plan.h"
#include "moekit/runtime.h"

#include "device/numerics/bf16.h"

namespace moekit::panels {

class LayerCase {
 public:
  explicit LayerCase(const Problem& problem, std::int64_t tokens, unsigned seed = 1)
      : problem_(problem), tokens_(tokens), random_(seed) {
    make_experts();
    make_inputs();
  }

  // Tensors a test may edit before run().
  std::vector<float> x;           // [tokens, hidden], rounded to io dtype
  std::vector<std::int64_t> ids;  // [tokens, top_k]
  std::vector<float> weights;     // [tokens, top_k]
  std::vector<std::int32_t> map;
  std::vector<float> shared;  // [tokens, hidden]
  std::vector<float> logits;  // [tokens, router experts] where the problem has a routing
  bool narrow_ids = true;     // i32 instead of i64

  struct Output {
    std::vector<float> out;                   // [tokens, hidden] widened
    std::vector<std::uint16_t> intermediate;  // [tokens * top_k, intermediate] bf16
  };

  /// Plans, prepares, binds and runs; the workspace is filled with `poison` first.
  Output run(const std::string& isa,
             int threads,
             ExecutionFamily family,
             unsigned char poison = 0xFF) const;

  /// Double precision with the recipe's rounding points. `own` replaces the intermediates by those
  /// of an implementation, so that the second product is judged alone.
  struct Expected {
    std::vector<double> out;
    std::vector<double> bound;  // allowed |difference| of out before the store's rounding
    std::vector<double> intermediate;
    std::vector<double> intermediate_bound;
  };

  Expected expected(const std::vector<std::uint16_t>& own) const;

  const Problem& problem() const { return problem_; }

  std::int64_t tokens() const { return tokens_; }

  std::int64_t local_expert(std::int64_t route) const {
    const std::int64_t id = ids[static_cast<std::size_t>(route)];
    if (id < 0 || id >= num_router_experts(problem_)) {
      return -1;
    }
    return problem_.expert_map ? map[static_cast<std::size_t>(id)] : id;
  }

 private:
  struct Matrix {
    std::vector<std::uint8_t> codes;
    std::vector<std::uint8_t> scales;
    std::vector<double> values;  // [rows, cols] without the global
    WeightMatrix view;
  };

  float uniform(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random_);
  }

  float round_io(float value) const {
    switch (problem_.io_dtype) {
      case DType::kBf16:
        return device::bf16_round(value);
      case DType::kF16:
        return device::f16_to_f32(device::f16_from_f32(value));
      default:
        return value;
    }
  }

  Matrix random_matrix(std::int64_t rows, std::int64_t cols);
  void make_experts();
  void make_inputs();
  Output execute(const Plan& plan,
                 const PackedExperts& packed,
                 const Runtime& runtime,
                 unsigned char poison) const;

  struct ExpertData {
    Matrix gate;
    Matrix up;
    Matrix down;
    std::vector<float> gate_bias;
    std::vector<float> up_bias;
    std::vector<float> down_bias;
  };

  Problem problem_;
  std::int64_t tokens_;
  std::mt19937 random_;
  std::vector<ExpertData> experts_;
  ExpertsSource source_;
};

}  // namespace moekit::panels
