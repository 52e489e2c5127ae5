// SPDX-License-Identifier: Apache-2.0
#pragma once

// Items that a block's warps share (kSharedItems, README section 4): each weight warp decodes one
// row tile into the first operand of a warpgroup's matrix instruction, and one stage of operand
// columns in shared memory serves them all. Columns are fetched by warps of their own, which also
// ask for the weights.

#include "device/ptx/wgmma.cuh"
#include "kernels/decode_gemv/device/epilogue.cuh"

namespace moekit::kernels::decode_gemv {

/// Slots of the block's ring and their barriers, eight bytes apart. A slot holds one step of an
/// item: k_tiles stages of columns, then the weights of each weight warp.
struct SharedRing {
  u32 slots;
  u32 full;   // all columns and weights are there
  u32 empty;  // all weight warps have read them
  i32 num_slots;
};

/// A place in the ring and the parity of its phase.
struct RingPlace {
  i32 slot = 0;
  u32 parity = 0;

  void advance(const SharedRing& ring) {
    if (++slot == ring.num_slots) {
      slot = 0;
      parity ^= 1U;
    }
  }
};

/// What a block takes of one item: steps [begin, end) of its K.
struct Segment {
  i32 entry;
  i32 group;
  i32 begin;
  i32 end;
};

/// The segments of a block, in order. gate_up: whole items, entry by entry. down: an equal share of
/// the steps of all items, group by group of rows, so that one group is finished by few blocks.
template <Spec S>
class SegmentList {
 public:
  /// Before the first one.
  explicit SegmentList(const BlockWork<S>& work) : work_(work), left_(work.steps) {
    if (left_ > 0) {
      const i32 item = work.first_step / work.chunks.value();
      const i32 inner = kDown ? work.entries : work.groups.value();
      const i32 outer = item / inner;
      const i32 begin = work.first_step - item * work.chunks.value();
      now_ = {
          kDown ? item - outer * inner : outer, kDown ? outer : item - outer * inner, begin, begin};
    }
  }

  bool advance() {
    if (left_ <= 0) {
      return false;
    }
    if (now_.end > now_.begin) {
      now_.begin = 0;
      i32& inner = kDown ? now_.entry : now_.group;
      i32& outer = kDown ? now_.group : now_.entry;
      if (++inner == (kDown ? work_.entries : work_.groups.value())) {
        inner = 0;
        ++outer;
      }
    }
    const i32 rest = work_.chunks.value() - now_.begin;
    now_.end = now_.begin + (rest < left_ ? rest : left_);
    left_ -= now_.end - now_.begin;
    return true;
  }

  const Segment& now() const { return now_; }

 private:
  static constexpr bool kDown = S.role == Role::kDown;

  const BlockWork<S>& work_;
  Segment now_{};
  i32 left_;  // steps behind it
};

/// The weights of the block's steps, by bulk copies: a column warp asks for those of a few weight
/// warps, each lane for one.
template <Spec S>
class RowTileStream {
 public:
  RowTileStream(const Args& args,
                const Extents<S>& extents,
                const BlockWork<S>& work,
                const Routes& routes,
                const SharedRing& ring)
      : args_(args), extents_(extents), work_(work), routes_(routes), ring_(ring), list_(work) {}

  /// What fits in the ring, before anybody reads it: all warps, none but those that bring columns
  /// do anything.
  void fill() {
    if (column_warp() < 0) {
      return;
    }
    next_segment();
#pragma unroll 1
    for (i32 slot = 0; slot < ring_.num_slots; ++slot) {
      request();
    }
  }

  /// The next step into the next slot, which must be empty. Its bytes are announced by whoever
  /// brings its columns.
  void request() {
    if (step_ == end_) {
      return;
    }
    const i32 lane = static_cast<i32>(threadIdx.x % 32);
    if (lane < rows_) {
      const i32 warp = column_warp() * kRows + lane;
      device::bulk_copy(ring_.slots + static_cast<u32>(slot_ * slots_bytes(S) + columns_bytes(S) +
                                                       warp * slot_bytes(S)),
                        source_,
                        step_bytes(extents_, step_),
                        ring_.full + static_cast<u32>(slot_ * 8),
                        device::evict_first_policy());
    }
    source_ += S.k_tiles * tile_bytes(S);
    slot_ = slot_ + 1 == ring_.num_slots ? 0 : slot_ + 1;
    if (++step_ == end_) {
      next_segment();
    }
  }

