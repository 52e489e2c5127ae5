// SPDX-License-Identifier: Apache-2.0
#pragma once

// Entry of both decode kernels: routes, first weights, operands, items, and for down the cluster's
// sum over slots (README section 4).

#include "kernels/decode_gemv/device/combine.cuh"
#include "kernels/decode_gemv/device/consume.cuh"

namespace moekit::kernels::decode_gemv {

extern __shared__ u8 dynamic_smem[] __attribute__((aligned(128)));

struct StaticSmem {
  u64 full[kMaxWarps * kMaxSlots];
  u64 globals_full;
  u32 warp_sums[kMaxWarps];
  u32 not_finite[kMaxWarps];
  Tables tables;
  i32 num_entries;
};

static_assert(sizeof(StaticSmem) <= kStaticSmemBytes);

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
  routes.globals_full = device::shared_address(&fixed.globals_full);
  routes.warp_sums = fixed.warp_sums;
  routes.num_entries = &fixed.num_entries;
  return routes;
}

/// This warp's ring, its barriers ready for its own use.
template <Spec S>
inline Ring make_ring(const Args& args, const SmemMap& map, StaticSmem& fixed) {
  const u32 warp = threadIdx.x / 32;
  const u32 lane = threadIdx.x % 32;
  const i32 fit = args.ring_bytes / slots_bytes(S);
  Ring ring;
  ring.num_slots = fit < kMaxSlots ? fit : kMaxSlots;
  ring.slots = device::opaque(device::shared_address(dynamic_smem + map.ring) +
                              warp * static_cast<u32>(ring.num_slots * slot_bytes(S)));
  ring.full = device::opaque(device::shared_address(fixed.full + warp * kMaxSlots));
  if (lane < kMaxSlots) {
    device::mbarrier_init(ring.full + lane * 8, 1);
    if (threadIdx.x == 0) {
      device::mbarrier_init(device::shared_address(&fixed.globals_full), num_threads(S));
    }
    device::mbarrier_init_fence();
  }
  __syncwarp();
  return ring;
}

/// All threads of a role that is done: no copy is under way and nobody waits any more, so that
/// another role may make barriers in the same places.
template <Spec S>
inline void retire_barriers(StaticSmem& fixed) {
  const u32 warp = threadIdx.x / 32;
  const u32 lane = threadIdx.x % 32;
  const u32 globals_full = device::shared_address(&fixed.globals_full);
  device::mbarrier_wait(globals_full, 0);  // a warp without items has not looked
  block_barrier<S>();
  if (lane < kMaxSlots) {
    device::mbarrier_invalidate(device::shared_address(fixed.full + warp * kMaxSlots + lane));
  }
  if (threadIdx.x == 0) {
    device::mbarrier_invalidate(globals_full);
  }
}

/// f32 of a route's results in a table: the largest share of the output rows that a cluster has.
template <Spec S>
inline i32 table_stride(const Extents<S>& extents) {
  const i32 clusters = extents.blocks / static_cast<i32>(device::cluster_size());
  return result_stride(device::ceil_div(extents.row_tiles, clusters) * device::kFp4TileRows);
}

/// Where block `rank` of the cluster keeps its route results; `own` is this block's table in shared
/// memory. Blocks whose routes do not fit there use the spill area: positions of two ranks overlap
/// in at most one entry.
template <Spec S>
inline void place_table(const Args& args,
                        const BlockWork<S>& work,
                        const Routes& routes,
                        const ResultTable& own,
                        Tables& tables,
                        i32 rank) {
  const Share share = work.share_of(rank);
  tables.first_item[rank] = share.begin;
  tables.first_position[rank] = 0;
  tables.rows[rank] = own.rows;
  if (share.begin >= share.end) {
    return;
  }
  const i32 groups = work.groups.value();
  const Entry& last = routes.entries[(share.end - 1) / groups];
  const i32 first = routes.entries[share.begin / groups].column_begin;
  tables.first_position[rank] = first;
  if (last.column_begin + last.columns - first <= args.result_rows) {
    tables.rows[rank] = device::cluster_map(own.rows, static_cast<u32>(rank));
    return;
  }
  const i32 ranks = work.parts.value();
  const i64 cluster = blockIdx.x / static_cast<u32>(ranks);
  const i64 positions = args.num_tokens * args.top_k + (ranks - 1) * S.max_columns;
  tables.rows[rank] =
      args.spill + (cluster * positions + first + rank * S.max_columns) * own.stride;
}

/// This warp's share of the block's steps: its first weights, and where it begins.
template <Spec S>
struct WarpWork {
  Walk<S> walk{};
  i32 steps = 0;

  explicit WarpWork(const BlockWork<S>& work) {
    const i32 warp = static_cast<i32>(threadIdx.x / 32);
    const Share share = work.share(warp);
    steps = share.end - share.begin;
    if (steps > 0) {
      walk = Walk<S>::at(work, S.whole_items != 0 ? warp : 0, share.begin);
    }
  }
};

