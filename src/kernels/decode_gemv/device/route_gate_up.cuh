// SPDX-License-Identifier: Apache-2.0
#pragma once

// gate_up of few routes: the items of a block, side by side on its warps, K of each over
// warps / row_tiles of them; all weights are asked for as soon as the ids are known.

#include "kernels/decode_gemv/device/route_items.cuh"

namespace moekit::kernels::decode_gemv {

/// Requests of one warp, in the order in which it reads.
template <Spec S>
class RouteStream {
 public:
  RouteStream(const Args& args,
              const Extents<S>& extents,
              const RouteK<S>& k,
              const RouteRing<S>& ring)
      : args_(args), extents_(extents), k_(k), ring_(ring), policy_(device::evict_first_policy()) {}

  void begin(const LaneRoutes& routes, const Divisor& row_tiles, i32 item, i32 end) {
    item_ = item;
    end_ = end;
    if (k_.count == 0) {
      item_ = end;
    }
    if (item_ < end_) {
      locate(routes, row_tiles);
    }
    i32 slot = 0;
#pragma unroll 1
    for (; slot < ring_.num_slots && item_ < end_; ++slot) {
      request(routes, row_tiles, slot);
    }
  }

  /// The next step, if there is one, into a slot that all lanes have read.
  void request(const LaneRoutes& routes, const Divisor& row_tiles, i32 slot) {
    if (item_ >= end_) {
      return;
    }
    if (threadIdx.x % 32 == 0) {
      const u32 bytes = static_cast<u32>(k_.tiles(chunk_) * tile_bytes(S));
      const u32 barrier = ring_.full + static_cast<u32>(slot * 8);
      device::mbarrier_arrive_expect(barrier, bytes);
      device::bulk_copy(ring_.slots + static_cast<u32>(slot) * ring_.slot_bytes,
                        source_,
                        bytes,
                        barrier,
                        policy_);
    }
    source_ += S.k_tiles * tile_bytes(S);
    if (++chunk_ == k_.chunks) {
      chunk_ = 0;
      item_ += S.row_tiles;
      if (item_ < end_) {
        locate(routes, row_tiles);
      }
    }
  }

 private:
  void locate(const LaneRoutes& routes, const Divisor& row_tiles) {
    const i32 entry = row_tiles.quotient(item_);
    const i32 tile = item_ - entry * row_tiles.value();
    const i32 expert = routes.expert_of(routes.route_of(entry));
    source_ = args_.weights + expert * args_.expert_stride_bytes +
              static_cast<i64>(tile * extents_.k_tiles + k_.begin) * tile_bytes(S);
  }

  const Args& args_;
  const Extents<S>& extents_;
  const RouteK<S>& k_;
  const RouteRing<S>& ring_;
  u64 policy_;
  const u8* source_ = nullptr;
  i32 item_ = 0;
  i32 end_ = 0;
  i32 chunk_ = 0;
};

/// x into shared memory; before the barrier of the block that makes it known to all.
template <Spec S>
inline void stage_x(const Args& args, const Extents<S>& extents, u32 rows_at, u32 full) {
  const u32 stride = static_cast<u32>(operand_stride(extents.k_tiles));
  if (threadIdx.x == 0) {
    const u32 bytes = static_cast<u32>(extents.k_elems * 2);
    device::mbarrier_arrive_expect(full, bytes * static_cast<u32>(args.num_tokens));
#pragma unroll 1
    for (i32 token = 0; token < args.num_tokens; ++token) {
      device::bulk_copy(
          rows_at + static_cast<u32>(token) * stride, args.x + token * args.x_stride, bytes, full);
    }
  }
  if (extents.ragged) {
    const i32 chunks = extents.k_tiles * device::kFp4TileCols / 8;
#pragma unroll 1
    for (i32 token = 0; token < args.num_tokens; ++token) {
#pragma unroll 1
      for (i32 at = extents.k_elems / 8 + static_cast<i32>(threadIdx.x); at < chunks;
           at += num_threads(S)) {
        device::store_shared_floats(
            rows_at + static_cast<u32>(token) * stride + static_cast<u32>(at * 16),
            {0.0F, 0.0F, 0.0F, 0.0F});
      }
    }
  }
}

/// Of each lane's route: asked for before the weights, behind which they would stand.
struct LaneGlobals {
  float gate = 0.0F;
  float up = 0.0F;

