// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where a body asks for memory while it computes: along the panels of its dot call and on into
// those of its thread's next.

#include <cstddef>
#include <cstdint>

#include "device/layout/panel16.h"
#include "panels/body.h"

namespace moekit::panels {
inline namespace MOEKIT_ISA {

/// How far ahead of the line at hand memory is asked for: to the second-level cache so that many
/// lines are on their way while a thread computes, to the first-level cache so that they are there
/// (README, 8).
constexpr device::i64 kFarBytes = 16384;
constexpr device::i64 kNearBytes = 2048;

/// From a line to those that are asked for when it is read.
struct Ahead {
  device::i64 far = 0;
  device::i64 near = 0;
};

/// Lines of different panels are compared and subtracted as numbers.
inline std::uintptr_t address(const std::byte* line) {
  return reinterpret_cast<std::uintptr_t>(line);
}

/// A distance ahead, and what it is instead from where it leads to `end` or behind.
struct Reach {
  device::i64 distance = 0;
  std::uintptr_t end = 0;
  device::i64 behind = 0;

  [[nodiscard]] device::i64 from(const std::byte* line) const {
    const std::uintptr_t target = address(line) + static_cast<std::uintptr_t>(distance);
    return target < end ? distance : behind;
  }
};

/// The panels of one dot call, read in ascending order in blocks of `block_bytes`, and behind them
/// those of the thread's next call; or a part of them, and behind it another. Distances are whole
/// blocks, so that they hold for all lines of one block.
class CallStream {
 public:
  CallStream(const DotCall& call, device::i64 block_bytes) {
    const std::byte* end = call.panels + call.num_panels * device::panel16_panel_bytes(*call.shape);
    // Behind the last call: the line itself, which costs nothing.
    const auto reach = [&](device::i64 bytes) {
      const device::i64 distance = device::round_up(bytes, block_bytes);
      return Reach{
          distance,
          address(end),
          call.next_panels == nullptr
              ? 0
              : distance + static_cast<device::i64>(address(call.next_panels) - address(end))};
    };
    far_ = reach(kFarBytes);
    near_ = reach(kNearBytes);
  }

  /// `bytes` from `lines` on, where `ahead` leads to the parts that are read soon and next; zero
  /// where nothing is.
  CallStream(const Ahead& ahead,
             const std::byte* lines,
             device::i64 bytes,
             device::i64 block_bytes) {
    const device::i64 distance = device::round_up(kNearBytes, block_bytes);
    far_ = {ahead.far, UINTPTR_MAX, ahead.far};
    near_ = {distance, address(lines + bytes), ahead.near == 0 ? 0 : distance + ahead.near - bytes};
  }

  [[nodiscard]] Ahead from(const std::byte* block) const {
    return {far_.from(block), near_.from(block)};
  }

 private:
  Reach far_;
  Reach near_;
};

inline void prefetch(const std::byte* line, const Ahead& ahead) {
  __builtin_prefetch(line + ahead.far, 0, 2);
  __builtin_prefetch(line + ahead.near, 0, 3);
}

// 8 steps of bf16 at a time: the sums of one part stay in registers while the lines are still in L1
// for the other part.
constexpr device::i64 kChunkSteps = 8;

/// The blocks that distances ahead are counted in: a line of scales and its codes, or a chunk of
/// bf16.
inline device::i64 stream_block_bytes(const device::Panel16Shape& shape) {
  const device::i64 step_bytes = device::panel16_step_bytes(shape.element);
  return shape.element == device::Panel16Element::kBf16
             ? kChunkSteps * step_bytes
             : device::kPanel16LineBytes + device::panel16_steps_per_block(shape) * step_bytes;
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::panels
