// SPDX-License-Identifier: Apache-2.0
#include "plan/tuning/derived.h"

namespace moekit::plan {
namespace {

// M = 1 to 64 of six layers were measured, and nothing beyond; the rows of each variant stand
// beside the kernels (kernels/decode_gemv/variants.cc).
constexpr std::string_view kMeasured = "bench/results/h200-decode-gemv-0001.jsonl";

constexpr DirectRow kDirect[] = {
    {.filter = {.recipe = "w4a16"}, .max_tokens = 64, .source = kMeasured},
};

constexpr std::string_view kTileSource = "derived: reference.md §3.6, nothing measured";

constexpr auto kTiles = narrow_and_wide_tiles(kTileSource);

}  // namespace

const TuningTable kSm90aTable{
    .arch = Arch::kSm90a, .direct = kDirect, .blocks = kMeanRouteBlocks, .tiles = kTiles};

}  // namespace moekit::plan
