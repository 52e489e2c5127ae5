// SPDX-License-Identifier: Apache-2.0
#pragma once

// The consumer warps: walk the schedule, multiply stage by stage, then add the shares of K of the
// warps through shared memory in warp order and hand the sums to the epilogue.

#include "kernels/decode_gemv/device/epilogue.cuh"

namespace moekit::kernels::decode_gemv {

template <Spec S, typename Epilogue>
class Consumer {
 public:
  Consumer(const Extents<S>& extents, const Ring& ring, u32 partials, u32* not_finite)
      : extents_(extents),
        ring_(ring),
        partials_(device::opaque(partials)),
        not_finite_(not_finite),
        leader_(device::opaque(static_cast<i32>(threadIdx.x % 32)) == 0) {}

  void run(Schedule<S> schedule, const Epilogue& epilogue) {
    Segment segment;
    for (i32 team = 0; schedule.next(segment); team = team + 1 == S.teams ? 0 : team + 1) {
      if (S.teams > 1 && team != lane_.team) {
        skip_segment(segment);
        continue;
      }
      run_segment<S.max_columns / 8>(segment, epilogue);
    }
  }

 private:
  static constexpr i32 kTiles = tiles_per_block(S);
  static constexpr i32 kWarps = consumer_warps(S);
  /// Without a reduction a warp finishes its own row tiles, else every kWarps-th.
  static constexpr bool kReduces = S.warps_k > 1;
  static constexpr i32 kTileSets = kReduces ? (kTiles + kWarps - 1) / kWarps : S.row_tiles;

  i32 finished_tile(i32 set) const {
    return kReduces ? set * kWarps + static_cast<i32>(threadIdx.x / 32)
                    : set * S.warps_m + lane_.warp_m;
  }

  void read_rows(RowConstants (&rows)[kTileSets],
                 u32 stage,
                 const Segment& segment,
                 const Epilogue& epilogue) {
#pragma unroll
    for (i32 set = 0; set < kTileSets; ++set) {
      const i32 tile = finished_tile(set);
      if (tile < segment.tiles) {
        rows[set] = read_row_constants<S>(stage + stage_weight_bytes(S),
                                          tile,
                                          lane_.group,
                                          epilogue.paired(),
                                          epilogue.has_bias(segment));
      }
    }
  }

  /// Another team's stages: waited for and given back like one's own, so that no warp is ever a
  /// turn of the ring behind, where parities would be ambiguous.
  void skip_segment(const Segment& segment) {
    for (i32 k = segment.k_begin; k < segment.k_end; k += stage_k_tiles(S)) {
      device::mbarrier_wait(ring_.full_barrier(cursor_.stage), cursor_.parity);
      give_back();
    }
  }

  void give_back() {
    __syncwarp();
    if (leader_) {
      device::mbarrier_arrive(ring_.empty_barrier(cursor_.stage));
    }
    cursor_.advance(ring_);
  }

  template <i32 kOctets>
  void run_segment(const Segment& segment, const Epilogue& epilogue) {
    Accumulators<S, kOctets> sums{};
    // The block that holds an entry's first row tile also looks at all of its x.
    const bool probe = S.role == Role::kGateUp && segment.tile_begin == 0 && lane_.warp_m == 0;
    RowConstants rows[kTileSets];
    u32 places[kOctets];
    place_columns<S, kOctets>(places, lane_, segment);
    for (i32 k = segment.k_begin; k < segment.k_end; k += stage_k_tiles(S)) {
      const u32 full = ring_.full_barrier(cursor_.stage);
      const u32 stage = ring_.stage(cursor_.stage);
      device::mbarrier_wait(full, cursor_.parity);
      if (k == segment.k_begin) {
        read_rows(rows, stage, segment, epilogue);
      }
#pragma unroll
      for (i32 step = 0; step < S.k_steps; ++step) {
        const i32 k_tile = k + step * S.warps_k + lane_.warp_k;
        if (k_tile < segment.k_end && (kReduces || lane_.warp_m < segment.tiles)) {
          const TileWords<S> words(stage + step * S.warps_k * tile_bytes(S), lane_);
          const u32 columns_at = stage + step * S.warps_k * device::kFp4TileCols * 2;
#pragma unroll
          for (i32 half = 0; half < 2; ++half) {
            device::Words4 columns[kOctets];
            load_columns<kOctets>(columns, places, columns_at, half);
            if (extents_.ragged) {
              mask_columns<S, kOctets>(columns, lane_, extents_, k_tile, half);
            }
            if (probe) {
              probe_columns<S, kOctets>(sums, columns);
            }
            multiply_half<S, kOctets>(sums, words, columns, half);
          }
        }
      }
      give_back();
    }
    if constexpr (kReduces) {
      if (probe) {
        publish_probe<kOctets>(sums);
      }
      reduce<kOctets>(segment, sums, epilogue, rows);
    } else {
      finish_own<kOctets>(segment, sums, epilogue, rows);
    }
    num_segments_ = num_segments_ == 2 ? 0 : num_segments_ + 1;
  }