  LaneGlobals(const Args& args, const LaneRoutes& routes, bool wanted) {
    if (wanted && routes.expert() >= 0) {
      gate = args.globals[routes.expert() * 4];
      up = args.globals[routes.expert() * 4 + 1];
    }
  }
};

/// One thread's row of the block's items, and all that its end needs.
template <Spec S>
struct RouteRow {
  i32 item = 0;  // of the block
  i32 row = 0;   // of the tile
  i32 route = 0;
  i32 out_row = 0;
  bool live = false;
  float gate_global = 0.0F;
  float up_global = 0.0F;
  float weight = 1.0F;
  RowConstants rows{};

  /// All lanes.
  RouteRow(const Args& args,
           const Extents<S>& extents,
           const LaneRoutes& routes,
           const LaneGlobals& globals,
           const Divisor& row_tiles,
           const Share& items) {
    const bool gated = args.num_parts == 2;
    const i32 thread = static_cast<i32>(threadIdx.x);
    item = thread >> (gated ? 3 : 4);
    row = thread & (gated ? 7 : 15);
    const i32 entry = row_tiles.quotient(items.begin + item);
    const i32 tile = items.begin + item - entry * row_tiles.value();
    live = items.begin + item < items.end;
    route = routes.route_of(live ? entry : 0);
    const i32 expert = routes.expert_of(route);
    const i32 token = routes.token_of(route);
    gate_global = __shfl_sync(0xFFFFFFFFU, globals.gate, route);
    up_global = __shfl_sync(0xFFFFFFFFU, globals.up, route);
    out_row = tile * (gated ? 8 : 16) + row;
    live = live && out_row < args.intermediate_size;
    if (!live) {
      return;
    }
    if (args.weight_on_input != 0) {
      weight = args.route_weights[token * args.route_weights_stride + route - token * args.top_k] *
               args.weight_scale;
    }
    if constexpr (S.group_size == 32) {
      const u8* const exponents = args.weights + expert * args.expert_stride_bytes +
                                  extents.unit_tile_bytes() + tile * device::kFp4TileRows + row;
      rows.exponent_low = exponents[0];
      rows.exponent_high = gated ? exponents[8] : 0U;
    }
    rows.bias_high = load_bias(args.up_bias, expert, args.intermediate_size, out_row);
    rows.bias_low =
        load_bias(gated ? args.gate_bias : args.up_bias, expert, args.intermediate_size, out_row);
  }
};

/// NaN where the lane's columns of x hold NaN or infinity, else 0.
template <Spec S>
inline float probe_x(u32 columns_at, i32 tiles) {
  u32 probe = 0;
#pragma unroll 1
  for (i32 tile = 0; tile < tiles; ++tile) {
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
      const device::Words4 words =
          device::load_shared_words(columns_at + static_cast<u32>(tile * 128 + half * 16));
      probe = device::bf16x2_fma(words.x, 0U, probe);
      probe = device::bf16x2_fma(words.y, 0U, probe);
      probe = device::bf16x2_fma(words.z, 0U, probe);
      probe = device::bf16x2_fma(words.w, 0U, probe);
    }
  }
  return __any_sync(0xFFFFFFFFU, (probe & 0x7FFF7FFFU) != 0U) ? device::kQuietNan : 0.0F;
}

inline float sum_parts(u32 at, i32 parts) {
  float sum = 0.0F;
#pragma unroll 2
  for (i32 part = 0; part < parts; part += 4) {
    const device::Floats4 four = device::load_shared_floats(at + static_cast<u32>(part * 4));
    sum += four.x;
    sum += four.y;
    sum += four.z;
    sum += four.w;
  }
  return sum;
}

/// activate(), the usual kinds without the jump table that a switch becomes: its constants would
/// come from memory, once per block, when everybody waits for them.
inline float activate_at_once(const device::ActivationParams& params, float gate, float up) {
  const i32 kind = device::opaque(static_cast<i32>(params.kind));
  device::ActivationParams known = params;
  if (kind == static_cast<i32>(device::ActivationKind::kSilu)) {
    known.kind = device::ActivationKind::kSilu;
    return device::activate(known, gate, up);
  }
  if (device::opaque(kind) == static_cast<i32>(device::ActivationKind::kSwigluOai)) {
    known.kind = device::ActivationKind::kSwigluOai;
    return device::activate(known, gate, up);
  }
  return device::activate(params, gate, up);
}

