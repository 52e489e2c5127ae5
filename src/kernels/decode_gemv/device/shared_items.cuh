// SPDX-License-Identifier: Apache-2.0
#pragma once

// Items that a block's warps share (kSharedItems, README section 4): each weight warp decodes one
// row tile into the first operand of a warpgroup's matrix instruction, and one stage of operand
// columns in shared memory serves them all. Columns are fetched by warps of their own.

#include "device/ptx/wgmma.cuh"
#include "kernels/decode_gemv/device/epilogue.cuh"

namespace moekit::kernels::decode_gemv {

/// Shared addresses of the stages of operand columns and of their barriers, eight bytes apart.
struct ColumnStages {
  u32 columns;
  u32 full;
  u32 empty;
};

/// The items of a block, as a list of tiles of K.
template <Spec S>
struct ItemList {
  i32 begin;
  i32 end;

  explicit ItemList(const BlockWork<S>& work)
      : begin(work.first), end(work.first + work.chunks.quotient(work.steps)) {}

  static Walk<S> walk(const BlockWork<S>& work, i32 item) {
    const i32 entry = work.groups.quotient(item);
    return {entry, item - entry * work.groups.value(), 0};
  }
};

/// One warp's row tiles of the block's items, by bulk copies into its ring. Items that have no row
/// tile for the warp are passed over.
template <Spec S>
class RowTileStream {
 public:
  RowTileStream(const Args& args,
                const Extents<S>& extents,
                const BlockWork<S>& work,
                const Routes& routes,
                const Ring& ring)
      : args_(args),
        extents_(extents),
        work_(work),
        routes_(routes),
        ring_(ring),
        item_(ItemList<S>(work).begin - 1),
        end_(ItemList<S>(work).end) {
    if (static_cast<i32>(threadIdx.x / 32) >= weight_warps(S)) {
      return;
    }
    next_item();
    for (i32 slot = 0; slot < ring_.num_slots; ++slot) {
      request(slot);
    }
  }

  /// The next step into a slot that all lanes have read.
  void request(i32 slot) {
    if (item_ >= end_) {
      return;
    }
    if (threadIdx.x % 32 == 0) {
      const i32 left = extents_.k_tiles - k_tile_;
      const u32 bytes = static_cast<u32>((left < S.k_tiles ? left : S.k_tiles) * tile_bytes(S));
      const u32 barrier = ring_.full + static_cast<u32>(slot * 8);
      device::mbarrier_arrive_expect(barrier, bytes);
      device::bulk_copy(ring_.slots + static_cast<u32>(slot * slot_bytes(S)),
                        source_,
                        bytes,
                        barrier,
                        device::evict_first_policy());
    }
    source_ += S.k_tiles * tile_bytes(S);
    k_tile_ += S.k_tiles;
    if (k_tile_ >= extents_.k_tiles) {
      next_item();
    }
  }

 private:
  void next_item() {
    k_tile_ = 0;
    while (++item_ < end_) {
      const Walk<S> walk = ItemList<S>::walk(work_, item_);
      const i32 tile = walk.tile_begin(work_) + static_cast<i32>(threadIdx.x / 32);
      if (tile < work_.rows.end) {
        source_ = args_.weights + routes_.entries[walk.entry].expert * args_.expert_stride_bytes +
                  static_cast<i64>(tile) * extents_.k_tiles * tile_bytes(S);
        return;
      }
    }
  }

