// SPDX-License-Identifier: Apache-2.0
#pragma once

// From top-k ids to a list of entries, in shared memory, by every block for itself: an entry is one
// expert and up to max_columns of its routes in ascending route order. No packing kernel, no order
// that depends on timing: counts are integer sums, positions a stable counting sort (README section
// 2).

#include "device/ptx/barrier.cuh"
#include "device/ptx/copy.cuh"
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

struct alignas(16) Entry {
  u16 expert;
  u16 column_begin;  // position of its first route in `sorted`
  u16 columns;
  u16 unused;
  u32 spare[2];
  float globals[4];  // gate, up, down, 0; there once Routes::globals_full is
};

static_assert(sizeof(Entry) == kEntryBytes);

constexpr u16 kNoPosition = 0xFFFF;

struct Routes {
  i16* expert_of_route;
  float* weight_of_route;
  u16* sorted;
  u16* position;       // kNoPosition: inactive
  u32* places;         // down: where a route's result stands
  u16* expert_cursor;  // an expert's first position
  u16* first_entry;
  Entry* entries;
  u32 globals_full;  // shared address of an mbarrier, phase 0
  u32* warp_sums;    // [consumer warps]
  i32* num_entries;
};

/// All threads of the role: the whole block, unless the other role of a resident launch has more.
template <Spec S>
inline void block_barrier() {
  device::named_barrier(0, num_threads(S));
}

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

/// Loads first and clears then: nobody counts before the barrier.
template <Spec S>
inline void load_routes(const Args& args, const Routes& routes, u32* counts) {
  const i32 thread = static_cast<i32>(threadIdx.x);
  const i32 num_routes = args.num_tokens * args.top_k;
  for (i32 route = thread; route < num_routes; route += num_threads(S)) {
    const i32 token = route / args.top_k;
    const i32 slot = route - token * args.top_k;
    const float weight = args.route_weights[token * args.route_weights_stride + slot];
    routes.expert_of_route[route] = static_cast<i16>(local_expert(args, token, slot));
    routes.weight_of_route[route] = weight * args.weight_scale;
  }
  for (i32 expert = thread; expert < args.num_experts; expert += num_threads(S)) {
    counts[expert] = 0;
  }
  block_barrier<S>();
  for (i32 route = thread; route < num_routes; route += num_threads(S)) {
    const i32 expert = routes.expert_of_route[route];
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
    Entry& made = routes.entries[entry];
    made.expert = static_cast<u16>(expert);
    made.column_begin = static_cast<u16>(column);
    made.columns = static_cast<u16>(columns);
    count -= columns;
    column += columns;
    ++entry;
  }
}

/// Exclusive scan over experts; consumer threads only, each with a run of consecutive experts.
template <Spec S>
inline void scan_experts(const Args& args, const Routes& routes, const u32* counts) {
  const i32 thread = static_cast<i32>(threadIdx.x);
  const i32 run = (args.num_experts + num_threads(S) - 1) / num_threads(S);
  const i32 begin = thread * run;
  const i32 end = begin + run < args.num_experts ? begin + run : args.num_experts;
  u32 own = 0;
  for (i32 expert = begin; expert < end; ++expert) {
    own += scan_item<S>(counts[expert]);
  }
  const u32 inclusive = warp_inclusive_sum(own);
  if (thread % 32 == 31) {
    routes.warp_sums[thread / 32] = inclusive;
  }
  block_barrier<S>();
  u32 at = inclusive - own;
  for (i32 warp = 0; warp < thread / 32; ++warp) {
    at += routes.warp_sums[warp];
  }
  for (i32 expert = begin; expert < end; ++expert) {
    const u32 count = counts[expert];
    write_entries<S>(routes, expert, count, at);
    at += scan_item<S>(count);
  }
  if (thread == num_threads(S) - 1) {
    *routes.num_entries = static_cast<i32>(at >> 16);
  }
}

/// How many of the routes before `warp_base` (a multiple of 32) have this expert.
inline u32 count_before(const Routes& routes, i32 warp_base, i32 expert) {
  const u32 at = device::shared_address(routes.expert_of_route);
  const u32 wanted = static_cast<u32>(expert) & 0xFFFFU;
  u32 count = 0;
  for (i32 base = 0; base < warp_base; base += 8) {
    const device::Words4 eight = device::load_shared_words(at + static_cast<u32>(base * 2));
    const u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (const u32 pair : pairs) {
      count += (pair & 0xFFFFU) == wanted ? 1U : 0U;
      count += (pair >> 16) == wanted ? 1U : 0U;
    }
  }
  return count;
}

