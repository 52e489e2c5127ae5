// SPDX-License-Identifier: Apache-2.0
#pragma once

// Both roles in one cooperative launch: gate_up, a barrier of the grid, down (README section 4).
// Shares of the work are those of the two launches, so are the bits.

#include "kernels/decode_gemv/device/kernel.cuh"

namespace moekit::kernels::decode_gemv {

/// Whether this thread has a place in a role of `kThreads`; all have in the larger one.
template <ResidentSpec R, u32 kThreads>
inline bool takes_part() {
  if constexpr (kThreads == num_threads(R)) {
    return true;
  } else {
    // Of lane 0: a condition that is one for the warp costs the role no registers.
    return __shfl_sync(0xFFFFFFFFU, threadIdx.x, 0) < kThreads;
  }
}

/// Warps that a role does not have wait for it, or leave when it is the last.
template <ResidentSpec R>
inline void decode_resident(const ResidentArgs& args) {
  static_assert(why_invalid(R) == nullptr);
  __shared__ StaticSmem fixed;
  if (takes_part<R, num_threads(R.gate_up)>()) {
    gate_up_role<R.gate_up, false>(args.gate_up, fixed);
  }
  device::shared_before_copies_fence();
  // This block's part of the intermediate is written, its shared memory free. Not barrier 0: warps
  // that wait here would be counted in the role's own.
  device::named_barrier(1, num_threads(R));
  if (threadIdx.x == 0) {
    device::add_release(args.arrivals);
  }
  // Clusters without output rows leave; the barrier counts arrivals only.
  if (!takes_part<R, num_threads(R.down)>() || static_cast<i32>(blockIdx.x) >= args.down.blocks) {
    return;
  }
  down_role<R.down>(args.down, fixed, [&args] {
    if (threadIdx.x == 0) {
      while (device::load_acquire(args.arrivals) < gridDim.x) {
      }
    }
    block_barrier<R.down>();
  });
}

}  // namespace moekit::kernels::decode_gemv
