// SPDX-License-Identifier: Apache-2.0
#include "plan/tuning/derived.h"

namespace moekit::plan {
namespace {

// No kernel of moekit exists for sm_100a yet, and reference.md has no figures for it: the direct
// boundary is what its rule says where weights bound the time, the blocks follow mean routes.
constexpr std::string_view kDirectSource = "derived: reference.md §3.2, fewer than 64 routes";

constexpr DirectRow kDirect[] = {
    {.max_tokens = 8, .max_routes = 63, .source = kDirectSource},
};

constexpr std::string_view kTileSource = "derived: reference.md §3.6";

constexpr auto kTiles = narrow_and_wide_tiles(kTileSource);

}  // namespace

const TuningTable kSm100aTable{
    .arch = Arch::kSm100a, .direct = kDirect, .blocks = kMeanRouteBlocks, .tiles = kTiles};

}  // namespace moekit::plan
