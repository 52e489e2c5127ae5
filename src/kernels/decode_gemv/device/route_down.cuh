// SPDX-License-Identifier: Apache-2.0
#pragma once

// down of few routes: a block has row_tiles row tiles of every route, and all that does not need
// the intermediate behind it when gate_up ends.

#include "kernels/decode_gemv/device/route_items.cuh"

namespace moekit::kernels::decode_gemv {

/// What the sum over routes needs of one entry.
struct alignas(16) RouteEnd {
  float global;
  float weight;
  i32 order;  // the entry that stands here in the order of the sum
  i32 unused;
};

static_assert(sizeof(RouteEnd) == kRouteEndBytes);

/// Warp 0: lanes of active routes fill the table of entries.
inline void store_ends(const Args& args, const LaneRoutes& routes, RouteEnd* ends) {
  const i32 expert = routes.expert();
  const i32 route = routes.lane();
  const i32 token = routes.token();
  const i32 entry = routes.entries_before(route);
  i32 place = entry;
  if (args.expert_order != 0) {
    place = routes.entries_before(token * args.top_k);
    for (i32 slot = 0; slot < args.top_k; ++slot) {
      const i32 other = (token * args.top_k + slot) % 32;
      const i32 others = routes.expert_of(other);
      place += others >= 0 && (others < expert || (others == expert && other < route)) ? 1 : 0;
    }
  }
  if (expert >= 0) {
    ends[entry].global = args.globals[expert * 4 + 2];
    ends[entry].weight =
        args.weight_on_input != 0
            ? 1.0F
            : args.route_weights[token * args.route_weights_stride + route - token * args.top_k] *
                  args.weight_scale;
    ends[place].order = entry;
  }
}

/// A warp's steps: `chunks` of K of every `groups`-th entry.
struct RouteSteps {
  i32 entry;
  i32 groups;
  i32 part;
  Share chunks;
};

/// The block's output rows: S.row_tiles row tiles; past the last one of the layer it is read again
/// and its results are dropped.
template <Spec S>
struct RouteDown {
  const Args& args;
  const Extents<S>& extents;
  i32 first_tile;
  i32 routes;  // of the call, active or not
  i32 parts;

  i32 row_tile(i32 tile) const {
    const i32 wanted = first_tile + tile;
    return wanted < extents.row_tiles ? wanted : extents.row_tiles - 1;
  }

  /// The first tile of a step of K: the last step begins early where tiles are no multiple.
  i32 k_tile(i32 chunk) const {
    const i32 wanted = chunk * S.k_tiles;
    return wanted + S.k_tiles <= extents.k_tiles ? wanted : extents.k_tiles - S.k_tiles;
  }
};

/// All of a warp's steps: there is room for them (route_geometry()).
template <Spec S>
inline void request_route_steps(const RouteDown<S>& work,
                                const LaneRoutes& routes,
                                const RouteSteps& steps,
                                const RouteRing<S>& ring) {
  u32 slot_at = ring.slots;
  u32 barrier = ring.full;
#pragma unroll 1
  for (i32 entry = steps.entry; entry < routes.entries(); entry += steps.groups) {
    const i32 expert = routes.expert_of(routes.route_of(entry));
    if (threadIdx.x % 32 == 0) {
      const u8* const expert_at = work.args.weights + expert * work.args.expert_stride_bytes;
      const u64 policy = device::evict_first_policy();
#pragma unroll 1
      for (i32 chunk = steps.chunks.begin; chunk < steps.chunks.end; ++chunk) {
        constexpr u32 kBytes = slot_row_bytes(S);
        device::mbarrier_arrive_expect(barrier, kBytes * S.row_tiles);
        const i32 k_tile = work.k_tile(chunk);
#pragma unroll
        for (i32 tile = 0; tile < S.row_tiles; ++tile) {
          const i64 at = static_cast<i64>(work.row_tile(tile)) * work.extents.k_tiles + k_tile;
          device::bulk_copy(slot_at, expert_at + at * tile_bytes(S), kBytes, barrier, policy);
          slot_at += kBytes;
        }
        barrier += 8;
      }
    }
  }
}

/// One step's columns of the intermediate, found before they are written. What stands beyond the
/// shard's columns, or belongs to the step before, is 0.
template <Spec S>
struct RouteColumns {
  const u16* first = nullptr;  // of the lane's columns
  u32 live = 0;                // bit 2 * tile + half

