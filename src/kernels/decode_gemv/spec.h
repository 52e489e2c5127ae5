// SPDX-License-Identifier: Apache-2.0
#pragma once

// One variant of the decode kernels, and every number that planner and kernel must agree on: block
// size, tile bytes, the shared memory map. Freestanding.

#include "device/layout/fp4_tile.h"
#include "device/portable.h"

namespace moekit::kernels::decode_gemv {

enum class Role : device::i32 { kGateUp = 0, kDown = 1 };

struct Spec {
  Role role = Role::kGateUp;
  device::i32 group_size = 16;  // 16: nvfp4 (E4M3 scales), 32: mxfp4 (E8M0)
  device::i32 warps_m = 1;      // consumer warps over row tiles
  device::i32 warps_k = 8;      // consumer warps over K
  device::i32 teams = 1;        // down: segments are dealt to teams of warps_m warps, warps_k = 1
  device::i32 k_steps = 1;      // tiles of 64 columns that a consumer warp takes of a stage
  device::i32 row_tiles = 2;    // 16-row tiles of one consumer warp
  device::i32 max_columns =
      8;  // routes of one expert in one pass; 8 n columns are always multiplied
  device::i32 blocks_per_sm = 2;  // register budget; 2 lets down start beside gate_up
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
  device::i32 partials = 0;         // f32 2 x [warps_k][tiles][32][4]
  device::i32 results = 0;          // down: f32 [result_rows][tile rows + 8]
  device::i32 ring = 0;
  device::i32 total = 0;
};

/// What one smem map is computed from.
struct SmemShape {
  device::i32 routes = 0;       // tokens * top_k
  device::i32 experts = 0;      // local experts
  device::i32 result_rows = 0;  // down: routes whose results fit in shared memory
  device::i32 ring_bytes = 0;
};

constexpr device::i32 kMaxTokens = 64;
constexpr device::i32 kMaxStages = 16;
constexpr device::i32 kEntryBytes = 16;
constexpr device::i32 kMaxCluster = 8;
constexpr device::i32 kSortScratchBytes = 4096;  // u32 counts of 1024 experts
constexpr device::i32 kResultPad = 8;  // f32: keeps the four quads of a warp on different banks

inline namespace MOEKIT_ISA {

constexpr device::i32 team_warps(const Spec& s) {
  return s.warps_m * s.warps_k;
}

constexpr device::i32 consumer_warps(const Spec& s) {
  return team_warps(s) * s.teams;
}

constexpr device::i32 consumer_threads(const Spec& s) {
  return consumer_warps(s) * 32;
}

/// More warps feed the stages in turn: issuing the copies of one stage takes a warp longer than the
/// stage lasts at full memory speed, the more so the more columns it has. Four cost no registers
/// where a block has the SM for itself.
constexpr device::i32 producer_warps(const Spec& s) {
  return s.max_columns > 8 && s.blocks_per_sm == 1 ? 4 : 2;
}

constexpr device::i32 num_threads(const Spec& s) {
  return consumer_threads(s) + 32 * producer_warps(s);
}

/// Row tiles of one block at a time.
constexpr device::i32 tiles_per_block(const Spec& s) {
  return s.warps_m * s.row_tiles;
}

constexpr device::i32 rows_per_block(const Spec& s) {
  return tiles_per_block(s) * device::kFp4TileRows;
}

constexpr device::i32 tile_bytes(const Spec& s) {
  return device::fp4_tile_bytes(s.group_size);
}

/// Tiles of K of one stage.
constexpr device::i32 stage_k_tiles(const Spec& s) {
  return s.warps_k * s.k_steps;
}

/// Weights of one stage.
constexpr device::i32 stage_weight_bytes(const Spec& s) {
  return tiles_per_block(s) * stage_k_tiles(s) * tile_bytes(s);
}

/// One column of the other operand in a stage; 16 bytes of padding put odd and even columns on
/// different banks.
constexpr device::i32 stage_column_bytes(const Spec& s) {
  return stage_k_tiles(s) * device::kFp4TileCols * 2 + 16;
}

/// What the first stage of a segment brings besides: an exponent byte and an f32 bias per row.
constexpr device::i32 stage_row_bytes(const Spec& s) {
  return rows_per_block(s) * 5;
}

constexpr device::i32 stage_bytes(const Spec& s, device::i32 columns) {
  return device::round_up(
      stage_weight_bytes(s) + stage_row_bytes(s) + columns * stage_column_bytes(s), 128);
}

/// One buffer of the reduction over warps_k; the scratch of the route sort at least.
constexpr device::i32 partial_bytes(const Spec& s) {
  return s.warps_k == 1 ? kSortScratchBytes / 2 : s.warps_k * tiles_per_block(s) * 32 * 16;
}

/// An expert with more routes than max_columns takes several entries.
constexpr device::i32 max_entries(const Spec& s, device::i32 routes, device::i32 experts) {
  return (routes < experts ? routes : experts) + routes / s.max_columns;
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
  map.partials = take(2 * partial_bytes(s));
  map.results =
      take(s.role == Role::kDown ? shape.result_rows * (rows_per_block(s) + kResultPad) * 4 : 0);
  map.ring = device::round_up(at, 128);
  map.total = map.ring + shape.ring_bytes;
  return map;
}

/// Null for a variant that the kernel can be compiled for.
constexpr const char* why_invalid(const Spec& s) {
  if (s.group_size != 16 && s.group_size != 32) {
    return "group_size must be 16 or 32";
  }
  if (s.warps_m < 1 || s.warps_k < 1 || s.teams < 1 || consumer_warps(s) < 4 ||
      consumer_warps(s) > 16) {
    return "warps_m * warps_k * teams must be 4 to 16";
  }
  if (s.teams > 1 && (s.warps_k != 1 || s.role != Role::kDown)) {
    return "teams need role down and warps_k 1";
  }
  if (tiles_per_block(s) > 32) {
    return "warps_m * row_tiles must be at most 32: one lane of the producer for each";
  }
  if (s.k_steps < 1 || s.k_steps > 4) {
    return "k_steps must be 1 to 4";
  }
  if (s.row_tiles < 1 || s.row_tiles > 8) {
    return "row_tiles must be 1 to 8";
  }
  if (s.max_columns != 8 && s.max_columns != 16 && s.max_columns != 24 && s.max_columns != 32) {
    return "max_columns must be 8, 16, 24 or 32";
  }
  return nullptr;
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::kernels::decode_gemv
