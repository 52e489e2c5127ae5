// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the decode kernels receive, by value. Strides are in elements; pointers are device pointers.

#include "device/numerics/activation.h"
#include "device/portable.h"

namespace moekit::kernels::decode_gemv {

enum class IoType : device::i32 { kF32 = 0, kBf16 = 1, kF16 = 2 };

struct Args {
  // Weights: unit of expert 0 of this role; globals f32 [experts, 4] (gate, up, down, 0).
  const device::u8* weights;
  device::i64 expert_stride_bytes;
  const float* globals;
  const float* gate_bias;  // f32 [experts, intermediate] or null
  const float* up_bias;
  const float* down_bias;  // f32 [experts, hidden] or null

  // Routes. ids are i32 or i64, any value: outside [0, router_experts) or mapped to -1 is inactive.
  const void* ids;
  const float* route_weights;
  const device::i32* expert_map;  // i32 [router_experts] or null
  device::i64 ids_stride;
  device::i64 route_weights_stride;

  const device::u16* x;  // bf16 [tokens, hidden], 16-aligned rows
  device::i64 x_stride;
  device::u16* intermediate;  // bf16 [tokens * top_k, intermediate]
  float* spill;               // down: room for results beyond shared memory, or null
  void* out;                  // [tokens, hidden]
  device::i64 out_stride;
  const void* shared_input;  // [tokens, hidden] or null
  device::i64 shared_stride;

  device::i32 num_tokens;
  device::i32 top_k;
  device::i32 router_experts;
  device::i32 num_experts;
  device::i32 hidden;
  device::i32 intermediate_size;
  device::i32 down_group_offset;  // columns of the first scale group before this shard's first
  device::i32 num_parts;          // 2: gate and up, 1: no gate
  device::i32 ids_are_i64;
  device::i32 weight_on_input;  // router weights multiply h, not the result
  device::i32 expert_order;     // sum a token's routes by expert, not by slot
  IoType out_type;
  IoType shared_type;
  float weight_scale;  // multiplies every router weight
  float sum_scale;     // multiplies the sum
  device::ActivationParams activation;

  device::i32 ring_bytes;   // shared memory for stages
  device::i32 result_rows;  // down: routes whose results fit in shared memory
  device::i32 blocks;       // that share the work of the role

  device::u32* arrivals;  // splits_steps(): down's counters, which gate_up clears; or null
};

static_assert(sizeof(Args) == 256 && alignof(Args) == 8);

/// x of another type, rounded to BF16 before anything reads it.
struct CastArgs {
  const void* x;
  device::u16* operand;  // bf16 [tokens, hidden]
  device::i64 x_stride;
  device::i32 num_tokens;
  device::i32 hidden;
  IoType type;
  device::i32 unused;
};

static_assert(sizeof(CastArgs) == 40 && alignof(CastArgs) == 8);

/// Both roles in one launch.
struct ResidentArgs {
  Args gate_up;
  Args down;
  device::u32* arrivals;  // blocks that have written their intermediate; 0 when the launch begins
};

static_assert(sizeof(ResidentArgs) == 520 && alignof(ResidentArgs) == 8);

}  // namespace moekit::kernels::decode_gemv
