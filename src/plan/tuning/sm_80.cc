// SPDX-License-Identifier: Apache-2.0

// sm_80, sm_86 and sm_89: no kernel of moekit exists for them yet. Their rows are those of the
// W4A16 kernels of reference.md, which need nothing beyond the 16-bit tensor core instructions that
// these have; quantised activations run as a quantiser in front of the same kernels.

#include "plan/tuning/derived.h"

namespace moekit::plan {
namespace {

constexpr std::string_view kDirectSource = "derived: reference.md §3.6, 8 routes a block";

constexpr DirectRow kDirect[] = {
    {.filter = {.expert_map = true}, .max_tokens = 8, .source = kDirectSource},
    {.max_tokens = 6, .source = kDirectSource},
};

constexpr std::string_view kTileSource = "derived: reference.md §3.6";

constexpr auto kTiles = narrow_and_wide_tiles(kTileSource);

}  // namespace

const TuningTable kSm80Table{
    .arch = Arch::kSm80, .direct = kDirect, .blocks = kMeanRouteBlocks, .tiles = kTiles};
const TuningTable kSm86Table{
    .arch = Arch::kSm86, .direct = kDirect, .blocks = kMeanRouteBlocks, .tiles = kTiles};
const TuningTable kSm89Table{
    .arch = Arch::kSm89, .direct = kDirect, .blocks = kMeanRouteBlocks, .tiles = kTiles};

}  // namespace moekit::plan
