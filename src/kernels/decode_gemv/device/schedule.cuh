// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which weights a block reads, in which order. Producer and consumers walk the same schedule apart.
//
// gate_up: all row tiles of all entries form one list; a block takes an equal, contiguous share of
// it, so blocks differ by one 16-row tile at most. A segment is part of one entry, all of K. down:
// a cluster owns an equal share of the output rows; its blocks split the list of (entry, K chunk)
// evenly. A segment is one entry's share of K.

#include "kernels/decode_gemv/device/routes.cuh"

namespace moekit::kernels::decode_gemv {

struct Segment {
  i32 entry;
  i32 expert;
  i32 column_begin;
  i32 columns;
  i32 tile_begin;
  i32 tiles;
  i32 k_begin;  // in tiles of 64 columns
  i32 k_end;
};

struct Share {
  i32 begin;
  i32 end;
};

/// `total` in `parts` shares that differ by one at most, the larger ones first. One 32-bit
/// division.
class Partition {
 public:
  Partition(i32 total, i32 parts)
      : each_(static_cast<i32>(static_cast<u32>(total) / static_cast<u32>(parts))),
        larger_(total - each_ * parts) {}

  i32 begin(i32 index) const { return index * each_ + (index < larger_ ? index : larger_); }

  Share share(i32 index) const { return {begin(index), begin(index + 1)}; }

 private:
  i32 each_;
  i32 larger_;
};

template <Spec S>
struct Extents {
  i32 k_elems;   // columns of the weights
  i32 k_offset;  // first column's place in the first tile
  i32 k_tiles;
  i32 row_tiles;
  bool ragged;  // the first or last tile of K is not full

  explicit Extents(const Args& args) {
    constexpr bool kDown = S.role == Role::kDown;
    k_elems = kDown ? args.intermediate_size : args.hidden;
    k_offset = kDown ? args.down_group_offset : 0;
    k_tiles = static_cast<i32>(device::fp4_k_tiles(k_elems, k_offset));
    ragged = k_offset != 0 || (k_elems + k_offset) % device::kFp4TileCols != 0;
    row_tiles =
        static_cast<i32>(kDown ? device::fp4_row_tiles(args.hidden, 1)
                               : device::fp4_row_tiles(args.intermediate_size, args.num_parts));
  }

  i64 unit_tile_bytes() const { return static_cast<i64>(row_tiles) * k_tiles * tile_bytes(S); }
};

/// The chunks of K that one stage covers, of one entry.
template <Spec S>
inline i32 chunks_per_entry(const Extents<S>& extents) {
  return (extents.k_tiles + stage_k_tiles(S) - 1) / stage_k_tiles(S);
}

template <Spec S>
class Schedule {
 public:
  Schedule(const Extents<S>& extents, const Routes& routes)
      : k_tiles_(extents.k_tiles), entries_(routes.entries) {
    Share work{};
    if constexpr (S.role == Role::kDown) {
      const i32 ranks = static_cast<i32>(device::cluster_size());
      rows_ = Partition(extents.row_tiles, static_cast<i32>(gridDim.x) / ranks)
                  .share(static_cast<i32>(blockIdx.x) / ranks);
      unit_ = chunks_per_entry(extents);
      work = Partition(*routes.num_entries * unit_, ranks)
                 .share(static_cast<i32>(device::cluster_rank()));
    } else {
      unit_ = extents.row_tiles;
      work = Partition(*routes.num_entries * unit_, static_cast<i32>(gridDim.x))
                 .share(static_cast<i32>(blockIdx.x));
    }
    left_ = work.end - work.begin;
    entry_ = work.begin / unit_;
    at_ = work.begin - entry_ * unit_;
  }

  bool next(Segment& segment) {
    if (left_ <= 0) {
      return false;
    }
    i32 length = left_ < unit_ - at_ ? left_ : unit_ - at_;
    const Entry& item = entries_[entry_];
    segment.entry = entry_;
    segment.expert = item.expert;
    segment.column_begin = item.column_begin;
    segment.columns = item.columns;
    if constexpr (S.role == Role::kDown) {
      segment.tile_begin = rows_.begin;
      segment.tiles = rows_.end - rows_.begin;
      segment.k_begin = at_ * stage_k_tiles(S);
      const i32 k_end = (at_ + length) * stage_k_tiles(S);
      segment.k_end = k_end < k_tiles_ ? k_end : k_tiles_;
    } else {
      // Equal pieces of what is left of this expert, none above the block's tiles.
      constexpr i32 kTiles = tiles_per_block(S);
      if (length > kTiles) {
        const i32 pieces = (length + kTiles - 1) / kTiles;
        length = (length + pieces - 1) / pieces;
      }
      segment.tile_begin = at_;
      segment.tiles = length;
      segment.k_begin = 0;
      segment.k_end = k_tiles_;
    }
    left_ -= length;
    at_ += length;
    if (at_ == unit_) {
      at_ = 0;
      ++entry_;
    }
    return true;
  }

  /// down: the output rows of this cluster, in tiles.
  Share rows() const { return rows_; }

 private:
  i32 k_tiles_;
  i32 unit_;  // row tiles, or chunks of K, of an entry
  i32 left_;  // of this block's share
  i32 entry_;
  i32 at_;
  const Entry* entries_;
  Share rows_{0, 0};
};

}  // namespace moekit::kernels::decode_gemv
