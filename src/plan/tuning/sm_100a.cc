// SPDX-License-Identifier: Apache-2.0
#include "plan/tuning/table.h"

namespace moekit::plan {
namespace {

// No kernel of moekit exists for sm_100a yet, and reference.md has no figures for it: the direct
// boundary is what its rule says where weights bound the time, the blocks follow mean routes.
constexpr std::string_view kDirectSource = "derived: reference.md §3.2, fewer than 64 routes";
constexpr std::string_view kBlockSource = "derived: reference.md §3.6, mean routes below 0.9 block";

constexpr DirectRow kDirect[] = {
    {.max_tokens = 8, .max_routes = 63, .source = kDirectSource},
};

constexpr BlockRow kBlocks[] = {
    {.rows = 8, .tenths_per_expert = 72, .below = true, .source = kBlockSource},
    {.rows = 16, .tenths_per_expert = 144, .below = true, .source = kBlockSource},
    {.rows = 32, .tenths_per_expert = 288, .below = true, .source = kBlockSource},
    {.rows = 48, .tenths_per_expert = 432, .below = true, .source = kBlockSource},
    {.rows = 64, .source = kBlockSource},
};

constexpr std::string_view kTileSource = "derived: reference.md §3.6";

constexpr TileRow kTiles[] = {
    {16, 128, 128, 8, kTileSource},
    {16, 128, 64, 4, kTileSource},
    {16, 64, 128, 4, kTileSource},
    {kNoLimit, 256, 64, 8, kTileSource},
    {kNoLimit, 128, 64, 4, kTileSource},
    {kNoLimit, 64, 128, 4, kTileSource},
};

}  // namespace

const TuningTable kSm100aTable{
    .arch = Arch::kSm100a, .direct = kDirect, .blocks = kBlocks, .tiles = kTiles};

}  // namespace moekit::plan
