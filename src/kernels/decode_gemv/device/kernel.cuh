// SPDX-License-Identifier: Apache-2.0
#pragma once

// Entry of both decode kernels: routes, first weights, operands, items, and for down the cluster's
// sum over slots (README section 4).

#include "kernels/decode_gemv/device/combine.cuh"
#include "kernels/decode_gemv/device/consume.cuh"
#include "kernels/decode_gemv/device/route_down.cuh"
#include "kernels/decode_gemv/device/route_gate_up.cuh"
#include "kernels/decode_gemv/device/shared_items.cuh"
#include "kernels/decode_gemv/device/shared_results.cuh"

namespace moekit::kernels::decode_gemv {

extern __shared__ u8 dynamic_smem[] __attribute__((aligned(128)));

struct StaticSmem {
  u64 full[kMaxWarps * kMaxSlots];
  u64 globals_full;
  u64 operands_full;
  u64 empty[kMaxSlots];  // kSharedItems
  u32 warp_sums[kMaxWarps];
  u32 not_finite[kMaxWarps];
  Tables tables;
  i32 num_entries;
  GatherWords gather;  // splits_steps()
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

/// The ring of kSharedItems; ready for the block after its next barrier.
template <Spec S>
inline SharedRing make_shared_ring(const Args& args, const SmemMap& map, StaticSmem& fixed) {
  const i32 fit = args.ring_bytes / slots_bytes(S);
  SharedRing ring;
  ring.num_slots = fit < kMaxSlots ? fit : kMaxSlots;
  ring.slots = device::opaque(device::round_up(device::shared_address(dynamic_smem + map.ring),
                                               static_cast<u32>(kColumnAlign)));
  ring.full = device::shared_address(fixed.full);
  ring.empty = device::shared_address(fixed.empty);
  if (threadIdx.x < kMaxSlots) {
    device::mbarrier_init(ring.full + threadIdx.x * 8, kColumnWarps);
    device::mbarrier_init(ring.empty + threadIdx.x * 8, weight_warps(S));
    if (threadIdx.x == 0) {
      device::mbarrier_init(device::shared_address(&fixed.globals_full), num_threads(S));
    }
    device::mbarrier_init_fence();
  }
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

/// Experts of entries, before the tables of few routes stand.
template <Spec S>
struct WarpExperts {
  const FewRoutes<S>& few;
  const Routes& routes;
  bool is_few;

  i32 expert(i32 entry) const { return is_few ? few.expert(entry) : routes.expert(entry); }
};

/// The block's work, once the ids are known.
template <Spec S>
inline void take_routes(const Args& args,
                        const Routes& routes,
                        const SmemMap& map,
                        FewRoutes<S>& few,
                        BlockWork<S>& work) {
  if (few_routes<S>(args)) {
    few.resolve(args);
    work.take_entries(few.num_entries());
  } else {
    build_entries<S>(args, routes, reinterpret_cast<u32*>(dynamic_smem + map.partials));
    work.take_entries(*routes.num_entries);
  }
}

/// The tables of routes, complete: behind the first requests for weights.
template <Spec S>
inline void settle_routes(const Args& args,
                          const Routes& routes,
                          const SmemMap& map,
                          const FewRoutes<S>& few) {
  if (!few_routes<S>(args)) {
    place_routes<S>(args, routes, reinterpret_cast<u32*>(dynamic_smem + map.partials));
  } else if (threadIdx.x < 32) {
    few.store(args, routes);
  }
  block_barrier<S>();
}

template <Spec S>
inline void gate_up_body(const Args& args, StaticSmem& fixed) {
  device::grid_launch_dependents();
  FewRoutes<S> few(args);
  const Extents<S> extents(args);
  const SmemShape shape{args.num_tokens * args.top_k, args.num_experts, 0, 0, args.ring_bytes};
  const SmemMap map = smem_map(S, shape);
  const Ring ring = make_ring<S>(args, map, fixed);
  prefetch_operands(args);
  const Routes routes = make_routes(map, fixed);
  BlockWork<S> work(extents);
  take_routes(args, routes, map, few, work);
  const WarpWork<S> own(work);
  Consumer<S, GateUpEpilogue<S>> consumer(args, extents, work, routes, ring);
  WeightStream<S> weights(args, extents, work, ring);
  const GateUpEpilogue<S> epilogue{args, extents, work, routes};
  const WarpExperts<S> experts{few, routes, few_routes<S>(args)};
  weights.begin(experts, own.walk, own.steps);
  settle_routes(args, routes, map, few);
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

/// Where down's results stand: this block's shared memory, or what place_table() says.
template <Spec S>
inline ResultTable result_table(const Args& args,
                                const BlockWork<S>& work,
                                const Routes& routes,
                                float* own_rows,
                                i32 stride,
                                Tables& tables) {
  ResultTable table{own_rows, 0, 0, stride};
  const bool own_table = device::cluster_size() == 1 && args.expert_order == 0 &&
                         args.num_tokens * args.top_k <= args.result_rows;
  if (own_table) {
    table.shared = device::shared_address(table.rows);
    return table;
  }
  if (threadIdx.x < device::cluster_size()) {
    place_table<S>(args, work, routes, table, tables, static_cast<i32>(threadIdx.x));
  }
  place_results<S>(args, routes);
  block_barrier<S>();
  table.rows = tables.rows[device::cluster_rank()];
  table.first = tables.first_position[device::cluster_rank()];
  return table;
}

/// `intermediate_is_there()` returns once gate_up's writes are visible; weights do not wait for it.
template <Spec S, typename Wait>
inline void down_body(const Args& args, StaticSmem& fixed, const Wait& intermediate_is_there) {
  FewRoutes<S> few(args);
  const Extents<S> extents(args);
  const i32 stride = table_stride<S>(extents);
  const SmemShape shape{args.num_tokens * args.top_k,
                        args.num_experts,
                        args.result_rows,
                        stride - kResultPad,
                        args.ring_bytes};
  const SmemMap map = smem_map(S, shape);
  const Routes routes = make_routes(map, fixed);
  const Ring ring = make_ring<S>(args, map, fixed);
  BlockWork<S> work(extents);
  take_routes(args, routes, map, few, work);
  float* const own_rows = reinterpret_cast<float*>(dynamic_smem + map.results);
  ResultTable table{};
  const WarpWork<S> own(work);
  WeightStream<S> weights(args, extents, work, ring);
  const WarpExperts<S> experts{few, routes, few_routes<S>(args)};
  weights.begin(experts, own.walk, own.steps);
  weights.fill(experts, own.steps);
  settle_routes(args, routes, map, few);
  request_globals<S>(args, routes);
  table = result_table(args, work, routes, own_rows, stride, fixed.tables);
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
  if (device::cluster_size() > 1) {
    device::cluster_barrier();  // no block leaves while another reads its shared memory
  }
}

/// Both roles of kSharedItems begin alike: the entries stand, the first weights are asked for.
template <Spec S>
struct SharedStart {
  SmemMap map;
  Routes routes;
  SharedRing ring;
  BlockWork<S> work;

  SharedStart(const Args& args, const Extents<S>& extents, StaticSmem& fixed)
      : map(smem_map(S, {args.num_tokens * args.top_k, args.num_experts, 0, 0, args.ring_bytes})),
        routes(make_routes(map, fixed)),
        ring(make_shared_ring<S>(args, map, fixed)),
        work(extents) {
    if constexpr (S.role == Role::kGateUp) {
      prefetch_operands(args);
    }
    build_entries<S>(args, routes, reinterpret_cast<u32*>(dynamic_smem + map.partials));
    work.take_entries(*routes.num_entries);
  }
};

template <Spec S>
inline void shared_gate_up_body(const Args& args, StaticSmem& fixed) {
  device::grid_launch_dependents();
  const Extents<S> extents(args);
  const SharedStart<S> start(args, extents, fixed);
  RowTileStream<S> weights(args, extents, start.work, start.routes, start.ring);
  request_globals<S>(args, start.routes);
  weights.fill();
  place_routes<S>(args, start.routes, reinterpret_cast<u32*>(dynamic_smem + start.map.partials));
  block_barrier<S>();
  const GateUpEpilogue<S> epilogue{args, extents, start.work, start.routes};
  run_shared_items<S>(weights, start.routes, start.ring, epilogue);
}

template <Spec S>
inline void shared_down_body(const Args& args, StaticSmem& fixed) {
  const Extents<S> extents(args);
  const SharedStart<S> start(args, extents, fixed);
  RowTileStream<S> weights(args, extents, start.work, start.routes, start.ring);
  weights.fill();
  request_globals<S>(args, start.routes);
  place_routes<S>(args, start.routes, reinterpret_cast<u32*>(dynamic_smem + start.map.partials));
  block_barrier<S>();
  place_results<S>(args, start.routes);
  device::grid_dependency_wait();
  const SharedResults results(args, extents.row_tiles, S.max_columns);
  const SharedDownEpilogue<S> epilogue{args, extents, start.work, start.routes, results};
  run_shared_items<S>(weights, start.routes, start.ring, epilogue);
  gather_results<S>(args, start.routes, start.work, results, fixed.gather);
}

inline RouteSmem route_smem(StaticSmem& fixed) {
  return {dynamic_smem,
          device::shared_address(fixed.full),
          device::shared_address(&fixed.operands_full)};
}

/// `kLast`: the block has no other role afterwards.
template <Spec S, bool kLast>
inline void gate_up_role(const Args& args, StaticSmem& fixed) {
  if constexpr (takes_routes(S)) {
    const RouteSmem smem = route_smem(fixed);
    const i32 slots = route_gate_up_body<S>(args, smem);
    if constexpr (!kLast) {
      retire_route_barriers<S>(smem, slots);
    }
  } else {
    gate_up_body<S>(args, fixed);
    if constexpr (!kLast) {
      retire_barriers<S>(fixed);
    }
  }
}

template <Spec S, typename Wait>
inline void down_role(const Args& args, StaticSmem& fixed, const Wait& intermediate_is_there) {
  if constexpr (takes_routes(S)) {
    route_down_body<S>(args, route_smem(fixed), intermediate_is_there);
  } else {
    down_body<S>(args, fixed, intermediate_is_there);
  }
}

template <Spec S>
inline void decode(const Args& args) {
  static_assert(why_invalid(S) == nullptr);
  __shared__ StaticSmem fixed;
  if constexpr (S.role == Role::kGateUp) {
    // In this order: down reads the ids at once, and under the pin pdl_first whoever writes them
    // may still be running. Without that pin there is nothing to wait for.
    device::grid_dependency_wait();
    if constexpr (takes_routes(S)) {
      gate_up_role<S, true>(args, fixed);
      clear_arrivals<S>(args);  // down waits for this kernel's end, its weights do not wait
    } else {
      clear_arrivals<S>(args);
      if constexpr (shares_items(S)) {
        shared_gate_up_body<S>(args, fixed);
      } else {
        gate_up_role<S, true>(args, fixed);
      }
    }
  } else if constexpr (shares_items(S)) {
    shared_down_body<S>(args, fixed);
  } else {
    down_role<S>(args, fixed, [] { device::grid_dependency_wait(); });
  }
}

}  // namespace moekit::kernels::decode_gemv