template <Spec S>
inline void finish_route_row(const Args& args, const RouteRow<S>& end, u32 partials_at) {
  constexpr i32 kParts = S.warps / S.row_tiles;
  constexpr i32 kStride = partial_stride(1, kParts) * 4;
  static_assert(kParts % 4 == 0);
  if (!end.live) {
    return;
  }
  const bool gated = args.num_parts == 2;
  const u32 at =
      partials_at + static_cast<u32>((end.item * device::kFp4TileRows + end.row) * kStride);
  const float low = sum_parts(at, kParts);
  const float low_global = gated ? end.gate_global : end.up_global;
  const float h_low =
      low * row_factor<S>(end.rows.exponent_low) * low_global * end.weight + end.rows.bias_low;
  float h_high = h_low;
  if (gated) {
    const float high = sum_parts(at + static_cast<u32>(8 * kStride), kParts);
    h_high = high * row_factor<S>(end.rows.exponent_high) * end.up_global * end.weight +
             end.rows.bias_high;
  }
  args.intermediate[static_cast<i64>(end.route) * args.intermediate_size + end.out_row] =
      device::bf16_from_f32(activate_at_once(args.activation, h_low, h_high));
}

/// `kTiles` tiles of K, all of whose codes are asked for first.
template <Spec S, i32 kTiles>
inline void multiply_route_step(
    float (&even)[4], float (&odd)[4], const Lane<S>& lane, u32 at, u32 columns_at) {
  device::Words4 codes[kTiles];
  u32 scales[kTiles];
#pragma unroll
  for (i32 tile = 0; tile < kTiles; ++tile) {
    const u32 tile_at = at + static_cast<u32>(tile * tile_bytes(S));
    codes[tile] = device::load_shared_words(tile_at + lane.codes_at);
    scales[tile] = device::load_shared_u16(tile_at + lane.scales_at);
  }
#pragma unroll
  for (i32 tile = 0; tile < kTiles; ++tile) {
    const device::Words4 columns[2] = {
        device::load_shared_words(columns_at + static_cast<u32>(tile * 128)),
        device::load_shared_words(columns_at + static_cast<u32>(tile * 128 + 16))};
    multiply_route_tile(even, odd, decode_route_tile<S>(codes[tile], scales[tile]), columns);
  }
}

/// A warp's work: its part of K of every row_tiles-th item of the block.
template <Spec S>
struct RouteItems {
  const Args& args;
  const Extents<S>& extents;
  const LaneRoutes& routes;
  const Divisor& row_tiles;
  const RouteK<S>& k;
  const RouteRing<S>& ring;
  Share items;
  i32 group;
  i32 part;
  u32 x_at;
  u32 partials_at;

  /// Row 0 of a token whose x is not finite becomes NaN (`poison`), and with it the token's output.
  void store_part(i32 item,
                  const float (&even)[4],
                  const float (&odd)[4],
                  const Lane<S>& lane,
                  float poison) const {
    constexpr i32 kStride = partial_stride(1, S.warps / S.row_tiles);
    if (lane.quad == 0) {
      const i32 row = (item - items.begin) * device::kFp4TileRows + lane.group;
      const u32 to = partials_at + static_cast<u32>((row * kStride + part) * 4);
      device::store_shared_f32(to, even[0] + odd[0] + (lane.group == 0 ? poison : 0.0F));
      device::store_shared_f32(to + static_cast<u32>(8 * kStride * 4), even[2] + odd[2]);
    }
  }
};

