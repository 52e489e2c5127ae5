// SPDX-License-Identifier: Apache-2.0

// Rows as data: every one has a source and a recipe, and the bands of reference.md come out of
// them.

#include "plan/tuning/table.h"

#include <string>

#include <gtest/gtest.h>

namespace moekit::plan {
namespace {

constexpr Arch kArchs[] = {Arch::kCpu,
                           Arch::kSm80,
                           Arch::kSm86,
                           Arch::kSm89,
                           Arch::kSm90a,
                           Arch::kSm100a,
                           Arch::kSm120a,
                           Arch::kSm121a};

Problem problem_of(Recipe recipe, std::int64_t experts, std::int64_t inner) {
  Problem problem;
  problem.num_tokens = 8192;
  problem.num_experts = experts;
  problem.top_k = 8;
  problem.hidden_size = 6144;
  problem.intermediate_size = inner;
  problem.recipe = recipe;
  return problem;
}

struct Band {
  std::int64_t last;
  std::int64_t rows;
};

void expect_bands(const TuningTable& table,
                  const Problem& problem,
                  std::int64_t first,
                  const std::vector<Band>& bands) {
  std::int64_t tokens = first;
  for (const Band& band : bands) {
    for (; tokens <= band.last; ++tokens) {
      ASSERT_EQ(route_block_rows(table, problem, tokens), band.rows) << "M " << tokens;
    }
  }
  // Rungs end exactly where the block changes.
  std::vector<std::int64_t> ends;
  for (std::size_t i = 0; i + 1 < bands.size(); ++i) {
    ends.push_back(bands[i].last);
  }
  EXPECT_EQ(block_ends(table, problem, bands.back().last), ends);
}

TEST(TuningTables, EveryArchHasOneAndEveryRowASourceAndARecipe) {
  int rows = 0;
  const auto check_row = [&rows](std::string_view source, std::string_view recipe) {
    EXPECT_FALSE(source.empty());
    EXPECT_TRUE(std::any_of(kRecipes.begin(), kRecipes.end(), [recipe](const RecipeInfo& info) {
      return info.name.starts_with(recipe);
    })) << recipe;
    ++rows;
  };
  for (const Arch arch : kArchs) {
    const TuningTable* table = tuning_table(arch);
    ASSERT_NE(table, nullptr) << arch_name(arch);
    EXPECT_EQ(table->arch, arch);
    for (const DirectRow& row : table->direct) {
      check_row(row.source, row.filter.recipe);
    }
    for (const BlockRow& row : table->blocks) {
      check_row(row.source, row.filter.recipe);
    }
    for (const TileRow& row : table->tiles) {
      check_row(row.source, {});
    }
    for (const GridRow& row : table->grids) {
      check_row(row.source, {});
    }
    for (const AtomicRow& row : table->atomics) {
      check_row(row.source, row.filter.recipe);
    }
    EXPECT_EQ(table->blocks.empty(), arch == Arch::kCpu);
  }
  EXPECT_GT(rows, 100);
}

TEST(TuningTables, BlocksOfNvfp4WithFourBitActivations) {
  expect_bands(kSm120aTable,
               problem_of(Recipe::kW4a4Nvfp4, 256, 256),
               1,
               {{479, 16}, {1535, 32}, {3071, 64}, {8192, 128}});
  Problem plain = problem_of(Recipe::kW4a4Nvfp4, 256, 256);
  plain.activation.kind = ActivationKind::kRelu2;
  expect_bands(kSm120aTable, plain, 1, {{8192, 128}});
}

TEST(TuningTables, BlocksOfMxfp4WithEightBitActivationsAreNotMonotone) {
  expect_bands(kSm120aTable,
               problem_of(Recipe::kW4a8Mxfp4, 256, 1024),
               1,
               {{47, 16}, {288, 32}, {512, 16}, {1151, 32}, {8192, 64}});
  expect_bands(kSm120aTable,
               problem_of(Recipe::kW4a8Mxfp4, 256, 2048),
               1,
               {{512, 16}, {1151, 32}, {8192, 64}});
  // A width that is padded to 1024 is in the band, another activation is not.
  EXPECT_EQ(route_block_rows(kSm120aTable, problem_of(Recipe::kW4a8Mxfp4, 256, 936), 100), 32);
  Problem situ = problem_of(Recipe::kW4a8Mxfp4, 256, 1024);
  situ.activation.kind = ActivationKind::kSitu;
  EXPECT_EQ(route_block_rows(kSm120aTable, situ, 100), 16);
  // sm_121a keeps 32 for prefill.
  expect_bands(kSm121aTable, problem_of(Recipe::kW4a8Mxfp4, 256, 1024), 1, {{47, 16}, {8192, 32}});
}

TEST(TuningTables, DensityBoundariesOfEightBitActivations) {
  Problem problem = problem_of(Recipe::kW4a8Mxfp4, 256, 2048);
  problem.top_k = 1;
  for (const auto& [routes, rows] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {16 * 256, 16}, {16 * 256 + 1, 32}, {36 * 256 - 1, 32}, {36 * 256, 64}}) {
    EXPECT_EQ(route_block_rows(kSm120aTable, problem, routes), rows) << routes;
    EXPECT_EQ(route_block_rows(kSm121aTable, problem, routes), rows) << routes;
  }
  problem.intermediate_size = 1024;
  for (const auto& [routes, rows] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {383, 16}, {384, 32}, {768, 32}, {1536, 32}, {2304, 32}, {2305, 16}}) {
    EXPECT_EQ(route_block_rows(kSm120aTable, problem, routes), rows) << routes;
  }
  problem.recipe = Recipe::kW4a8Nvfp4;
  EXPECT_EQ(route_block_rows(kSm120aTable, problem, 384), 16);
}