  const Args& args_;
  const Extents<S>& extents_;
  const BlockWork<S>& work_;
  const Routes& routes_;
  const Ring& ring_;
  i32 item_;
  i32 end_;
  i32 k_tile_ = 0;
  const u8* source_ = nullptr;
};

/// A column warp: every kColumnWarps-th tile of K of all items into its own stage, in the order in
/// which the decoded weights stand (README section 3): of 16 bytes, word i is word c / 2 of the
/// 16 bytes 4 (c mod 2) + i of the column's 128, where c is their place among its eight.
template <Spec S>
class ColumnWarp {
 public:
  ColumnWarp(const Args& args,
             const Extents<S>& extents,
             const BlockWork<S>& work,
             const Routes& routes,
             const ColumnStages& stages)
      : args_(args), extents_(extents), work_(work), routes_(routes) {
    const i32 lane = static_cast<i32>(threadIdx.x % 32);
    warp_ = static_cast<i32>(threadIdx.x / 32) - weight_warps(S);
    row_ = lane / 8;
    chunk_ = lane % 8;
    full_ = stages.full + static_cast<u32>(warp_ * 8);
    empty_ = stages.empty + static_cast<u32>(warp_ * 8);
    const u32 stage = stages.columns + static_cast<u32>(warp_ * column_stage_bytes(S) + row_ * 128 +
                                                        (chunk_ / 2) * 4);
#pragma unroll
    for (i32 word = 0; word < 4; ++word) {
      const u32 at = stage + static_cast<u32>((word ^ row_) * 16);
      place_[0][word] = at + static_cast<u32>((chunk_ & 1) * 64);
      place_[1][word] = at + static_cast<u32>(((chunk_ & 1) ^ 1) * 64);
    }
  }

  void run() {
    const ItemList<S> items(work_);
    const i32 padded_tiles = device::round_up(extents_.k_tiles, S.k_tiles);
    u32 parity = 1;
    i32 located = -1;
    for (i32 item = items.begin; item < items.end; ++item) {
      const Walk<S> walk = ItemList<S>::walk(work_, item);
      if (walk.entry != located) {
        located = walk.entry;
        locate(walk.entry);
      }
      const bool probe = S.role == Role::kGateUp && walk.group == 0;
      for (i32 k_tile = warp_; k_tile < padded_tiles; k_tile += kColumnWarps) {
        load(k_tile);
        device::mbarrier_wait(empty_, parity);
        parity ^= 1U;
        if (probe) {
          probe_columns(walk.entry);
        }
        store();
        device::async_proxy_fence();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
          device::mbarrier_arrive(full_);
        }
      }
    }
  }

 private:
  static constexpr i32 kSets = S.max_columns / 4;  // of four columns, which a warp loads at once

  void locate(i32 entry) {
    const Entry& item = routes_.entries[entry];
    sets_ = (item.columns + 3) / 4;
#pragma unroll
    for (i32 set = 0; set < kSets; ++set) {
      const i32 wanted = set * 4 + row_;
      const i32 column = wanted < item.columns ? wanted : item.columns - 1;
      const i32 route = routes_.sorted[item.column_begin + column];
      const i64 row = S.role == Role::kDown
                          ? static_cast<i64>(route) * args_.intermediate_size
                          : static_cast<i64>(route / args_.top_k) * args_.x_stride;
      offsets_[set] = static_cast<u32>(row + chunk_ * 8 - extents_.k_offset) * 2U;
    }
  }

  /// Places before the shard's first column or past its last become 0, as in Operand::load.
  void load(i32 k_tile) {
    const i32 at = k_tile * device::kFp4TileCols + chunk_ * 8 - extents_.k_offset;
    const bool inside = at >= 0 && at < extents_.k_elems;
    const u8* const base =
        static_cast<const u8*>(S.role == Role::kDown ? static_cast<const void*>(args_.intermediate)
                                                     : static_cast<const void*>(args_.x));
#pragma unroll
    for (i32 set = 0; set < kSets; ++set) {
      if (set < sets_) {
        words_[set] = device::Words4{0, 0, 0, 0};
        if (inside) {
          words_[set] = device::load_global_words<S.role == Role::kGateUp>(
              base + (offsets_[set] + static_cast<u32>(k_tile * device::kFp4TileCols * 2)));
        }
      }
    }
  }

  void store() const {
#pragma unroll
    for (i32 set = 0; set < kSets; ++set) {
      if (set < sets_) {
        const u32(&place)[4] = place_[set & 1];
        constexpr u32 kSetBytes = 512;
        const u32 at = static_cast<u32>(set) * kSetBytes;
        device::store_shared_u32(place[0] + at, words_[set].x);
        device::store_shared_u32(place[1] + at, words_[set].y);
        device::store_shared_u32(place[2] + at, words_[set].z);
        device::store_shared_u32(place[3] + at, words_[set].w);
      }
    }
  }

