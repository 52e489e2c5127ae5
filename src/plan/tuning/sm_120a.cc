// SPDX-License-Identifier: Apache-2.0

// sm_120a and sm_121a: the boundaries of reference.md under moekit's names. Its micro, tiny decode
// and direct top-k paths are the direct family; its dynamic and route-packed paths are the grouped
// family, their tile_m or route block is the rows of a block. No kernel of moekit exists for these
// yet, so no row was measured here.

#include "plan/tuning/derived.h"

namespace moekit::plan {
namespace {

constexpr ActivationSet kNotSitu = ActivationSet::kNotSitu;

constexpr DirectRow kNvfp4Direct{.filter = {.recipe = "w4a4_nvfp4",
                                            .activations = kNotSitu,
                                            .hidden_multiple = 128,
                                            .max_hidden = std::int64_t{12} * 512,
                                            .intermediate_multiple = 16},
                                 .max_tokens = 8,
                                 .max_routes = 63,
                                 .source = "reference.md §3.2, §3.3"};

constexpr DirectRow kDirect[] = {
    kNvfp4Direct,
    {.filter = {.recipe = "w4a8_nvfp4",
                .activations = kNotSitu,
                .hidden_multiple = 128,
                .max_hidden = std::int64_t{12} * 512,
                .intermediate_multiple = 16},
     .max_tokens = 8,
     .source = "reference.md §3.2, §3.3"},
    {.filter = {.recipe = "w4a8_mxfp4",
                .activations = ActivationSet::kSilu,
                .hidden_multiple = 512,
                .intermediate_multiple = 32},
     .max_tokens = 4,
     .source = "reference.md §3.4"},
    {.filter = {.recipe = "w4a16_nvfp4",
                .activations = kNotSitu,
                .hidden_multiple = 128,
                .max_hidden = std::int64_t{12} * 512,
                .intermediate_multiple = 16,
                .expert_map = false,
                .weight_on_input = false,
                .bf16_io = true},
     .max_tokens = 8,
     .source = "reference.md §3.6, path 1"},
    {.filter = {.recipe = "w4a16_mxfp4",
                .activations = kNotSitu,
                .hidden_multiple = 128,
                .max_hidden = std::int64_t{12} * 512,
                .intermediate_multiple = 32,
                .max_intermediate = 256,
                .expert_map = false,
                .weight_on_input = false,
                .bf16_io = true},
     .max_tokens = 8,
     .source = "reference.md §3.6, path 1"},
    {.filter = {.recipe = "w4a16_mxfp4",
                .activations = kNotSitu,
                .hidden_multiple = 128,
                .max_hidden = std::int64_t{12} * 512,
                .intermediate_multiple = 256,
                .expert_map = false,
                .weight_on_input = false,
                .bf16_io = true},
     .max_tokens = 8,
     .source = "reference.md §3.6, path 1"},
    {.filter = {.recipe = "w4a16", .activations = ActivationSet::kGated, .bf16_io = true},
     .max_tokens = 8,
     .atomic = true,
     .source = "reference.md §3.6, path 2"},
    {.filter = {.recipe = "w4a16", .expert_map = true},
     .max_tokens = 8,
     .source = "reference.md §3.6, path 3"},
    {.filter = {.recipe = "w4a16"}, .max_tokens = 6, .source = "reference.md §3.6, path 3"},
};

constexpr std::string_view kDense = "reference.md §3.5";
constexpr std::string_view kRouteBlock = "reference.md §3.6";

constexpr BlockRow kBlocks[] = {
    {.filter = {.recipe = "w4a4_nvfp4", .activations = ActivationSet::kNotGated},
     .rows = 128,
     .source = kDense},
    {.filter = {.recipe = "w4a4_nvfp4"},
     .rows = 16,
     .tenths_per_expert = 150,
     .below = true,
     .source = kDense},
    {.filter = {.recipe = "w4a4_nvfp4"},
     .rows = 32,
     .tenths_per_expert = 480,
     .below = true,
     .source = kDense},
    {.filter = {.recipe = "w4a4_nvfp4"},
     .rows = 64,
     .tenths_per_expert = 960,
     .below = true,
     .source = kDense},
    {.filter = {.recipe = "w4a4_nvfp4"}, .rows = 128, .source = kDense},
    {.filter = {.recipe = "w4a8_mxfp4",
                .activations = ActivationSet::kSilu,
                .experts = 256,
                .padded_intermediate = 1024},
     .rows = 32,
     .min_routes = 384,
     .max_routes = 2304,
     .source = kDense},
    {.filter = {.recipe = "w4a8"}, .rows = 16, .tenths_per_expert = 160, .source = kDense},
    {.filter = {.recipe = "w4a8"},
     .rows = 32,
     .tenths_per_expert = 360,
     .below = true,
     .source = kDense},
    {.filter = {.recipe = "w4a8"}, .rows = 64, .source = kDense},
    {.rows = 8, .tenths_per_expert = 72, .below = true, .source = kRouteBlock},
    {.rows = 16, .tenths_per_expert = 144, .below = true, .source = kRouteBlock},
    {.rows = 32, .tenths_per_expert = 288, .below = true, .source = kRouteBlock},
    {.rows = 48, .tenths_per_expert = 432, .below = true, .source = kRouteBlock},
    {.rows = 64, .source = kRouteBlock},
};

// sm_121a keeps the tile of 32 up to 384 routes an expert, and has no direct family for three or
// four tokens of one shape.
constexpr BlockRow kWideBand{.filter = {.recipe = "w4a8_mxfp4",
                                        .activations = ActivationSet::kSilu,
                                        .experts = 256,
                                        .padded_intermediate = 1024},
                             .rows = 32,
                             .min_routes = 384,
                             .max_routes = std::int64_t{384} * 256,
                             .source = kDense};

constexpr BlockRow kSm121aBlocks[] = {kBlocks[0],
                                      kBlocks[1],
                                      kBlocks[2],
                                      kBlocks[3],
                                      kBlocks[4],
                                      kWideBand,
                                      kBlocks[6],
                                      kBlocks[7],
                                      kBlocks[8],
                                      kBlocks[9],
                                      kBlocks[10],
                                      kBlocks[11],
                                      kBlocks[12],
                                      kBlocks[13]};
static_assert(std::size(kSm121aBlocks) == std::size(kBlocks));

constexpr std::string_view kDirectGrid = "reference.md §3.3";
constexpr std::string_view kGroupedGrid = "reference.md §3.5";

constexpr GridRow kGrids[] = {
    {ExecutionFamily::kDirect, 2, 84, kDirectGrid},
    {ExecutionFamily::kDirect, 4, 127, kDirectGrid},
    {ExecutionFamily::kDirect, 8, 107, kDirectGrid},
    {ExecutionFamily::kDirect, 10, 84, kDirectGrid},
    {ExecutionFamily::kDirect, 16, 63, kDirectGrid},
    {ExecutionFamily::kDirect, 20, 84, kDirectGrid},
    {ExecutionFamily::kDirect, kNoLimit, kNoLimit, kDirectGrid},
    {ExecutionFamily::kGrouped, 640, 188, kGroupedGrid},
    {ExecutionFamily::kGrouped, 1024, 147, kGroupedGrid},
    {ExecutionFamily::kGrouped, kNoLimit, kNoLimit, kGroupedGrid},
};

// reference.md's W4A16 sums routes in a fixed order whatever the caller allows.
constexpr AtomicRow kAtomics[] = {
    {.filter = {.recipe = "w4a4"}, .source = "reference.md §3.9"},
    {.filter = {.recipe = "w4a8"}, .source = "reference.md §3.9"},
};

// One shape of w4a8_mxfp4 has no direct family beyond two tokens on sm_121a; filters have no exact
// width, and 6144 is both the multiple and the most that is asked for.
constexpr DirectRow kSm121aShape{.filter = {.recipe = "w4a8_mxfp4",
                                            .activations = ActivationSet::kSilu,
                                            .hidden_multiple = 6144,
                                            .max_hidden = 6144,
                                            .intermediate_multiple = 1024,
                                            .max_intermediate = 1024},
                                 .max_tokens = 2,
                                 .source = "reference.md §3.4"};

constexpr DirectRow kSm121aDirect[] = {kSm121aShape,
                                       kDirect[0],
                                       kDirect[1],
                                       kDirect[2],
                                       kDirect[3],
                                       kDirect[4],
                                       kDirect[5],
                                       kDirect[6],
                                       kDirect[7],
                                       kDirect[8]};
static_assert(std::size(kSm121aDirect) == std::size(kDirect) + 1);

constexpr std::string_view kTileSource = "reference.md §3.6";

constexpr auto kTiles = narrow_and_wide_tiles(kTileSource);

}  // namespace

const TuningTable kSm120aTable{.arch = Arch::kSm120a,
                               .direct = kDirect,
                               .blocks = kBlocks,
                               .tiles = kTiles,
                               .grids = kGrids,
                               .atomics = kAtomics};
const TuningTable kSm121aTable{.arch = Arch::kSm121a,
                               .direct = kSm121aDirect,
                               .blocks = kSm121aBlocks,
                               .tiles = kTiles,
                               .grids = kGrids,
                               .atomics = kAtomics};

}  // namespace moekit::plan
