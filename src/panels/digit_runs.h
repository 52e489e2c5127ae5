// SPDX-License-Identifier: Apache-2.0
#pragma once

// The walk over a panel of 4-bit codes, run by run (operand_digits.h).

#include <type_traits>
#include <utility>

#include "panels/call_stream.h"
#include "panels/operand_digits.h"

namespace moekit::panels {
inline namespace MOEKIT_ISA {

/// Where a run begins.
struct RunPlace {
  const std::byte* lines;
  const std::byte* scales;  // of its group
  const std::byte* x;       // its pieces, the tile's first token
  Ahead ahead;
};

/// Steps of a panel that are walked in one go.
struct RunSpan {
  const std::byte* lines;  // of the first step's block, its scales in front
  const std::byte* x;      // pieces of the first step, the tile's first token
  device::i64 first_step;  // counted from the start of the first scale group
  device::i64 num_steps;
};

/// A whole panel.
inline RunSpan panel_runs(const device::Panel16Shape& shape,
                          const std::byte* panel,
                          const std::byte* x) {
  return {panel, x, device::panel16_first_step(shape), device::panel16_num_steps(shape)};
}

/// Calls add(place, kSteps, steps) for each run of a span, ascending, and ahead = open(line)
/// before each block. kSteps is a constant: `steps` of a whole group of the element's own columns,
/// 0 otherwise. Whole blocks of one token have a body of their own, since one that asks every run
/// what it is takes a fifth more instructions.
template <device::Panel16Element kElement, int kTokens>
[[gnu::always_inline]] inline void for_each_run(const device::Panel16Shape& shape,
                                                const RunSpan& span,
                                                auto open,
                                                auto add) {
  using device::i64;
  constexpr i64 kOwnSteps = device::panel16_own_group_cols(kElement) / device::kPanel16StepCols;
  constexpr std::integral_constant<i64, kOwnSteps> kWhole{};
  constexpr std::integral_constant<i64, 0> kCut{};
  const i64 group_steps = device::panel16_group_cols(shape) / device::kPanel16StepCols;
  const i64 block_steps = device::kPanel16BlockGroups * group_steps;
  i64 left = span.num_steps;
  i64 in_block = span.first_step;
  in_block = in_block < block_steps ? in_block : in_block % block_steps;
  bool at_scales = true;
  RunPlace place{span.lines, nullptr, span.x, {}};
  const auto enter = [&]() __attribute__((always_inline)) {
    place.ahead = open(place.lines);
    place.scales = place.lines;
    place.lines += device::kPanel16LineBytes;
    at_scales = false;
  };
  const auto advance = [&](i64 steps) __attribute__((always_inline)) {
    place.lines += steps * device::kPanel16LineBytes;
    place.x += steps * kDigitStepBytes * kTokens;
  };
  for (;;) {
    while (left > 0 &&
           (group_steps != kOwnSteps || in_block % kOwnSteps != 0 || left < kOwnSteps)) {
      if (at_scales) {
        enter();
        place.scales += in_block / group_steps * device::kPanel16Rows;
      }
      const i64 steps = run_steps(in_block % group_steps, left, group_steps);
      add(place, kCut, steps);
      advance(steps);
      left -= steps;
      in_block += steps;
      place.scales += in_block % group_steps == 0 ? device::kPanel16Rows : 0;
      at_scales = in_block == block_steps;
      in_block = at_scales ? 0 : in_block;
    }
    if (left <= 0) {
      return;
    }
    i64 groups = left / kOwnSteps;
    if constexpr (kTokens == 1) {
      for (; at_scales && in_block == 0 && groups >= device::kPanel16BlockGroups;
           groups -= device::kPanel16BlockGroups) {
        enter();
        [&]<i64... kGroup>(std::integer_sequence<i64, kGroup...>) __attribute__((always_inline)) {
          (add(RunPlace{place.lines + kGroup * kOwnSteps * device::kPanel16LineBytes,
                        place.scales + kGroup * device::kPanel16Rows,
                        place.x + kGroup * kOwnSteps * kDigitStepBytes,
                        place.ahead},
               kWhole,
               kOwnSteps),
           ...);
        }
        (std::make_integer_sequence<i64, device::kPanel16BlockGroups>());
        advance(device::kPanel16BlockGroups * kOwnSteps);
        at_scales = true;
      }
    }
    while (groups > 0) {
      if (at_scales) {
        enter();
        place.scales += in_block / kOwnSteps * device::kPanel16Rows;
      }
      const i64 in_this = device::kPanel16BlockGroups - in_block / kOwnSteps;
      const i64 count = groups < in_this ? groups : in_this;
      in_block += count * kOwnSteps;
      groups -= count;
      for (i64 i = 0; i < count; ++i) {
        add(place, kWhole, kOwnSteps);
        advance(kOwnSteps);
        place.scales += device::kPanel16Rows;
      }
      at_scales = in_block == device::kPanel16BlockGroups * kOwnSteps;
      in_block = at_scales ? 0 : in_block;
    }
    left %= kOwnSteps;
  }
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::panels
