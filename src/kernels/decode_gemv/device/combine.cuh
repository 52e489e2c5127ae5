// SPDX-License-Identifier: Apache-2.0
#pragma once

// down's last act: out = round(scale * sum over slots of p * r (+ shared)) for the rows of this
// cluster, one thread per (token, row), slots in the order the arguments name.

#include "kernels/decode_gemv/device/epilogue.cuh"

namespace moekit::kernels::decode_gemv {

/// Adds values of `base`, from element `at` on.
template <i32 kCount>
inline void add_io(float (&values)[kCount], const void* base, i64 at, IoType type) {
#pragma unroll
  for (i32 part = 0; part < kCount; ++part) {
    if (type == IoType::kF32) {
      values[part] += static_cast<const float*>(base)[at + part];
    } else {
      const u16 bits = static_cast<const u16*>(base)[at + part];
      values[part] += type == IoType::kBf16 ? device::bf16_to_f32(bits) : device::f16_to_f32(bits);
    }
  }
}

/// Stores values. One decision for all: this is the last code of the layer, and cold.
template <i32 kCount>
inline void store_io(void* base, i64 at, IoType type, const float (&values)[kCount]) {
  u16* const halves = static_cast<u16*>(base) + at;
  float* const floats = static_cast<float*>(base) + at;
  if (type == IoType::kBf16) {
#pragma unroll
    for (i32 part = 0; part < kCount; ++part) {
      halves[part] = device::bf16_from_f32(values[part]);
    }
    return;
  }
#pragma unroll
  for (i32 part = 0; part < kCount; ++part) {
    if (type == IoType::kF16) {
      halves[part] = device::f16_from_f32(values[part]);
    } else {
      floats[part] = values[part];
    }
  }
}

/// The tables of route results of a cluster's blocks, in the shared memory of each or its spill.
struct Tables {
  float* rows[kMaxCluster];
  i32 first_position[kMaxCluster];  // of row 0
  i32 first_item[kMaxCluster];      // of the items that the block has
};

/// One thread per route: the entry that holds it.
template <Spec S>
inline void place_results(const Args& args, const Routes& routes) {
  for (i32 route = static_cast<i32>(threadIdx.x); route < args.num_tokens * args.top_k;
       route += num_threads(S)) {
    const i32 expert = routes.expert_of_route[route];
    if (expert >= 0) {
      const i32 first = routes.first_entry[expert];
      const i32 column = routes.position[route] - routes.entries[first].column_begin;
      routes.places[route] = static_cast<u32>(first + column / S.max_columns);
    }
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

/// Four output rows of one token, and the row stride of the results that they are summed from.
struct OutputQuad {
  i32 token;
  i32 row_in_block;
  i32 stride;
};

/// The quad's rows belong to the same item of every entry.
template <Spec S>
inline device::Floats4 sum_routes(const Args& args,
                                  const Routes& routes,
                                  const BlockWork<S>& work,
                                  const Tables& tables,
                                  const OutputQuad& quad) {
  device::Floats4 sum{0.0F, 0.0F, 0.0F, 0.0F};
  const i32 token = quad.token;
  const i32 group = quad.row_in_block / (device::kFp4TileRows * S.row_tiles);
  for (i32 order = 0; order < args.top_k; ++order) {
    const i32 slot = args.expert_order != 0 ? slot_by_expert(args, routes, token, order) : order;
    const i32 route = token * args.top_k + slot;
    if (routes.position[route] == kNoPosition) {
      continue;
    }
    const i32 item = static_cast<i32>(routes.places[route]) * work.groups.value() + group;
    i32 rank = 0;
    while (rank + 1 < work.parts.value() && item >= tables.first_item[rank + 1]) {
      ++rank;
    }
    const i64 row = routes.position[route] - tables.first_position[rank];
    const device::Floats4 result = *reinterpret_cast<const device::Floats4*>(
        tables.rows[rank] + row * quad.stride + quad.row_in_block);
    const float weight = args.weight_on_input != 0 ? 1.0F : routes.weight_of_route[route];
    sum.x += weight * result.x;
    sum.y += weight * result.y;
    sum.z += weight * result.z;
    sum.w += weight * result.w;
  }
  return sum;
}

/// The same where all results stand in this block's shared memory and slots are summed in their
/// order: `row_at` is the shared address of the four rows of position 0.
template <Spec S>
inline device::Floats4 sum_own_routes(
    const Args& args, const Routes& routes, i32 token, u32 row_at, i32 stride) {
  device::Floats4 sum{0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll 4
  for (i32 slot = 0; slot < args.top_k; ++slot) {
    const i32 route = token * args.top_k + slot;
    const u32 position = routes.position[route];
    const float weight = args.weight_on_input != 0 ? 1.0F : routes.weight_of_route[route];
    const bool active = position != kNoPosition;
    const device::Floats4 result = device::load_shared_floats(
        row_at + (active ? position * static_cast<u32>(stride * 4) : 0U));
    // Nothing may have been stored for an inactive route.
    sum.x += active ? weight * result.x : 0.0F;
    sum.y += active ? weight * result.y : 0.0F;
    sum.z += active ? weight * result.z : 0.0F;
    sum.w += active ? weight * result.w : 0.0F;
  }
  return sum;
}

/// Output rows of the cluster; its blocks share the work by threads. sum_own_routes() serves
/// where `table.shared` is set.
template <Spec S>
inline void combine(const Args& args,
                    const Routes& routes,
                    const BlockWork<S>& work,
                    const Tables& tables,
                    const ResultTable& table) {
  const i32 rank = static_cast<i32>(device::cluster_rank());
  const i32 ranks = static_cast<i32>(device::cluster_size());
  const i32 last_row = work.rows.end * device::kFp4TileRows;
  const Share rows{work.rows.begin * device::kFp4TileRows,
                   last_row < args.hidden ? last_row : args.hidden};
  const Divisor quads((rows.end - rows.begin) / 4);  // rows are multiples of 8
  for (i32 at = rank * num_threads(S) + static_cast<i32>(threadIdx.x);
       at < quads.value() * args.num_tokens;
       at += ranks * num_threads(S)) {
    const i32 token = quads.quotient(at);
    const i32 row_in_block = (at - token * quads.value()) * 4;
    const device::Floats4 sum =
        table.shared != 0
            ? sum_own_routes<S>(args,
                                routes,
                                token,
                                table.shared + static_cast<u32>(row_in_block * 4),
                                table.stride)
            : sum_routes<S>(args, routes, work, tables, {token, row_in_block, table.stride});
    float values[4] = {sum.x * args.sum_scale,
                       sum.y * args.sum_scale,
                       sum.z * args.sum_scale,
                       sum.w * args.sum_scale};
    const i64 row = rows.begin + row_in_block;
    if (args.shared_input != nullptr) {
      add_io(values, args.shared_input, token * args.shared_stride + row, args.shared_type);
    }
    store_io(args.out, token * args.out_stride + row, args.out_type, values);
  }
}

}  // namespace moekit::kernels::decode_gemv
