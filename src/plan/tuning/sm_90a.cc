// SPDX-License-Identifier: Apache-2.0
#include "plan/tuning/table.h"

namespace moekit::plan {
namespace {

// M = 1 to 64 of six layers were measured, and nothing beyond; the rows of each variant stand
// beside the kernels (kernels/decode_gemv/variants.cc).
constexpr std::string_view kMeasured = "bench/results/h200-decode-gemv-0001.jsonl";
// 8 tokens are the narrowest tile of tokens of the tensor cores. Nothing of this is written.
constexpr std::string_view kBlockSource = "derived: reference.md §3.6, mean routes below 0.9 block";

constexpr DirectRow kDirect[] = {
    {.filter = {.recipe = "w4a16"}, .max_tokens = 64, .source = kMeasured},
};

constexpr BlockRow kBlocks[] = {
    {.rows = 8, .tenths_per_expert = 72, .below = true, .source = kBlockSource},
    {.rows = 16, .tenths_per_expert = 144, .below = true, .source = kBlockSource},
    {.rows = 32, .tenths_per_expert = 288, .below = true, .source = kBlockSource},
    {.rows = 48, .tenths_per_expert = 432, .below = true, .source = kBlockSource},
    {.rows = 64, .source = kBlockSource},
};

constexpr std::string_view kTileSource = "derived: reference.md §3.6, nothing measured";

constexpr TileRow kTiles[] = {
    {16, 128, 128, 8, kTileSource},
    {16, 128, 64, 4, kTileSource},
    {16, 64, 128, 4, kTileSource},
    {kNoLimit, 256, 64, 8, kTileSource},
    {kNoLimit, 128, 64, 4, kTileSource},
    {kNoLimit, 64, 128, 4, kTileSource},
};

}  // namespace

const TuningTable kSm90aTable{
    .arch = Arch::kSm90a, .direct = kDirect, .blocks = kBlocks, .tiles = kTiles};

}  // namespace moekit::plan
