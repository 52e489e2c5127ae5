// SPDX-License-Identifier: Apache-2.0
#pragma once

// A warp's share of a block's steps: request weights, load operands, multiply, finish items. No
// warp waits for another before its share is done; then whoever began an item that others went on
// with adds their parts in step order.

#include "kernels/decode_gemv/device/epilogue.cuh"

namespace moekit::kernels::decode_gemv {

/// What the warps of a block leave for each other, in shared memory.
struct Partials {
  u32 sums;         // shared address, [warps][row tiles][octets][32] of 16 bytes
  u32* not_finite;  // [warps]
};

template <Spec S, typename Epilogue>
class Consumer {
 public:
  Consumer(const Args& args,
           const Extents<S>& extents,
           const BlockWork<S>& work,
           const Routes& routes,
           const Ring& ring)
      : extents_(extents),
        work_(work),
        routes_(routes),
        ring_(ring),
        operand_(args, extents, lane_),
        codes_at_(device::opaque(ring.slots + lane_.codes_at)),
        scales_at_(device::opaque(ring.slots + lane_.scales_at)),
        warp_(static_cast<i32>(threadIdx.x / 32)),
        uneven_(extents.ragged || extents.k_tiles % S.k_tiles != 0) {}

  /// The operands of the first step.
  void load_first(const Walk<S>& walk, i32 steps) {
    if (steps <= 0) {
      return;
    }
    operand_.locate(routes_, walk.entry);
#pragma unroll
    for (i32 at = 0; at < S.lookahead; ++at) {
      if (at < walk.k_tiles(extents_)) {
        operand_.load(operand_.words[at], walk.chunk * S.k_tiles + at);
      }
    }
  }

  /// All warps of the block. Needs the routes of entries; down: and what gate_up wrote. The warp
  /// that began an item which others went on with adds their parts after a barrier.
  void run(WeightStream<S>& weights,
           Walk<S> walk,
           i32 steps,
           const Epilogue& epilogue,
           const Partials& partials) {
    i32 slot = 0;
    u32 parity = 0;
    bool live = steps > 0;
    bool done = false;
    while (!done) {
      bool ended = true;
      i32 item_left = 0;
      if (live) {
        begin_part(walk, epilogue);
      }
      for (bool more = live; more;) {
        --steps;
        Walk<S> next = walk;
        next.advance(work_);
        device::mbarrier_wait(ring_.full + static_cast<u32>(slot * 8), parity);
        const u32 at = static_cast<u32>(slot * slot_bytes(S));
        if (uneven_) {
          multiply_step<false>(walk, next, at, steps > 0);
        } else {
          multiply_step<true>(walk, next, at, steps > 0);
        }
        __syncwarp();
        if (steps >= ring_.num_slots) {
          weights.request(routes_, slot, steps > ring_.num_slots);
        }
        if (++slot == ring_.num_slots) {
          slot = 0;
          parity ^= 1U;
        }
        item_left = walk.steps_after(work_);
        ended = item_left == 0;
        more = !ended && steps > 0;
        walk = next;
      }
      done = steps <= 0;
      const bool finishes = live && headed_;
      if constexpr (S.whole_items == 0) {
        if (live && !headed_) {
          leave_part(partials);
        }
        if (done) {
          block_barrier<S>();
        }
      }
      u32 not_finite = 0;
      if (finishes) {
        not_finite = column_bits();
        if (S.whole_items == 0 && !ended) {
          not_finite |= add_parts(partials, item_left);
        }
        finish(ended ? walk.item_before(work_) : walk, epilogue, not_finite);
      }
    }
  }

 private:
  /// Adds the parts of the `item_left` steps after this warp's last, in their order.
  u32 add_parts(const Partials& partials, i32 item_left) {
    const Partition partition(work_.steps, S.warps);
    const i32 item_end = partition.begin(warp_ + 1) + item_left;
    u32 not_finite = 0;
    for (i32 warp = warp_ + 1; warp < S.warps && partition.begin(warp) < item_end; ++warp) {
      not_finite |= partials.not_finite[warp];
#pragma unroll
      for (i32 row = 0; row < S.row_tiles; ++row) {
#pragma unroll
        for (i32 octet = 0; octet < octets(S); ++octet) {
          const device::Floats4 part =
              device::load_shared_floats(place(partials, warp, row, octet));
          float(&d)[4] = sums_.sum[row][octet];
          d[0] += part.x;
          d[1] += part.y;
          d[2] += part.z;
          d[3] += part.w;
        }
      }
    }
    return not_finite;
  }

  void begin_part(const Walk<S>& walk, const Epilogue& epilogue) {
    sums_.clear();
    headed_ = walk.begins_item();
    if (headed_) {
#pragma unroll
      for (i32 row = 0; row < S.row_tiles; ++row) {
        rows_[row] = epilogue.row_constants(walk, row, lane_.group);
      }
    }
  }

