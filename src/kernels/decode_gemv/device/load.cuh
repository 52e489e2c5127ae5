// SPDX-License-Identifier: Apache-2.0
#pragma once

// The producer warps: copies of weight tiles and of the entry's operand rows into a ring of stages.

#include "device/ptx/barrier.cuh"
#include "device/ptx/copy.cuh"
#include "kernels/decode_gemv/device/schedule.cuh"

namespace moekit::kernels::decode_gemv {

struct Ring {
  u32 base;   // shared address of stage 0
  u32 full;   // shared address of the first of kMaxStages mbarriers
  u32 empty;  // the same for the way back
  i32 stage_bytes;
  i32 num_stages;

  u32 stage(i32 index) const { return base + static_cast<u32>(index * stage_bytes); }

  u32 full_barrier(i32 index) const { return full + static_cast<u32>(index) * 8U; }

  u32 empty_barrier(i32 index) const { return empty + static_cast<u32>(index) * 8U; }
};

/// Stage and parity of the n-th use of a ring.
struct RingCursor {
  i32 stage = 0;
  u32 parity = 0;

  void advance(const Ring& ring) {
    if (++stage == ring.num_stages) {
      stage = 0;
      parity ^= 1U;
    }
  }
};

/// Exponents and biases of a segment's rows, brought by its first stage so that the epilogue waits
/// for no global load: exponents u8 [rows], then f32 [rows], of a gated tile gate first, then up.
template <Spec S>
class RowConstantsCopy {
 public:
  RowConstantsCopy(const Args& args, const Extents<S>& extents, const Segment& segment)
      : args_(args), extents_(extents), segment_(segment) {}

  /// Bytes that copy() will bring.
  i32 bytes() const {
    i32 total = S.group_size == 32 ? segment_.tiles * device::kFp4TileRows : 0;
    if constexpr (S.role == Role::kDown) {
      total +=
          args_.down_bias != nullptr && segment_.k_begin == 0 ? bias_bytes(16, args_.hidden) : 0;
    } else {
      const i32 rows = args_.num_parts == 2 ? 8 : 16;
      const i32 each = bias_bytes(rows, args_.intermediate_size);
      total += (args_.gate_bias != nullptr ? each : 0) + (args_.up_bias != nullptr ? each : 0);
    }
    return total;
  }

  void copy(u32 destination, u32 barrier) const {
    if constexpr (S.group_size == 32) {
      const u8* unit = args_.weights + segment_.expert * args_.expert_stride_bytes;
      device::bulk_copy(
          destination,
          unit + extents_.unit_tile_bytes() + segment_.tile_begin * device::kFp4TileRows,
          static_cast<u32>(segment_.tiles * device::kFp4TileRows),
          barrier);
    }
    const u32 biases = destination + static_cast<u32>(rows_per_block(S));
    if constexpr (S.role == Role::kDown) {
      if (segment_.k_begin == 0) {
        copy_bias(biases, args_.down_bias, 16, args_.hidden, barrier);
      }
    } else if (args_.num_parts == 2) {
      copy_bias(biases, args_.gate_bias, 8, args_.intermediate_size, barrier);
      copy_bias(biases + static_cast<u32>(rows_per_block(S) * 2),
                args_.up_bias,
                8,
                args_.intermediate_size,
                barrier);
    } else {
      copy_bias(biases, args_.up_bias, 16, args_.intermediate_size, barrier);
    }
  }

 private:
  i32 bias_bytes(i32 rows_per_tile, i32 num_rows) const {
    const i32 begin = segment_.tile_begin * rows_per_tile;
    const i32 end = begin + segment_.tiles * rows_per_tile;
    return ((end < num_rows ? end : num_rows) - begin) * 4;
  }

  void copy_bias(
      u32 destination, const float* bias, i32 rows_per_tile, i32 num_rows, u32 barrier) const {
    if (bias != nullptr) {
      device::bulk_copy(
          destination,
          bias + static_cast<i64>(segment_.expert) * num_rows + segment_.tile_begin * rows_per_tile,
          static_cast<u32>(bias_bytes(rows_per_tile, num_rows)),
          barrier);
    }
  }

  const Args& args_;
  const Extents<S>& extents_;
  const Segment& segment_;
};

/// One of producer_warps warps; they take stages in turn. A bulk copy takes its operands
/// from uniform registers, so lanes issue one after the other.
template <Spec S>
class Producer {
 public:
  Producer(const Args& args, const Extents<S>& extents, const Routes& routes, const Ring& ring)
      : args_(args),
        extents_(extents),
        routes_(routes),
        ring_(ring),
        lane_(static_cast<i32>(threadIdx.x % 32)),
        warp_((static_cast<i32>(threadIdx.x) - consumer_threads(S)) / 32),
        turn_(producer_warps(S) < ring.num_stages ? producer_warps(S) : ring.num_stages),
        policy_(device::evict_first_policy()) {}

