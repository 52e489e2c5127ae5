// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode_gemv/geometry.h"

#include <gtest/gtest.h>

namespace moekit::kernels::decode_gemv {
namespace {

constexpr Spec kGateUp{.role = Role::kGateUp, .warps = 12, .lookahead = 2, .blocks_per_sm = 2};
constexpr Spec kDown{.role = Role::kDown, .warps = 12, .lookahead = 2, .blocks_per_sm = 2};

LaunchShape glm_tp8_launch(std::int32_t num_tokens) {
  return {.num_tokens = num_tokens,
          .top_k = 8,
          .num_experts = 256,
          .hidden = 6144,
          .num_sms = 132,
          .smem_bytes = 114000,
          .blocks_per_sm = 2,
          .cluster = 2,
          .max_clusters = 66};
}

TEST(Geometry, EveryTokenCountFitsAndSharedMemoryIsKeptToTheLimit) {
  static_assert(why_invalid(kGateUp) == nullptr);
  static_assert(why_invalid(kDown) == nullptr);
  for (std::int32_t num_tokens = 1; num_tokens <= kMaxTokens; ++num_tokens) {
    const Geometry gate_up = gate_up_geometry(kGateUp, glm_tp8_launch(num_tokens));
    const Geometry down = down_geometry(kDown, glm_tp8_launch(num_tokens));
    EXPECT_TRUE(gate_up.fits) << num_tokens;
    EXPECT_TRUE(down.fits) << num_tokens;
    EXPECT_EQ(gate_up.grid, 264);
    EXPECT_EQ(down.grid, 132);
    EXPECT_LE(gate_up.smem_bytes, 114000);
    EXPECT_LE(down.smem_bytes, 114000);
  }
}

TEST(Geometry, FewTokensNeverSpillAndManySpillWithinTheWorkspaceCase) {
  EXPECT_EQ(down_geometry(kDown, glm_tp8_launch(1)).spill_bytes, 0);
  // reference.md 4.6 allows 16 MiB for 64 tokens, top-8, H 6144.
  const Geometry many = down_geometry(kDown, glm_tp8_launch(64));
  EXPECT_GT(many.spill_bytes, 0);
  EXPECT_LT(many.spill_bytes, 15 << 20);
}

TEST(Geometry, ClustersNeverExceedTheResidentOnes) {
  LaunchShape shape = glm_tp8_launch(1);
  shape.hidden = 16384;
  const Geometry down = down_geometry(kDown, shape);
  EXPECT_EQ(down.grid, 132);
}

TEST(Geometry, TooLittleSharedMemoryDoesNotFit) {
  LaunchShape shape = glm_tp8_launch(8);
  shape.smem_bytes = 20000;
  EXPECT_FALSE(gate_up_geometry(kGateUp, shape).fits);
  EXPECT_FALSE(down_geometry(kDown, shape).fits);
}

TEST(Geometry, ACallWithoutRoutesHasASize) {
  Spec down{.role = Role::kDown, .row_tiles = 3, .k_tiles = 2, .lookahead = 0};
  down.whole_items = kRouteItems;
  EXPECT_EQ(route_parts(down, 0), 1);
  EXPECT_EQ(route_parts(down, 1), down.warps);
  LaunchShape shape = glm_tp8_launch(0);
  shape.intermediate = 256;
  shape.cluster = 1;
  shape.max_clusters = 132;
  shape.smem_bytes = launch_smem_limit(down, 227 * 1024, 0);
  EXPECT_EQ(down_geometry(down, shape).spill_bytes, 0);
}

TEST(Geometry, RouteItemsHoldAllOfDownBesideGateUp) {
  const Spec gate_up{.warps = 16,
                     .row_tiles = 2,
                     .k_tiles = 4,
                     .lookahead = 1,
                     .whole_items = kRouteItems,
                     .blocks_per_sm = 2};
  Spec down{.role = Role::kDown, .row_tiles = 3, .k_tiles = 2, .lookahead = 0};
  down.whole_items = kRouteItems;
  ASSERT_EQ(why_invalid(gate_up), nullptr);
  ASSERT_EQ(why_invalid(down), nullptr);
  constexpr std::int32_t kBlock = 227 * 1024;
  for (const std::int32_t tokens : {1, 2}) {
    LaunchShape shape = glm_tp8_launch(tokens);
    shape.intermediate = 256;
    shape.blocks_per_sm = shape.cluster = 1;
    shape.max_clusters = 132;
    shape.smem_bytes = launch_smem_limit(gate_up, kBlock, 8 * tokens);
    const Geometry first = gate_up_geometry(gate_up, shape);
    EXPECT_TRUE(first.fits);
    EXPECT_EQ(first.grid, 132);
    // Two items of an SM are three steps of each warp; of four items two remain.
    EXPECT_GE(first.ring_bytes / gate_up.warps, (tokens == 1 ? 3 : 2) * 4 * 576);
    shape.smem_bytes = launch_smem_limit(down, kBlock, 8 * tokens);
    const Geometry second = down_geometry(down, shape);
    EXPECT_TRUE(second.fits);
    EXPECT_EQ(second.grid, 6144 / 16 / 3);
    EXPECT_GE(second.ring_bytes, 8 * tokens * 3 * 4 * 576);
    EXPECT_EQ(second.spill_bytes, 0);
    EXPECT_LE(first.smem_bytes + second.smem_bytes + 2 * (kStaticSmemBytes + kReservedSmemBytes),
              228 * 1024);
    Spec wider = down;
    wider.row_tiles = 2;  // 192 blocks, the device holds 132
    EXPECT_FALSE(down_geometry(wider, shape).fits);
    shape.intermediate = 64;  // less than one step of K
    EXPECT_FALSE(down_geometry(down, shape).fits);
  }
  LaunchShape many = glm_tp8_launch(5);  // 40 routes, more than lanes
  many.blocks_per_sm = 1;
  many.smem_bytes = launch_smem_limit(kBlock, 1);
  EXPECT_FALSE(gate_up_geometry(gate_up, many).fits);
}

TEST(Geometry, SharedItemsTakeWholeWarpgroupsAndKeepTwoSlots) {
  Spec shared{.warps = 20, .row_tiles = 16, .lookahead = 1, .max_columns = 24};
  shared.whole_items = kSharedItems;
  ASSERT_EQ(why_invalid(shared), nullptr);
  LaunchShape shape = glm_tp8_launch(kMaxTokens);
  shape.num_experts = 32;
  shape.blocks_per_sm = 1;
  shape.smem_bytes = launch_smem_limit(227 * 1024, 1);
  const Geometry geometry = gate_up_geometry(shared, shape);
  EXPECT_TRUE(geometry.fits);
  EXPECT_EQ(slots_bytes(shared), 16 * 4 * 576 + 4 * 24 * 64 * 2);
  EXPECT_EQ(slots_bytes(shared) % kColumnAlign, 0);
  EXPECT_GE(geometry.ring_bytes, 2 * slots_bytes(shared));
  shared.row_tiles = 12;
  EXPECT_NE(why_invalid(shared), nullptr);
}

TEST(Geometry, DownOfSharedItemsKeepsEveryResultInTheWorkspace) {
  Spec shared{.role = Role::kDown, .warps = 20, .row_tiles = 16, .lookahead = 1, .max_columns = 24};
  shared.whole_items = kSharedItems;
  ASSERT_EQ(why_invalid(shared), nullptr);
  LaunchShape shape = glm_tp8_launch(kMaxTokens);
  shape.hidden = 6152;  // 24 groups of 256 rows and 8 rows
  shape.max_clusters = 132;
  shape.smem_bytes = launch_smem_limit(227 * 1024, 1);
  const Geometry geometry = down_geometry(shared, shape);
  EXPECT_TRUE(geometry.fits);
  EXPECT_EQ(geometry.grid, 132);
  EXPECT_EQ(geometry.result_rows, 0);
  EXPECT_EQ(arrival_bytes(shared, shape.hidden), 25 * 8);
  EXPECT_EQ(geometry.spill_bytes, (64LL * 8 * 25 + 132LL * 24) * 256 * 4);
  EXPECT_EQ(arrival_bytes(kDown, shape.hidden), 0);
}

}  // namespace
}  // namespace moekit::kernels::decode_gemv
