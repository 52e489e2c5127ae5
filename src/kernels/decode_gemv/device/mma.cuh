// SPDX-License-Identifier: Apache-2.0
#pragma once

// The consumer's inner loop: weights of 16 x 64 tiles to BF16 in registers, as the M operand of
// m16n8k16, times up to max_columns token columns. A weight is decoded once for all columns.

#include "device/ptx/barrier.cuh"
#include "device/ptx/copy.cuh"
#include "device/ptx/mma.cuh"
#include "kernels/decode_gemv/device/load.cuh"

namespace moekit::kernels::decode_gemv {

/// Scales of rows g and g + 8 as a BF16 pair, times the constant that turns e2m1 * 2^-126 into an
/// operand (nvfp4: w * 2^-7; mxfp4: w * 2^-e of the row).
template <Spec S>
inline u32 scale_pair(u32 bytes) {
  if constexpr (S.group_size == 16) {
    // E4M3's exponent and mantissa in place of BF16's read as scale * 2^-120, subnormals included;
    // two exact products bring 2^(120 + 126 - 7).
    const u32 raw = device::byte_permute<0x4140>(bytes, 0) << 4;
    constexpr u32 kTwoTo127 = 0x7F007F00U;
    constexpr u32 kTwoTo112 = 0x77807780U;
    static_assert(127 + 112 == 120 + 126 - device::kNvfp4OperandExponent);
    return device::bf16x2_mul(device::bf16x2_mul(raw, kTwoTo127), kTwoTo112);
  } else {
    return device::byte_permute<0x1404>(bytes, 0) >> 1;
  }
}

/// Two MMA steps from two words of codes.
struct StepPair {
  u32 even[4];
  u32 odd[4];
};

template <i32 kOdd, i32 kReg>
inline u32 decode_codes(u32 word, u32 scale) {
  const u32 codes =
      device::rotate_left<device::fp4_rotation(kOdd, kReg)>(word) & device::kFp4PairMask;
  return device::bf16x2_mul(codes, scale);
}

inline StepPair decode_words(u32 even_word, u32 odd_word, u32 scale_low, u32 scale_high) {
  const u32 gathered =
      (even_word & ~device::kFp4OddWordMask) | (odd_word & device::kFp4OddWordMask);
  StepPair steps;
  steps.even[0] = decode_codes<0, 0>(even_word, scale_low);
  steps.even[1] = decode_codes<0, 1>(even_word, scale_high);
  steps.even[2] = decode_codes<0, 2>(even_word, scale_low);
  steps.even[3] = decode_codes<0, 3>(gathered, scale_high);
  steps.odd[0] = decode_codes<1, 0>(odd_word, scale_low);
  steps.odd[1] = decode_codes<1, 1>(odd_word, scale_high);
  steps.odd[2] = decode_codes<1, 2>(odd_word, scale_low);
  steps.odd[3] = decode_codes<1, 3>(gathered, scale_high);
  return steps;
}

/// Sums of one segment: [row tile][column octet][4].
template <Spec S, i32 kOctets>
struct Accumulators {
  float sum[S.row_tiles][kOctets][4];
  u32 finite_probe[kOctets];  // x * 0 summed: NaN where the column held NaN or infinity
};

/// Where a thread stands among the consumers, and its byte offsets within a stage. Kept opaque: the
/// compiler would otherwise rebuild them from the thread index in every stage (25 instructions).
template <Spec S>
struct Lane {
  static constexpr u32 kTileStride = stage_k_tiles(S) * tile_bytes(S);

  i32 team;
  i32 warp_m;
  i32 warp_k;
  i32 group;  // row within 8, and column of the other operand
  i32 quad;   // group of 16 columns
  u32 codes_at;
  u32 scales_at;
  u32 columns_at;

