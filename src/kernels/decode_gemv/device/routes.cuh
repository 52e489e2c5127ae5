// SPDX-License-Identifier: Apache-2.0
#pragma once

// From top-k ids to a list of entries, in shared memory, by every block for itself: an entry is one
// expert and up to max_columns of its routes in ascending route order. No packing kernel, no order
// that depends on timing: counts are integer sums, positions a stable counting sort (README section
// 2).

#include "device/ptx/barrier.cuh"
#include "device/ptx/copy.cuh"
#include "device/ptx/mma.cuh"
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

/// Quotients by one divisor, its reciprocal taken ahead of time: an integer division takes a warp
/// a hundred cycles, and several in a row would stand between the ids and the first request.
/// Exact for dividends below 2^24.
class Divisor {
 public:
  explicit Divisor(i32 divisor)
      : divisor_(divisor), reciprocal_(device::reciprocal_near(static_cast<float>(divisor))) {}

  i32 quotient(i32 dividend) const {
    const i32 near = static_cast<i32>(static_cast<float>(dividend) * reciprocal_);
    const i32 rest = dividend - near * divisor_;
    return near + (rest >= divisor_ ? 1 : 0) - (rest < 0 ? 1 : 0);
  }

  i32 value() const { return divisor_; }

 private:
  i32 divisor_;
  float reciprocal_;
};

struct alignas(16) Entry {
  u16 expert;
  u16 column_begin;  // position of its first route in `sorted`
  u16 columns;
  u16 unused;
  u32 not_finite;  // kSharedItems: bit per column whose x holds NaN or infinity
  u32 spare;
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

  i32 expert(i32 entry) const { return entries[entry].expert; }
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
    made.not_finite = 0;
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

/// How many routes of each 32 go to each expert, a byte each: what count_before() adds up, where it
/// fits. u8 [experts][chunks, in whole words].
struct ChunkCounts {
  u32 at;  // shared address
  i32 words;

  ChunkCounts(const Args& args, const u32* scratch)
      : at(device::shared_address(scratch)),
        words(device::ceil_div(args.num_tokens * args.top_k, 128)) {}

  /// Up to 128 routes are counted as fast one by one.
  bool serves(const Args& args) const {
    return words > 1 && args.num_experts * words * 4 <= kSortScratchBytes;
  }

  u32 row(i32 expert) const { return at + static_cast<u32>(expert * words * 4); }

  u32 before(i32 expert, i32 chunk) const {
    const u32 row_at = row(expert);
    u32 count = 0;
    for (i32 word = 0; word <= chunk / 4; ++word) {
      const u32 counts = device::load_shared_u32(row_at + static_cast<u32>(word * 4));
      const u32 mask = word < chunk / 4 ? 0xFFFFFFFFU : (1U << (chunk % 4 * 8)) - 1U;
      count = static_cast<u32>(__dp4a(counts & mask, 0x01010101U, count));
    }
    return count;
  }
};

/// All threads: stable placement, each route for itself; `expert_cursor` is where an expert's
/// routes begin. `scratch`: kSortScratchBytes that nobody needs any more. One warp placing 32 after
/// 32 takes 800 cycles each time, 512 routes that each look at all before them 10000.
template <Spec S>
inline void place_routes(const Args& args, const Routes& routes, u32* scratch) {
  const i32 num_routes = args.num_tokens * args.top_k;
  const i32 lane = static_cast<i32>(threadIdx.x % 32);
  const i32 first = static_cast<i32>(threadIdx.x) - lane;
  const ChunkCounts chunks(args, scratch);
  const bool counted = chunks.serves(args);
  if (counted) {
    for (i32 word = static_cast<i32>(threadIdx.x); word < args.num_experts * chunks.words;
         word += num_threads(S)) {
      scratch[word] = 0;
    }
    block_barrier<S>();
    for (i32 base = first; base < num_routes; base += num_threads(S)) {
      const i32 expert = base + lane < num_routes ? routes.expert_of_route[base + lane] : -1;
      const u32 peers = __match_any_sync(0xFFFFFFFFU, expert);
      if (expert >= 0 && (peers & ((1U << lane) - 1U)) == 0U) {
        device::store_shared_u8(chunks.row(expert) + static_cast<u32>(base / 32),
                                static_cast<u32>(__popc(peers)));
      }
    }
    block_barrier<S>();
  }
  for (i32 base = first; base < num_routes; base += num_threads(S)) {
    const i32 route = base + lane;
    const i32 expert = route < num_routes ? routes.expert_of_route[route] : -1;
    const u32 peers = __match_any_sync(0xFFFFFFFFU, expert);
    if (expert >= 0) {
      const u32 before =
          counted ? chunks.before(expert, base / 32) : count_before(routes, base, expert);
      const u32 at = routes.expert_cursor[expert] + before +
                     static_cast<u32>(__popc(peers & ((1U << lane) - 1U)));
      routes.sorted[at] = static_cast<u16>(route);
      routes.position[route] = static_cast<u16>(at);
    } else if (route < num_routes) {
      routes.position[route] = kNoPosition;
    }
  }
}

/// Variants for many columns sort any number alike: they are for calls of many routes.
template <Spec S>
inline bool few_routes(const Args& args) {
  return S.max_columns == 8 && args.num_tokens * args.top_k <= 32;
}

/// At most 32 routes, in the registers of each warp for itself: what a warp must know to ask for
/// its first weights, without a barrier. Experts stand in the order of their first routes; the
/// first route of each carries its counts through one scan.
template <Spec S>
class FewRoutes {
 public:
  /// Asks for the ids; what does not depend on them is computed while they are on the way.
  explicit FewRoutes(const Args& args) {
    const i32 route = static_cast<i32>(threadIdx.x % 32);
    if (few_routes<S>(args) && route < args.num_tokens * args.top_k) {
      const i32 token = token_of(args, route);
      const i64 at = token * args.ids_stride + (route - token * args.top_k);
      // Words as they stand: to widen one here would wait for it.
      const i32* const words = static_cast<const i32*>(args.ids) + (at << args.ids_are_i64);
      id_low_ = words[0];
      if (args.ids_are_i64 != 0) {
        id_high_ = words[1];
      }
      if constexpr (S.role == Role::kGateUp) {
        weight_ = weight(args);
      }
    }
  }