  static i32 column_warp() {
    return static_cast<i32>(threadIdx.x / 32) - weight_warps(S);
  }

  /// Row tiles of a group that this warp asks for.
  static i32 own_rows(const BlockWork<S>& work, i32 group) {
    const i32 left = work.rows.end - work.rows.begin - group * S.row_tiles - column_warp() * kRows;
    return left < 0 ? 0 : left < kRows ? left : kRows;
  }

  /// Of one row tile.
  static u32 step_bytes(const Extents<S>& extents, i32 step) {
    const i32 left = extents.k_tiles - step * S.k_tiles;
    return static_cast<u32>((left < S.k_tiles ? left : S.k_tiles) * tile_bytes(S));
  }

 private:
  static constexpr i32 kRows = S.row_tiles / kColumnWarps;

  void next_segment() {
    if (list_.advance()) {
      const Segment& segment = list_.now();
      const i64 tile = work_.rows.begin + segment.group * S.row_tiles + column_warp() * kRows +
                       static_cast<i32>(threadIdx.x % 32);
      rows_ = own_rows(work_, segment.group);
      step_ = segment.begin;
      end_ = segment.end;
      source_ = args_.weights + routes_.expert(segment.entry) * args_.expert_stride_bytes +
                (tile * extents_.k_tiles + step_ * S.k_tiles) * tile_bytes(S);
    }
  }

  const Args& args_;
  const Extents<S>& extents_;
  const BlockWork<S>& work_;
  const Routes& routes_;
  const SharedRing& ring_;
  SegmentList<S> list_;
  i32 slot_ = 0;
  i32 step_ = 0;
  i32 end_ = 0;   // of the segment; reached once there is none
  i32 rows_ = 0;  // row tiles of the segment that are this warp's
  const u8* source_ = nullptr;
};

/// A column warp: every kColumnWarps-th tile of K of all segments into its stages, in the order in
/// which the decoded weights stand (README section 3): of 16 bytes, word i is word c / 2 of the
/// 16 bytes 4 (c mod 2) + i of the column's 128, where c is their place among its eight.
template <Spec S>
class ColumnWarp {
 public:
  ColumnWarp(const Args& args,
             const Extents<S>& extents,
             const BlockWork<S>& work,
             const Routes& routes,
             const SharedRing& ring)
      : args_(args), extents_(extents), work_(work), routes_(routes), ring_(ring) {
    const i32 lane = static_cast<i32>(threadIdx.x % 32);
    warp_ = RowTileStream<S>::column_warp();
    row_ = lane / 8;
    chunk_ = lane % 8;
    const u32 stage = ring.slots + static_cast<u32>(warp_ * column_stage_bytes(S) + row_ * 128 +
                                                    (chunk_ / 2) * 4);
#pragma unroll
    for (i32 word = 0; word < 4; ++word) {
      const u32 at = stage + static_cast<u32>((word ^ row_) * 16);
      place_[0][word] = at + static_cast<u32>((chunk_ & 1) * 64);
      place_[1][word] = at + static_cast<u32>(((chunk_ & 1) ^ 1) * 64);
    }
  }

  void run(RowTileStream<S>& weights) {
    SegmentList<S> list(work_);
    const Segment& segment = list.now();
    RingPlace place{0, 1};
    i32 filled = ring_.num_slots;
    i32 located = -1;
    while (list.advance()) {
      if (segment.entry != located) {
        located = segment.entry;
        locate(segment.entry);
      }
      const bool probe = S.role == Role::kGateUp && segment.group == 0;
      const u32 bytes = static_cast<u32>(weights.own_rows(work_, segment.group));
#pragma unroll 1
      for (i32 step = segment.begin; step < segment.end; ++step) {
        load(step * S.k_tiles + warp_);
        device::mbarrier_wait(ring_.empty + static_cast<u32>(place.slot * 8), place.parity);
        if (filled > 0) {
          --filled;
        } else {
          weights.request();
        }
        if (probe) {
          probe_columns(segment.entry);
        }
        store(static_cast<u32>(place.slot * slots_bytes(S)));
        device::async_proxy_fence();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
          device::mbarrier_arrive_expect(ring_.full + static_cast<u32>(place.slot * 8),
                                         weights.step_bytes(extents_, step) * bytes);
        }
        place.advance(ring_);
      }
    }
  }

 private:
  static_assert(S.k_tiles == kColumnWarps);
  static constexpr i32 kSets = S.max_columns / 4;  // of four columns, which a warp loads at once
  // Of these the last few are passed over where nobody needs them: one branch, not one for each.
  static constexpr i32 kSureSets = kSets > 4 ? 4 : kSets;

