// SPDX-License-Identifier: Apache-2.0
#pragma once

// down of kSharedItems: any block may hold any part of K of any rows, so results of routes meet in
// the workspace (which L2 holds). Once all blocks of a group of rows have arrived, those that are
// still there sum its tokens' slots, the last one to arrive in any case. Which block sums what
// depends on timing, what is added and in which order does not.

#include "kernels/decode_gemv/device/combine.cuh"

namespace moekit::kernels::decode_gemv {

/// Shared by host and device: geometry.h sizes it. Rows are padded to whole groups.
struct SharedResults {
  u32* arrivals;  // [groups] blocks that have finished their part, 0 when gate_up ends
  u32* claims;    // [groups] units of sums that a block has begun, the same
  float* routes;  // [positions][groups * 256] parts that begin an item
  float* rest;    // [blocks][max_columns][256] the part that another block has begun
  i32 stride;

  SharedResults(const Args& args, i32 row_tiles, i32 max_columns) {
    const i32 groups = device::ceil_div(row_tiles, kSharedGroupTiles);
    stride = groups * kSharedGroupTiles * device::kFp4TileRows;
    arrivals = args.arrivals;
    claims = arrivals + groups;
    routes = args.spill;
    rest = routes + static_cast<i64>(args.num_tokens) * args.top_k * stride;
  }
};

/// gate_up, in the order of the stream before down's first arrival.
template <Spec S>
inline void clear_arrivals(const Args& args) {
  if (args.arrivals != nullptr && blockIdx.x == 0) {
    const i32 groups = device::ceil_div(static_cast<i32>(device::fp4_row_tiles(args.hidden, 1)),
                                        kSharedGroupTiles);
    for (i32 at = static_cast<i32>(threadIdx.x); at < groups * 2; at += num_threads(S)) {
      args.arrivals[at] = 0;
    }
  }
}

template <Spec S>
struct SharedDownEpilogue {
  const Args& args;
  const Extents<S>& extents;
  const BlockWork<S>& work;
  const Routes& routes;
  const SharedResults& results;

  RowConstants row_constants(const Walk<S>& walk, i32 tile, i32 group) const {
    RowConstants rows{};
    const bool needed = S.group_size == 32 || args.down_bias != nullptr;
    if (needed && tile < walk.tiles(work)) {
      const i32 expert = routes.entries[walk.entry].expert;
      const i32 row = (walk.tile_begin(work) + tile) * device::kFp4TileRows + group;
      load_exponents<S>(rows, args, extents, expert, row);
      if (walk.chunk == 0) {
        rows.bias_low = load_bias(args.down_bias, expert, args.hidden, row);
        rows.bias_high = load_bias(args.down_bias, expert, args.hidden, row + 8);
      }
    }
    return rows;
  }

