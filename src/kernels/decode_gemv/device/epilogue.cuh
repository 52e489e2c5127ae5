// SPDX-License-Identifier: Apache-2.0
#pragma once

// What happens to the f32 sums of a segment once the warps' shares of K are added: bias, activation
// and one rounding (gate_up), or a store into the table of route results (down).

#include "device/numerics/bf16.h"
#include "kernels/decode_gemv/device/mma.cuh"

namespace moekit::kernels::decode_gemv {

/// Two rows (g, g + 8) by two columns of one row tile: the shape of an MMA accumulator.
struct TileSums {
  float row_low[2];
  float row_high[2];
};

/// Where the sums belong: a row tile of the unit, row g of it, the first of two columns.
struct Place16 {
  i32 row_tile;
  i32 group;
  i32 column;
  i32 first_step = 0;  // of K: not 0 where another block has begun the item
};

/// What the epilogue needs to know of this thread's two rows of one row tile, loaded when an item
/// begins so that its end waits for nothing.
struct RowConstants {
  u32 exponent_low;  // the power of two that operands of the row were divided by
  u32 exponent_high;
  float bias_low;  // 0 where there is no bias
  float bias_high;
};

template <Spec S>
inline float row_factor(u32 exponent) {
  return device::float_of(
      (127U + (S.group_size == 16 ? static_cast<u32>(device::kNvfp4OperandExponent) : exponent))
      << 23);
}

/// mxfp4: behind the tiles of a unit, a byte per padded row.
template <Spec S>
inline void load_exponents(
    RowConstants& rows, const Args& args, const Extents<S>& extents, i32 expert, i32 row) {
  if constexpr (S.group_size == 32) {
    const u8* exponents =
        args.weights + expert * args.expert_stride_bytes + extents.unit_tile_bytes() + row;
    rows.exponent_low = exponents[0];
    rows.exponent_high = exponents[8];
  }
}

inline float load_bias(const float* bias, i32 expert, i32 num_rows, i32 row) {
  return bias != nullptr && row < num_rows ? bias[static_cast<i64>(expert) * num_rows + row] : 0.0F;
}

template <Spec S>
struct GateUpEpilogue {
  const Args& args;
  const Extents<S> extents;
  const BlockWork<S> work;
  const Routes routes;

  /// Row g and g + 8 of a gated tile are row i of gate and of up.
  RowConstants row_constants(const Walk<S>& walk, i32 tile, i32 group) const {
    RowConstants rows{};
    const bool needed = S.group_size == 32 || args.up_bias != nullptr;
    if (needed && tile < walk.tiles(work)) {
      const i32 expert = routes.entries[walk.entry].expert;
      const i32 row_tile = walk.tile_begin(work) + tile;
      load_exponents<S>(rows, args, extents, expert, row_tile * device::kFp4TileRows + group);
      const i32 num_rows = args.intermediate_size;
      if (args.num_parts == 2) {
        rows.bias_low = load_bias(args.gate_bias, expert, num_rows, row_tile * 8 + group);
        rows.bias_high = load_bias(args.up_bias, expert, num_rows, row_tile * 8 + group);
      } else {
        rows.bias_low = load_bias(args.up_bias, expert, num_rows, row_tile * 16 + group);
        rows.bias_high = load_bias(args.up_bias, expert, num_rows, row_tile * 16 + group + 8);
      }
    }
    return rows;
  }

  void store(i32 route, i32 row, float value) const {
    args.intermediate[static_cast<i64>(route) * args.intermediate_size + row] =
        device::bf16_from_f32(value);
  }

