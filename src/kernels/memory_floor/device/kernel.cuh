// SPDX-License-Identifier: Apache-2.0
#pragma once

// The memory floor of a layer: every active expert's bytes once through shared memory, gate_up's
// units, a barrier over the grid, then down's; nothing is computed. One warp copies in bulk, four
// take a word of each stage per lane and give it back (README).

#include "device/ptx/barrier.cuh"
#include "device/ptx/copy.cuh"
#include "kernels/memory_floor/args.h"
#include "kernels/memory_floor/spec.h"

namespace moekit::kernels::memory_floor {

using device::i32;
using device::i64;
using device::u32;
using device::u64;
using device::u8;

extern __shared__ u8 ring_smem[] __attribute__((aligned(128)));

template <Spec S>
struct FloorSmem {
  u64 full[S.num_stages];
  u64 empty[S.num_stages];
  i32 experts[kMaxUnits];
};

/// One region's chunks, dealt to blocks in turn.
template <Spec S>
class Chunks {
 public:
  Chunks(const u8* base, i64 unit_bytes, i32 num_active)
      : base_(base),
        unit_bytes_(unit_bytes),
        per_unit_(static_cast<u32>((unit_bytes + S.stage_bytes - 1) / S.stage_bytes)),
        total_(per_unit_ * static_cast<u32>(num_active)) {}

  /// Chunks of this block.
  i32 count() const {
    const u32 first = blockIdx.x;
    return first < total_ ? static_cast<i32>((total_ - first - 1) / gridDim.x + 1) : 0;
  }

  u32 begin() const { return blockIdx.x; }

  u32 bytes(u32 chunk) const {
    const i64 left = unit_bytes_ - static_cast<i64>(chunk % per_unit_) * S.stage_bytes;
    return static_cast<u32>(left < S.stage_bytes ? left : S.stage_bytes);
  }

  const u8* at(u32 chunk, const i32* experts) const {
    return base_ + experts[chunk / per_unit_] * unit_bytes_ +
           static_cast<i64>(chunk % per_unit_) * S.stage_bytes;
  }

 private:
  const u8* base_;
  i64 unit_bytes_;
  u32 per_unit_;
  u32 total_;
};

template <Spec S>
struct Cursor {
  i32 stage = 0;
  u32 parity = 0;

  void advance() {
    if (++stage == S.num_stages) {
      stage = 0;
      parity ^= 1U;
    }
  }
};

template <Spec S>
inline void produce(const Chunks<S>& chunks, FloorSmem<S>& fixed, Cursor<S>& cursor) {
  const u64 policy = device::evict_first_policy();
  const u32 ring = device::shared_address(ring_smem);
  u32 chunk = chunks.begin();
  for (i32 left = chunks.count(); left > 0; --left) {
    device::mbarrier_wait(device::shared_address(&fixed.empty[cursor.stage]), cursor.parity ^ 1U);
    const u32 full = device::shared_address(&fixed.full[cursor.stage]);
    const u32 bytes = chunks.bytes(chunk);
    device::mbarrier_arrive_expect(full, bytes);
    device::bulk_copy(ring + static_cast<u32>(cursor.stage * S.stage_bytes),
                      chunks.at(chunk, fixed.experts),
                      bytes,
                      full,
                      policy);
    cursor.advance();
    chunk += gridDim.x;
  }
}

template <Spec S>
inline u32 consume(const Chunks<S>& chunks, FloorSmem<S>& fixed, Cursor<S>& cursor) {
  constexpr u32 kLaneBytes = S.stage_bytes / (kConsumerWarps * 32);
  u32 seen = 0;
  for (i32 left = chunks.count(); left > 0; --left) {
    device::mbarrier_wait(device::shared_address(&fixed.full[cursor.stage]), cursor.parity);
    seen ^= *reinterpret_cast<volatile u32*>(ring_smem + cursor.stage * S.stage_bytes +
                                             threadIdx.x * kLaneBytes);
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      device::mbarrier_arrive(device::shared_address(&fixed.empty[cursor.stage]));
    }
    cursor.advance();
  }
  return seen;
}

/// Consumers of all blocks; the producer runs ahead into down's units.
inline void grid_barrier(u32* arrivals) {
  device::named_barrier(1, kConsumerWarps * 32);
  if (threadIdx.x == 0) {
    __threadfence();
    const u32 before = atomicAdd(arrivals, 1U);
    const u32 target = (before / gridDim.x + 1U) * gridDim.x;
    while (static_cast<i32>(*reinterpret_cast<volatile u32*>(arrivals) - target) < 0) {
    }
    __threadfence();
  }
  device::named_barrier(1, kConsumerWarps * 32);
}

template <Spec S>
inline void memory_floor(const Args& args) {
  static_assert(why_invalid(S) == nullptr);
  __shared__ FloorSmem<S> fixed;
  if (threadIdx.x == 0) {
    for (i32 stage = 0; stage < S.num_stages; ++stage) {
      device::mbarrier_init(device::shared_address(&fixed.full[stage]), 1);
      device::mbarrier_init(device::shared_address(&fixed.empty[stage]), kConsumerWarps);
    }
    device::mbarrier_init_fence();
  }
  for (i32 at = static_cast<i32>(threadIdx.x); at < args.num_active; at += num_threads(S)) {
    fixed.experts[at] = args.experts[at];
  }
  __syncthreads();
  const Chunks<S> gate_up(args.gate_up, args.gate_up_stride_bytes, args.num_active);
  const Chunks<S> down(args.down, args.down_stride_bytes, args.num_active);
  Cursor<S> cursor;
  if (threadIdx.x >= kConsumerWarps * 32) {
    if (threadIdx.x == kConsumerWarps * 32) {
      produce<S>(gate_up, fixed, cursor);
      produce<S>(down, fixed, cursor);
    }
    return;
  }
  u32 seen = consume<S>(gate_up, fixed, cursor);
  grid_barrier(args.arrivals);
  seen ^= consume<S>(down, fixed, cursor);
  if (seen == 0x12345678U && args.sink != nullptr) {
    args.sink[blockIdx.x] = seen;
  }
}

}  // namespace moekit::kernels::memory_floor
