// SPDX-License-Identifier: Apache-2.0

// sm_80, sm_86 and sm_89: no kernel of moekit exists for them yet. Their rows are those of the
// W4A16 kernels of reference.md, which need nothing beyond the 16-bit tensor core instructions that
// these have; quantised activations run as a quantiser in front of the same kernels.

#include "plan/tuning/table.h"

namespace moekit::plan {
namespace {

constexpr std::string_view kDirectSource = "derived: reference.md §3.6, 8 routes a block";
constexpr std::string_view kBlockSource = "derived: reference.md §3.6, mean routes below 0.9 block";

constexpr DirectRow kDirect[] = {
    {.filter = {.expert_map = true}, .max_tokens = 8, .source = kDirectSource},
    {.max_tokens = 6, .source = kDirectSource},
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

const TuningTable kSm80Table{
    .arch = Arch::kSm80, .direct = kDirect, .blocks = kBlocks, .tiles = kTiles};
const TuningTable kSm86Table{
    .arch = Arch::kSm86, .direct = kDirect, .blocks = kBlocks, .tiles = kTiles};
const TuningTable kSm89Table{
    .arch = Arch::kSm89, .direct = kDirect, .blocks = kBlocks, .tiles = kTiles};

}  // namespace moekit::plan
