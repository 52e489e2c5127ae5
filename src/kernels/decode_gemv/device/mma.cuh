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
  constexpr i32 kRotation = device::fp4_rotation(kOdd, kReg);
  // No masked bit wraps around below 7: a shift, which the multiplier can do where the ALU is busy.
  const u32 placed = kRotation < 7 ? word << kRotation : device::rotate_left<kRotation>(word);
  const u32 codes = placed & device::kFp4PairMask;
  return device::bf16x2_mul(codes, scale);
}

inline StepPair decode_words(u32 even_word, u32 odd_word, u32 scale_low, u32 scale_high) {
  const u32 gathered = device::bit_select<device::kFp4OddWordMask>(even_word, odd_word);
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

/// Sums of one item: [row tile][column octet][4].
template <Spec S>
struct Accumulators {
  float sum[S.row_tiles][octets(S)][4];
  u32 finite_probe[octets(S)];  // x * 0 summed: NaN where the column held NaN or infinity

  void clear() {
#pragma unroll
    for (i32 octet = 0; octet < octets(S); ++octet) {
      finite_probe[octet] = 0;
#pragma unroll
      for (i32 row = 0; row < S.row_tiles; ++row) {
#pragma unroll
        for (i32 at = 0; at < 4; ++at) {
          sum[row][octet][at] = 0.0F;
        }
      }
    }
  }
};

/// A lane's byte offsets within a tile. Kept opaque: the compiler would otherwise rebuild them from
/// the thread index in every step.
template <Spec S>
struct Lane {
  i32 group;  // row within 8, and column of the other operand
  i32 quad;   // group of 16 columns
  u32 codes_at;
  u32 scales_at;

  Lane() {
    const i32 lane = static_cast<i32>(threadIdx.x % 32);
    group = lane / 4;
    quad = lane % 4;
    codes_at = device::opaque(static_cast<u32>(lane * device::kFp4LaneCodeBytes));
    constexpr i32 kGroups = device::kFp4TileCols / S.group_size;
    scales_at = device::opaque(static_cast<u32>(device::kFp4TileCodeBytes +
                                                (group * kGroups + quad * 16 / S.group_size) * 2));
  }
};

/// The other operand: the routes' rows of x or of the intermediate, straight from global memory
/// (L1 and L2 hold them), `lookahead` tiles of K ahead of their use.
template <Spec S>
class Operand {
 public:
  using Fragment = device::Words4;

  Fragment words[S.lookahead][2][octets(S)];

  Operand(const Args& args, const Extents<S>& extents, const Lane<S>& lane)
      : args_(args), extents_(extents), lane_(lane) {}

  /// Lanes past the last column read it again; their sums are never looked at.
  void locate(const Routes& routes, i32 entry) {
    const Entry& item = routes.entries[entry];
#pragma unroll
    for (i32 octet = 0; octet < octets(S); ++octet) {
      const i32 wanted = octet * 8 + lane_.group;
      const i32 column = wanted < item.columns ? wanted : item.columns - 1;
      const i32 route = routes.sorted[item.column_begin + column];
      const i64 row = S.role == Role::kDown
                          ? static_cast<i64>(route) * args_.intermediate_size
                          : static_cast<i64>(route / args_.top_k) * args_.x_stride;
      columns_[octet] = static_cast<u32>(row + lane_.quad * 16 - extents_.k_offset) * 2U;
    }
  }

  /// One tile of K that is whole.
  void load_whole(Fragment (&tile)[2][octets(S)], i32 k_tile, i32 ahead) const {
#pragma unroll
    for (i32 octet = 0; octet < octets(S); ++octet) {
      const u8* from =
          at_bytes(octet, k_tile * device::kFp4TileCols * 2) + ahead * device::kFp4TileCols * 2;
      tile[0][octet] = device::load_global_words<S.role == Role::kGateUp>(from);
      tile[1][octet] = device::load_global_words<S.role == Role::kGateUp>(from + 16);
    }
  }

  /// Any tile. Places before the shard's first column or past its last become 0: 0 times what
  /// stands beyond may be NaN, and may be no memory at all.
  void load(Fragment (&tile)[2][octets(S)], i32 k_tile) const {
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
      const i32 at = k_tile * device::kFp4TileCols + half * 8 + lane_.quad * 16 - extents_.k_offset;
      const bool inside = at >= 0 && at < extents_.k_elems;
#pragma unroll
      for (i32 octet = 0; octet < octets(S); ++octet) {
        tile[half][octet] = Fragment{0, 0, 0, 0};
        if (inside) {
          tile[half][octet] = device::load_global_words<S.role == Role::kGateUp>(
              at_bytes(octet, k_tile * device::kFp4TileCols * 2 + half * 16));
        }
      }
    }
  }

 private:
  /// A uniform base and 32 bits per lane (README section 1 bounds the rows): half the registers and
  /// additions of pointers. The sum of both wraps around 0 at
  /// a shard's first columns.
  const u8* at_bytes(i32 octet, i32 bytes) const {
    const void* base = S.role == Role::kDown ? static_cast<const void*>(args_.intermediate)
                                             : static_cast<const void*>(args_.x);
    return static_cast<const u8*>(base) + (columns_[octet] + static_cast<u32>(bytes));
  }

  const Args& args_;
  const Extents<S> extents_;
  const Lane<S> lane_;
  u32 columns_[octets(S)];  // byte offset of the lane's first value
};

template <Spec S>
inline void probe_columns(Accumulators<S>& sums, const device::Words4 (&columns)[octets(S)]) {
#pragma unroll
  for (i32 octet = 0; octet < octets(S); ++octet) {
    u32 probe = sums.finite_probe[octet];
    probe = device::bf16x2_fma(columns[octet].x, 0U, probe);
    probe = device::bf16x2_fma(columns[octet].y, 0U, probe);
    probe = device::bf16x2_fma(columns[octet].z, 0U, probe);
    sums.finite_probe[octet] = device::bf16x2_fma(columns[octet].w, 0U, probe);
  }
}

/// One tile of K of all row tiles of a slot. Row tiles past the item's last read stale shared
/// memory; their sums are never looked at.
template <Spec S>
inline void multiply_tile(Accumulators<S>& sums,
                          u32 codes_at,
                          u32 scales_at,
                          const device::Words4 (&columns)[2][octets(S)]) {
#pragma unroll
  for (i32 row = 0; row < S.row_tiles; ++row) {
    const u32 at = static_cast<u32>(row * slot_row_bytes(S));
    const device::Words4 codes = device::load_shared_words(at + codes_at);
    const u32 scales = scale_pair<S>(device::load_shared_u16(at + scales_at));
    const u32 low = device::byte_permute<0x1010>(scales, 0);
    const u32 high = device::byte_permute<0x3232>(scales, 0);
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
      const StepPair steps = half == 0 ? decode_words(codes.x, codes.y, low, high)
                                       : decode_words(codes.z, codes.w, low, high);
#pragma unroll
      for (i32 octet = 0; octet < octets(S); ++octet) {
        float(&d)[4] = sums.sum[row][octet];
        device::mma_m16n8k16(d, steps.even, columns[half][octet].x, columns[half][octet].y);
        device::mma_m16n8k16(d, steps.odd, columns[half][octet].z, columns[half][octet].w);
      }
    }
  }
}

}  // namespace moekit::kernels::decode_gemv