  void resolve(const Args& args) {
    // Checked before narrowing: 2^32 is not expert 0.
    if (id_high_ == 0 && id_low_ >= 0 && id_low_ < args.router_experts) {
      const i32 local = args.expert_map != nullptr ? args.expert_map[id_low_] : id_low_;
      expert_ = local >= 0 && local < args.num_experts ? local : -1;
    }
    peers_ = __match_any_sync(0xFFFFFFFFU, expert_);
    const u32 leaders = __ballot_sync(0xFFFFFFFFU, leads());
    entry_ = static_cast<u32>(__popc(leaders & ((1U << (threadIdx.x % 32)) - 1U)));
    next_entry_ = entry_ + (leads() ? 1U : 0U);
    num_entries_ = __popc(leaders);
    if (__any_sync(0xFFFFFFFFU, leads() && __popc(peers_) > S.max_columns)) {
      const u32 at = scan();
      entry_ = at >> 16;
      next_entry_ = entry_ + (scan_item<S>(own_count()) >> 16);
      num_entries_ = static_cast<i32>(__shfl_sync(0xFFFFFFFFU, next_entry_, 31));
    }
  }

  i32 num_entries() const { return num_entries_; }

  /// All lanes: the expert of one entry.
  i32 expert(i32 entry) const {
    const u32 wanted = static_cast<u32>(entry);
    const u32 found = __ballot_sync(0xFFFFFFFFU, entry_ <= wanted && wanted < next_entry_);
    return __shfl_sync(0xFFFFFFFFU, expert_, __ffs(static_cast<i32>(found)) - 1);
  }

  /// One warp: for the whole block.
  void store(const Args& args, const Routes& routes) const {
    const i32 route = static_cast<i32>(threadIdx.x % 32);
    const u32 at = scan();
    const u32 first = __shfl_sync(0xFFFFFFFFU, at, __ffs(static_cast<i32>(peers_)) - 1);
    if (route < args.num_tokens * args.top_k) {
      routes.expert_of_route[route] = static_cast<i16>(expert_);
      // down waits for gate_up anyway and has no register to keep it in.
      const float weight_now = S.role == Role::kGateUp ? weight_ : weight(args);
      routes.weight_of_route[route] = weight_now * args.weight_scale;
      u32 position = kNoPosition;
      if (expert_ >= 0) {
        position = (first & 0xFFFFU) + rank();
        routes.sorted[position] = static_cast<u16>(route);
      }
      routes.position[route] = static_cast<u16>(position);
    }
    if (leads()) {
      write_entries<S>(routes, expert_, own_count(), at);
    }
    *routes.num_entries = num_entries_;
  }

 private:
  static i32 token_of(const Args& args, i32 route) {
    return args.num_tokens == 1 ? 0 : Divisor(args.top_k).quotient(route);
  }

  static float weight(const Args& args) {
    const i32 route = static_cast<i32>(threadIdx.x % 32);
    const i32 token = token_of(args, route);
    return args.route_weights[token * args.route_weights_stride + (route - token * args.top_k)];
  }

  /// Routes of the same expert before this one.
  u32 rank() const { return static_cast<u32>(__popc(peers_ & ((1U << (threadIdx.x % 32)) - 1U))); }

  bool leads() const { return expert_ >= 0 && rank() == 0; }

  /// Routes that this one leads.
  u32 own_count() const { return leads() ? static_cast<u32>(__popc(peers_)) : 0U; }

  /// Columns (low half) and entries (high half) of the leading routes before this one.
  u32 scan() const {
    const u32 own = scan_item<S>(own_count());
    return warp_inclusive_sum(own) - own;
  }

  i32 id_low_ = -1;
  i32 id_high_ = 0;
  float weight_ = 0.0F;
  i32 expert_ = -1;
  u32 peers_ = 0;
  u32 entry_ = 0;  // first entry of a leading route
  u32 next_entry_ = 0;
  i32 num_entries_ = 0;
};

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

/// More routes than that. All threads of the block, until the entries stand; `counts` is scratch,
/// u32 [experts].
template <Spec S>
inline void build_entries(const Args& args, const Routes& routes, u32* counts) {
  load_routes<S>(args, routes, counts);
  block_barrier<S>();
  scan_experts<S>(args, routes, counts);
  block_barrier<S>();
}

}  // namespace moekit::kernels::decode_gemv