template <Spec S>
inline void multiply_items(const RouteItems<S>& work, RouteStream<S>& weights) {
  const Lane<S> lane;
  i32 slot = 0;
  u32 parity = 0;
#pragma unroll 1
  for (i32 item = work.items.begin + work.group; item < work.items.end; item += S.row_tiles) {
    const i32 entry = work.row_tiles.quotient(item);
    const i32 token =
        work.args.num_tokens == 1 ? 0 : work.routes.token_of(work.routes.route_of(entry));
    u32 columns_at = work.x_at + static_cast<u32>(token * operand_stride(work.extents.k_tiles) +
                                                  work.k.begin * 128 + lane.quad * 32);
    const float poison =
        item == entry * work.row_tiles.value() ? probe_x<S>(columns_at, work.k.count) : 0.0F;
    float even[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    float odd[4] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll 1
    for (i32 chunk = 0; chunk < work.k.chunks; ++chunk) {
      const i32 tiles = work.k.tiles(chunk);
      const u32 at = work.ring.slots + static_cast<u32>(slot) * work.ring.slot_bytes;
      device::mbarrier_wait(work.ring.full + static_cast<u32>(slot * 8), parity);
      if (tiles == S.k_tiles) {
        multiply_route_step<S, S.k_tiles>(even, odd, lane, at, columns_at);
      } else {
#pragma unroll 1
        for (i32 tile = 0; tile < tiles; ++tile) {
          multiply_route_step<S, 1>(even,
                                    odd,
                                    lane,
                                    at + static_cast<u32>(tile * tile_bytes(S)),
                                    columns_at + static_cast<u32>(tile * 128));
        }
      }
      columns_at += static_cast<u32>(S.k_tiles * 128);
      __syncwarp();
      weights.request(work.routes, work.row_tiles, slot);
      work.ring.next(slot, parity);
    }
    work.store_part(item, even, odd, lane, poison);
  }
}

/// Returns the slots of each warp's ring.
template <Spec S>
inline i32 route_gate_up_body(const Args& args, const RouteSmem& smem) {
  device::grid_launch_dependents();
  LaneRoutes routes(args);
  const Extents<S> extents(args);
  const i32 num_routes = args.num_tokens * args.top_k;
  const Divisor blocks(extents.blocks);
  const Divisor row_tiles(extents.row_tiles);
  RouteShape shape;
  shape.routes = num_routes;
  shape.tokens = args.num_tokens;
  shape.k_tiles = extents.k_tiles;
  shape.tiles = blocks.quotient(num_routes * extents.row_tiles + extents.blocks - 1);
  const RouteMap map = route_map(S, shape);
  const u32 base = device::shared_address(smem.base);
  constexpr i32 kParts = S.warps / S.row_tiles;
  const i32 warp = static_cast<i32>(threadIdx.x / 32);
  const i32 group = warp / kParts;
  const i32 part = warp % kParts;
  const RouteK<S> k(extents.k_tiles, kParts, part);
  const i32 rounds = (shape.tiles + S.row_tiles - 1) / S.row_tiles;
  const RouteRing<S> ring(
      args, smem, base + static_cast<u32>(map.ring), 1, rounds * (k.chunks > 0 ? k.chunks : 1));
  if (threadIdx.x == 0) {
    device::mbarrier_init(smem.operands, 1);
  }
  device::mbarrier_init_fence();
  __syncwarp();  // lane 0 asks for what other lanes made barriers for
  const u32 x_at = base + static_cast<u32>(map.operands);
  stage_x<S>(args, extents, x_at, smem.operands);

  Share items =
      Partition(num_routes * extents.row_tiles, blocks).share(static_cast<i32>(blockIdx.x));
  RouteStream<S> weights(args, extents, k, ring);

  routes.resolve(args);
  if (routes.entries() != num_routes) {
    items =
        Partition(routes.entries() * extents.row_tiles, blocks).share(static_cast<i32>(blockIdx.x));
  }
  const bool ends_rows = (warp * 32 >> (args.num_parts == 2 ? 3 : 4)) < items.end - items.begin;
  const LaneGlobals globals(args, routes, ends_rows);
  weights.begin(routes, row_tiles, items.begin + group, items.end);
  const RouteRow<S> end(args, extents, routes, globals, row_tiles, ends_rows ? items : Share{0, 0});
  const u32 partials_at = base + static_cast<u32>(map.partials);
  block_barrier<S>();  // the barrier of x stands, and zeros behind its rows
  device::mbarrier_wait(smem.operands, 0);

  const RouteItems<S> work{
      args, extents, routes, row_tiles, k, ring, items, group, part, x_at, partials_at};
  multiply_items(work, weights);
  block_barrier<S>();
  if (ends_rows) {
    finish_route_row<S>(args, end, partials_at);
  }
  return ring.num_slots;
}

/// All threads of a role that is done: its barriers' places may hold others.
template <Spec S>
inline void retire_route_barriers(const RouteSmem& smem, i32 slots) {
  block_barrier<S>();
  const u32 lane = threadIdx.x % 32;
  if (static_cast<i32>(lane) < slots) {
    device::mbarrier_invalidate(smem.full + (threadIdx.x / 32 * kMaxSlots + lane) * 8);
  }
  if (threadIdx.x == 0) {
    device::mbarrier_invalidate(smem.operands);
  }
}

}  // namespace moekit::kernels::decode_gemv
