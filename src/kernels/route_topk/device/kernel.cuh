// SPDX-License-Identifier: Apache-2.0
#pragma once

// route_topk: one warp a token, its logits in shared memory. README §2.

#include "device/numerics/bf16.h"
#include "kernels/route_topk/args.h"
#include "kernels/route_topk/spec.h"

namespace moekit::kernels::route_topk {

/// The phases of topk_lanes.h, each at once.
struct WarpLanes {
  template <typename Phase>
  void each(const Phase& phase) const {
    phase(static_cast<device::i32>(threadIdx.x % kWarpLanes));
    __syncwarp();
  }
};

inline float load_logit(const Args& args, device::i64 at) {
  if (args.logit_type == LogitType::kF32) {
    return static_cast<const float*>(args.logits)[at];
  }
  const device::u16 bits = static_cast<const device::u16*>(args.logits)[at];
  return args.logit_type == LogitType::kBf16 ? device::bf16_to_f32(bits) : device::f16_to_f32(bits);
}

template <Spec kSpec>
void route_topk(const Args& args, float* smem) {
  static_assert(why_invalid(kSpec) == nullptr);
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const device::i64 token = static_cast<device::i64>(blockIdx.x) * kSpec.tokens_per_block + warp;
  if (token >= args.num_tokens) {
    return;  // whole warps leave: nothing below waits for them
  }
  const int experts = args.params.num_experts;
  float* const words = smem + warp * device::routing_room_words(experts, args.params.num_groups);
  auto* const id_words = reinterpret_cast<device::i32*>(
      words + device::routing_room_floats(experts, args.params.num_groups));
  const device::RoutingRoom room =
      device::routing_room(words, id_words, experts, args.params.num_groups);
  const WarpLanes lanes;
  lanes.each([&](device::i32 lane) {
    for (int i = lane; i < experts; i += kWarpLanes) {
      room.logits[i] = device::router_logit(load_logit(args, token * args.logits_stride + i));
    }
  });
  device::route_token_lanes(lanes, args.params, args.bias, room);
  lanes.each([&](device::i32 lane) {
    if (lane < args.params.top_k) {
      args.ids[token * args.params.top_k + lane] = room.ids[lane];
      args.weights[token * args.params.top_k + lane] = room.weights[lane];
    }
  });
}

}  // namespace moekit::kernels::route_topk
