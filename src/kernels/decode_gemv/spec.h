// SPDX-License-Identifier: Apache-2.0
#pragma once

// One variant of the decode kernels, and every number that planner and kernel must agree on: block
// size, tile bytes, the shared memory map. Freestanding.

#include "device/layout/fp4_tile.h"
#include "device/portable.h"

namespace moekit::kernels::decode_gemv {

enum class Role : device::i32 { kGateUp = 0, kDown = 1 };

/// How a block's warps share its items: Spec::whole_items.
constexpr device::i32 kSplitItems = 0;   // equal shares of the list of steps: K may be split
constexpr device::i32 kWholeItems = 1;   // an item is one warp's
constexpr device::i32 kSharedItems = 2;  // a row tile of the item is one warp's: warpgroups (WGMMA)

struct Spec {
  Role role = Role::kGateUp;
  device::i32 group_size = 16;    // 16: nvfp4 (E4M3 scales), 32: mxfp4 (E8M0)
  device::i32 warps = 16;         // each with a ring of its own
  device::i32 row_tiles = 1;      // 16-row tiles of one item
  device::i32 k_tiles = 4;        // tiles of 64 columns of one step
  device::i32 lookahead = 4;      // operand fragments are loaded this many tiles of K ahead; 0: all
                                  // rows of the other operand are copied to shared memory
  device::i32 max_columns = 8;    // routes of one expert in one pass; 8 n are always multiplied
  device::i32 whole_items = 0;    // kSplitItems, kWholeItems or kSharedItems
  device::i32 blocks_per_sm = 1;  // register budget
};

/// Both roles in one launch; a block has the threads of the larger one.
struct ResidentSpec {
  Spec gate_up{};
  Spec down{};
};

/// Byte offsets into the block's dynamic shared memory, and the size of what remains for stages.
struct SmemMap {
  device::i32 expert_of_route = 0;  // i16 [routes]
  device::i32 weight_of_route = 0;  // f32 [routes]
  device::i32 sorted = 0;           // u16 [routes] active routes by expert, then by route
  device::i32 position = 0;         // u16 [routes] inverse of sorted
  device::i32 places = 0;           // u32 [routes] where down keeps a route's result
  device::i32 expert_cursor = 0;    // u16 [experts]
  device::i32 first_entry = 0;      // u16 [experts]
  device::i32 entries = 0;          // Entry [entries]
  device::i32 partials = 0;         // f32 [warps][row tiles][octets][32][4], or the sort scratch
  device::i32 results = 0;          // down: f32 [result_rows][rows + 4]
  device::i32 operands = 0;         // lookahead 0: rows of x or of the intermediate
  device::i32 ring = 0;
  device::i32 total = 0;
};

/// What one smem map is computed from.
struct SmemShape {
  device::i32 routes = 0;       // tokens * top_k
  device::i32 experts = 0;      // local experts
  device::i32 result_rows = 0;  // down: routes whose results fit in shared memory
  device::i32 rows = 0;         // down: output rows of a block
  device::i32 ring_bytes = 0;
  device::i32 operand_rows = 0;     // tokens, or routes of down
  device::i32 operand_k_tiles = 0;  // of a row
};

constexpr device::i32 kCastThreads = 256;  // of a block; a block has as many columns of one token
constexpr device::i32 kStaticSmemBytes = 2560;  // kept for barriers and a few words
constexpr device::i32 kMaxTokens = 64;
constexpr device::i32 kMaxWarps = 32;
constexpr device::i32 kMaxSlots = 8;  // of a warp's ring
constexpr device::i32 kEntryBytes = 32;
constexpr device::i32 kMaxCluster = 8;
constexpr device::i32 kSortScratchBytes = 4096;  // u32 counts of 1024 experts
// kSharedItems: warps that fetch operand columns in stages of 64 columns of K, and ask for weights.
// A stage begins at a multiple of 1024, the period of the 128-byte swizzle.
constexpr device::i32 kColumnWarps = 4;
constexpr device::i32 kColumnAlign = 1024;
constexpr device::i32 kSharedGroupTiles = 16;  // row tiles of an item

constexpr device::i32 kResultPad = 4;  // f32: puts the four quads of a warp on different banks

inline namespace MOEKIT_ISA {

constexpr device::i32 num_threads(const Spec& s) {
  return s.warps * 32;
}

constexpr device::i32 num_threads(const ResidentSpec& s) {
  const device::i32 gate_up = num_threads(s.gate_up);
  const device::i32 down = num_threads(s.down);
  return gate_up > down ? gate_up : down;
}

constexpr device::i32 tile_bytes(const Spec& s) {
  return device::fp4_tile_bytes(s.group_size);
}

/// Row tiles of one step stand this far apart in a slot.
constexpr device::i32 slot_row_bytes(const Spec& s) {
  return s.k_tiles * tile_bytes(s);
}

constexpr bool shares_items(const Spec& s) {
  return s.whole_items == kSharedItems;
}

/// down: K of an item may be split between blocks, whose results meet in the workspace.
constexpr bool splits_steps(const Spec& s) {
  return shares_items(s) && s.role == Role::kDown;
}

/// Warps that read weights.
constexpr device::i32 weight_warps(const Spec& s) {
  return shares_items(s) ? s.warps - kColumnWarps : s.warps;
}

/// Weights of one step of a warp. A multiple of 32 because tiles are.
constexpr device::i32 slot_bytes(const Spec& s) {
  return (shares_items(s) ? 1 : s.row_tiles) * slot_row_bytes(s);
}

/// One stage of operand columns: 64 of K, BF16.
constexpr device::i32 column_stage_bytes(const Spec& s) {
  return s.max_columns * device::kFp4TileCols * 2;
}

/// kSharedItems: the columns of one step.
constexpr device::i32 columns_bytes(const Spec& s) {
  return shares_items(s) ? s.k_tiles * column_stage_bytes(s) : 0;
}

/// One slot of every warp, with the columns that they share.
constexpr device::i32 slots_bytes(const Spec& s) {
  const device::i32 bytes = columns_bytes(s) + weight_warps(s) * slot_bytes(s);
  return shares_items(s) ? device::round_up(bytes, kColumnAlign) : bytes;
}

constexpr bool stages_operands(const Spec& s) {
  return s.lookahead == 0;
}

/// Bytes from one staged row to the next: sixteen more, so that rows stand on different banks.
constexpr device::i32 operand_stride(device::i32 k_tiles) {
  return k_tiles * device::kFp4TileCols * 2 + 16;
}

constexpr device::i32 octets(const Spec& s) {
  return s.max_columns / 8;
}

/// What a warp that begins in the middle of an item leaves for the warp that began it.
constexpr device::i32 partial_bytes(const Spec& s) {
  return s.row_tiles * octets(s) * 512;
}

/// An expert with more routes than max_columns takes several entries.
constexpr device::i32 max_entries(const Spec& s, device::i32 routes, device::i32 experts) {
  return (routes < experts ? routes : experts) + routes / s.max_columns;
}

/// f32 of one route's results in the table of a block with `rows` output rows.
constexpr device::i32 result_stride(device::i32 rows) {
  return rows + kResultPad;
}

constexpr SmemMap smem_map(const Spec& s, const SmemShape& shape) {
  SmemMap map;
  device::i32 at = 0;
  const auto take = [&at](device::i32 bytes) {
    const device::i32 begin = at;
    at += device::round_up(bytes, 16);
    return begin;
  };
  map.expert_of_route = take(shape.routes * 2);
  map.weight_of_route = take(shape.routes * 4);
  map.sorted = take(shape.routes * 2);
  map.position = take(shape.routes * 2);
  map.places = take(s.role == Role::kDown ? shape.routes * 4 : 0);
  map.expert_cursor = take(shape.experts * 2);
  map.first_entry = take(shape.experts * 2);
  map.entries = take(max_entries(s, shape.routes, shape.experts) * kEntryBytes);
  const device::i32 partials = s.whole_items != 0 ? 0 : s.warps * partial_bytes(s);
  map.partials = take(partials > kSortScratchBytes ? partials : kSortScratchBytes);
  map.results = take(s.role == Role::kDown ? shape.result_rows * result_stride(shape.rows) * 4 : 0);
  take(shares_items(s) ? kColumnAlign : 0);  // the ring begins at a multiple of it
  map.operands =
      take(stages_operands(s) ? shape.operand_rows * operand_stride(shape.operand_k_tiles) : 0);
  map.ring = device::round_up(at, 128);
  map.total = map.ring + shape.ring_bytes;
  return map;
}

/// Null for a variant that the kernel can be compiled for.
constexpr const char* why_invalid(const Spec& s) {
  if (s.group_size != 16 && s.group_size != 32) {
    return "group_size must be 16 or 32";
  }
  if (s.warps < 4 || s.warps > kMaxWarps || s.warps * s.blocks_per_sm > 64) {
    return "warps must be 4 to 32";
  }
  if (shares_items(s)) {
    if (s.row_tiles != kSharedGroupTiles || s.row_tiles != weight_warps(s)) {
      return "row_tiles must be 16, as many as warps that read weights";
    }
    if (s.k_tiles != kColumnWarps || s.max_columns < 16 || s.max_columns > 24) {
      return "k_tiles must be the column warps, max_columns 16 or 24";
    }
  } else if (s.row_tiles < 1 || s.row_tiles > 4) {
    return "row_tiles must be 1 to 4";
  }
  if (s.k_tiles < 1 || s.k_tiles > 8 || s.lookahead < 0 ||
      (s.lookahead > 0 && s.k_tiles % s.lookahead != 0)) {
    return "k_tiles must be 1 to 8 and a multiple of lookahead";
  }
  if (s.max_columns != 8 && s.max_columns != 16 && s.max_columns != 24 && s.max_columns != 32) {
    return "max_columns must be 8, 16, 24 or 32";
  }
  return nullptr;
}

/// Null for a pair that one kernel can be compiled of.
constexpr const char* why_invalid(const ResidentSpec& s) {
  if (s.gate_up.role != Role::kGateUp || s.down.role != Role::kDown) {
    return "the roles must be gate_up and down";
  }
  if (s.gate_up.group_size != s.down.group_size) {
    return "both roles must have one group_size";
  }
  const char* const gate_up = why_invalid(s.gate_up);
  return gate_up != nullptr ? gate_up : why_invalid(s.down);
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::kernels::decode_gemv
