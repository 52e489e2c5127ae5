// SPDX-License-Identifier: Apache-2.0
#pragma once

// Grid, shared memory and spill room of the sm_90a launches: what planner and launch must agree on.

#include <algorithm>
#include <cstdint>

#include "kernels/decode_gemv/spec.h"

namespace moekit::kernels::decode_gemv {

/// Room that is kept for static shared memory: barriers and a few words (device/kernel.cuh).
inline constexpr std::int32_t kStaticSmemBytes = 1024;

/// What every resident block costs an SM besides its own shared memory (CUDA C++ programming guide,
/// shared memory of compute capability 9.0: 228 KiB an SM, 227 KiB a block).
inline constexpr std::int32_t kReservedSmemBytes = 1024;

/// Dynamic shared memory of one block where `blocks_per_sm` share an SM.
constexpr std::int32_t launch_smem_limit(std::int32_t smem_per_block_bytes,
                                         std::int32_t blocks_per_sm) {
  const std::int32_t sm = smem_per_block_bytes + kReservedSmemBytes;
  return (sm / blocks_per_sm - kReservedSmemBytes - kStaticSmemBytes) / 128 * 128;
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

/// Two stages of the widest entry at least, else it does not fit.
inline Geometry gate_up_geometry(const Spec& spec, const LaunchShape& shape) {
  const std::int32_t routes = shape.num_tokens * shape.top_k;
  const SmemMap map = smem_map(spec, {routes, shape.num_experts, 0, 0});
  const std::int32_t least = 2 * stage_bytes(spec, std::min(spec.max_columns, routes));
  Geometry made;
  made.grid = shape.num_sms * shape.blocks_per_sm;
  made.ring_bytes = std::max(least, shape.smem_bytes - map.ring);
  made.smem_bytes = map.ring + made.ring_bytes;
  made.fits = made.smem_bytes <= shape.smem_bytes;
  return made;
}

/// A block expects its share of the routes and 15 % more in its table of results; a call that is
/// more skewed than that spills. Three stages are kept for the ring before the table grows.
inline Geometry down_geometry(const Spec& spec, const LaunchShape& shape) {
  const std::int32_t routes = shape.num_tokens * shape.top_k;
  const std::int32_t columns = std::min(spec.max_columns, routes);
  const std::int32_t row_bytes = (rows_per_block(spec) + kResultPad) * 4;
  SmemShape smem{routes, shape.num_experts, 0, 0};
  const std::int32_t bare = smem_map(spec, smem).ring;
  const std::int32_t share = (routes + shape.cluster - 1) / shape.cluster;
  const std::int32_t wanted = shape.cluster == 1 ? routes : std::min(routes, share * 115 / 100 + 8);
  const std::int32_t room = shape.smem_bytes - bare - 3 * stage_bytes(spec, columns) - 256;
  Geometry made;
  made.result_rows = std::min(wanted, std::max(0, room / row_bytes));
  smem.result_rows = made.result_rows;
  const std::int32_t ring_at = smem_map(spec, smem).ring;
  made.ring_bytes = std::max(2 * stage_bytes(spec, columns), shape.smem_bytes - ring_at);
  made.smem_bytes = ring_at + made.ring_bytes;
  made.fits = made.smem_bytes <= shape.smem_bytes && shape.max_clusters > 0;
  const std::int32_t tiles = (shape.hidden + device::kFp4TileRows - 1) / device::kFp4TileRows;
  // Rows beyond what the resident clusters hold take further clusters, in waves.
  const std::int32_t clusters =
      std::max(std::min(shape.max_clusters, tiles),
               (tiles + tiles_per_block(spec) - 1) / tiles_per_block(spec));
  made.grid = clusters * shape.cluster;
  if (made.result_rows < routes) {
    made.spill_bytes = static_cast<std::int64_t>(clusters) * row_bytes *
                       (routes + (shape.cluster - 1) * spec.max_columns);
  }
  return made;
}

}  // namespace moekit::kernels::decode_gemv
