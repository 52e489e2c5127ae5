// SPDX-License-Identifier: Apache-2.0

// Who holds what: columns, experts, maps, the local problem, and what is refused.

#include <gtest/gtest.h>

#include "tests/edges/layer_under_test.h"

namespace moekit::tests {
namespace {

Problem glm() {
  Problem problem;
  problem.num_tokens = 64;
  problem.num_experts = 256;
  problem.top_k = 8;
  problem.hidden_size = 6144;
  problem.intermediate_size = 2048;
  problem.recipe = Recipe::kW4a16Nvfp4;
  return problem;
}

Shard tp(std::int64_t rank, std::int64_t size) {
  Shard shard;
  shard.tp_rank = rank;
  shard.tp_size = size;
  return shard;
}

Shard ep(std::int64_t rank, std::int64_t size) {
  Shard shard;
  shard.ep_rank = rank;
  shard.ep_size = size;
  return shard;
}

std::string message(const Status& status) {
  return std::string(status.message());
}

TEST(Shards, ColumnsTileTheIntermediateForEverySize) {
  int checked = 0;
  const DeviceDescriptor devices[] = {
      host_cpu(), device_from_name("sm_90a").value(), device_from_name("sm_120a").value()};
  for (const std::int64_t width : {8, 64, 112, 176, 232, 312, 352, 1408, 2048, 2880, 14336}) {
    Problem problem = glm();
    problem.intermediate_size = width;
    for (std::int64_t size = 1; size <= std::min<std::int64_t>(width / 8, 16); ++size) {
      std::int64_t expected = 0;
      for (std::int64_t rank = 0; rank < size; ++rank) {
        const ColumnRange columns = shard_columns(problem, tp(rank, size)).value();
        EXPECT_EQ(columns.begin, expected);
        EXPECT_GE(columns.end - columns.begin, 8);
        EXPECT_LE(columns.end - columns.begin, (width / size / 8 + 1) * 8);
        const Problem local = local_problem(problem, tp(rank, size)).value();
        EXPECT_EQ(local.down_group_offset, columns.begin % 16);
        for (const DeviceDescriptor& device : devices) {
          EXPECT_TRUE(make_plan(local, device).has_value());
        }
        expected = columns.end;
        ++checked;
      }
      EXPECT_EQ(expected, width);
    }
  }
  EXPECT_GT(checked, 1000);
}

TEST(Shards, ExpertsArePlacedOnceAndMapsAreBijections) {
  const Problem problem = glm();
  int maps = 0;
  for (const std::int64_t size : {1, 2, 3, 7, 8, 256}) {
    for (const ExpertPlacement placement :
         {ExpertPlacement::kLinear, ExpertPlacement::kRoundRobin}) {
      std::vector<int> owners(256);
      for (std::int64_t rank = 0; rank < size; ++rank) {
        Shard shard = ep(rank, size);
        shard.placement = placement;
        const std::vector<std::int64_t> experts = shard_experts(problem, shard).value();
        const std::vector<std::int32_t> map = shard_expert_map(problem, shard).value();
        ASSERT_EQ(map.size(), 256U);
        for (std::size_t local = 0; local < experts.size(); ++local) {
          const auto id = static_cast<std::size_t>(experts[local]);
          EXPECT_EQ(map[id], static_cast<std::int32_t>(local));
          ++owners[id];
        }
        EXPECT_EQ(std::count(map.begin(), map.end(), -1),
                  256 - static_cast<std::ptrdiff_t>(experts.size()));
        ++maps;
      }
      EXPECT_TRUE(std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; }));
    }
  }
  EXPECT_EQ(maps, 2 * (1 + 2 + 3 + 7 + 8 + 256));
}

TEST(Shards, LocalProblemCountsBiasAndSharedOnce) {
  Problem problem = glm();
  problem.gate_up_bias = problem.down_bias = true;
  problem.shared = SharedInput::kIo;
  int down_biases = 0;
  int shared = 0;
  for (std::int64_t rank = 0; rank < 6; ++rank) {
    Shard shard;
    shard.tp_rank = rank % 3;
    shard.tp_size = 3;
    shard.ep_rank = rank / 3;
    shard.ep_size = 2;
    const Problem local = local_problem(problem, shard).value();
    EXPECT_EQ(local.num_experts, 128);
    EXPECT_EQ(local.router_experts, 256);
    EXPECT_TRUE(local.expert_map);
    EXPECT_TRUE(local.gate_up_bias);
    EXPECT_EQ(output_dtype(local), DType::kF32);
    down_biases += local.down_bias ? 1 : 0;
    shared += local.shared != SharedInput::kNone ? 1 : 0;
  }
  EXPECT_EQ(down_biases, 2);  // once for every expert: TP rank 0 of each EP rank
  EXPECT_EQ(shared, 1);
  Shard in_io = tp(0, 2);
  in_io.out_dtype.reset();
  EXPECT_EQ(output_dtype(local_problem(problem, in_io).value()), DType::kBf16);
}

TEST(Shards, EmptyRanksAreRefusedWithTheLegalSizes) {
  Problem problem = glm();
  problem.intermediate_size = 64;
  const Status columns = shard_columns(problem, tp(0, 16)).status();
  EXPECT_EQ(columns.code(), StatusCode::kUnsupported);
  EXPECT_EQ(message(columns),
            "tp size 16 leaves ranks without columns: intermediate_size 64 has 8 units of 8; legal "
            "sizes are 1..8, even shares at 1, 2, 4, 8");
  EXPECT_EQ(local_problem(problem, tp(0, 16)).status().code(), StatusCode::kUnsupported);
  const Status experts = shard_experts(problem, ep(0, 257)).status();
  EXPECT_EQ(experts.code(), StatusCode::kUnsupported);
  EXPECT_NE(message(experts).find("num_experts 256; legal sizes are 1..256"), std::string::npos);
  Shard empty = tp(0, 2);
  empty.columns = ColumnRange{16, 16};
  EXPECT_EQ(shard_columns(problem, empty).status().code(), StatusCode::kUnsupported);
}