  /// x * 0 is NaN where x is NaN or infinite: marks the columns in the entry. Bits of integers: no
  /// order in the result.
  void probe_columns(i32 entry) const {
#pragma unroll
    for (i32 set = 0; set < kSets; ++set) {
      if (set < sets_) {
        u32 probe = device::bf16x2_fma(words_[set].x, 0U, 0U);
        probe = device::bf16x2_fma(words_[set].y, 0U, probe);
        probe = device::bf16x2_fma(words_[set].z, 0U, probe);
        probe = device::bf16x2_fma(words_[set].w, 0U, probe);
        if ((probe & 0x7FFF7FFFU) != 0U) {
          atomicOr(&routes_.entries[entry].not_finite, 1U << (set * 4 + row_));
        }
      }
    }
  }

  const Args& args_;
  const Extents<S>& extents_;
  const BlockWork<S>& work_;
  const Routes& routes_;
  i32 warp_;
  i32 row_;    // of the four of a set
  i32 chunk_;  // 16 bytes of a column's 128
  i32 sets_ = 0;
  u32 full_;
  u32 empty_;
  u32 place_[2][4];  // shared addresses of a set's words: even and odd sets
  u32 offsets_[kSets];
  device::Words4 words_[kSets];
};

/// A weight warp: decodes its row tile of every item, multiplies with its warpgroup, finishes.
template <Spec S, typename Epilogue>
class WeightWarp {
 public:
  WeightWarp(const Extents<S>& extents,
             const BlockWork<S>& work,
             const Routes& routes,
             const Ring& ring,
             const ColumnStages& stages)
      : extents_(extents), work_(work), routes_(routes), ring_(ring), stages_(stages) {
    warp_ = static_cast<i32>(threadIdx.x / 32);
    columns_ = device::wgmma_address(stages.columns);
    uneven_ = extents.k_tiles % S.k_tiles != 0;
  }

  void run(RowTileStream<S>& weights, const Epilogue& epilogue) {
    const ItemList<S> items(work_);
    for (i32 item = items.begin; item < items.end; ++item) {
      const Walk<S> walk = ItemList<S>::walk(work_, item);
      const i32 row_tile = walk.tile_begin(work_) + warp_;
      mine_ = row_tile < work_.rows.end;
      const RowConstants rows = epilogue.row_constants(walk, warp_, lane_.group);
      if (uneven_) {
        multiply_item<false>(weights);
      } else {
        multiply_item<true>(weights);
      }
      if (mine_) {
        finish(routes_.entries[walk.entry], row_tile, rows, epilogue);
      }
    }
  }

 private:
  /// Whole rounds of stages: past the last tile of K the columns are 0 and the weights any.
  /// kWhole: all rounds are. A warp without a row tile then decodes whatever stands in its ring.
  template <bool kWhole>
  void multiply_item(RowTileStream<S>& weights) {
    for (i32 begin = 0; begin < extents_.k_tiles; begin += S.k_tiles) {
      const u32 slot = ring_.slots + static_cast<u32>(slot_ * slot_bytes(S));
      if (mine_) {
        device::mbarrier_wait(ring_.full + static_cast<u32>(slot_ * 8), slot_parity_);
      }
#pragma unroll
      for (i32 at = 0; at < S.k_tiles; ++at) {
        if (kWhole || (mine_ && begin + at < extents_.k_tiles)) {
          decode(decoded_[at & 1], slot + static_cast<u32>(at * tile_bytes(S)));
        }
        multiply(at % kColumnWarps, decoded_[at & 1], begin + at != 0 ? 1U : 0U);
        if (at % kColumnWarps == kColumnWarps - 1) {
          stage_parity_ ^= 1U;
        }
      }
      if (mine_) {
        __syncwarp();
        weights.request(slot_);
        if (++slot_ == ring_.num_slots) {
          slot_ = 0;
          slot_parity_ ^= 1U;
        }
      }
    }
    device::wgmma_wait<0>();
    release(kColumnWarps - 1);
  }

