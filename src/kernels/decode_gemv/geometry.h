// SPDX-License-Identifier: Apache-2.0
#pragma once

// Grid, shared memory and spill room of the sm_90a launches: what planner and launch must agree on.

#include <algorithm>
#include <cstdint>

#include "kernels/decode_gemv/spec.h"

namespace moekit::kernels::decode_gemv {

/// What every resident block costs an SM besides its own shared memory (CUDA C++ programming guide,
/// shared memory of compute capability 9.0: 228 KiB an SM, 227 KiB a block).
inline constexpr std::int32_t kReservedSmemBytes = 1024;

/// Dynamic shared memory of one block where `blocks_per_sm` share an SM.
constexpr std::int32_t launch_smem_limit(std::int32_t smem_per_block_bytes,
                                         std::int32_t blocks_per_sm) {
  const std::int32_t sm = smem_per_block_bytes + kReservedSmemBytes;
  return (sm / blocks_per_sm - kReservedSmemBytes - kStaticSmemBytes) / 128 * 128;
}

/// The same for a call of `routes`. Both kernels of kRouteItems stand on every SM at once, and
/// neither has half of it: down has all of its weights there when gate_up ends, 55 KiB of GLM-5.2
/// TP8 at 8 routes, 110 at 16; the rest is gate_up's.
constexpr std::int32_t launch_smem_limit(const Spec& spec,
                                         std::int32_t smem_per_block_bytes,
                                         std::int32_t routes) {
  if (!takes_routes(spec)) {
    return launch_smem_limit(smem_per_block_bytes, spec.blocks_per_sm);
  }
  const std::int32_t both =
      smem_per_block_bytes + kReservedSmemBytes - 2 * (kReservedSmemBytes + kStaticSmemBytes);
  const std::int32_t down = both * (routes <= 8 ? 36 : 53) / 100 / 128 * 128;
  return spec.role == Role::kDown ? down : (both - down) / 128 * 128;
}

/// Of any call.
constexpr std::int32_t largest_smem_limit(const Spec& spec, std::int32_t smem_per_block_bytes) {
  return std::max(launch_smem_limit(spec, smem_per_block_bytes, 1),
                  launch_smem_limit(spec, smem_per_block_bytes, kMaxRouteItems));
}

/// Clusters that fit the device at once. Those of more than two blocks need whole GPCs, which are
/// not all of one size: on an H200, 62 of 66 clusters of four are resident.
constexpr std::int32_t resident_clusters(std::int32_t num_sms,
                                         std::int32_t blocks_per_sm,
                                         std::int32_t cluster) {
  const std::int32_t all = num_sms * blocks_per_sm / cluster;
  const std::int32_t sure = cluster <= 2 ? all : all * 15 / 16;
  return sure > 0 ? sure : 1;
}

/// What a launch is sized for. Sizes grow with num_tokens only.
struct LaunchShape {
  std::int32_t num_tokens = 0;
  std::int32_t top_k = 0;
  std::int32_t num_experts = 0;
  std::int32_t hidden = 0;
  std::int32_t intermediate = 0;
  std::int32_t down_group_offset = 0;
  std::int32_t num_sms = 0;
  std::int32_t smem_bytes = 0;     // dynamic shared memory that one block may take
  std::int32_t blocks_per_sm = 1;  // blocks that are to share an SM
  std::int32_t cluster = 1;        // down: blocks that share output rows
  std::int32_t max_clusters = 0;   // down: clusters that fit the device at once
};

struct Geometry {
  std::int32_t grid = 0;
  std::int32_t smem_bytes = 0;
  std::int32_t ring_bytes = 0;
  std::int32_t result_rows = 0;
  std::int64_t spill_bytes = 0;  // 0: results of any routing fit in shared memory
  bool fits = false;
};

/// What is left for the rings, in whole slots of every warp; two of them at least.
inline std::int32_t ring_bytes(const Spec& spec, std::int32_t room) {
  const std::int32_t slots = std::clamp(room / slots_bytes(spec), 2, kMaxSlots);
  return slots * slots_bytes(spec);
}

/// The rest of an SM's 256 KiB is left to L1, where operands are read from: EP8 at M = 8 takes 156
/// us with it and 163 without.
inline constexpr std::int32_t kSmemBytesBesideL1 = 176 * 1024;

constexpr bool needs_l1(const Spec& spec) {
  return !shares_items(spec);
}

/// kRouteItems: what the warps' steps take, as far as there is room.
inline Geometry route_geometry(const Spec& spec,
                               const LaunchShape& shape,
                               std::int32_t grid,
                               std::int32_t row_tiles) {
  RouteShape smem;
  smem.routes = shape.num_tokens * shape.top_k;
  smem.tokens = shape.num_tokens;
  smem.k_tiles = static_cast<std::int32_t>(device::fp4_k_tiles(shape.hidden, 0));
  smem.tiles = spec.role == Role::kDown ? spec.row_tiles : (row_tiles + grid - 1) / grid;
  const RouteMap map = route_map(spec, smem);
  // down asks for everything at once: its weights must be there when gate_up ends.
  const std::int32_t k_tiles =
      static_cast<std::int32_t>(device::fp4_k_tiles(shape.intermediate, shape.down_group_offset));
  const std::int32_t parts = route_parts(spec, smem.routes);
  const std::int32_t groups = spec.warps / parts;
  const std::int32_t chunks = (k_tiles + spec.k_tiles - 1) / spec.k_tiles;
  const std::int32_t steps = spec.role == Role::kDown ? (smem.routes + groups - 1) / groups *
                                                            ((chunks + parts - 1) / parts)
                                                      : 1;
  const std::int32_t slots = spec.warps * steps * route_slot_bytes(spec, smem.tiles);
  Geometry made;
  made.grid = grid;
  made.smem_bytes = shape.smem_bytes;
  made.ring_bytes = std::max(0, shape.smem_bytes - map.ring);
  made.result_rows = spec.role == Role::kDown ? smem.routes : 0;  // all of any call
  made.fits = made.ring_bytes >= slots && smem.routes <= kMaxRouteItems &&
              (spec.role == Role::kGateUp
                   ? smem.tiles * device::kFp4TileRows <= num_threads(spec)
                   : grid <= shape.max_clusters && k_tiles >= spec.k_tiles && steps <= kMaxSlots);
  return made;
}

inline Geometry gate_up_geometry(const Spec& spec, const LaunchShape& shape) {
  if (takes_routes(spec)) {
    // Gated or not: items of the larger number.
    const auto tiles = static_cast<std::int32_t>(device::fp4_row_tiles(shape.intermediate, 2));
    return route_geometry(
        spec, shape, shape.num_sms * shape.blocks_per_sm, shape.num_tokens * shape.top_k * tiles);
  }
  const std::int32_t limit =
      needs_l1(spec) ? std::min(shape.smem_bytes, kSmemBytesBesideL1) : shape.smem_bytes;
  const std::int32_t routes = shape.num_tokens * shape.top_k;
  const SmemShape smem{routes, shape.num_experts, 0, 0, 0};
  const SmemMap map = smem_map(spec, smem);
  Geometry made;
  made.grid = shape.num_sms * shape.blocks_per_sm;
  made.ring_bytes = ring_bytes(spec, limit - map.ring);
  made.fits = map.ring + made.ring_bytes <= limit;
  made.smem_bytes = limit;  // the same for every token count
  return made;
}

/// Counters that the blocks of down meet at, two for each group of rows, where they split K
/// (device/shared_results.cuh).
inline std::int64_t arrival_bytes(const Spec& spec, std::int64_t hidden) {
  const std::int64_t group_rows = std::int64_t{kSharedGroupTiles} * device::kFp4TileRows;
  return splits_steps(spec) ? (hidden + group_rows - 1) / group_rows * 8 : 0;
}

/// Every block may hold any part of any result: results of routes meet in the workspace, and of
/// each block the part of an item that it did not begin.
inline Geometry shared_down_geometry(const Spec& spec, const LaunchShape& shape) {
  const SmemShape smem{shape.num_tokens * shape.top_k, shape.num_experts, 0, 0, 0};
  const SmemMap map = smem_map(spec, smem);
  const std::int64_t groups = arrival_bytes(spec, shape.hidden) / 8;
  const std::int64_t routes = std::int64_t{shape.num_tokens} * shape.top_k;
  const std::int64_t rest = std::int64_t{shape.max_clusters} * spec.max_columns;
  Geometry made;
  made.grid = shape.max_clusters;
  made.ring_bytes = ring_bytes(spec, shape.smem_bytes - map.ring);
  made.smem_bytes = shape.smem_bytes;
  made.spill_bytes =
      (routes * groups + rest) * kSharedGroupTiles * device::kFp4TileRows * std::int64_t{4};
  made.fits = map.ring + made.ring_bytes <= shape.smem_bytes && shape.max_clusters > 0;
  return made;
}

/// A block expects its share of the routes and 15 % more in its table of results; a call that is
/// more skewed than that spills. Two slots of each ring are kept before the table grows.
inline Geometry down_geometry(const Spec& spec, const LaunchShape& shape) {
  if (splits_steps(spec)) {
    return shared_down_geometry(spec, shape);
  }
  const std::int32_t routes = shape.num_tokens * shape.top_k;
  const std::int32_t tiles = (shape.hidden + device::kFp4TileRows - 1) / device::kFp4TileRows;
  const std::int32_t clusters = std::clamp(shape.max_clusters, 1, tiles);
  if (takes_routes(spec)) {
    return route_geometry(spec, shape, (tiles + spec.row_tiles - 1) / spec.row_tiles, tiles);
  }
  SmemShape smem{routes, shape.num_experts, 0, 0, 0};
  smem.rows = (tiles + clusters - 1) / clusters * device::kFp4TileRows;
  const std::int32_t row_bytes = result_stride(smem.rows) * 4;
  const std::int32_t share = (routes + shape.cluster - 1) / shape.cluster;
  const std::int32_t wanted = shape.cluster == 1 ? routes : std::min(routes, share * 115 / 100 + 8);
  const std::int32_t bare = smem_map(spec, smem).ring + 2 * slots_bytes(spec) + 256;
  // A large table of results needs all there is.
  const bool small = needs_l1(spec) && bare + wanted * row_bytes <= kSmemBytesBesideL1;
  const std::int32_t limit =
      small ? std::min(shape.smem_bytes, kSmemBytesBesideL1) : shape.smem_bytes;
  const std::int32_t room = limit - bare;
  Geometry made;
  made.result_rows = std::min(wanted, std::max(0, room / row_bytes));
  smem.result_rows = made.result_rows;
  const std::int32_t ring_at = smem_map(spec, smem).ring;
  made.ring_bytes = ring_bytes(spec, limit - ring_at);
  made.fits = ring_at + made.ring_bytes <= limit && shape.max_clusters > 0;
  made.smem_bytes = limit;
  made.grid = clusters * shape.cluster;
  if (made.result_rows < routes) {
    made.spill_bytes = static_cast<std::int64_t>(clusters) * row_bytes *
                       (routes + (shape.cluster - 1) * spec.max_columns);
  }
  return made;
}

}  // namespace moekit::kernels::decode_gemv