TEST(Shards, BadRanksColumnsAndExpertsAreNamed) {
  const Problem problem = glm();
  EXPECT_EQ(message(shard_columns(problem, tp(3, 3)).status()),
            "tp rank 3 of 3, expected 0 <= rank < size");
  EXPECT_EQ(message(shard_experts(problem, ep(-1, 2)).status()),
            "ep rank -1 of 2, expected 0 <= rank < size");
  Shard shard = tp(0, 2);
  shard.columns = ColumnRange{4, 16};
  EXPECT_NE(message(shard_columns(problem, shard).status()).find("columns 4..16"),
            std::string::npos);
  shard.columns = ColumnRange{0, 2056};
  EXPECT_FALSE(shard_columns(problem, shard).has_value());
  shard = ep(0, 2);
  shard.experts = {3, 7, 3};
  EXPECT_EQ(message(shard_experts(problem, shard).status()), "shard expert 3 is named twice");
  shard.experts = {256};
  EXPECT_EQ(message(shard_experts(problem, shard).status()), "shard expert 256, the layer has 256");
  Problem part = local_problem(problem, ep(0, 2)).value();
  EXPECT_EQ(local_problem(part, tp(0, 2)).status().code(), StatusCode::kInvalidArgument);
}

TEST(Shards, OffsetOfTheGroupIsPartOfTheLayout) {
  Problem problem = glm();
  problem.intermediate_size = 2056;
  const Plan even = make_plan(local_problem(problem, tp(0, 2)).value(), host_cpu()).value();
  const Plan odd = make_plan(local_problem(problem, tp(1, 2)).value(), host_cpu()).value();
  EXPECT_EQ(even->layout_id, "cpu.panel16.nvfp4.h6144.i1024.gated");
  EXPECT_EQ(odd->layout_id, "cpu.panel16.nvfp4.h6144.i1032.gated");
  Shard shifted = tp(1, 2);
  shifted.columns = ColumnRange{1032, 2056};
  const Plan offset = make_plan(local_problem(problem, shifted).value(), host_cpu()).value();
  EXPECT_EQ(offset->layout_id, "cpu.panel16.nvfp4.h6144.i1024.o8.gated");
  for (const std::int64_t bad : {-8, 4, 16}) {
    Problem wrong = problem;
    wrong.down_group_offset = bad;
    EXPECT_EQ(validate_problem(wrong).code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(Shards, PrepareRefusesAnotherOffsetThanThePlans) {
  LayerUnderTest layer = LayerUnderTest::make("recipe=w4a16_nvfp4 h=64 i=48 e=2 k=1 m=1 seed=3");
  Shard shard;
  shard.columns = ColumnRange{8, 40};
  const ExpertsSource source = shard_source(layer.problem(), shard, layer.weights.prepared).value();
  EXPECT_EQ(source.experts[0].down.group_offset, 8);
  Problem local = local_problem(layer.problem(), shard).value();
  EXPECT_TRUE(moekit::prepare(make_plan(local, host_cpu()).value(), source).has_value());
  local.down_group_offset = 0;
  const Status refused = moekit::prepare(make_plan(local, host_cpu()).value(), source).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(message(refused).find("down begins 8 columns inside a scale group, the plan's down 0"),
            std::string::npos)
      << message(refused);
}

// The columns 24..88 of expert 2's down and such rows of its up, packed for `device` and read back.
void expect_columns_come_back(const std::string& recipe, const DeviceDescriptor& device) {
  LayerUnderTest layer = LayerUnderTest::make("h=40 i=120 e=3 k=1 m=1 recipe=" + recipe);
  Shard shard;
  shard.columns = ColumnRange{24, 88};
  shard.experts = {2, 0};
  const ExpertsSource source = shard_source(layer.problem(), shard, layer.weights.prepared).value();
  ASSERT_EQ(source.experts.size(), 2U);
  const Plan plan = make_plan(local_problem(layer.problem(), shard).value(), device).value();
  const PackedExperts packed = moekit::prepare(plan, source).value();
  std::vector<std::byte> storage;
  const ExpertWeights back = unpack_expert(packed, 0, storage).value();
  std::vector<float> part(64);
  std::vector<float> whole(120);
  for (std::int64_t row = 0; row < 40; ++row) {
    ASSERT_TRUE(decode_row(back.down, row, part).ok());
    ASSERT_TRUE(decode_row(layer.weights.prepared.experts[2].down, row, whole).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 24)) << recipe << " " << row;
  }
  std::vector<float> back_row(40);
  std::vector<float> whole_row(40);
  for (std::int64_t row = 0; row < 64; ++row) {
    ASSERT_TRUE(decode_row(back.up, row, back_row).ok());
    ASSERT_TRUE(decode_row(layer.weights.prepared.experts[2].up, row + 24, whole_row).ok());
    EXPECT_EQ(back_row, whole_row) << recipe << " " << row;
  }
}

TEST(Shards, UnpackedShardGivesBackItsColumns) {
  for (const RecipeInfo& info : kRecipes) {
    expect_columns_come_back(std::string(info.name), host_cpu());
  }
  for (const char* const recipe : {"w4a16_nvfp4", "w4a16_mxfp4"}) {
    for (const char* const gpu : {"sm_90a", "sm_120a"}) {
      expect_columns_come_back(recipe, device_from_name(gpu).value());
    }
  }
}

}  // namespace
}  // namespace moekit::tests
