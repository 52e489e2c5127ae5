// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which weights a warp reads, in which order (README section 2). An item is one group of row tiles
// of one entry over a range of K, a step k_tiles tiles of K of it. A block's items form one list of
// steps; its warps take equal contiguous shares of that list, so an item may be begun by one warp
// and finished by others. Loads and multiplications walk the same share apart.

#include "kernels/decode_gemv/device/routes.cuh"

namespace moekit::kernels::decode_gemv {

struct Share {
  i32 begin;
  i32 end;
};

/// `total` in `parts` shares that differ by one at most, the larger ones first.
class Partition {
 public:
  Partition(i32 total, i32 parts)
      : each_(static_cast<i32>(static_cast<u32>(total) / static_cast<u32>(parts))),
        larger_(total - each_ * parts) {}

  Partition(i32 total, const Divisor& parts)
      : each_(parts.quotient(total)), larger_(total - each_ * parts.value()) {}

  i32 begin(i32 index) const { return index * each_ + (index < larger_ ? index : larger_); }

  Share share(i32 index) const { return {begin(index), begin(index + 1)}; }

  /// Whose share holds `at`.
  i32 index_of(i32 at) const {
    const i32 in_larger = larger_ * (each_ + 1);
    return at < in_larger ? at / (each_ + 1) : larger_ + (at - in_larger) / each_;
  }

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
  i32 blocks;   // that share the role's work
  bool ragged;  // the first or last tile of K is not full

  explicit Extents(const Args& args) {
    constexpr bool kDown = S.role == Role::kDown;
    blocks = args.blocks;
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

/// A block's part of the work: an equal share of a list of items. gate_up: of all items; down: of
/// the items that are cut from the rows of its cluster, so that its blocks differ by one item.
template <Spec S>
struct BlockWork {
  Share rows;      // row tiles that items are cut from
  Divisor chunks;  // steps of an item
  Divisor groups;  // items of an entry
  Divisor parts;   // blocks that share the list
  i32 entries = 0;
  i32 first = 0;       // item
  i32 first_step = 0;  // kSharedItems
  i32 steps = 0;       // of all warps

  /// What does not depend on the routes, while their ids are on the way.
  explicit BlockWork(const Extents<S>& extents)
      : rows(rows_of(extents)),
        chunks((extents.k_tiles + S.k_tiles - 1) / S.k_tiles),
        groups((rows.end - rows.begin + S.row_tiles - 1) / S.row_tiles),
        parts(S.role == Role::kDown && !shares_items(S) ? static_cast<i32>(device::cluster_size())
                                                        : extents.blocks) {}

  void take_entries(i32 num_entries) {
    entries = num_entries;
    if constexpr (splits_steps(S)) {
      const Share own = step_shares().share(static_cast<i32>(blockIdx.x));
      first_step = own.begin;
      steps = own.end - own.begin;
      return;
    }
    const Share own =
        share_of(static_cast<i32>(S.role == Role::kDown ? device::cluster_rank() : blockIdx.x));
    first = own.begin;
    steps = (own.end - own.begin) * chunks.value();
    first_step = first * chunks.value();
  }

  /// splits_steps(): of all blocks.
  Partition step_shares() const {
    return Partition(entries * groups.value() * chunks.value(), parts.value());
  }

  /// The items of one of `parts` blocks.
  Share share_of(i32 part) const { return Partition(entries * groups.value(), parts).share(part); }

  /// The steps of one warp; of whole items if the variant deals those.
  Share share(i32 warp) const {
    if constexpr (S.whole_items != 0) {
      const i32 items = chunks.quotient(steps);
      const i32 own = items > warp ? (items - warp + S.warps - 1) / S.warps : 0;
      return {0, own * chunks.value()};
    }
    return Partition(steps, S.warps).share(warp);
  }

 private:
  static Share rows_of(const Extents<S>& extents) {
    if constexpr (S.role == Role::kDown && !splits_steps(S)) {
      const i32 ranks = static_cast<i32>(device::cluster_size());
      return Partition(extents.row_tiles, extents.blocks / ranks)
          .share(static_cast<i32>(blockIdx.x) / ranks);
    }
    return {0, extents.row_tiles};
  }
};

/// A step of a block's list.
template <Spec S>
struct Walk {
  i32 entry;
  i32 group;
  i32 chunk;

  /// At step `step` of the block's item `item`.
  static Walk at(const BlockWork<S>& work, i32 item, i32 step) {
    const i32 passed = work.chunks.quotient(step);
    item += work.first + passed;
    const i32 entry = work.groups.quotient(item);
    return {entry, item - entry * work.groups.value(), step - passed * work.chunks.value()};
  }

  bool begins_item() const { return chunk == 0; }

  /// Steps of the item after this one.
  i32 steps_after(const BlockWork<S>& work) const { return work.chunks.value() - 1 - chunk; }

  void advance(const BlockWork<S>& work) {
    ++chunk;
    if (chunk == work.chunks.value()) {
      chunk = 0;
      group += S.whole_items != 0 ? S.warps : 1;
      while (group >= work.groups.value()) {
        group -= work.groups.value();
        ++entry;
      }
    }
  }

  /// The item that advance() left: cheaper than to keep it.
  Walk item_before(const BlockWork<S>& work) const {
    Walk before{entry, group - (S.whole_items != 0 ? S.warps : 1), 0};
    while (before.group < 0) {
      before.group += work.groups.value();
      --before.entry;
    }
    return before;
  }

  i32 tile_begin(const BlockWork<S>& work) const { return work.rows.begin + group * S.row_tiles; }

  i32 tiles(const BlockWork<S>& work) const {
    const i32 left = work.rows.end - tile_begin(work);
    return left < S.row_tiles ? left : S.row_tiles;
  }

  i32 k_tiles(const Extents<S>& extents) const {
    const i32 left = extents.k_tiles - chunk * S.k_tiles;
    return left < S.k_tiles ? left : S.k_tiles;
  }
};

}  // namespace moekit::kernels::decode_gemv