template <Spec S>
inline void gate_up_body(const Args& args, StaticSmem& fixed) {
  const SmemMap map =
      smem_map(S, {args.num_tokens * args.top_k, args.num_experts, 0, 0, args.ring_bytes});
  const Routes routes = make_routes(map, fixed);
  const Ring ring = make_ring<S>(args, map, fixed);
  const Extents<S> extents(args);
  BlockWork<S> work(extents);
  build_entries<S>(args, routes, reinterpret_cast<u32*>(dynamic_smem + map.partials));
  work.take_entries(*routes.num_entries);
  const WarpWork<S> own(work);
  const GateUpEpilogue<S> epilogue{args, extents, work, routes};
  Consumer<S, GateUpEpilogue<S>> consumer(args, extents, work, routes, ring);
  WeightStream<S> weights(args, extents, work, ring);
  weights.begin(routes, own.walk, own.steps);
  if (!few_routes(args)) {
    place_routes<S>(args, routes);
    block_barrier<S>();
  }
  // Operands and globals before the other weights: requests are served in their order.
  consumer.load_first(own.walk, own.steps);
  request_globals<S>(args, routes);
  weights.fill(routes, own.steps);
  consumer.run(weights,
               own.walk,
               own.steps,
               epilogue,
               {device::shared_address(dynamic_smem + map.partials), fixed.not_finite});
}

/// All threads of the cluster's blocks: their tables are complete, or no longer needed.
template <Spec S>
inline void cluster_or_block_barrier() {
  if (device::cluster_size() == 1) {
    block_barrier<S>();
  } else {
    device::cluster_barrier();
  }
}

/// `intermediate_is_there()` returns once gate_up's writes are visible; weights do not wait for it.
template <Spec S, typename Wait>
inline void down_body(const Args& args, StaticSmem& fixed, const Wait& intermediate_is_there) {
  const Extents<S> extents(args);
  const i32 stride = table_stride<S>(extents);
  const SmemMap map = smem_map(S,
                               {args.num_tokens * args.top_k,
                                args.num_experts,
                                args.result_rows,
                                stride - kResultPad,
                                args.ring_bytes});
  const Routes routes = make_routes(map, fixed);
  const Ring ring = make_ring<S>(args, map, fixed);
  BlockWork<S> work(extents);
  build_entries<S>(args, routes, reinterpret_cast<u32*>(dynamic_smem + map.partials));
  work.take_entries(*routes.num_entries);
  const WarpWork<S> own(work);
  WeightStream<S> weights(args, extents, work, ring);
  weights.begin(routes, own.walk, own.steps);
  request_globals<S>(args, routes);
  weights.fill(routes, own.steps);
  if (!few_routes(args)) {
    place_routes<S>(args, routes);
    block_barrier<S>();
  }
  ResultTable table{reinterpret_cast<float*>(dynamic_smem + map.results), 0, 0, stride};
  const bool own_table = device::cluster_size() == 1 && args.expert_order == 0 &&
                         args.num_tokens * args.top_k <= args.result_rows;
  if (own_table) {
    table.shared = device::shared_address(table.rows);
  } else {
    if (threadIdx.x < device::cluster_size()) {
      place_table<S>(args, work, routes, table, fixed.tables, static_cast<i32>(threadIdx.x));
    }
    place_results<S>(args, routes);
    block_barrier<S>();
    table.rows = fixed.tables.rows[device::cluster_rank()];
    table.first = fixed.tables.first_position[device::cluster_rank()];
  }
  intermediate_is_there();
  const DownEpilogue<S> epilogue{args, extents, work, routes, table};
  Consumer<S, DownEpilogue<S>> consumer(args, extents, work, routes, ring);
  consumer.load_first(own.walk, own.steps);
  consumer.run(weights,
               own.walk,
               own.steps,
               epilogue,
               {device::shared_address(dynamic_smem + map.partials), fixed.not_finite});
  // Results of all blocks of the cluster are complete, in shared memory or (release) in the spill.
  cluster_or_block_barrier<S>();
  combine<S>(args, routes, work, fixed.tables, table);
  cluster_or_block_barrier<S>();  // no block leaves while another reads its shared memory
}

template <Spec S>
inline void decode(const Args& args) {
  static_assert(why_invalid(S) == nullptr);
  __shared__ StaticSmem fixed;
  if constexpr (S.role == Role::kGateUp) {
    // In this order: down reads the ids at once, and under the pin pdl_first whoever writes them
    // may still be running. Without that pin there is nothing to wait for.
    device::grid_dependency_wait();
    device::grid_launch_dependents();
    prefetch_operands(args);
    gate_up_body<S>(args, fixed);
  } else {
    down_body<S>(args, fixed, [] { device::grid_dependency_wait(); });
  }
}

}  // namespace moekit::kernels::decode_gemv