  void operator()(const Entry& entry,
                  const RowConstants& rows,
                  const Place16& place,
                  const TileSums& sums,
                  u32) const {
    constexpr i32 kGroupRows = kSharedGroupTiles * device::kFp4TileRows;
    const float low = row_factor<S>(rows.exponent_low);
    const float high = row_factor<S>(rows.exponent_high);
    const float global = entry.globals[2];
    const bool begins = place.first_step == 0;
    const i32 stride = begins ? results.stride : kGroupRows;
    const i32 column =
        place.column + (begins ? entry.column_begin : static_cast<i32>(blockIdx.x) * S.max_columns);
    const i32 tile = begins ? place.row_tile : place.row_tile % kSharedGroupTiles;
    float* at = (begins ? results.routes : results.rest) + static_cast<i64>(column) * stride +
                tile * device::kFp4TileRows + place.group;
    at[0] = sums.row_low[0] * low * global + rows.bias_low;
    at[8] = sums.row_high[0] * high * global + rows.bias_high;
    if (place.column + 1 < entry.columns) {
      at += stride;
      at[0] = sums.row_low[1] * low * global + rows.bias_low;
      at[8] = sums.row_high[1] * high * global + rows.bias_high;
    }
  }
};

/// Adds what other blocks than the first hold of a route's results, in the order of the blocks.
template <Spec S>
inline void add_rest(device::Floats4& result,
                     const SharedResults& results,
                     const Entry& entry,
                     i32 column,
                     i32 row_in_group) {
  constexpr i32 kGroupRows = kSharedGroupTiles * device::kFp4TileRows;
  const u32 last = entry.spare >> 16;
  for (u32 block = (entry.spare & 0xFFFFU) + 1; block <= last; ++block) {
    const device::Floats4 part = device::load_global_floats(
        results.rest + (static_cast<i64>(block) * S.max_columns + column) * kGroupRows +
        row_in_group);
    result.x += part.x;
    result.y += part.y;
    result.z += part.z;
    result.w += part.w;
  }
}

/// The part of a route's results that begins its item, and the others.
template <Spec S>
inline device::Floats4 whole_result(device::Floats4 result,
                                    const Routes& routes,
                                    const SharedResults& results,
                                    i32 route,
                                    i32 row) {
  const Entry& entry = routes.entries[routes.places[route]];
  if ((entry.spare & 0xFFFFU) != entry.spare >> 16) {
    add_rest<S>(result,
                results,
                entry,
                routes.position[route] - entry.column_begin,
                row % (kSharedGroupTiles * device::kFp4TileRows));
  }
  return result;
}

inline void add_weighted(device::Floats4& sum, float weight, const device::Floats4& result) {
  sum.x += weight * result.x;
  sum.y += weight * result.y;
  sum.z += weight * result.z;
  sum.w += weight * result.w;
}

inline float result_weight(const Args& args, const Routes& routes, i32 route) {
  return args.weight_on_input != 0 ? 1.0F : routes.weight_of_route[route];
}

/// In slot order, loads of eight slots under way together.
template <Spec S>
inline device::Floats4 sum_slots(
    const Args& args, const Routes& routes, const SharedResults& results, i32 token, i32 row) {
  constexpr i32 kSlots = 8;
  device::Floats4 sum{0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll 1
  for (i32 base = 0; base < args.top_k; base += kSlots) {
    const i32 first = token * args.top_k + base;
    device::Floats4 result[kSlots];
    u32 position[kSlots];
#pragma unroll
    for (i32 at = 0; at < kSlots; ++at) {
      position[at] = base + at < args.top_k ? routes.position[first + at] : kNoPosition;
      // Nothing may have been stored for an inactive route: row 0 is read and not looked at.
      const i64 from = position[at] != kNoPosition ? position[at] : 0;
      result[at] = device::load_global_floats(results.routes + from * results.stride + row);
    }
#pragma unroll
    for (i32 at = 0; at < kSlots; ++at) {
      if (position[at] != kNoPosition) {
        add_weighted(sum,
                     result_weight(args, routes, first + at),
                     whole_result<S>(result[at], routes, results, first + at, row));
      }
    }
  }
  return sum;
}

template <Spec S>
inline device::Floats4 sum_by_expert(
    const Args& args, const Routes& routes, const SharedResults& results, i32 token, i32 row) {
  device::Floats4 sum{0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll 1
  for (i32 order = 0; order < args.top_k; ++order) {
    const i32 route = token * args.top_k + slot_by_expert(args, routes, token, order);
    const u32 position = routes.position[route];
    if (position != kNoPosition) {
      const device::Floats4 result = device::load_global_floats(
          results.routes + static_cast<i64>(position) * results.stride + row);
      add_weighted(sum,
                   result_weight(args, routes, route),
                   whole_result<S>(result, routes, results, route, row));
    }
  }
  return sum;
}

/// Quads of output rows of one group, token by token: a block sums num_threads of them at a time.
template <Spec S>
struct GroupOutput {
  i32 first_row;
  Divisor quads;  // of a token
  i32 units;

  GroupOutput(const Args& args, i32 group)
      : first_row(group * kSharedGroupTiles * device::kFp4TileRows),
        quads(quads_of(args, first_row)),
        units(device::ceil_div(quads.value() * args.num_tokens, num_threads(S))) {}

  void sum(const Args& args, const Routes& routes, const SharedResults& results, i32 unit) const {
    const i32 at = unit * num_threads(S) + static_cast<i32>(threadIdx.x);
    if (at < quads.value() * args.num_tokens) {
      const i32 token = quads.quotient(at);
      const i32 row = first_row + (at - token * quads.value()) * 4;
      store(args,
            token,
            row,
            args.expert_order != 0 ? sum_by_expert<S>(args, routes, results, token, row)
                                   : sum_slots<S>(args, routes, results, token, row));
    }
  }

  /// All units where no route is active.
  void clear(const Args& args) const {
    for (i32 at = static_cast<i32>(threadIdx.x); at < quads.value() * args.num_tokens;
         at += num_threads(S)) {
      const i32 token = quads.quotient(at);
      store(args,
            token,
            first_row + (at - token * quads.value()) * 4,
            device::Floats4{0.0F, 0.0F, 0.0F, 0.0F});
    }
  }

 private:
  static i32 quads_of(const Args& args, i32 first_row) {
    const i32 left = args.hidden - first_row;  // a multiple of 8
    constexpr i32 kGroupRows = kSharedGroupTiles * device::kFp4TileRows;
    return (left < kGroupRows ? left : kGroupRows) / 4;
  }

  static void store(const Args& args, i32 token, i32 row, const device::Floats4& sum) {
    float values[4] = {sum.x * args.sum_scale,
                       sum.y * args.sum_scale,
                       sum.z * args.sum_scale,
                       sum.w * args.sum_scale};
    if (args.shared_input != nullptr) {
      add_io(values, args.shared_input, token * args.shared_stride + row, args.shared_type);
    }
    store_io(args.out, token * args.out_stride + row, args.out_type, values);
  }
};

/// What one thread tells its block.
struct GatherWords {
  i32 ready;
  i32 unit[2];
};

/// Waits for the other blocks of a group a while only: they may not even have begun. Whoever comes
/// last finds all of them.
inline bool all_arrived(const u32* arrivals, u32 wanted, bool wait) {
  constexpr i32 kLooks = 64;  // of half a microsecond
  for (i32 look = 0; look < (wait ? kLooks : 1); ++look) {
    if (device::load_acquire(arrivals) == wanted) {
      return true;
    }
  }
  return false;
}

/// All threads, their results stored.
template <Spec S>
inline void gather_results(const Args& args,
                           const Routes& routes,
                           const BlockWork<S>& work,
                           const SharedResults& results,
                           GatherWords& words) {
  const i32 chunks = work.chunks.value();
  const i32 steps = work.entries * chunks;  // of a group
  if (steps == 0) {  // no route is active, and nobody has anything to wait for
    for (i32 group = static_cast<i32>(blockIdx.x); group < work.groups.value();
         group += work.parts.value()) {
      GroupOutput<S>(args, group).clear(args);
    }
    return;
  }
  if (work.steps == 0) {
    return;
  }
  const Partition shares = work.step_shares();
  const i32 begin = work.first_step / steps;
  const i32 end = device::ceil_div(work.first_step + work.steps, steps);
  const auto blocks_of = [&shares, steps](i32 group) {
    return static_cast<u32>(shares.index_of((group + 1) * steps - 1) -
                            shares.index_of(group * steps) + 1);
  };
  block_barrier<S>();
  if (threadIdx.x == 0) {
    for (i32 group = begin; group < end; ++group) {
      device::add_release(results.arrivals + group);
    }
  }
#pragma unroll 1
  for (i32 group = begin; group < end; ++group) {
    if (threadIdx.x == 0) {
      words.ready =
          all_arrived(results.arrivals + group, blocks_of(group), group + 1 == end) ? 1 : 0;
    }
    for (i32 entry = static_cast<i32>(threadIdx.x); entry < work.entries; entry += num_threads(S)) {
      const i32 step = group * steps + entry * chunks;
      routes.entries[entry].spare =
          static_cast<u32>(shares.index_of(step) | (shares.index_of(step + chunks - 1) << 16));
    }
    block_barrier<S>();
    if (words.ready != 0) {
      const GroupOutput<S> output(args, group);
      for (i32 turn = 0;; turn ^= 1) {
        if (threadIdx.x == 0) {
          words.unit[turn] = static_cast<i32>(atomicAdd(results.claims + group, 1U));
        }
        block_barrier<S>();
        const i32 unit = words.unit[turn];
        if (unit >= output.units) {
          break;
        }
        output.sum(args, routes, results, unit);
      }
    }
    block_barrier<S>();
  }
}

}  // namespace moekit::kernels::decode_gemv
