// SPDX-License-Identifier: Apache-2.0
#pragma once

// One layer ready to be called: plan, packed weights, runtime, workspace; and the tensors of a call
// that routes with the checkpoint's own router.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "moekit/moekit.h"

#include "cli/aligned_buffer.h"
#include "cli/console.h"
#include "cli/options.h"

namespace moekit::cli {

struct LayerSetup {
  Plan plan;
  PackedExperts experts;
  Runtime runtime;
  AlignedBuffer workspace;
};

/// Packs with progress on the console, creates the pool, allocates the workspace.
[[nodiscard]] Result<LayerSetup> set_up_layer(Console& console,
                                              const Plan& plan,
                                              const ExpertsSource& source,
                                              const LayerOptions& options);

[[nodiscard]] Result<Runtime> create_runtime(const LayerOptions& options);

/// What routing made of the hidden states, with the tensors it came from.
struct RoutedCall {
  std::vector<float> logits{};           // [num_tokens, num_experts] when the router ran here
  TensorView router_logits{};            // those, or the ones given
  std::vector<float> correction_bias{};  // [num_experts] where the routing has one
  std::vector<float> expert_scale{};     // [num_experts] where the routing has one
  HashTable hash_table{};                // where the routing has one: views
  std::vector<std::int32_t> ids{};       // [num_tokens, top_k]
  std::vector<float> weights{};          // [num_tokens, top_k]
};

/// What a call brings for its routing; rank 0: not given.
struct RouterInput {
  TensorView logits{};     // [num_tokens, num_experts]
  TensorView token_ids{};  // [num_tokens] i32 or i64
};

/// Routes with the checkpoint's rules: `input.logits` when given, else its router weights applied
/// to `x`.
///
/// Errors  kInvalidArgument  the checkpoint has no routing rules, or no router tensor where it is
///                           needed, or a hash table and no token ids; shapes of route and
///                           router_logits
[[nodiscard]] Result<RoutedCall> route_with_checkpoint(const CheckpointLayer& layer,
                                                       const TensorView& x,
                                                       const RouterInput& input);

/// What a plan with the layer's routing reads. `routed` must outlive the call.
void set_router_arguments(const RoutedCall& routed, RunArguments& arguments);

/// A bf16, f16 or f32 vector widened to f32; empty for a view without bytes.
[[nodiscard]] Result<std::vector<float>> widen_vector(const TensorView& view);

}  // namespace moekit::cli
