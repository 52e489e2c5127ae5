// SPDX-License-Identifier: Apache-2.0
#pragma once

// down's last act: out = round(scale * sum over slots of p * r (+ shared)) for the rows of this
// cluster, one thread per (token, row), slots in the order the arguments name.

#include "kernels/decode_gemv/device/epilogue.cuh"

namespace moekit::kernels::decode_gemv {

inline float load_io(const void* base, i64 at, IoType type) {
  switch (type) {
    case IoType::kBf16:
      return device::bf16_to_f32(static_cast<const u16*>(base)[at]);
    case IoType::kF16:
      return device::f16_to_f32(static_cast<const u16*>(base)[at]);
    case IoType::kF32:
      break;
  }
  return static_cast<const float*>(base)[at];
}

inline void store_io(void* base, i64 at, IoType type, float value) {
  switch (type) {
    case IoType::kBf16:
      static_cast<u16*>(base)[at] = device::bf16_from_f32(value);
      return;
    case IoType::kF16:
      static_cast<u16*>(base)[at] = device::f16_from_f32(value);
      return;
    case IoType::kF32:
      break;
  }
  static_cast<float*>(base)[at] = value;
}

/// Where a route's result stands: in the table of block `rank`, row `local`; if the entry's K was
/// split, also in the tables of the `ranks` - 1 blocks after it, row `column`. ranks 0: inactive.
struct Place {
  static u32 pack(u32 rank, u32 ranks, u32 local, u32 column) {
    return rank | ranks << 4 | column << 8 | local << 16;
  }

  explicit Place(u32 bits)
      : rank(bits & 15U), ranks((bits >> 4) & 15U), column((bits >> 8) & 255U), local(bits >> 16) {}

  u32 rank;
  u32 ranks;
  u32 column;
  u32 local;
};

/// First position of a block's share of (entry, K chunk); 0 where it has none.
inline i32 first_position(const Routes& routes, i32 chunks, Share share) {
  return share.begin < share.end
             ? routes.entries[static_cast<u32>(share.begin) / static_cast<u32>(chunks)].column_begin
             : 0;
}

/// One consumer thread per route.
template <Spec S>
inline void place_results(const Args& args, const Routes& routes, i32 chunks, i32 ranks) {
  const Partition partition(*routes.num_entries * chunks, ranks);
  for (i32 route = static_cast<i32>(threadIdx.x); route < args.num_tokens * args.top_k;
       route += consumer_threads(S)) {
    const i32 expert = routes.expert_of_route[route];
    u32 place = 0;
    if (expert >= 0) {
      const i32 position = routes.position[route];
      i32 entry = routes.first_entry[expert];
      entry += (position - routes.entries[entry].column_begin) / S.max_columns;
      const i32 column = position - routes.entries[entry].column_begin;
      // The ranks whose share meets [entry, entry + 1) * chunks.
      i32 first_rank = 0;
      while (partition.begin(first_rank + 1) <= entry * chunks) {
        ++first_rank;
      }
      i32 touching = 1;
      while (partition.begin(first_rank + touching) < (entry + 1) * chunks) {
        ++touching;
      }
      const i32 local = position - first_position(routes, chunks, partition.share(first_rank));
      place = Place::pack(static_cast<u32>(first_rank),
                          static_cast<u32>(touching),
                          static_cast<u32>(local),
                          static_cast<u32>(column));
    }
    routes.places[route] = place;
  }
}

/// The slot that stands at `order` when a token's slots are sorted by expert, then slot.
inline i32 slot_by_expert(const Args& args, const Routes& routes, i32 token, i32 order) {
  const i16* experts = routes.expert_of_route + token * args.top_k;
  for (i32 slot = 0; slot < args.top_k; ++slot) {
    i32 before = 0;
    for (i32 other = 0; other < args.top_k; ++other) {
      before += experts[other] < experts[slot] || (experts[other] == experts[slot] && other < slot)
                    ? 1
                    : 0;
    }
    if (before == order) {
      return slot;
    }
  }
  return order;
}

/// Four rows of one token.
template <Spec S>
inline device::Floats4 sum_routes(
    const Args& args, const Routes& routes, float* const* tables, i32 token, i32 row_in_block) {
  device::Floats4 sum{0.0F, 0.0F, 0.0F, 0.0F};
  for (i32 order = 0; order < args.top_k; ++order) {
    const i32 slot = args.expert_order != 0 ? slot_by_expert(args, routes, token, order) : order;
    const i32 route = token * args.top_k + slot;
    const Place place(routes.places[route]);
    if (place.ranks == 0) {
      continue;
    }
    constexpr i32 kStride = ResultTable<S>::kStride;
    device::Floats4 result = *reinterpret_cast<const device::Floats4*>(
        tables[place.rank] + static_cast<i64>(place.local) * kStride + row_in_block);
    for (u32 next = 1; next < place.ranks; ++next) {
      const device::Floats4 part = *reinterpret_cast<const device::Floats4*>(
          tables[place.rank + next] + static_cast<i64>(place.column) * kStride + row_in_block);
      result.x += part.x;
      result.y += part.y;
      result.z += part.z;
      result.w += part.w;
    }
    const float weight = args.weight_on_input != 0 ? 1.0F : routes.weight_of_route[route];
    sum.x += weight * result.x;
    sum.y += weight * result.y;
    sum.z += weight * result.z;
    sum.w += weight * result.w;
  }
  return sum;
}

/// Output rows of the cluster; its blocks share the work by threads.
template <Spec S>
inline void combine(
    const Args& args, const Routes& routes, float* const* tables, Share rows, i32 rank, i32 ranks) {
  const i32 quads = (rows.end - rows.begin) / 4;  // rows are multiples of 8
  for (i32 at = rank * consumer_threads(S) + static_cast<i32>(threadIdx.x);
       at < quads * args.num_tokens;
       at += ranks * consumer_threads(S)) {
    const i32 token = at / quads;
    const i32 row_in_block = (at - token * quads) * 4;
    const device::Floats4 sum = sum_routes<S>(args, routes, tables, token, row_in_block);
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
    const i64 row = rows.begin + row_in_block;
#pragma unroll
    for (i32 part = 0; part < 4; ++part) {
      float value = values[part] * args.sum_scale;
      if (args.shared_input != nullptr) {
        value +=
            load_io(args.shared_input, token * args.shared_stride + row + part, args.shared_type);
      }
      store_io(args.out, token * args.out_stride + row + part, args.out_type, value);
    }
  }
}

}  // namespace moekit::kernels::decode_gemv