  void run(const Schedule<S>& schedule) {
    Walk walk(schedule);
    if (warp_ >= turn_) {
      return;
    }
    i32 primed = 0;
    i32 own = warp_;
    if constexpr (S.role == Role::kDown) {
      // The weights depend on nothing that gate_up writes: fill the ring with them, then wait.
      Walk ahead = walk;
      for (; primed < ring_.num_stages && ahead.live; ++primed) {
        if (primed == own) {
          copy_weights(ahead, primed);
          own += turn_;
        }
        step(ahead);
      }
      device::grid_dependency_wait();
    }
    RingCursor cursor;
    own = warp_;
    for (i32 filled = 0; walk.live; ++filled) {
      if (filled == own) {
        own += turn_;
        if (filled >= ring_.num_stages) {
          device::mbarrier_wait(ring_.empty_barrier(cursor.stage), cursor.parity ^ 1U);
        }
        if (filled >= primed) {
          copy_weights(walk, cursor.stage);
        }
        copy_columns(walk, cursor.stage);
      }
      cursor.advance(ring_);
      step(walk);
    }
  }

 private:
  /// A place in the schedule: one stage of one segment.
  struct Walk {
    explicit Walk(const Schedule<S>& from) : schedule(from) {
      live = schedule.next(segment);
      k = segment.k_begin;
    }

    Schedule<S> schedule;
    Segment segment{};
    i32 k = 0;
    bool live = false;
    bool located = false;         // `column` belongs to this segment
    const u16* column = nullptr;  // operand row `lane` of the entry
  };

  void step(Walk& walk) {
    walk.k += stage_k_tiles(S);
    if (walk.k >= walk.segment.k_end) {
      walk.live = walk.schedule.next(walk.segment);
      walk.k = walk.segment.k_begin;
      walk.located = false;
    }
  }

  static i32 tiles_in_stage(const Walk& walk) {
    const i32 left = walk.segment.k_end - walk.k;
    return left < stage_k_tiles(S) ? left : stage_k_tiles(S);
  }

  /// Elements [begin, end) of an operand row that a stage takes, and their place in it. A multiple
  /// of 8 elements: extents and offsets are.
  struct ColumnRange {
    i32 begin;
    i32 end;
    i32 place;

    i32 chunks() const { return (end - begin) / 8; }
  };

  ColumnRange column_range(const Walk& walk) const {
    const i32 stage_begin = walk.k * device::kFp4TileCols - extents_.k_offset;
    const i32 stage_end = stage_begin + tiles_in_stage(walk) * device::kFp4TileCols;
    const i32 begin = stage_begin > 0 ? stage_begin : 0;
    return {
        begin, stage_end < extents_.k_elems ? stage_end : extents_.k_elems, begin - stage_begin};
  }

  void copy_weights(const Walk& walk, i32 stage) {
    if (lane_ == 0) {
      const u32 barrier = ring_.full_barrier(stage);
      const i32 k_tiles = tiles_in_stage(walk);
      const u32 run_bytes = static_cast<u32>(k_tiles * tile_bytes(S));
      const bool first = walk.k == walk.segment.k_begin;
      const RowConstantsCopy<S> rows(args_, extents_, walk.segment);
      const u32 bytes = static_cast<u32>(walk.segment.tiles) * run_bytes +
                        static_cast<u32>(walk.segment.columns * column_range(walk).chunks() * 16) +
                        static_cast<u32>(first ? rows.bytes() : 0);
      device::mbarrier_arrive_expect(barrier, bytes);
      const u8* source =
          args_.weights + walk.segment.expert * args_.expert_stride_bytes +
          (static_cast<i64>(walk.segment.tile_begin) * extents_.k_tiles + walk.k) * tile_bytes(S);
      u32 destination = ring_.stage(stage);
      if (extents_.k_tiles == stage_k_tiles(S)) {
        // A stage is all of K: its row tiles are one run.
        device::bulk_copy(destination,
                          source,
                          static_cast<u32>(walk.segment.tiles) * run_bytes,
                          barrier,
                          policy_);
      } else {
        const i64 row_stride = static_cast<i64>(extents_.k_tiles) * tile_bytes(S);
        for (i32 tile = 0; tile < walk.segment.tiles; ++tile) {
          device::bulk_copy(destination, source, run_bytes, barrier, policy_);
          source += row_stride;
          destination += static_cast<u32>(stage_k_tiles(S) * tile_bytes(S));
        }
      }
      if (first) {
        rows.copy(ring_.stage(stage) + stage_weight_bytes(S), barrier);
      }
    }
    __syncwarp();
  }

  void locate(Walk& walk) {
    walk.located = true;
    if (lane_ < walk.segment.columns) {
      const i32 route = routes_.sorted[walk.segment.column_begin + lane_];
      walk.column = S.role == Role::kDown
                        ? args_.intermediate + static_cast<i64>(route) * args_.intermediate_size
                        : args_.x + static_cast<i64>(route / args_.top_k) * args_.x_stride;
    }
  }

  void copy_columns(Walk& walk, i32 stage) {
    if (!walk.located) {
      locate(walk);
    }
    const ColumnRange range = column_range(walk);
    if (lane_ < walk.segment.columns) {
      device::bulk_copy(
          ring_.stage(stage) + static_cast<u32>(stage_weight_bytes(S) + stage_row_bytes(S) +
                                                lane_ * stage_column_bytes(S) + range.place * 2),
          walk.column + range.begin,
          static_cast<u32>(range.chunks() * 16),
          ring_.full_barrier(stage));
    }
  }

  const Args& args_;
  const Extents<S>& extents_;
  const Routes& routes_;
  const Ring& ring_;
  i32 lane_;
  i32 warp_;
  i32 turn_;  // producers at work: with more than stages, one could be two turns of a barrier ahead
  u64 policy_;
};

}  // namespace moekit::kernels::decode_gemv
