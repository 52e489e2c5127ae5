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
// Each route is an entry of its own: K of a row tile over warps / row_tiles warps
// (gate_up), a route over as many as there are warps for it (down).
constexpr device::i32 kRouteItems = 3;

struct Spec {
  Role role = Role::kGateUp;
  device::i32 group_size = 16;    // 16: nvfp4 (E4M3 scales), 32: mxfp4 (E8M0)
  device::i32 warps = 16;         // each with a ring of its own
  device::i32 row_tiles = 1;      // 16-row tiles of one item
  device::i32 k_tiles = 4;        // tiles of 64 columns of one step
  device::i32 lookahead = 4;      // operand fragments are loaded this many tiles of K ahead;
                                  // kRouteItems, down: tiles decoded before their columns are there
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

constexpr bool takes_routes(const Spec& s) {
  return s.whole_items == kRouteItems;
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
  } else if (takes_routes(s)) {
    if (s.max_columns != 8 || s.row_tiles > 4 || s.warps % 4 != 0 ||
        (s.role == Role::kGateUp && s.warps % (4 * s.row_tiles) != 0)) {
      return "route items: 8 columns, at most 4 row tiles, parts of 4 warps (gate_up)";
    }
  } else if (s.row_tiles < 1 || s.row_tiles > 4) {
    return "row_tiles must be 1 to 4";
  }
  if (s.k_tiles < 1 || s.k_tiles > 8) {
    return "k_tiles must be 1 to 8";
  }
  if (takes_routes(s) ? s.lookahead < 0 || s.lookahead > s.row_tiles * s.k_tiles
                      : s.lookahead < 1 || s.k_tiles % s.lookahead != 0) {
    return "k_tiles must be a multiple of lookahead";
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

// The kernels that take each route by itself (kRouteItems, README section 4): their shared memory,
// and the division of their work that it depends on.

constexpr device::i32 kMaxRouteItems = 32;  // routes of a call: one a lane

/// What one map is computed from; what a role does not name is 0.
struct RouteShape {
  device::i32 routes = 0;   // tokens * top_k
  device::i32 tokens = 0;   // gate_up
  device::i32 k_tiles = 0;  // gate_up: of x
  device::i32 tiles = 0;    // gate_up: items of a block, down: row tiles of a block; at most
};

/// Byte offsets into the block's dynamic shared memory.
struct RouteMap {
  device::i32 ends = 0;      // down: RouteEnd [routes]
  device::i32 rows = 0;      // down: f32 [rows][routes], what is added to (and mxfp4: multiplies) r
  device::i32 operands = 0;  // gate_up: rows of x
  device::i32 partials = 0;  // f32 [tile][16 rows][parts]; down: [tile][16 rows][routes][parts]
  device::i32 ring = 0;      // the rest: each warp an equal part
};

constexpr device::i32 kRouteEndBytes = 16;

inline namespace MOEKIT_ISA {

/// Warps that share the K of one row tile; one where a call has no routes.
constexpr device::i32 route_parts(const Spec& s, device::i32 routes) {
  if (s.role == Role::kGateUp) {
    return s.warps / s.row_tiles;
  }
  device::i32 parts = 1;
  while (routes > 0 && parts * 2 * routes <= s.warps) {
    parts *= 2;
  }
  return parts;
}

/// Bytes from one row of x to the next: sixteen more, so that rows stand on different banks.
constexpr device::i32 operand_stride(device::i32 k_tiles) {
  return k_tiles * device::kFp4TileCols * 2 + 16;
}

/// f32 from one row of partial sums to the next: four more, for the banks of 16-byte reads.
constexpr device::i32 partial_stride(device::i32 routes, device::i32 parts) {
  return device::round_up(routes * parts, 4) + 4;
}

/// Weights of one step of a warp: gate_up: k_tiles of one row tile, down: of each of the block's.
constexpr device::i32 route_slot_bytes(const Spec& s, device::i32 tiles) {
  return (s.role == Role::kGateUp ? 1 : tiles) * slot_row_bytes(s);
}

constexpr RouteMap route_map(const Spec& s, const RouteShape& shape) {
  const bool down = s.role == Role::kDown;
  const device::i32 rows = shape.tiles * device::kFp4TileRows;
  RouteMap map;
  device::i32 at = down ? shape.routes * kRouteEndBytes : 0;
  map.rows = at;
  at += down ? rows * shape.routes * (s.group_size == 32 ? 8 : 4) : 0;
  map.operands = at;
  at += down ? 0 : shape.tokens * operand_stride(shape.k_tiles);
  map.partials = at;
  at += rows * partial_stride(down ? shape.routes : 1, route_parts(s, shape.routes)) * 4;
  map.ring = device::round_up(at, 128);
  return map;
}

}  // namespace MOEKIT_ISA

}  // namespace moekit::kernels::decode_gemv
