// SPDX-License-Identifier: Apache-2.0
#pragma once

// quantize_rows: one lane takes eight values, neighbouring lanes of a warp make a group. Grid:
// (blocks along K, rows). README §2.

#include "kernels/quantize_rows/device/quantize_lane.h"

namespace moekit::kernels::quantize_rows {

template <Rule kRule>
void store_lane(const Args& args, device::i64 row, device::i64 lane, const LaneResult& result) {
  const device::i64 lanes = args.num_cols / kLaneElems;
  const device::i64 at = row * lanes + lane;  // in units of eight elements
  if (args.codes != nullptr) {
    auto* codes = reinterpret_cast<device::u32*>(args.codes + at * lane_code_bytes(kRule));
    codes[0] = result.codes[0];
    if constexpr (lane_code_bytes(kRule) == 8) {
      codes[1] = result.codes[1];
    }
  }
  if (args.operand != nullptr) {
    *reinterpret_cast<uint4*>(args.operand + at * kLaneElems) =
        uint4{result.operand[0], result.operand[1], result.operand[2], result.operand[3]};
  }
  constexpr int kLanes = lanes_per_group(kRule);
  if (args.scales != nullptr && lane % kLanes == 0) {
    const device::i64 groups = (lanes + kLanes - 1) / kLanes;
    const device::i64 group = row * groups + lane / kLanes;
    if constexpr (kRule == Rule::kQ8b) {
      static_cast<device::u32*>(args.scales)[group] = result.scale_bits;
    } else {
      static_cast<device::u8*>(args.scales)[group] = static_cast<device::u8>(result.scale_bits);
    }
  }
}

template <Spec kSpec>
void quantize_rows(const Args& args) {
  static_assert(why_invalid(kSpec) == nullptr);
  const device::i64 row = blockIdx.y + static_cast<device::i64>(gridDim.y) * blockIdx.z;
  const device::i64 lane =
      static_cast<device::i64>(blockIdx.x) * kSpec.num_threads + static_cast<int>(threadIdx.x);
  const bool inside = row < args.num_rows && lane * kLaneElems < args.num_cols;
  // Lanes beyond the row stay for the shuffles and add nothing to the maximum.
  device::u32 words[4] = {0, 0, 0, 0};
  if (inside) {
    const uint4 loaded =
        *reinterpret_cast<const uint4*>(args.x + row * args.x_stride + lane * kLaneElems);
    words[0] = loaded.x;
    words[1] = loaded.y;
    words[2] = loaded.z;
    words[3] = loaded.w;
  }
  const Lane values = load_lane(words);
  device::u32 amax_bits = values.amax_bits;
  for (int step = 1; step < lanes_per_group(kSpec.rule); step *= 2) {
    const device::u32 other = __shfl_xor_sync(0xFFFFFFFFU, amax_bits, step);
    amax_bits = other > amax_bits ? other : amax_bits;
  }
  if (inside) {
    const float global = kSpec.rule == Rule::kQ4 ? *args.global : 1.0F;
    store_lane<kSpec.rule>(args, row, lane, quantize_lane<kSpec.rule>(values, amax_bits, global));
  }
}

}  // namespace moekit::kernels::quantize_rows