/// All threads: stable placement, each route for itself; `expert_cursor` is where an expert's
/// routes begin. One warp placing 32 after 32 takes 800 cycles each time.
template <Spec S>
inline void place_routes(const Args& args, const Routes& routes) {
  const i32 num_routes = args.num_tokens * args.top_k;
  const i32 lane = static_cast<i32>(threadIdx.x % 32);
  for (i32 base = static_cast<i32>(threadIdx.x) - lane; base < num_routes; base += num_threads(S)) {
    const i32 route = base + lane;
    const i32 expert = route < num_routes ? routes.expert_of_route[route] : -1;
    const u32 peers = __match_any_sync(0xFFFFFFFFU, expert);
    if (expert >= 0) {
      const u32 at = routes.expert_cursor[expert] + count_before(routes, base, expert) +
                     static_cast<u32>(__popc(peers & ((1U << lane) - 1U)));
      routes.sorted[at] = static_cast<u16>(route);
      routes.position[route] = static_cast<u16>(at);
    } else if (route < num_routes) {
      routes.position[route] = kNoPosition;
    }
  }
}

/// At most 32 routes: one warp, in registers. Experts stand in the order of their first routes; the
/// first route of each carries its counts through one scan.
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
  const u32 before = static_cast<u32>(__popc(peers & ((1U << route) - 1U)));
  const u32 count = static_cast<u32>(__popc(peers));
  const bool leads = expert >= 0 && before == 0;
  const u32 own = leads ? scan_item<S>(count) : 0U;
  const u32 inclusive = warp_inclusive_sum(own);
  const u32 at = __shfl_sync(0xFFFFFFFFU, inclusive - own, __ffs(static_cast<i32>(peers)) - 1);
  if (route < num_routes) {
    routes.expert_of_route[route] = static_cast<i16>(expert);
    routes.weight_of_route[route] = weight;
    routes.position[route] = kNoPosition;
  }
  if (expert >= 0) {
    const u32 position = (at & 0xFFFFU) + before;
    routes.sorted[position] = static_cast<u16>(route);
    routes.position[route] = static_cast<u16>(position);
  }
  if (leads) {
    write_entries<S>(routes, expert, count, at);
  }
  if (route == 31) {
    *routes.num_entries = static_cast<i32>(inclusive >> 16);
  }
}

/// All threads: asks for the globals of the entries. Behind the requests for weights they take
/// microseconds, so nobody waits before the first item ends.
template <Spec S>
inline void request_globals(const Args& args, const Routes& routes) {
  for (i32 at = static_cast<i32>(threadIdx.x); at < *routes.num_entries; at += num_threads(S)) {
    device::copy_16_async(device::shared_address(routes.entries[at].globals),
                          args.globals + routes.entries[at].expert * 4);
  }
  device::mbarrier_arrive_async(routes.globals_full);
}

/// x and the table of globals into L2 before anything is known of the routes: behind the requests
/// for weights they would wait for microseconds.
inline void prefetch_operands(const Args& args) {
  const i32 lines = (args.hidden * 2 + 127) / 128;
  const i32 all = lines * args.num_tokens;
  const i32 at = static_cast<i32>(blockIdx.x * blockDim.x + threadIdx.x);
  if (at < all) {
    const i32 token = at / lines;
    device::prefetch_to_l2(args.x + token * args.x_stride + (at - token * lines) * 64);
  } else if (at - all < args.num_experts / 8) {
    device::prefetch_to_l2(args.globals + (at - all) * 32);
  }
}

inline bool few_routes(const Args& args) {
  return args.num_tokens * args.top_k <= 32;
}

/// All threads of the block, until the entries stand; `counts` is scratch, u32 [experts].
template <Spec S>
inline void build_entries(const Args& args, const Routes& routes, u32* counts) {
  if (few_routes(args)) {
    if (threadIdx.x < 32) {
      build_few_routes<S>(args, routes);
    }
  } else {
    load_routes<S>(args, routes, counts);
    block_barrier<S>();
    scan_experts<S>(args, routes, counts);
  }
  block_barrier<S>();
}

}  // namespace moekit::kernels::decode_gemv