  /// `not_finite`: bit per column of the entry whose x holds NaN or infinity. Such a token's whole
  /// output row must be NaN (spec section 2); one NaN in its intermediate does that.
  ///
  /// A gated tile holds row i of gate and of up in this thread's two rows: two values, one per
  /// column. A tile without gate holds rows i and i + 8: four. One loop, so that the activations
  /// stand in the code once. h = p * (sum * G) + bias; p is 1 unless the weight is on the input.
  void operator()(const Entry& entry,
                  const RowConstants& rows,
                  const Place16& place,
                  const TileSums& sums,
                  u32 not_finite) const {
    const bool gated = args.num_parts == 2;
    const float low_global = gated ? entry.globals[0] : entry.globals[1];
    const float high_global = entry.globals[1];
    const float low_factor = row_factor<S>(rows.exponent_low);
    const float high_factor = row_factor<S>(rows.exponent_high);
#pragma unroll 1
    for (i32 at = 0; at < (gated ? 2 : 4); ++at) {
      const i32 side = at & 1;
      const bool second_row = at >= 2;
      const i32 row = gated ? place.row_tile * 8 + place.group
                            : place.row_tile * 16 + place.group + (second_row ? 8 : 0);
      if (place.column + side >= entry.columns || row >= args.intermediate_size) {
        continue;
      }
      const i32 route = routes.sorted[entry.column_begin + place.column + side];
      const float weight = args.weight_on_input != 0 ? routes.weight_of_route[route] : 1.0F;
      const float low = side != 0 ? sums.row_low[1] : sums.row_low[0];
      const float high = side != 0 ? sums.row_high[1] : sums.row_high[0];
      const float h_low = low * low_factor * low_global * weight + rows.bias_low;
      const float h_high = high * high_factor * high_global * weight + rows.bias_high;
      const float gate = second_row ? h_high : h_low;
      const float up = gated ? h_high : gate;
      const bool poison = row == 0 && ((not_finite >> (place.column + side)) & 1U) != 0U;
      store(route, row, poison ? device::kQuietNan : device::activate(args.activation, gate, up));
    }
  }
};

/// r = (sum * G2) + bias2 of each route, kept until all of a token's routes are known, so that the
/// sum over slots runs in slot order whatever order the experts were read in.
struct ResultTable {
  float* rows;  // [positions - first][stride], shared memory of a block, or its spill area
  u32 shared;   // its shared address if it is this block's shared memory, else 0
  i32 first;    // position of row 0
  i32 stride;
};

template <Spec S>
struct DownEpilogue {
  const Args& args;
  const Extents<S> extents;
  const BlockWork<S> work;
  const Routes routes;
  ResultTable results;

  RowConstants row_constants(const Walk<S>& walk, i32 tile, i32 group) const {
    RowConstants rows{};
    const bool needed = S.group_size == 32 || args.down_bias != nullptr;
    if (needed && tile < walk.tiles(work)) {
      const i32 expert = routes.entries[walk.entry].expert;
      const i32 row = (walk.tile_begin(work) + tile) * device::kFp4TileRows + group;
      load_exponents<S>(rows, args, extents, expert, row);
      rows.bias_low = load_bias(args.down_bias, expert, args.hidden, row);
      rows.bias_high = load_bias(args.down_bias, expert, args.hidden, row + 8);
    }
    return rows;
  }

  void operator()(const Entry& entry,
                  const RowConstants& rows,
                  const Place16& place,
                  const TileSums& sums,
                  u32) const {
    const float low = row_factor<S>(rows.exponent_low);
    const float high = row_factor<S>(rows.exponent_high);
    const float global = entry.globals[2];
    const i32 position = entry.column_begin + place.column - results.first;
    const i32 row = (place.row_tile - work.rows.begin) * device::kFp4TileRows + place.group;
    if (results.shared != 0) {
      const u32 to = results.shared + static_cast<u32>((position * results.stride + row) * 4);
      device::store_shared_f32(to, sums.row_low[0] * low * global + rows.bias_low);
      device::store_shared_f32(to + 32, sums.row_high[0] * high * global + rows.bias_high);
      if (place.column + 1 < entry.columns) {
        const u32 second = to + static_cast<u32>(results.stride * 4);
        device::store_shared_f32(second, sums.row_low[1] * low * global + rows.bias_low);
        device::store_shared_f32(second + 32, sums.row_high[1] * high * global + rows.bias_high);
      }
      return;
    }
    float* at = results.rows + static_cast<i64>(position) * results.stride + row;
    at[0] = sums.row_low[0] * low * global + rows.bias_low;
    at[8] = sums.row_high[0] * high * global + rows.bias_high;
    if (place.column + 1 < entry.columns) {
      at += results.stride;
      at[0] = sums.row_low[1] * low * global + rows.bias_low;
      at[8] = sums.row_high[1] * high * global + rows.bias_high;
    }
  }
};

}  // namespace moekit::kernels::decode_gemv
