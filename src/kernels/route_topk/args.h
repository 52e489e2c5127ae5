// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernel arguments of route_topk.

#include "device/routing/topk_lanes.h"

namespace moekit::kernels::route_topk {

enum class LogitType : int { kF32 = 0, kBf16 = 1, kF16 = 2 };

/// Shapes  logits [num_tokens, num_experts], row stride logits_stride elements
///         bias   f32 [num_experts], or null
///         ids    i32 [num_tokens, top_k]; weights f32 [num_tokens, top_k], rows without gaps
struct Args {
  const void* logits;
  const float* bias;
  device::i32* ids;
  float* weights;
  device::i64 num_tokens;
  device::i64 logits_stride;
  LogitType logit_type;
  device::RoutingParams params;
};

static_assert(sizeof(Args) == 80);

/// Shared memory of a block, in bytes.
constexpr device::i64 smem_bytes(int tokens_per_block, int num_experts, int num_groups) {
  return static_cast<device::i64>(tokens_per_block) * 4 *
         device::routing_room_words(num_experts, num_groups);
}

}  // namespace moekit::kernels::route_topk
