// SPDX-License-Identifier: Apache-2.0
#pragma once

// From top-k ids to a list of entries, in shared memory, by every block for itself: an entry is one
// expert and up to max_columns of its routes in ascending route order. No packing kernel, no order
// that depends on timing: counts are integer sums, positions a stable counting sort (README section
// 2).

#include "kernels/decode_gemv/args.h"
#include "kernels/decode_gemv/spec.h"

namespace moekit::kernels::decode_gemv {

using device::i16;
using device::i32;
using device::i64;
using device::u16;
using device::u32;
using device::u64;
using device::u8;

struct Entry {
  u16 expert;
  u16 column_begin;  // position of its first route in `sorted`
  u16 columns;
  u16 unused;
  float globals[2];  // gate and up, or down
};

static_assert(sizeof(Entry) == kEntryBytes);

struct Routes {
  i16* expert_of_route;
  float* weight_of_route;
  u16* sorted;
  u16* position;
  u32* places;  // down: where a route's result stands
  u16* expert_cursor;
  u16* first_entry;
  Entry* entries;
  u32* warp_sums;    // [consumer warps]
  i32* max_columns;  // largest Entry::columns
  i32* num_entries;
};

/// The local expert of one router id, or -1.
inline i32 local_expert(const Args& args, i32 token, i32 slot) {
  const i64 at = token * args.ids_stride + slot;
  // Checked before narrowing: 2^32 is not expert 0.
  const i64 id = args.ids_are_i64 != 0 ? static_cast<const i64*>(args.ids)[at]
                                       : static_cast<const i32*>(args.ids)[at];
  if (id < 0 || id >= args.router_experts) {
    return -1;
  }
  const i32 local = args.expert_map != nullptr ? args.expert_map[id] : static_cast<i32>(id);
  return local >= 0 && local < args.num_experts ? local : -1;
}

template <Spec S>
inline void load_routes(const Args& args, const Routes& routes, u32* counts) {
  const i32 num_routes = args.num_tokens * args.top_k;
  for (i32 route = static_cast<i32>(threadIdx.x); route < num_routes; route += num_threads(S)) {
    const i32 token = route / args.top_k;
    const i32 slot = route - token * args.top_k;
    const float weight = args.route_weights[token * args.route_weights_stride + slot];
    const i32 expert = local_expert(args, token, slot);
    routes.expert_of_route[route] = static_cast<i16>(expert);
    routes.weight_of_route[route] = weight * args.weight_scale;
    if (expert >= 0) {
      atomicAdd(&counts[expert], 1U);  // shared memory, integers: no order in the result
    }
  }
}

/// Columns in the low half, entries in the high half: one scan for both.
template <Spec S>
inline u32 scan_item(u32 count) {
  return count + (((count + S.max_columns - 1) / S.max_columns) << 16);
}

inline u32 warp_inclusive_sum(u32 value) {
  const u32 lane = threadIdx.x % 32;
  for (u32 offset = 1; offset < 32; offset *= 2) {
    const u32 other = __shfl_up_sync(0xFFFFFFFFU, value, offset);
    value += lane >= offset ? other : 0U;
  }
  return value;
}

/// Writes the entries of `count` routes of one expert that begin at `at` (low half: column, high
/// half: entry).
template <Spec S>
inline void write_entries(const Routes& routes, i32 expert, u32 count, u32 at) {
  u32 column = at & 0xFFFFU;
  u32 entry = at >> 16;
  routes.expert_cursor[expert] = static_cast<u16>(column);
  routes.first_entry[expert] = static_cast<u16>(entry);
  while (count > 0) {
    const u32 columns = count < S.max_columns ? count : static_cast<u32>(S.max_columns);
    routes.entries[entry] =
        Entry{static_cast<u16>(expert), static_cast<u16>(column), static_cast<u16>(columns), 0, {}};
    count -= columns;
    column += columns;
    ++entry;
  }
}

/// Exclusive scan over experts; consumer threads only, each with a run of consecutive experts.
template <Spec S>
inline void scan_experts(const Args& args, const Routes& routes, const u32* counts) {
  const i32 thread = static_cast<i32>(threadIdx.x);
  const i32 run = (args.num_experts + consumer_threads(S) - 1) / consumer_threads(S);
  const i32 begin = thread * run;
  const i32 end = begin + run < args.num_experts ? begin + run : args.num_experts;
  u32 own = 0;
  i32 largest = 0;
  for (i32 expert = begin; expert < end; ++expert) {
    own += scan_item<S>(counts[expert]);
    largest =
        static_cast<i32>(counts[expert]) > largest ? static_cast<i32>(counts[expert]) : largest;
  }
  const u32 inclusive = warp_inclusive_sum(own);
  if (thread % 32 == 31) {
    routes.warp_sums[thread / 32] = inclusive;
  }
  largest = static_cast<i32>(__reduce_max_sync(0xFFFFFFFFU, static_cast<u32>(largest)));
  if (thread % 32 == 0) {
    atomicMax(routes.max_columns, largest < S.max_columns ? largest : S.max_columns);
  }
  device::named_barrier(1, consumer_threads(S));
  u32 at = inclusive - own;
  for (i32 warp = 0; warp < thread / 32; ++warp) {
    at += routes.warp_sums[warp];
  }
  for (i32 expert = begin; expert < end; ++expert) {
    const u32 count = counts[expert];
    write_entries<S>(routes, expert, count, at);
    at += scan_item<S>(count);
  }
  if (thread == consumer_threads(S) - 1) {
    *routes.num_entries = static_cast<i32>(at >> 16);
  }
}

/// Stable placement by one warp, 32 routes at a time.
inline void place_routes(const Args& args, const Routes& routes) {
  const i32 num_routes = args.num_tokens * args.top_k;
  const u32 lane = threadIdx.x % 32;
  for (i32 base = 0; base < num_routes; base += 32) {
    const i32 route = base + static_cast<i32>(lane);
    const i32 expert = route < num_routes ? routes.expert_of_route[route] : -1;
    const u32 peers = __match_any_sync(0xFFFFFFFFU, expert);
    const u32 before = static_cast<u32>(__popc(peers & ((1U << lane) - 1U)));
    const u32 first = expert >= 0 ? routes.expert_cursor[expert] : 0U;
    __syncwarp();
    if (expert >= 0) {
      const u32 at = first + before;
      routes.sorted[at] = static_cast<u16>(route);
      routes.position[route] = static_cast<u16>(at);
      if (before == 0) {
        routes.expert_cursor[expert] = static_cast<u16>(first + static_cast<u32>(__popc(peers)));
      }
    }
    __syncwarp();
  }
}

/// At most 32 routes: one warp, in registers. A route's position is the number of routes before it
/// in (expert, route) order; its entry likewise counts the first routes of smaller experts.
template <Spec S>
inline void build_few_routes(const Args& args, const Routes& routes) {
  const i32 num_routes = args.num_tokens * args.top_k;
  const i32 route = static_cast<i32>(threadIdx.x % 32);
  i32 expert = -1;
  float weight = 0.0F;
  if (route < num_routes) {
    const i32 token = route / args.top_k;
    const i32 slot = route - token * args.top_k;
    weight = args.route_weights[token * args.route_weights_stride + slot] * args.weight_scale;
    expert = local_expert(args, token, slot);
  }
  const u32 peers = __match_any_sync(0xFFFFFFFFU, expert);
  const u32 earlier = peers & ((1U << route) - 1U);
  const i32 before_in_expert = __popc(earlier);
  // An entry begins with every max_columns-th route of an expert.
  const bool begins = expert >= 0 && before_in_expert % S.max_columns == 0;
  const u32 beginners = __ballot_sync(0xFFFFFFFFU, begins);
  i32 position = 0;
  i32 entry = 0;
  i32 entry_of_expert = 0;
  for (i32 other = 0; other < num_routes; ++other) {
    const i32 other_expert = __shfl_sync(0xFFFFFFFFU, expert, other);
    const bool smaller = other_expert >= 0 && other_expert < expert;
    const i32 other_begins = static_cast<i32>((beginners >> other) & 1U);
    position += smaller || (other_expert == expert && other < route) ? 1 : 0;
    entry_of_expert += smaller ? other_begins : 0;
    entry += smaller || (other_expert == expert && other < route) ? other_begins : 0;
  }
  if (route < num_routes) {
    routes.expert_of_route[route] = static_cast<i16>(expert);
    routes.weight_of_route[route] = weight;
  }
  const i32 left = __popc(peers) - before_in_expert;
  if (expert >= 0) {
    routes.sorted[position] = static_cast<u16>(route);
    routes.position[route] = static_cast<u16>(position);
    if (before_in_expert == 0) {
      routes.first_entry[expert] = static_cast<u16>(entry_of_expert);
    }
    if (begins) {
      routes.entries[entry] = Entry{static_cast<u16>(expert),
                                    static_cast<u16>(position),
                                    static_cast<u16>(left < S.max_columns ? left : S.max_columns),
                                    0,
                                    {}};
    }
  }
  const i32 widest = begins ? (left < S.max_columns ? left : S.max_columns) : 0;
  const u32 largest = __reduce_max_sync(0xFFFFFFFFU, static_cast<u32>(widest));
  if (route == 0) {
    *routes.max_columns = static_cast<i32>(largest);
    *routes.num_entries = __popc(beginners);
  }
}

/// Consumer threads, once the entries stand and the producer runs: no segment waits for its
/// globals.
template <Spec S>
inline void load_globals(const Args& args, const Routes& routes) {
  for (i32 at = static_cast<i32>(threadIdx.x); at < *routes.num_entries;
       at += consumer_threads(S)) {
    Entry& entry = routes.entries[at];
    const float* globals = args.globals + entry.expert * 4;
    entry.globals[0] = globals[S.role == Role::kDown ? 2 : 0];
    entry.globals[1] = globals[1];
  }
}

/// All threads of the block; `counts` is scratch, u32 [experts].
template <Spec S>
inline void build_routes(const Args& args, const Routes& routes, u32* counts) {
  if (args.num_tokens * args.top_k <= 32) {
    if (threadIdx.x < 32) {
      build_few_routes<S>(args, routes);
    }
    __syncthreads();
    return;
  }
  for (i32 expert = static_cast<i32>(threadIdx.x); expert < args.num_experts;
       expert += num_threads(S)) {
    counts[expert] = 0;
  }
  if (threadIdx.x == 0) {
    *routes.max_columns = 0;
    *routes.num_entries = 0;
  }
  __syncthreads();
  load_routes<S>(args, routes, counts);
  __syncthreads();
  if (threadIdx.x < consumer_threads(S)) {
    scan_experts<S>(args, routes, counts);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    place_routes(args, routes);
  }
  __syncthreads();
}

}  // namespace moekit::kernels::decode_gemv