  void locate(i32 entry) {
    const Entry& item = routes_.entries[entry];
    all_sets_ = item.columns > kSureSets * 4;
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
    bool inside = true;
    if (extents_.ragged || k_tile >= extents_.k_tiles) {
      const i32 at = k_tile * device::kFp4TileCols + chunk_ * 8 - extents_.k_offset;
      inside = at >= 0 && at < extents_.k_elems;
#pragma unroll
      for (i32 set = 0; set < kSets; ++set) {
        words_[set] = device::Words4{0, 0, 0, 0};
      }
    }
    if (inside) {
      load_sets<0, kSureSets>(k_tile);
      if (all_sets_) {
        load_sets<kSureSets, kSets>(k_tile);
      }
    }
  }

  template <i32 kBegin, i32 kEnd>
  void load_sets(i32 k_tile) {
    const u8* const base =
        static_cast<const u8*>(S.role == Role::kDown ? static_cast<const void*>(args_.intermediate)
                                                     : static_cast<const void*>(args_.x));
    const u32 from = static_cast<u32>(k_tile * device::kFp4TileCols * 2);
#pragma unroll
    for (i32 set = kBegin; set < kEnd; ++set) {
      words_[set] =
          device::load_global_words<S.role == Role::kGateUp>(base + (offsets_[set] + from));
    }
  }

  void store(u32 slot) const {
    u32 place[2][4];
#pragma unroll
    for (i32 word = 0; word < 4; ++word) {
      // Sets stand 512 bytes apart from here: an offset within the instruction.
      place[0][word] = device::opaque(place_[0][word] + slot);
      place[1][word] = device::opaque(place_[1][word] + slot);
    }
    store_sets<0, kSureSets>(place);
    if (all_sets_) {
      store_sets<kSureSets, kSets>(place);
    }
  }

  template <i32 kBegin, i32 kEnd>
  void store_sets(const u32 (&places)[2][4]) const {
#pragma unroll
    for (i32 set = kBegin; set < kEnd; ++set) {
      const u32(&place)[4] = places[set & 1];
      constexpr u32 kSetBytes = 512;
      const u32 at = static_cast<u32>(set) * kSetBytes;
      device::store_shared_u32(place[0] + at, words_[set].x);
      device::store_shared_u32(place[1] + at, words_[set].y);
      device::store_shared_u32(place[2] + at, words_[set].z);
      device::store_shared_u32(place[3] + at, words_[set].w);
    }
  }