  /// `next`: the step after this one, if `more`; its first operands are loaded here. kWhole: every
  /// step of this launch has all its tiles and no tile is short.
  template <bool kWhole>
  void multiply_step(const Walk<S>& walk, const Walk<S>& next, u32 slot, bool more) {
    const i32 tiles = kWhole ? S.k_tiles : walk.k_tiles(extents_);
    const i32 next_tiles = kWhole ? S.k_tiles : more ? next.k_tiles(extents_) : 0;
    const bool probe = S.role == Role::kGateUp && walk.group == 0;
    const u32 codes_at = codes_at_ + slot;
    const u32 scales_at = scales_at_ + slot;
    const i32 k_tile = walk.chunk * S.k_tiles;
    // Past the last step its own operands are loaded again: always memory, never looked at.
    const i32 next_k_tile = more ? next.chunk * S.k_tiles : k_tile;
#pragma unroll
    for (i32 at = 0; at < S.k_tiles; ++at) {
      device::Words4(&columns)[2][octets(S)] = operand_.words[at % S.lookahead];
      if (at < tiles) {
        if (probe) {
          probe_columns<S>(sums_, columns[0]);
          probe_columns<S>(sums_, columns[1]);
        }
        constexpr i32 kBytes = tile_bytes(S);
        multiply_tile<S>(sums_,
                         codes_at + static_cast<u32>(at * kBytes),
                         scales_at + static_cast<u32>(at * kBytes),
                         columns);
      }
      const i32 ahead = at + S.lookahead - S.k_tiles;  // in the next step
      if (ahead == 0 && next.entry != walk.entry && more) {
        operand_.locate(routes_, next.entry);
      }
      if constexpr (kWhole) {
        operand_.load_whole(
            columns, ahead < 0 ? k_tile : next_k_tile, ahead < 0 ? at + S.lookahead : ahead);
      } else if (ahead < 0) {
        if (at + S.lookahead < tiles) {
          operand_.load(columns, k_tile + at + S.lookahead);
        }
      } else if (ahead < next_tiles) {
        operand_.load(columns, next_k_tile + ahead);
      }
    }
  }

  /// Bit per column of the entry whose x held NaN or infinity; four lanes looked at each.
  u32 column_bits() const {
    u32 bits = 0;
    if constexpr (S.role == Role::kGateUp) {
#pragma unroll
      for (i32 octet = 0; octet < octets(S); ++octet) {
        u32 lanes = __ballot_sync(0xFFFFFFFFU, (sums_.finite_probe[octet] & 0x7FFF7FFFU) != 0U);
        if (lanes != 0U) {
          for (i32 at = 0; at < 8; ++at) {
            bits |= ((lanes >> (at * 4)) & 15U) != 0U ? 1U << (octet * 8 + at) : 0U;
          }
        }
      }
    }
    return bits;
  }

  static u32 place(const Partials& partials, i32 warp, i32 row, i32 octet) {
    return partials.sums +
           static_cast<u32>(warp * partial_bytes(S) + (row * octets(S) + octet) * 512 +
                            static_cast<i32>(threadIdx.x % 32) * 16);
  }

  /// At most once per warp: only its first item can have been begun elsewhere.
  void leave_part(const Partials& partials) {
    if constexpr (S.whole_items == 0) {
#pragma unroll
      for (i32 row = 0; row < S.row_tiles; ++row) {
#pragma unroll
        for (i32 octet = 0; octet < octets(S); ++octet) {
          const float(&d)[4] = sums_.sum[row][octet];
          device::store_shared_floats(place(partials, warp_, row, octet), {d[0], d[1], d[2], d[3]});
        }
      }
      const u32 bits = column_bits();
      if (threadIdx.x % 32 == 0) {
        partials.not_finite[warp_] = bits;
      }
    }
  }

  void finish(const Walk<S>& walk, const Epilogue& epilogue, u32 not_finite) {
    const Entry& entry = routes_.entries[walk.entry];
    device::mbarrier_wait(routes_.globals_full, 0);
    const i32 tiles = walk.tiles(work_);
#pragma unroll
    for (i32 octet = 0; octet < octets(S); ++octet) {
      const i32 column = octet * 8 + lane_.quad * 2;
      if (column < entry.columns) {
#pragma unroll
        for (i32 row = 0; row < S.row_tiles; ++row) {
          if (row < tiles) {
            const float(&d)[4] = sums_.sum[row][octet];
            epilogue(entry,
                     rows_[row],
                     Place16{walk.tile_begin(work_) + row, lane_.group, column},
                     TileSums{{d[0], d[1]}, {d[2], d[3]}},
                     not_finite);
          }
        }
      }
    }
  }

  const Extents<S> extents_;
  const BlockWork<S>& work_;
  const Routes routes_;
  const Ring ring_;
  Lane<S> lane_;
  Operand<S> operand_;
  Accumulators<S> sums_;
  RowConstants rows_[S.row_tiles];
  u32 codes_at_;
  u32 scales_at_;
  i32 warp_;
  bool uneven_;
  bool headed_ = false;  // this part begins its item
};

}  // namespace moekit::kernels::decode_gemv
