// SPDX-License-Identifier: Apache-2.0
#pragma once

// Few routes (README section 4): each active route is an entry of its own, one column wide, so that
// nothing is sorted and nothing is looked up between the ids and the first request. What both roles
// share; the roles are route_gate_up.cuh and route_down.cuh.

#include "kernels/decode_gemv/device/combine.cuh"

namespace moekit::kernels::decode_gemv {

/// Where a block's shared memory begins, and its barriers.
struct RouteSmem {
  u8* base;      // dynamic
  u32 full;      // shared address, u64 [warps][kMaxSlots]
  u32 operands;  // shared address of one barrier
};

/// The routes of a call, one a lane, for each warp by itself. An entry is an active route; entries
/// stand in the order of routes.
class LaneRoutes {
 public:
  /// Asks for the ids; what does not depend on them is computed while they are on the way.
  explicit LaneRoutes(const Args& args) : lane_(static_cast<i32>(threadIdx.x % 32)) {
    if (args.num_tokens > 1) {
      token_ = Divisor(args.top_k).quotient(lane_);
    }
    if (lane_ < args.num_tokens * args.top_k) {
      const i64 at = token_ * args.ids_stride + (lane_ - token_ * args.top_k);
      // Words as they stand: to widen one here would wait for it.
      const i32* const words = static_cast<const i32*>(args.ids) + (at << args.ids_are_i64);
      id_low_ = words[0];
      if (args.ids_are_i64 != 0) {
        id_high_ = words[1];
      }
    }
  }

  void resolve(const Args& args) {
    // Checked before narrowing: 2^32 is not expert 0.
    if (id_high_ == 0 && id_low_ >= 0 && id_low_ < args.router_experts) {
      const i32 local = args.expert_map != nullptr ? args.expert_map[id_low_] : id_low_;
      expert_ = local >= 0 && local < args.num_experts ? local : -1;
    }
    active_ = __ballot_sync(0xFFFFFFFFU, expert_ >= 0);
  }

  i32 lane() const { return lane_; }

  /// Of this lane's route.
  i32 expert() const { return expert_; }

  i32 token() const { return token_; }

  i32 entries() const { return __popc(active_); }

  /// Entries of the routes before `route`.
  i32 entries_before(i32 route) const {
    return __popc(active_ & (route < 32 ? (1U << route) - 1U : 0xFFFFFFFFU));
  }

  i32 route_of(i32 entry) const {
    if ((active_ & (active_ + 1U)) == 0U) {
      return entry;
    }
    u32 left = active_;
#pragma unroll 1
    for (i32 at = 0; at < entry; ++at) {
      left &= left - 1U;
    }
    return __ffs(static_cast<i32>(left)) - 1;
  }

  /// All lanes: of another lane's route.
  i32 expert_of(i32 route) const {
    return __shfl_sync(0xFFFFFFFFU, expert_, route);
  }

  i32 token_of(i32 route) const {
    return __shfl_sync(0xFFFFFFFFU, token_, route);
  }

 private:
  i32 lane_;
  i32 token_ = 0;
  i32 id_low_ = -1;
  i32 id_high_ = 0;
  i32 expert_ = -1;
  u32 active_ = 0;
};

/// A warp's slots. Barriers are ready for its own use, behind the caller's fence.
template <Spec S>
struct RouteRing {
  u32 slots;
  u32 full;
  u32 slot_bytes;
  i32 num_slots;

  /// `steps`: no more slots than that.
  RouteRing(const Args& args, const RouteSmem& smem, u32 at, i32 tiles, i32 steps)
      : slot_bytes(static_cast<u32>(route_slot_bytes(S, tiles))) {
    const i32 warp = static_cast<i32>(threadIdx.x / 32);
    const u32 own = static_cast<u32>(args.ring_bytes / S.warps) / 16 * 16;
    const i32 fit = static_cast<i32>(own / slot_bytes);
    num_slots = fit < steps ? fit : steps;
    num_slots = num_slots < kMaxSlots ? num_slots : kMaxSlots;
    slots = at + static_cast<u32>(warp) * own;
    full = smem.full + static_cast<u32>(warp * kMaxSlots * 8);
    // One after the other in hardware: no more than are used.
    if (static_cast<i32>(threadIdx.x % 32) < num_slots) {
      device::mbarrier_init(full + threadIdx.x % 32 * 8, 1);
    }
  }

  void next(i32& slot, u32& parity) const {
    if (++slot == num_slots) {
      slot = 0;
      parity ^= 1U;
    }
  }
};

/// A warp's tiles of K, and how many steps they are.
template <Spec S>
struct RouteK {
  i32 begin;
  i32 count;
  i32 chunks;

  RouteK(i32 k_tiles, i32 parts, i32 part) {
    // Parts are powers of two, or few: no division of the tensor's sizes.
    const Share share = Partition(k_tiles, Divisor(parts)).share(part);
    begin = share.begin;
    count = share.end - share.begin;
    chunks = (count + S.k_tiles - 1) / S.k_tiles;
  }

  i32 tiles(i32 chunk) const {
    const i32 left = count - chunk * S.k_tiles;
    return left < S.k_tiles ? left : S.k_tiles;
  }
};

/// One tile, ready to be multiplied.
struct RouteTile {
  StepPair first;
  StepPair second;
};

template <Spec S>
inline RouteTile decode_route_tile(const device::Words4& codes, u32 scale_bytes) {
  const u32 scales = scale_pair<S>(scale_bytes);
  const u32 low = device::byte_permute<0x1010>(scales, 0);
  const u32 high = device::byte_permute<0x3232>(scales, 0);
  return {decode_words(codes.x, codes.y, low, high), decode_words(codes.z, codes.w, low, high)};
}

/// One tile times one column, on two chains of sums, or on one if both are the same.
inline void multiply_route_tile(float (&even)[4],
                                float (&odd)[4],
                                const RouteTile& tile,
                                const device::Words4 (&columns)[2]) {
  device::mma_m16n8k16(even, tile.first.even, columns[0].x, columns[0].y);
  device::mma_m16n8k16(odd, tile.first.odd, columns[0].z, columns[0].w);
  device::mma_m16n8k16(even, tile.second.even, columns[1].x, columns[1].y);
  device::mma_m16n8k16(odd, tile.second.odd, columns[1].z, columns[1].w);
}

}  // namespace moekit::kernels::decode_gemv
