// SPDX-License-Identifier: Apache-2.0
#pragma once

// A warp's ring of weight slots: each warp requests its own steps by bulk copies that complete on
// its own barriers, so that no warp ever waits for another one's turn. A slot is filled again by
// the warp that has just read it.

#include "device/ptx/barrier.cuh"
#include "device/ptx/copy.cuh"
#include "kernels/decode_gemv/device/schedule.cuh"

namespace moekit::kernels::decode_gemv {

/// Shared addresses of one warp's slots and barriers.
struct Ring {
  u32 slots;
  u32 full;
  i32 num_slots;
};

template <Spec S>
class WeightStream {
 public:
  WeightStream(const Args& args,
               const Extents<S>& extents,
               const BlockWork<S>& work,
               const Ring& ring)
      : args_(args), extents_(extents), work_(work), ring_(ring) {}

  /// The first of `steps`; fill() requests as many more as there are slots. `experts`: of entries.
  template <typename Experts>
  void begin(const Experts& experts, const Walk<S>& walk, i32 steps) {
    walk_ = walk;
    if (steps > 0) {
      locate(experts);
      request(experts, 0, steps > 1);
    }
  }

  template <typename Experts>
  void fill(const Experts& experts, i32 steps) {
#pragma unroll 1
    for (i32 slot = 1; slot < ring_.num_slots && slot < steps; ++slot) {
      request(experts, slot, slot + 1 < steps);
    }
  }

  /// The next step into a slot that all lanes have read; `more`: it is not the last.
  template <typename Experts>
  void request(const Experts& experts, i32 slot, bool more) {
    const u32 bytes = static_cast<u32>(walk_.k_tiles(extents_) * tile_bytes(S));
    const u32 barrier = ring_.full + static_cast<u32>(slot * 8);
    u32 destination = ring_.slots + static_cast<u32>(slot * slot_bytes(S));
    const i32 rows = S.row_tiles == 1 ? 1 : walk_.tiles(work_);
    if (threadIdx.x % 32 == 0) {
      device::mbarrier_arrive_expect(barrier, bytes * static_cast<u32>(rows));
      const u8* source = source_;
      const u64 policy = device::evict_first_policy();  // two registers, if kept
      for (i32 row = 0; row < rows; ++row) {
        device::bulk_copy(destination, source, bytes, barrier, policy);
        source += static_cast<i64>(extents_.k_tiles) * tile_bytes(S);
        destination += static_cast<u32>(slot_row_bytes(S));
      }
    }
    const bool ends = walk_.steps_after(work_) == 0;
    walk_.advance(work_);
    source_ += S.k_tiles * tile_bytes(S);
    if (ends && more) {
      locate(experts);
    }
  }

 private:
  template <typename Experts>
  void locate(const Experts& experts) {
    source_ =
        args_.weights + experts.expert(walk_.entry) * args_.expert_stride_bytes +
        (static_cast<i64>(walk_.tile_begin(work_)) * extents_.k_tiles + walk_.chunk * S.k_tiles) *
            tile_bytes(S);
  }

  const Args& args_;
  const Extents<S> extents_;
  const BlockWork<S>& work_;
  const Ring ring_;
  Walk<S> walk_{};
  const u8* source_ = nullptr;
};

}  // namespace moekit::kernels::decode_gemv