TEST(TuningTables, RouteBlocksOfSixteenBitActivations) {
  for (const TuningTable* table : {&kSm120aTable, &kSm121aTable, &kSm90aTable, &kSm80Table}) {
    expect_bands(*table,
                 problem_of(Recipe::kW4a16Nvfp4, 256, 256),
                 1,
                 {{230, 8}, {460, 16}, {921, 32}, {1382, 48}, {8192, 64}});
    expect_bands(*table,
                 problem_of(Recipe::kW4a16Mxfp4, 160, 512),
                 1,
                 {{143, 8}, {287, 16}, {575, 32}, {863, 48}, {8192, 64}});
  }
  Problem mapped = problem_of(Recipe::kW4a16Nvfp4, 32, 256);
  mapped.expert_map = true;
  mapped.router_experts = 256;  // density is that of the router's namespace
  expect_bands(kSm120aTable, mapped, 1, {{230, 8}, {460, 16}, {921, 32}, {1382, 48}, {8192, 64}});
}

TEST(TuningTables, CapacityBlockSetCoversEveryLiveSelection) {
  const std::vector<std::array<std::int64_t, 3>> cases{
      {1, 8, 160}, {64, 8, 160}, {144, 8, 160}, {1024, 8, 256}, {32, 64, 8}};
  int live = 0;
  for (const auto& [capacity, top_k, experts] : cases) {
    Problem problem = problem_of(Recipe::kW4a16Nvfp4, experts, 512);
    problem.top_k = top_k;
    const std::vector<std::int64_t> ends = block_ends(kSm120aTable, problem, capacity);
    for (std::int64_t tokens = 1; tokens <= capacity; ++tokens) {
      const auto end = std::lower_bound(ends.begin(), ends.end(), tokens);
      EXPECT_EQ(route_block_rows(kSm120aTable, problem, tokens),
                route_block_rows(kSm120aTable, problem, end == ends.end() ? capacity : *end))
          << capacity << " " << tokens;
      ++live;
    }
  }
  EXPECT_EQ(live, 1 + 64 + 144 + 1024 + 32);
  EXPECT_TRUE(block_ends(kSm120aTable, problem_of(Recipe::kW4a16Nvfp4, 160, 512), 64).empty());
}

