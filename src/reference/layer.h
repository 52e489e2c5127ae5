// SPDX-License-Identifier: Apache-2.0
#pragma once

// The layer in double, step by step as spec section 2 numbers them, for a batch of tokens: operands
// and the intermediate are rounded where the recipe rounds, nothing else is. Beside every value
// stands what an error bound needs: the magnitudes of the terms that were summed.

#include <cstdint>
#include <vector>

#include "moekit/experts.h"
#include "moekit/problem.h"
#include "moekit/runtime.h"

#include "base/thread_pool.h"
#include "reference/activation.h"
#include "reference/routes.h"

namespace moekit::reference {

/// What is computed, and the unit roundoff of the accumulator that is judged: 2^-24 for f32 FMA,
/// 2^-22 for BF16 MMA.
struct LayerCall {
  const Problem& problem;
  const ExpertsSource& source;
  const RunArguments& arguments;  // topk_ids and topk_weights are set, whoever made them
  double accumulator_epsilon = 0x1p-24;
  base::ThreadPool* pool = nullptr;
};

/// A token of a batch.
struct BatchToken {
  std::int64_t token = 0;
  bool active = false;      // at least one active route
  bool finite = true;       // every x operand is finite
  bool in_range = true;     // no step can leave the range of f32
  std::vector<double> x{};  // [hidden] bf16 values, what the quantiser is given
};

/// Where one operand of FC2 may differ from the one that is evaluated: by `delta`.
struct SparseDelta {
  std::int64_t index = 0;
  double delta = 0.0;
};

/// A route of a batch with its intermediate.
struct BatchRoute {
  Route route{};
  std::int64_t token_idx = 0;      // in Batch::tokens
  std::vector<double> exact{};     // [intermediate] step 2 before rounding
  std::vector<double> error{};     // [intermediate] bound on |implementation - exact|
  std::vector<double> a{};         // [intermediate] bf16 values, before the quantiser
  std::vector<double> operand{};   // what the products of FC1, later of FC2, read
  double operand_magnitude = 0.0;  // sum of |operand|
  std::vector<SparseDelta> deltas{};
};

struct Batch {
  std::vector<BatchToken> tokens{};
  std::vector<BatchRoute> routes{};  // sorted by expert
};

/// Operands and routes of `tokens`.
[[nodiscard]] Batch make_batch(const LayerCall& call, const std::vector<std::int64_t>& tokens);

/// Steps 1 and 2 of every route whose token is finite: fills exact and error, and a = RNE(exact).
void evaluate_gate_up(const LayerCall& call, Batch& batch);

/// Step 3 and 4 before the last rounding, with the magnitudes a bound needs.
///
/// Shapes  each [tokens of the batch, hidden]
struct Outputs {
  std::vector<double> value{};            // sum of p (a w2 G2 + bias2) + shared
  std::vector<double> magnitude{};        // the same over |terms|
  std::vector<double> flush{};            // 2^-126 of what flushed operands may lose
  std::vector<double> delta{};            // sum over deltas of p G2 w2 delta
  std::vector<double> delta_magnitude{};  // the same over |terms|
};

/// FC2 of the `a` that stand in the batch, quantised as the recipe says.
[[nodiscard]] Outputs evaluate_down(const LayerCall& call, Batch& batch);

/// The whole layer with the oracle's own intermediate, before the last rounding; an active token
/// with a non-finite operand has NaN.
///
/// Shapes  out [tokens, hidden]
[[nodiscard]] std::vector<double> evaluate_layer(const LayerCall& call,
                                                 const std::vector<std::int64_t>& tokens);

}  // namespace moekit::reference