  Lane() {
    const i32 lane = static_cast<i32>(threadIdx.x % 32);
    const i32 warp = device::opaque(static_cast<i32>(threadIdx.x / 32));
    team = warp / team_warps(S);
    warp_m = warp % S.warps_m;
    warp_k = warp % team_warps(S) / S.warps_m;
    group = device::opaque(lane / 4);
    quad = device::opaque(lane % 4);
    const u32 tile =
        static_cast<u32>(warp_m) * kTileStride + static_cast<u32>(warp_k * tile_bytes(S));
    codes_at = device::opaque(tile + static_cast<u32>(lane * device::kFp4LaneCodeBytes));
    constexpr i32 kGroups = device::kFp4TileCols / S.group_size;
    scales_at =
        device::opaque(tile + static_cast<u32>(device::kFp4TileCodeBytes +
                                               (group * kGroups + quad * 16 / S.group_size) * 2));
    columns_at = device::opaque(static_cast<u32>(stage_weight_bytes(S) + stage_row_bytes(S) +
                                                 (warp_k * device::kFp4TileCols + quad * 16) * 2));
  }
};

/// Shared offsets of the columns that a lane reads; lanes past the last read it again (same
/// address, no cost), their sums are never looked at.
template <Spec S, i32 kOctets>
inline void place_columns(u32 (&places)[kOctets], const Lane<S>& lane, const Segment& segment) {
#pragma unroll
  for (i32 octet = 0; octet < kOctets; ++octet) {
    const i32 wanted = octet * 8 + lane.group;
    const i32 column = wanted < segment.columns ? wanted : segment.columns - 1;
    places[octet] =
        device::opaque(lane.columns_at + static_cast<u32>(column * stage_column_bytes(S)));
  }
}

/// Half of a tile of K: two MMA steps. Eight operand values of one column.
template <i32 kOctets>
inline void load_columns(device::Words4 (&columns)[kOctets],
                         const u32 (&places)[kOctets],
                         u32 stage,
                         i32 half) {
#pragma unroll
  for (i32 octet = 0; octet < kOctets; ++octet) {
    columns[octet] = device::load_shared_words(stage + places[octet] + static_cast<u32>(half * 16));
  }
}

/// Places before the shard's first column or past its last become 0: nothing was copied there, and
/// 0 times what stands there may be NaN.
template <Spec S, i32 kOctets>
inline void mask_columns(device::Words4 (&columns)[kOctets],
                         const Lane<S>& lane,
                         const Extents<S>& extents,
                         i32 k_tile,
                         i32 half) {
  const i32 place = k_tile * device::kFp4TileCols + lane.quad * 16 + half * 8;
  if (place < extents.k_offset || place >= extents.k_offset + extents.k_elems) {
#pragma unroll
    for (i32 octet = 0; octet < kOctets; ++octet) {
      columns[octet] = device::Words4{0, 0, 0, 0};
    }
  }
}

template <Spec S, i32 kOctets>
inline void probe_columns(Accumulators<S, kOctets>& sums,
                          const device::Words4 (&columns)[kOctets]) {
#pragma unroll
  for (i32 octet = 0; octet < kOctets; ++octet) {
    u32 probe = sums.finite_probe[octet];
    probe = device::bf16x2_fma(columns[octet].x, 0U, probe);
    probe = device::bf16x2_fma(columns[octet].y, 0U, probe);
    probe = device::bf16x2_fma(columns[octet].z, 0U, probe);
    sums.finite_probe[octet] = device::bf16x2_fma(columns[octet].w, 0U, probe);
  }
}

/// A lane's codes and scales of its row tiles in one tile of K.
template <Spec S>
struct TileWords {
  device::Words4 codes[S.row_tiles];
  u32 scale_low[S.row_tiles];
  u32 scale_high[S.row_tiles];

  /// Row tiles past the segment's last read stale shared memory; their sums are never looked at.
  TileWords(u32 stage, const Lane<S>& lane) {
#pragma unroll
    for (i32 row = 0; row < S.row_tiles; ++row) {
      const u32 tile = stage + static_cast<u32>(row * S.warps_m) * Lane<S>::kTileStride;
      codes[row] = device::load_shared_words(tile + lane.codes_at);
      const u32 scales = scale_pair<S>(device::load_shared_u16(tile + lane.scales_at));
      scale_low[row] = device::byte_permute<0x1010>(scales, 0);
      scale_high[row] = device::byte_permute<0x3232>(scales, 0);
    }
  }
};

template <Spec S, i32 kOctets>
inline void multiply_half(Accumulators<S, kOctets>& sums,
                          const TileWords<S>& words,
                          const device::Words4 (&columns)[kOctets],
                          i32 half) {
#pragma unroll
  for (i32 row = 0; row < S.row_tiles; ++row) {
    const device::Words4& codes = words.codes[row];
    const StepPair steps =
        half == 0 ? decode_words(codes.x, codes.y, words.scale_low[row], words.scale_high[row])
                  : decode_words(codes.z, codes.w, words.scale_low[row], words.scale_high[row]);
#pragma unroll
    for (i32 octet = 0; octet < kOctets; ++octet) {
      float(&d)[4] = sums.sum[row][octet];
      device::mma_m16n8k16(d, steps.even, columns[octet].x, columns[octet].y);
      device::mma_m16n8k16(d, steps.odd, columns[octet].z, columns[octet].w);
    }
  }
}

}  // namespace moekit::kernels::decode_gemv