  /// Three words in turn: the one of the segment before last is cleared, when all have read it.
  template <i32 kOctets>
  void publish_probe(const Accumulators<S, kOctets>& sums) {
#pragma unroll
    for (i32 octet = 0; octet < kOctets; ++octet) {
      const u32 probe = sums.finite_probe[octet];
      if ((probe & 0x7FFF7FFFU) != 0U) {
        atomicOr(&not_finite_[num_segments_], 1U << (octet * 8 + lane_.group));
      }
    }
  }

  template <i32 kOctets>
  void reduce(const Segment& segment,
              const Accumulators<S, kOctets>& sums,
              const Epilogue& epilogue,
              const RowConstants (&rows)[kTileSets]) {
    const i32 thread = static_cast<i32>(threadIdx.x);
#pragma unroll
    for (i32 octet = 0; octet < kOctets; ++octet) {
      if (octet * 8 >= segment.columns) {
        break;
      }
      const u32 buffer = partials_ + static_cast<u32>(buffer_ * partial_bytes(S));
#pragma unroll
      for (i32 row = 0; row < S.row_tiles; ++row) {
        const float(&d)[4] = sums.sum[row][octet];
        const i32 tile = row * S.warps_m + lane_.warp_m;
        device::store_shared_floats(slot(buffer, lane_.warp_k, tile, thread % 32),
                                    {d[0], d[1], d[2], d[3]});
      }
      if (octet == 0 && thread == 0) {
        not_finite_[num_segments_ == 2 ? 0 : num_segments_ + 1] = 0;
      }
      // One barrier per reduction: the buffers alternate, so writers of the next one are at most
      // one barrier ahead of readers of this one.
      device::named_barrier(1, consumer_threads(S));
#pragma unroll
      for (i32 set = 0; set < kTileSets; ++set) {
        const i32 tile = finished_tile(set);
        if (tile < segment.tiles) {
          finish(segment, buffer, tile, octet, epilogue, rows[set]);
        }
      }
      buffer_ ^= 1;
    }
  }

  /// The warp saw all of K: its own accumulators are the sums.
  template <i32 kOctets>
  void finish_own(const Segment& segment,
                  const Accumulators<S, kOctets>& sums,
                  const Epilogue& epilogue,
                  const RowConstants (&rows)[kTileSets]) {
    const i32 lane = static_cast<i32>(threadIdx.x % 32);
#pragma unroll
    for (i32 octet = 0; octet < kOctets; ++octet) {
      const i32 column = octet * 8 + lane % 4 * 2;
      u32 not_finite = 0;
      if constexpr (S.role == Role::kGateUp) {
        // Four lanes looked at each column.
        u32 lanes = __ballot_sync(0xFFFFFFFFU, (sums.finite_probe[octet] & 0x7FFF7FFFU) != 0U);
        lanes |= lanes >> 1;
        lanes |= lanes >> 2;
        for (i32 at = 0; at < 8; ++at) {
          not_finite |= ((lanes >> (at * 4)) & 1U) << (octet * 8 + at);
        }
      }
#pragma unroll
      for (i32 set = 0; set < kTileSets; ++set) {
        const i32 tile = finished_tile(set);
        if (tile < segment.tiles && column < segment.columns) {
          const float(&d)[4] = sums.sum[set][octet];
          epilogue(
              segment, rows[set], tile, column, TileSums{{d[0], d[1]}, {d[2], d[3]}}, not_finite);
        }
      }
    }
  }

  static u32 slot(u32 buffer, i32 warp_k, i32 tile, i32 lane) {
    return buffer + static_cast<u32>(((warp_k * kTiles + tile) * 32 + lane) * 16);
  }

  void finish(const Segment& segment,
              u32 buffer,
              i32 tile,
              i32 octet,
              const Epilogue& epilogue,
              const RowConstants& rows) {
    const i32 lane = static_cast<i32>(threadIdx.x % 32);
    const i32 column = octet * 8 + lane % 4 * 2;
    if (column >= segment.columns) {
      return;
    }
    device::Floats4 total = device::load_shared_floats(slot(buffer, 0, tile, lane));
#pragma unroll
    for (i32 warp = 1; warp < S.warps_k; ++warp) {
      const device::Floats4 part = device::load_shared_floats(slot(buffer, warp, tile, lane));
      total.x += part.x;
      total.y += part.y;
      total.z += part.z;
      total.w += part.w;
    }
    epilogue(segment,
             rows,
             tile,
             column,
             TileSums{{total.x, total.y}, {total.z, total.w}},
             not_finite_[num_segments_]);
  }

  const Extents<S>& extents_;
  const Ring ring_;
  u32 partials_;
  u32* not_finite_;  // [3]
  bool leader_;
  Lane<S> lane_;
  RingCursor cursor_;
  i32 buffer_ = 0;
  i32 num_segments_ = 0;  // modulo 3
};

}  // namespace moekit::kernels::decode_gemv