  /// x * 0 is NaN where x is NaN or infinite: marks the columns in the entry. Bits of integers: no
  /// order in the result.
  void probe_columns(i32 entry) const {
#pragma unroll
    for (i32 set = 0; set < kSets; ++set) {
      if (set < kSureSets || all_sets_) {
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
  const SharedRing& ring_;
  i32 warp_;
  i32 row_;    // of the four of a set
  i32 chunk_;  // 16 bytes of a column's 128
  bool all_sets_ = false;
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
             const SharedRing& ring)
      : extents_(extents), work_(work), routes_(routes), ring_(ring) {
    warp_ = static_cast<i32>(threadIdx.x / 32);
    uneven_ = extents.k_tiles % S.k_tiles != 0;
  }

  void run(const Epilogue& epilogue) {
    SegmentList<S> list(work_);
    const Segment& segment = list.now();
    while (list.advance()) {
      const Walk<S> walk{segment.entry, segment.group, segment.begin};
      const i32 row_tile = walk.tile_begin(work_) + warp_;
      mine_ = row_tile < work_.rows.end;
      const RowConstants rows = epilogue.row_constants(walk, warp_, lane_.group);
      if (uneven_) {
        multiply_segment<false>(segment);
      } else {
        multiply_segment<true>(segment);
      }
      if (mine_) {
        finish(routes_.entries[segment.entry], row_tile, segment.begin, rows, epilogue);
      }
    }
  }

 private:
  /// What a lane has of one tile, as it stands in the ring.
  struct Raw {
    device::Words4 codes;
    u32 scales;
  };

  /// Whole steps: past the last tile of K the columns are 0 and the weights any. kWhole: all steps
  /// are whole. A warp without a row tile then decodes whatever stands in the ring.
  template <bool kWhole>
  void multiply_segment(const Segment& segment) {
    i32 before = 0;  // the slot whose last tile is being multiplied
#pragma unroll 1
    for (i32 step = segment.begin; step < segment.end; ++step) {
      const u32 slot = ring_.slots + static_cast<u32>(place_.slot * slots_bytes(S));
      const u32 weights = slot + static_cast<u32>(columns_bytes(S) + warp_ * slot_bytes(S));
      // From one lane, so that the compiler keeps descriptors in uniform registers.
      const u32 columns = device::wgmma_address(__shfl_sync(0xFFFFFFFFU, slot, 0));
      device::mbarrier_wait(ring_.full + static_cast<u32>(place_.slot * 8), place_.parity);
      Raw raw = load(weights);
#pragma unroll
      for (i32 at = 0; at < S.k_tiles; ++at) {
        if (kWhole || (mine_ && step * S.k_tiles + at < extents_.k_tiles)) {
          decode(decoded_[at & 1], raw);
        }
        if (at + 1 < S.k_tiles) {
          raw = load(weights + static_cast<u32>((at + 1) * tile_bytes(S)));
        }
        multiply(columns + static_cast<u32>(at * column_stage_bytes(S) / 16),
                 decoded_[at & 1],
                 at != 0 || step != segment.begin ? 1U : 0U);
        if (at == 0 && step != segment.begin) {
          release(before);
        }
      }
      before = place_.slot;
      place_.advance(ring_);
    }
    device::wgmma_wait<0>();
    release(before);
  }

  Raw load(u32 tile) const {
    return {device::load_shared_words(tile + lane_.codes_at),
            device::load_shared_u16(tile + lane_.scales_at)};
  }

  /// The four K steps of a row tile.
  static void decode(u32 (&steps)[4][4], const Raw& raw) {
    const u32 scales = scale_pair<S>(raw.scales);
    const u32 low = device::byte_permute<0x1010>(scales, 0);
    const u32 high = device::byte_permute<0x3232>(scales, 0);
    const StepPair first = decode_words(raw.codes.x, raw.codes.y, low, high);
    const StepPair second = decode_words(raw.codes.z, raw.codes.w, low, high);
#pragma unroll
    for (i32 at = 0; at < 4; ++at) {
      steps[0][at] = first.even[at];
      steps[1][at] = first.odd[at];
      steps[2][at] = second.even[at];
      steps[3][at] = second.odd[at];
    }
  }

  /// Leaves this tile's instructions running; those of the tile before have ended.
  void multiply(u32 columns, const u32 (&steps)[4][4], u32 add) {
    device::wgmma_fence();
#pragma unroll
    for (i32 step = 0; step < 4; ++step) {
      device::wgmma_m64k16(
          sums_, steps[step], columns + static_cast<u32>(step * 2), step != 0 ? 1U : add);
    }
    device::wgmma_commit();
    device::wgmma_wait<1>();
  }

  void release(i32 slot) const {
    if (threadIdx.x % 32 == 0) {
      device::mbarrier_arrive(ring_.empty + static_cast<u32>(slot * 8));
    }
  }

  void finish(const Entry& entry,
              i32 row_tile,
              i32 first_step,
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
                 Place16{row_tile, lane_.group, column, first_step},
                 TileSums{{d[0], d[1]}, {d[2], d[3]}},
                 entry.not_finite);
      }
    }
  }

  const Extents<S>& extents_;
  const BlockWork<S>& work_;
  const Routes& routes_;
  const SharedRing& ring_;
  Lane<S> lane_;
  RingPlace place_;
  float sums_[octets(S)][4];
  u32 decoded_[2][4][4] = {};  // finite always: what is multiplied by 0 may not be NaN
  i32 warp_;
  bool mine_ = false;  // the item has a row tile for this warp
  bool uneven_;
};

/// All threads of the block, once the entries and the order of their routes stand; down: and what
/// gate_up wrote.
template <Spec S, typename Epilogue>
inline void run_shared_items(RowTileStream<S>& weights,
                             const Routes& routes,
                             const SharedRing& ring,
                             const Epilogue& epilogue) {
  if (static_cast<i32>(threadIdx.x / 32) < weight_warps(S)) {
    WeightWarp<S, Epilogue> warp(epilogue.extents, epilogue.work, routes, ring);
    warp.run(epilogue);
  } else {
    ColumnWarp<S> warp(epilogue.args, epilogue.extents, epilogue.work, routes, ring);
    warp.run(weights);
  }
}

}  // namespace moekit::kernels::decode_gemv
