// SPDX-License-Identifier: Apache-2.0
#pragma once

// Entry of both decode kernels. Roles: every thread builds the routes; then the last warps
// produce stages and the others consume them; down ends with the cluster's sum over slots (README
// section 4).

#include "kernels/decode_gemv/device/combine.cuh"
#include "kernels/decode_gemv/device/consume.cuh"

namespace moekit::kernels::decode_gemv {

extern __shared__ u8 dynamic_smem[] __attribute__((aligned(128)));

struct StaticSmem {
  u64 full[kMaxStages];
  u64 empty[kMaxStages];  // right behind `full`: one address serves both
  u32 warp_sums[16];
  float* tables[kMaxCluster];
  u32 not_finite[3];
  i32 max_columns;
  i32 num_entries;
};

inline Routes make_routes(const SmemMap& map, StaticSmem& fixed) {
  Routes routes;
  routes.expert_of_route = reinterpret_cast<i16*>(dynamic_smem + map.expert_of_route);
  routes.weight_of_route = reinterpret_cast<float*>(dynamic_smem + map.weight_of_route);
  routes.sorted = reinterpret_cast<u16*>(dynamic_smem + map.sorted);
  routes.position = reinterpret_cast<u16*>(dynamic_smem + map.position);
  routes.places = reinterpret_cast<u32*>(dynamic_smem + map.places);
  routes.expert_cursor = reinterpret_cast<u16*>(dynamic_smem + map.expert_cursor);
  routes.first_entry = reinterpret_cast<u16*>(dynamic_smem + map.first_entry);
  routes.entries = reinterpret_cast<Entry*>(dynamic_smem + map.entries);
  routes.warp_sums = fixed.warp_sums;
  routes.max_columns = &fixed.max_columns;
  routes.num_entries = &fixed.num_entries;
  return routes;
}

/// As many stages as the widest entry of this call leaves room for.
template <Spec S>
inline Ring make_ring(const Args& args, const SmemMap& map, StaticSmem& fixed) {
  Ring ring;
  ring.base = device::opaque(device::shared_address(dynamic_smem + map.ring));
  ring.full = device::opaque(device::shared_address(fixed.full));
  ring.empty = ring.full + static_cast<u32>(sizeof(fixed.full));
  ring.stage_bytes = stage_bytes(S, fixed.max_columns);
  const i32 fit = args.ring_bytes / ring.stage_bytes;
  ring.num_stages = fit < kMaxStages ? fit : kMaxStages;
  return ring;
}

template <Spec S>
inline void init_barriers(StaticSmem& fixed) {
  if (threadIdx.x == 0) {
    for (i32 stage = 0; stage < kMaxStages; ++stage) {
      device::mbarrier_init(device::shared_address(&fixed.full[stage]), 1);
      device::mbarrier_init(device::shared_address(&fixed.empty[stage]), consumer_warps(S));
    }
    for (u32& word : fixed.not_finite) {
      word = 0;
    }
    device::mbarrier_init_fence();
  }
}

/// Where block `rank` of the cluster keeps its route results. Blocks whose routes do not fit in
/// shared memory use the spill area: positions of two ranks overlap in at most one entry.
template <Spec S>
inline float* result_rows(
    const Args& args, const SmemMap& map, const Routes& routes, i32 chunks, i32 ranks, i32 rank) {
  const Share share = Partition(*routes.num_entries * chunks, ranks).share(rank);
  if (share.begin >= share.end) {
    return nullptr;
  }
  const Entry& last = routes.entries[static_cast<u32>(share.end - 1) / static_cast<u32>(chunks)];
  const i32 first = first_position(routes, chunks, share);
  if (last.column_begin + last.columns - first <= args.result_rows) {
    float* rows = reinterpret_cast<float*>(dynamic_smem + map.results);
    return device::cluster_map(rows, static_cast<u32>(rank));
  }
  const i64 cluster = blockIdx.x / static_cast<u32>(ranks);
  const i64 positions = args.num_tokens * args.top_k + (ranks - 1) * S.max_columns;
  return args.spill +
         (cluster * positions + first + rank * S.max_columns) * ResultTable<S>::kStride;
}

template <Spec S>
inline void run_down(const Args& args,
                     const SmemMap& map,
                     StaticSmem& fixed,
                     const Routes& routes) {
  const Extents<S> extents(args);
  const Ring ring = make_ring<S>(args, map, fixed);
  const Schedule<S> schedule(extents, routes);
  const i32 ranks = static_cast<i32>(device::cluster_size());
  const i32 rank = static_cast<i32>(device::cluster_rank());
  const i32 chunks = chunks_per_entry(extents);
  const i32 thread = static_cast<i32>(threadIdx.x);
  if (thread >= consumer_threads(S)) {
    Producer<S>(args, extents, routes, ring).run(schedule);
  } else {
    load_globals<S>(args, routes);
    place_results<S>(args, routes, chunks, ranks);
    if (thread < ranks) {
      fixed.tables[thread] = result_rows<S>(args, map, routes, chunks, ranks, thread);
    }
    device::named_barrier(1, consumer_threads(S));
    const Share share = Partition(*routes.num_entries * chunks, ranks).share(rank);
    const DownEpilogue<S> epilogue{
        args, routes, {fixed.tables[rank], first_position(routes, chunks, share)}};
    Consumer<S, DownEpilogue<S>>(
        extents, ring, device::shared_address(dynamic_smem + map.partials), fixed.not_finite)
        .run(schedule, epilogue);
  }
  // Results of all blocks of the cluster are complete, in shared memory or (release) in the spill.
  device::cluster_barrier();
  if (thread < consumer_threads(S)) {
    const Share tiles = schedule.rows();
    const i32 last_row = tiles.end * device::kFp4TileRows;
    const Share rows{tiles.begin * device::kFp4TileRows,
                     last_row < args.hidden ? last_row : args.hidden};
    combine<S>(args, routes, fixed.tables, rows, rank, ranks);
  }
  device::cluster_barrier();  // no block leaves while another reads its shared memory
}

template <Spec S>
inline void run_gate_up(const Args& args,
                        const SmemMap& map,
                        StaticSmem& fixed,
                        const Routes& routes) {
  const Extents<S> extents(args);
  const Ring ring = make_ring<S>(args, map, fixed);
  const Schedule<S> schedule(extents, routes);
  if (threadIdx.x >= consumer_threads(S)) {
    Producer<S>(args, extents, routes, ring).run(schedule);
  } else {
    load_globals<S>(args, routes);
    device::named_barrier(1, consumer_threads(S));
    const GateUpEpilogue<S> epilogue{args, routes};
    Consumer<S, GateUpEpilogue<S>>(
        extents, ring, device::shared_address(dynamic_smem + map.partials), fixed.not_finite)
        .run(schedule, epilogue);
  }
}

template <Spec S>
inline void decode(const Args& args) {
  static_assert(why_invalid(S) == nullptr);
  __shared__ StaticSmem fixed;
  const SmemMap map = smem_map(
      S, {args.num_tokens * args.top_k, args.num_experts, args.result_rows, args.ring_bytes});
  if constexpr (S.role == Role::kGateUp) {
    // In this order: down reads the ids at once, and under the pin pdl_first whoever writes them
    // may still be running. Without that pin there is nothing to wait for.
    device::grid_dependency_wait();
    device::grid_launch_dependents();
  }
  init_barriers<S>(fixed);
  const Routes routes = make_routes(map, fixed);
  static_assert(2 * partial_bytes(S) >= kSortScratchBytes);
  build_routes<S>(args, routes, reinterpret_cast<u32*>(dynamic_smem + map.partials));
  if constexpr (S.role == Role::kGateUp) {
    run_gate_up<S>(args, map, fixed, routes);
  } else {
    run_down<S>(args, map, fixed, routes);
  }
}

}  // namespace moekit::kernels::decode_gemv
