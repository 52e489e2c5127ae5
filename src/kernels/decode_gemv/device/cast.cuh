// SPDX-License-Identifier: Apache-2.0
#pragma once

// x in F16 or F32 becomes the BF16 operand of gate_up: one rounding, to nearest even (spec section
// 2). A thread has one element of one token.

#include "device/numerics/bf16.h"
#include "device/ptx/barrier.cuh"
#include "kernels/decode_gemv/args.h"
#include "kernels/decode_gemv/spec.h"

namespace moekit::kernels::decode_gemv {

inline void cast(const CastArgs& args) {
  device::grid_dependency_wait();  // under the pin pdl_first whoever writes x may still be running
  const device::i32 column = static_cast<device::i32>(blockIdx.x * kCastThreads + threadIdx.x);
  const device::i64 token = blockIdx.y;
  if (column < args.hidden) {
    const device::i64 at = token * args.x_stride + column;
    const float value = args.type == IoType::kF32
                            ? static_cast<const float*>(args.x)[at]
                            : device::f16_to_f32(static_cast<const device::u16*>(args.x)[at]);
    args.operand[token * args.hidden + column] = device::bf16_from_f32(value);
  }
}

}  // namespace moekit::kernels::decode_gemv