TEST(TuningTables, DirectShapesOfTheReference) {
  const auto last = [](const Problem& problem, const TuningTable& table = kSm120aTable) {
    return last_direct(direct_row(table, problem), problem);
  };
  Problem problem = problem_of(Recipe::kW4a4Nvfp4, 256, 256);
  EXPECT_EQ(last(problem), 7);
  problem.top_k = 6;
  EXPECT_EQ(last(problem), 8);
  problem.top_k = 32;
  EXPECT_EQ(last(problem), 1);
  problem = problem_of(Recipe::kW4a4Nvfp4, 256, 256);
  problem.hidden_size = 7168;  // more than twelve chunks of 512
  EXPECT_EQ(last(problem), -1);
  problem.hidden_size = 2688;  // a partial chunk
  EXPECT_EQ(last(problem), 7);
  problem.intermediate_size = 264;
  EXPECT_EQ(last(problem), -1);
  problem = problem_of(Recipe::kW4a4Nvfp4, 256, 256);
  problem.activation.kind = ActivationKind::kSitu;
  EXPECT_EQ(last(problem), -1);
  EXPECT_EQ(last(problem_of(Recipe::kW4a8Nvfp4, 256, 256)), 8);
  EXPECT_EQ(last(problem_of(Recipe::kW4a8Mxfp4, 256, 1024)), 4);
  EXPECT_EQ(last(problem_of(Recipe::kW4a8Mxfp4, 256, 1024), kSm121aTable), 2);
  EXPECT_EQ(last(problem_of(Recipe::kW4a8Mxfp4, 256, 2048), kSm121aTable), 4);
  EXPECT_EQ(last(problem_of(Recipe::kW4a16Nvfp4, 256, 256)), 8);
  Problem mapped = problem_of(Recipe::kW4a16Nvfp4, 256, 264);
  EXPECT_EQ(last(mapped), 6);  // not a multiple of 16: direct top-k
  mapped.expert_map = true;
  EXPECT_EQ(last(mapped), 8);
  Problem mxfp4 = problem_of(Recipe::kW4a16Mxfp4, 256, 384);
  EXPECT_EQ(last(mxfp4), 6);  // history: corrupt decode at 312, 352, 384
  mxfp4.intermediate_size = 512;
  EXPECT_EQ(last(mxfp4), 8);
  mxfp4.intermediate_size = 384;
  mxfp4.allow_atomics = true;
  EXPECT_EQ(last(mxfp4), 8);
  EXPECT_TRUE(direct_row(kSm120aTable, mxfp4)->atomic);
  EXPECT_EQ(last(problem_of(Recipe::kW4a16Nvfp4, 256, 256), kSm90aTable), 64);
}

// While an expert has one and a half tokens of a call in the mean.
TEST(TuningTables, DirectCallsOfACpuAreOfFewTokensAnExpert) {
  Problem problem = problem_of(Recipe::kW4a16Mxfp4, 256, 256);
  const auto last = [&problem](std::int64_t experts, std::int64_t top_k) {
    problem.num_experts = experts;
    problem.top_k = top_k;
    return last_direct(direct_row(kCpuTable, problem), problem);
  };
  EXPECT_EQ(last(256, 8), 16);
  EXPECT_EQ(last(128, 8), 16);
  EXPECT_EQ(last(32, 4), 8);
  EXPECT_EQ(last(8, 2), 4);
  EXPECT_EQ(last(8, 8), 1);
  problem.router_experts = 64;  // of which 8 are here
  EXPECT_EQ(last(8, 8), 8);
}

TEST(TuningTables, ResidentGrids) {
  const auto blocks = [](ExecutionFamily family, std::int64_t routes) {
    return grid_row(kSm120aTable, family, routes)->blocks;
  };
  for (const auto& [routes, expected] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 84}, {2, 84}, {3, 127}, {8, 107}, {10, 84}, {16, 63}, {20, 84}, {21, kNoLimit}}) {
    EXPECT_EQ(blocks(ExecutionFamily::kDirect, routes), expected) << routes;
  }
  EXPECT_EQ(blocks(ExecutionFamily::kGrouped, 640), 188);
  EXPECT_EQ(blocks(ExecutionFamily::kGrouped, 641), 147);
  EXPECT_EQ(blocks(ExecutionFamily::kGrouped, 1025), kNoLimit);
}

}  // namespace
}  // namespace moekit::plan