  /// The four K steps of a row tile.
  void decode(u32 (&steps)[4][4], u32 tile) const {
    const device::Words4 codes = device::load_shared_words(tile + lane_.codes_at);
    const u32 scales = scale_pair<S>(device::load_shared_u16(tile + lane_.scales_at));
    const u32 low = device::byte_permute<0x1010>(scales, 0);
    const u32 high = device::byte_permute<0x3232>(scales, 0);
    const StepPair first = decode_words(codes.x, codes.y, low, high);
    const StepPair second = decode_words(codes.z, codes.w, low, high);
#pragma unroll
    for (i32 at = 0; at < 4; ++at) {
      steps[0][at] = first.even[at];
      steps[1][at] = first.odd[at];
      steps[2][at] = second.even[at];
      steps[3][at] = second.odd[at];
    }
  }

  /// Leaves this tile's instructions running; those of the tile before have ended.
  void multiply(i32 stage, const u32 (&steps)[4][4], u32 add) {
    device::mbarrier_wait(stages_.full + static_cast<u32>(stage * 8), stage_parity_);
    device::wgmma_fence();
    const u32 columns = columns_ + static_cast<u32>(stage * column_stage_bytes(S) / 16);
#pragma unroll
    for (i32 step = 0; step < 4; ++step) {
      device::wgmma_m64k16(
          sums_, steps[step], columns + static_cast<u32>(step * 2), step != 0 ? 1U : add);
    }
    device::wgmma_commit();
    device::wgmma_wait<1>();
    if (add != 0U) {
      release((stage + kColumnWarps - 1) % kColumnWarps);
    }
  }

  void release(i32 stage) const {
    if (threadIdx.x % 32 == 0) {
      device::mbarrier_arrive(stages_.empty + static_cast<u32>(stage * 8));
    }
  }

  void finish(const Entry& entry,
              i32 row_tile,
              const RowConstants& rows,
              const Epilogue& epilogue) const {
    device::mbarrier_wait(routes_.globals_full, 0);
#pragma unroll
    for (i32 octet = 0; octet < octets(S); ++octet) {
      const i32 column = octet * 8 + lane_.quad * 2;
      if (column < entry.columns) {
        const float(&d)[4] = sums_[octet];
        epilogue(entry,
                 rows,
                 Place16{row_tile, lane_.group, column},
                 TileSums{{d[0], d[1]}, {d[2], d[3]}},
                 entry.not_finite);
      }
    }
  }

  const Extents<S>& extents_;
  const BlockWork<S>& work_;
  const Routes& routes_;
  const Ring& ring_;
  const ColumnStages& stages_;
  Lane<S> lane_;
  float sums_[octets(S)][4];
  u32 decoded_[2][4][4] = {};  // finite always: what is multiplied by 0 may not be NaN
  u32 columns_;
  i32 warp_;
  i32 slot_ = 0;
  u32 slot_parity_ = 0;
  u32 stage_parity_ = 0;
  bool mine_ = false;  // the item has a row tile for this warp
  bool uneven_;
};

/// All threads of the block, once the entries and the order of their routes stand; down: and what
/// gate_up wrote.
template <Spec S, typename Epilogue>
inline void run_shared_items(RowTileStream<S>& weights,
                             const Routes& routes,
                             const Ring& ring,
                             const ColumnStages& stages,
                             const Epilogue& epilogue) {
  if (static_cast<i32>(threadIdx.x / 32) < weight_warps(S)) {
    WeightWarp<S, Epilogue> warp(epilogue.extents, epilogue.work, routes, ring, stages);
    warp.run(weights, epilogue);
  } else {
    ColumnWarp<S> warp(epilogue.args, epilogue.extents, epilogue.work, routes, stages);
    warp.run();
  }
}

}  // namespace moekit::kernels::decode_gemv
