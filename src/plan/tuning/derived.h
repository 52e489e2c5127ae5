// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows that several architectures take from the same derivation until theirs are measured.

#include <array>

#include "plan/tuning/table.h"

namespace moekit::plan {

/// Blocks by mean routes per expert, each up to 0.9 of its rows: reference.md §3.6.
inline constexpr std::string_view kMeanRouteSource =
    "derived: reference.md §3.6, mean routes below 0.9 block";

inline constexpr std::array kMeanRouteBlocks{
    BlockRow{.rows = 8, .tenths_per_expert = 72, .below = true, .source = kMeanRouteSource},
    BlockRow{.rows = 16, .tenths_per_expert = 144, .below = true, .source = kMeanRouteSource},
    BlockRow{.rows = 32, .tenths_per_expert = 288, .below = true, .source = kMeanRouteSource},
    BlockRow{.rows = 48, .tenths_per_expert = 432, .below = true, .source = kMeanRouteSource},
    BlockRow{.rows = 64, .source = kMeanRouteSource},
};

/// Tiles of reference.md §3.6, narrow up to 16 rows.
constexpr std::array<TileRow, 6> narrow_and_wide_tiles(std::string_view source) {
  return {{
      {16, 128, 128, 8, source},
      {16, 128, 64, 4, source},
      {16, 64, 128, 4, source},
      {kNoLimit, 256, 64, 8, source},
      {kNoLimit, 128, 64, 4, source},
      {kNoLimit, 64, 128, 4, source},
  }};
}

}  // namespace moekit::plan