  RouteColumns(const RouteDown<S>& work, const Lane<S>& lane, i32 route, i32 chunk) {
    const i32 place = work.k_tile(chunk) * device::kFp4TileCols + lane.quad * 16;
    first = work.args.intermediate + static_cast<i64>(route) * work.args.intermediate_size +
            (place - work.extents.k_offset);
    const i32 begin = chunk * S.k_tiles * device::kFp4TileCols;
    const i32 least = begin > work.extents.k_offset ? begin : work.extents.k_offset;
    const i32 end = work.extents.k_offset + work.extents.k_elems;
#pragma unroll
    for (i32 at = 0; at < S.k_tiles * 2; ++at) {
      const i32 column = place + at / 2 * device::kFp4TileCols + at % 2 * 8;
      live |= column >= least && column < end ? 1U << at : 0U;
    }
  }

  void load(device::Words4 (&columns)[S.k_tiles][2]) const {
#pragma unroll
    for (i32 at = 0; at < S.k_tiles * 2; ++at) {
      columns[at / 2][at % 2] = {0, 0, 0, 0};
      if ((live >> at & 1U) != 0U) {
        columns[at / 2][at % 2] =
            device::load_global_words<false>(first + at / 2 * device::kFp4TileCols + at % 2 * 8);
      }
    }
  }
};

/// Tile `index` of a step, K outside: neighbours belong to different sums.
template <Spec S>
inline RouteTile load_route_tile(const Lane<S>& lane, u32 step_at, i32 index) {
  const u32 at = step_at + static_cast<u32>(index % S.row_tiles * slot_row_bytes(S) +
                                            index / S.row_tiles * tile_bytes(S));
  return decode_route_tile<S>(device::load_shared_words(at + lane.codes_at),
                              device::load_shared_u16(at + lane.scales_at));
}

/// Threads side by side on the rows of a block: no entry is shared by half a warp.
constexpr i32 kRouteRowThreads = 64;

/// Biases and (mxfp4) powers of two of the block's rows, for each entry.
template <Spec S>
inline void store_rows(const RouteDown<S>& work, const LaneRoutes& routes, float* rows) {
  if (S.group_size == 16 && work.args.down_bias == nullptr) {
    return;
  }
  const i32 row = static_cast<i32>(threadIdx.x) % kRouteRowThreads;
  const i32 out_row = work.first_tile * device::kFp4TileRows + row;
#pragma unroll 1
  for (i32 entry = static_cast<i32>(threadIdx.x) / kRouteRowThreads; entry < routes.entries();
       entry += num_threads(S) / kRouteRowThreads) {
    const i32 expert = routes.expert_of(routes.route_of(entry));
    if (row >= S.row_tiles * device::kFp4TileRows || out_row >= work.args.hidden) {
      continue;
    }
    float* const at = rows + row * work.routes + entry;
    *at = load_bias(work.args.down_bias, expert, work.args.hidden, out_row);
    if constexpr (S.group_size == 32) {
      const u8* const exponents = work.args.weights + expert * work.args.expert_stride_bytes +
                                  work.extents.unit_tile_bytes();
      at[S.row_tiles * device::kFp4TileRows * work.routes] = row_factor<S>(exponents[out_row]);
    }
  }
}

/// One thread's output: r = (sum * G2) + bias2 of each route, times p, in the order of the sum.
/// kParts: work.parts, or 0 for any.
template <Spec S, i32 kParts>
inline float sum_route_row(const RouteDown<S>& work,
                           const RouteEnd* ends,
                           const float* rows,
                           u32 partials_at,
                           const Share& entries,
                           i32 row) {
  const i32 parts = kParts != 0 ? kParts : work.parts;
  const u32 own = partials_at + static_cast<u32>(row * partial_stride(work.routes, parts) * 4);
  const bool constants = S.group_size == 32 || work.args.down_bias != nullptr;
  float sum = 0.0F;
#pragma unroll 4
  for (i32 at = entries.begin; at < entries.end; ++at) {
    const i32 entry = work.args.expert_order != 0 ? ends[at].order : at;
    const u32 from = own + static_cast<u32>(entry * parts * 4);
    float value = device::load_shared_f32(from);
#pragma unroll
    for (i32 part = 1; part < kParts; ++part) {
      value += device::load_shared_f32(from + static_cast<u32>(part * 4));
    }
    if constexpr (kParts == 0) {
#pragma unroll 1
      for (i32 part = 1; part < parts; ++part) {
        value += device::load_shared_f32(from + static_cast<u32>(part * 4));
      }
    }
    float factor = row_factor<S>(0);
    float bias = 0.0F;
    if (constants) {
      const float* const constant = rows + row * work.routes + entry;
      bias = constant[0];
      if constexpr (S.group_size == 32) {
        factor = constant[S.row_tiles * device::kFp4TileRows * work.routes];
      }
    }
    sum += ends[entry].weight * (value * factor * ends[entry].global + bias);
  }
  return sum;
}

template <Spec S>
inline void store_route_rows(const RouteDown<S>& work,
                             const LaneRoutes& routes,
                             const RouteEnd* ends,
                             const float* rows,
                             u32 partials_at) {
  const Args& args = work.args;
  const i32 row = static_cast<i32>(threadIdx.x) % kRouteRowThreads;
  const i64 out_row = static_cast<i64>(work.first_tile) * device::kFp4TileRows + row;
  if (row >= S.row_tiles * device::kFp4TileRows || out_row >= args.hidden) {
    return;
  }
#pragma unroll 1
  for (i32 token = static_cast<i32>(threadIdx.x) / kRouteRowThreads; token < args.num_tokens;
       token += num_threads(S) / kRouteRowThreads) {
    const Share entries{routes.entries_before(token * args.top_k),
                        routes.entries_before((token + 1) * args.top_k)};
    const float sum =
        work.parts == 2   ? sum_route_row<S, 2>(work, ends, rows, partials_at, entries, row)
        : work.parts == 1 ? sum_route_row<S, 1>(work, ends, rows, partials_at, entries, row)
                          : sum_route_row<S, 0>(work, ends, rows, partials_at, entries, row);
    float values[1] = {sum * args.sum_scale};
    if (args.shared_input != nullptr) {
      add_io(values, args.shared_input, token * args.shared_stride + out_row, args.shared_type);
    }
    store_io(args.out, token * args.out_stride + out_row, args.out_type, values);
  }
}

template <Spec S>
inline void store_route_part(const RouteDown<S>& work,
                             const RouteSteps& steps,
                             i32 entry,
                             const Lane<S>& lane,
                             const float (&sums)[S.row_tiles][4],
                             u32 partials_at) {
  if (lane.quad == 0) {
    const u32 stride = static_cast<u32>(partial_stride(work.routes, work.parts) * 4);
    u32 to = partials_at + static_cast<u32>(lane.group) * stride +
             static_cast<u32>((entry * work.parts + steps.part) * 4);
#pragma unroll
    for (i32 tile = 0; tile < S.row_tiles; ++tile) {
      device::store_shared_f32(to, sums[tile][0]);
      device::store_shared_f32(to + 8 * stride, sums[tile][2]);
      to += 16 * stride;
    }
  }
}

/// Every step of a warp, and its parts of the sums. Tiles that are decoded before their columns are
/// there: before gate_up has ended for the first step, while they are on their way for the others.
template <Spec S, typename Wait>
inline void multiply_steps(const RouteDown<S>& work,
                           const LaneRoutes& routes,
                           const RouteSteps& steps,
                           const RouteRing<S>& ring,
                           u32 partials_at,
                           const Wait& intermediate_is_there) {
  const Lane<S> lane;
  constexpr i32 kReady = S.lookahead;
  constexpr i32 kTiles = S.row_tiles * S.k_tiles;
  RouteTile ready[kReady > 0 ? kReady : 1];
  u32 step_at = ring.slots;
  u32 barrier = ring.full;
  const auto decode_first = [&] {
    device::mbarrier_wait(barrier, 0);
#pragma unroll
    for (i32 index = 0; index < kReady; ++index) {
      ready[index] = load_route_tile<S>(lane, step_at, index);
    }
  };
  bool decoded = steps.entry < routes.entries() && steps.chunks.begin < steps.chunks.end;
  i32 route = routes.route_of(steps.entry);
  RouteColumns<S> next(work, lane, route, steps.chunks.begin);
  if (decoded) {
    decode_first();
  }
  intermediate_is_there();

#pragma unroll 1
  for (i32 entry = steps.entry; entry < routes.entries(); entry += steps.groups) {
    float sums[S.row_tiles][4];
#pragma unroll
    for (i32 tile = 0; tile < S.row_tiles; ++tile) {
#pragma unroll
      for (i32 at = 0; at < 4; ++at) {
        sums[tile][at] = 0.0F;
      }
    }
#pragma unroll 1
    for (i32 chunk = steps.chunks.begin; chunk < steps.chunks.end; ++chunk) {
      device::Words4 columns[S.k_tiles][2];
      if (!decoded) {
        route = routes.route_of(entry);
        next = RouteColumns<S>(work, lane, route, chunk);
      }
      next.load(columns);
      if (!decoded) {
        decode_first();
      }
      decoded = false;
#pragma unroll
      for (i32 index = 0; index < kTiles; ++index) {
        const RouteTile tile = index < kReady ? ready[index < kReady ? index : 0]
                                              : load_route_tile<S>(lane, step_at, index);
        float(&sum)[4] = sums[index % S.row_tiles];
        multiply_route_tile(sum, sum, tile, columns[index / S.row_tiles]);
      }
      step_at += ring.slot_bytes;
      barrier += 8;
    }
    store_route_part(work, steps, entry, lane, sums, partials_at);
  }
}

template <Spec S, typename Wait>
inline void route_down_body(const Args& args,
                            const RouteSmem& smem,
                            const Wait& intermediate_is_there) {
  LaneRoutes routes(args);
  const Extents<S> extents(args);
  const i32 num_routes = args.num_tokens * args.top_k;
  const i32 parts = route_parts(S, num_routes);
  RouteShape shape;
  shape.routes = num_routes;
  shape.tiles = S.row_tiles;
  const RouteMap map = route_map(S, shape);
  const RouteDown<S> work{
      args, extents, static_cast<i32>(blockIdx.x) * S.row_tiles, num_routes, parts};
  const u32 base = device::shared_address(smem.base);
  const i32 warp = static_cast<i32>(threadIdx.x / 32);
  const i32 part = warp & (parts - 1);
  const i32 shift = __popc(static_cast<u32>(parts - 1));
  const RouteSteps steps{
      warp >> shift,
      S.warps >> shift,
      part,
      Partition((extents.k_tiles + S.k_tiles - 1) / S.k_tiles, Divisor(parts)).share(part)};
  const i32 rounds = Divisor(steps.groups).quotient(num_routes + steps.groups - 1);
  const RouteRing<S> ring(args,
                          smem,
                          base + static_cast<u32>(map.ring),
                          S.row_tiles,
                          rounds * (steps.chunks.end - steps.chunks.begin));
  device::mbarrier_init_fence();
  __syncwarp();
  routes.resolve(args);
  request_route_steps<S>(work, routes, steps, ring);
  RouteEnd* const ends = reinterpret_cast<RouteEnd*>(smem.base + map.ends);
  float* const constants = reinterpret_cast<float*>(smem.base + map.rows);
  if (threadIdx.x < 32) {
    store_ends(args, routes, ends);
  }
  store_rows<S>(work, routes, constants);
  const u32 partials_at = base + static_cast<u32>(map.partials);

  multiply_steps(work, routes, steps, ring, partials_at, intermediate_is_there);
  block_barrier<S>();
  store_route_rows<S>(work, routes, ends, constants, partials_at);
}

}  // namespace moekit::kernels::decode_gemv
