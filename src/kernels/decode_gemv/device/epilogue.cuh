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

/// What the epilogue needs to know of this thread's two rows of one row tile.
struct RowConstants {
  float factor_low;  // the power of two that operands of the row were divided by
  float factor_high;
  float bias_low;  // 0 where there is no bias
  float bias_high;
};

/// Reads them from the first stage of a segment. `half` is where the second bias vector begins.
template <Spec S>
inline RowConstants read_row_constants(
    u32 rows_at, i32 tile, i32 group, bool paired, bool has_bias) {
  RowConstants rows{};
  if constexpr (S.group_size == 16) {
    rows.factor_low = device::float_of((127U + device::kNvfp4OperandExponent) << 23);
    rows.factor_high = rows.factor_low;
  } else {
    const u32 at = rows_at + static_cast<u32>(tile * device::kFp4TileRows + group);
    rows.factor_low = device::float_of((127U + device::load_shared_u8(at)) << 23);
    rows.factor_high = device::float_of((127U + device::load_shared_u8(at + 8)) << 23);
  }
  if (has_bias) {
    const u32 biases = rows_at + static_cast<u32>(rows_per_block(S));
    const i32 low = paired ? tile * 8 + group : tile * 16 + group;
    const i32 high = paired ? low + rows_per_block(S) / 2 : low + 8;
    rows.bias_low = device::load_shared_f32(biases + static_cast<u32>(low * 4));
    rows.bias_high = device::load_shared_f32(biases + static_cast<u32>(high * 4));
  }
  return rows;
}

template <Spec S>
struct GateUpEpilogue {
  const Args& args;
  const Routes& routes;

  bool paired() const { return args.num_parts == 2; }

  bool has_bias(const Segment&) const { return args.up_bias != nullptr; }

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
  void operator()(const Segment& segment,
                  const RowConstants& rows,
                  i32 tile,
                  i32 column,
                  const TileSums& sums,
                  u32 not_finite) const {
    const i32 group = static_cast<i32>(threadIdx.x % 32) / 4;
    const i32 row_tile = segment.tile_begin + tile;
    const bool gated = paired();
    const float* globals = routes.entries[segment.entry].globals;
    const float low_global = gated ? globals[0] : globals[1];
    const float high_global = globals[1];
#pragma unroll 1
    for (i32 at = 0; at < (gated ? 2 : 4); ++at) {
      const i32 side = at & 1;
      const bool second_row = at >= 2;
      const i32 row = gated ? row_tile * 8 + group : row_tile * 16 + group + (second_row ? 8 : 0);
      if (column + side >= segment.columns || row >= args.intermediate_size) {
        continue;
      }
      const i32 route = routes.sorted[segment.column_begin + column + side];
      const float weight = args.weight_on_input != 0 ? routes.weight_of_route[route] : 1.0F;
      const float low = side != 0 ? sums.row_low[1] : sums.row_low[0];
      const float high = side != 0 ? sums.row_high[1] : sums.row_high[0];
      const float h_low = low * rows.factor_low * low_global * weight + rows.bias_low;
      const float h_high = high * rows.factor_high * high_global * weight + rows.bias_high;
      const float gate = second_row ? h_high : h_low;
      const float up = gated ? h_high : gate;
      const bool poison = row == 0 && ((not_finite >> (column + side)) & 1U) != 0U;
      store(route, row, poison ? device::kQuietNan : device::activate(args.activation, gate, up));
    }
  }
};

/// r = (sum * G2) + bias2 of each route, kept until all of a token's routes are known, so that the
/// sum over slots runs in slot order whatever order the experts were read in.
template <Spec S>
struct ResultTable {
  static constexpr i32 kStride = rows_per_block(S) + kResultPad;

  float* rows;  // [positions - first][kStride], shared memory of a block, or its spill area
  i32 first;    // position of row 0
};

template <Spec S>
struct DownEpilogue {
  const Args& args;
  const Routes& routes;
  ResultTable<S> results;

  bool paired() const { return false; }

  bool has_bias(const Segment& segment) const {
    return args.down_bias != nullptr && segment.k_begin == 0;
  }

  void operator()(const Segment& segment,
                  const RowConstants& rows,
                  i32 tile,
                  i32 column,
                  const TileSums& sums,
                  u32) const {
    const i32 row = tile * device::kFp4TileRows + static_cast<i32>(threadIdx.x % 32) / 4;
    const float global = routes.entries[segment.entry].globals[0];
    float* at =
        results.rows +
        static_cast<i64>(segment.column_begin + column - results.first) * ResultTable<S>::kStride +
        row;
    at[0] = sums.row_low[0] * rows.factor_low * global + rows.bias_low;
    at[8] = sums.row_high[0] * rows.factor_high * global + rows.bias_high;
    if (column + 1 < segment.columns) {
      at += ResultTable<S>::kStride;
      at[0] = sums.row_low[1] * rows.factor_low * global + rows.bias_low;
      at[8] = sums.row_high[1] * rows.factor_high * global + rows.bias_high;
    }
  }
};

}  // namespace moekit::kernels::decode_gemv
