// SPDX-License-Identifier: Apache-2.0

// The sm_90a column: names, rungs, grids and workspace as functions of problem and device, and what
// a launch does with them.

#include "kernels/decode_gemv/planner_cuda.h"

#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "moekit/plan.h"

#include "kernels/decode_gemv/args.h"
#include "kernels/decode_gemv/geometry.h"
#include "kernels/decode_gemv/launch_cuda.h"
#include "kernels/decode_gemv/planner.h"
#include "kernels/decode_gemv/variants.h"

namespace moekit::kernels::decode_gemv {
namespace {

DeviceDescriptor sm90(std::int64_t num_sms = 132) {
  DeviceDescriptor device = *device_from_name("sm_90a");
  device.num_sms = num_sms;
  return device;
}

Problem glm_tp8(std::int64_t num_tokens = 64) {
  Problem problem;
  problem.num_tokens = num_tokens;
  problem.num_experts = 256;
  problem.top_k = 8;
  problem.hidden_size = 6144;
  problem.intermediate_size = 256;
  problem.recipe = Recipe::kW4a16Nvfp4;
  return problem;
}

Plan planned(const Problem& problem,
             const DeviceDescriptor& device = sm90(),
             const PlanOverrides& overrides = {}) {
  Result<Plan> plan = make_plan(problem, device, overrides);
  EXPECT_TRUE(plan.has_value()) << plan.status().to_string();
  return *plan;
}

TEST(CudaPlanning, ACallWithoutTokensIsPlanned) {
  const Plan plan = planned(glm_tp8(0), sm90(), {.family = ExecutionFamily::kDirect});
  EXPECT_GE(plan.rung(0)->steps.size(), 2U);
  EXPECT_GE(planned(glm_tp8(1)).rung(0)->steps.size(), 2U);
}

// What the direct family alone says: without the pin, planned grouped steps take over.
std::string refusal(const Problem& problem, PlanOverrides overrides = {}) {
  overrides.family = ExecutionFamily::kDirect;
  const Result<Plan> plan = make_plan(problem, sm90(), overrides);
  EXPECT_FALSE(plan.has_value());
  return plan.has_value() ? std::string() : std::string(plan.status().message());
}

TEST(Variants, NamesAreReadBackAndNoOthers) {
  std::set<std::string> names;
  for (const std::int32_t group_size : {16, 32}) {
    for (const Role role : {Role::kGateUp, Role::kDown}) {
      for (const VariantRow& row : variant_rows(role)) {
        Variant variant = row.variant;
        variant.spec.group_size = group_size;
        EXPECT_EQ(why_invalid(variant.spec), nullptr) << tile_name(variant);
        const std::string name = kernel_name(variant);
        const std::optional<Variant> read = variant_from_name(name);
        ASSERT_TRUE(read.has_value()) << name;
        EXPECT_EQ(kernel_name(*read), name);
        names.insert(name);
      }
    }
  }
  EXPECT_GE(names.size(), 18U);
  for (const char* name : {"",
                           "decode_gemv.w4a16_nvfp4.gate_up_w24r1k4a2c8i0b1",
                           "decode_gemv.w4a16_nvfp4.gate_up_w24r1k4a2c8i0b1.sm80",
                           "decode_gemv.w4a16_nvfp4.gate_up_w24r1k4a2c8i0b1x2.sm90a",
                           "decode_gemv.w4a16_nvfp4.down_w24r1k4a2c8i0b1.sm90a",
                           "decode_gemv.w4a16_nvfp4.down_w24r1k4a2c8i0b1x9.sm90a",
                           "decode_gemv.w4a16_nvfp4.gate_up_w24r1k4a2c9i0b1.sm90a",
                           "decode_gemv.w16a16.gate_up_w24r1k4a2c8i0b1.sm90a",
                           "grouped_gemm.w4a16_nvfp4.gate_up_w24r1k4a2c8i0b1.sm90a"}) {
    EXPECT_FALSE(variant_from_name(name).has_value()) << name;
    EXPECT_EQ(kCuda.source(name).status().code(), StatusCode::kInvalidArgument) << name;
  }
}

TEST(Variants, SourcesAreTheCatalogues) {
  const std::vector<plan::KernelSource> sources = kCuda.catalog(Arch::kSm90a);
  EXPECT_GE(sources.size(), 18U);
  for (const plan::KernelSource& source : sources) {
    EXPECT_EQ(*kCuda.source(source.kernel), source);
    EXPECT_LE(source.smem_bytes, 227 * 1024);
    const Result<plan::SelfTest> test = kCuda.self_test(source.kernel);
    ASSERT_TRUE(test.has_value()) << test.status().to_string();
    EXPECT_LE(test->geometry.smem_bytes, std::max(source.smem_bytes - kStaticSmemBytes, 0L));
    EXPECT_EQ(test->arguments.size(),
              source.kernel == kCastKernel        ? sizeof(CastArgs)
              : resident_from_name(source.kernel) ? sizeof(ResidentArgs)
                                                  : sizeof(Args));
  }
  EXPECT_TRUE(kCuda.catalog(Arch::kSm80).empty());
}

TEST(CudaPlanning, TwoStepsWithoutABarrierEveryRungFromTheTables) {
  const Plan plan = planned(glm_tp8());
  EXPECT_EQ(plan->layout_id, "sm90.tile16x64.nvfp4.h6144.i256.gated");
  EXPECT_EQ(plan->aux_stream_overlap.verdict, OverlapVerdict::kSafe);
  EXPECT_TRUE(plan->deterministic);
  EXPECT_GE(plan->ladder.size(), 2U);
  std::int64_t next = 0;
  for (const Rung& rung : plan->ladder) {
    EXPECT_EQ(rung.m_min, next);
    next = rung.m_max + 1;
    ASSERT_EQ(rung.steps.size(), 2U);
    EXPECT_FALSE(rung.steps[0].pdl_edge);
    EXPECT_TRUE(rung.steps[1].pdl_edge);
    EXPECT_EQ(rung.family, ExecutionFamily::kDirect);
    for (const Step& step : rung.steps) {
      const std::optional<Variant> variant = variant_from_name(step.kernel);
      ASSERT_TRUE(variant.has_value()) << step.kernel;
      EXPECT_EQ(step.block.x, num_threads(variant->spec));
      EXPECT_EQ(step.grid.x % variant->cluster, 0);
      EXPECT_EQ(step.status, StepStatus::kMeasured) << step.kernel;
    }
  }
  EXPECT_EQ(next, 65);
  EXPECT_EQ(*Plan::from_json(*plan.to_json(8)), plan);
}

TEST(Variants, ResidentNamesAreReadBackAndNoOthers) {
  std::size_t pairs = 0;
  for (const VariantRow& gate_up : variant_rows(Role::kGateUp)) {
    for (const VariantRow& down : variant_rows(Role::kDown)) {
      const std::string name = kernel_name(ResidentVariant{gate_up.variant, down.variant});
      const std::optional<ResidentVariant> read = resident_from_name(name);
      ASSERT_TRUE(read.has_value()) << name;
      EXPECT_EQ(kernel_name(*read), name);
      EXPECT_FALSE(variant_from_name(name).has_value());
      ++pairs;
    }
  }
  EXPECT_GE(pairs, 20U);
  for (const char* name :
       {"decode_gemv.w4a16_nvfp4.resident_w24r1k4a2c8i0b1.sm90a",
        "decode_gemv.w4a16_nvfp4.resident_w24r1k4a2c8i0b1_w24r1k4a2c8i0b1.sm90a",
        "decode_gemv.w4a16_nvfp4.resident_w24r1k4a2c8i0b1x1_w24r1k4a2c8i0b1x1.sm90a",
        "decode_gemv.w4a16_nvfp4.resident_w24r1k4a2c8i0b1_w24r1k4a2c8i0b1x2.sm80",
        "decode_gemv.w4a16_nvfp4.gate_up_w24r1k4a2c8i0b1.sm90a"}) {
    EXPECT_FALSE(resident_from_name(name).has_value()) << name;
  }
}

TEST(CudaPlanning, ResidentIsOneCooperativeStepOfTheDefaultsShares) {
  const Plan two = planned(glm_tp8());
  const Plan one = planned(glm_tp8(), sm90(), {.resident = true});
  EXPECT_EQ(one->layout_id, two->layout_id);
  EXPECT_EQ(one->aux_stream_overlap.verdict, OverlapVerdict::kJoinFirst);
  ASSERT_EQ(one->ladder.size(), two->ladder.size());
  for (std::size_t i = 0; i < one->ladder.size(); ++i) {
    const Rung& rung = one->ladder[i];
    EXPECT_EQ(rung.m_max, two->ladder[i].m_max);
    EXPECT_EQ(rung.concurrency.launches, 1);
    EXPECT_TRUE(rung.concurrency.grid_barrier && rung.concurrency.cooperative);
    EXPECT_FALSE(rung.concurrency.atomics);
    EXPECT_TRUE(rung.deterministic);
    ASSERT_EQ(rung.steps.size(), 1U);
    const Step& step = rung.steps[0];
    const Step& gate_up = two->ladder[i].steps[0];
    const Step& down = two->ladder[i].steps[1];
    const ResidentVariant variant = *resident_from_name(step.kernel);
    EXPECT_EQ(kernel_name(variant.gate_up), gate_up.kernel);
    EXPECT_EQ(kernel_name(variant.down), down.kernel);
    EXPECT_EQ(step.grid.x, gate_up.grid.x);
    EXPECT_EQ(step.block.x, std::max(gate_up.block.x, down.block.x));
    EXPECT_EQ(step.smem_bytes, std::max(gate_up.smem_bytes, down.smem_bytes));
    EXPECT_EQ(step.status, StepStatus::kCompiled);
  }
  const auto barrier =
      std::count_if(one->workspace.begin(), one->workspace.end(), [](const WorkspaceSlice& slice) {
        return slice.name == "grid_barrier" && slice.bytes == 4;
      });
  EXPECT_EQ(barrier, 1);
  EXPECT_EQ(one.workspace_bytes() - two.workspace_bytes(), 256);
}

TEST(CudaPlanning, ResidentIsRefusedWithValuesWhereOneLaunchCannotBe) {
  const auto contains = [](const std::string& text, std::string_view part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(refusal(glm_tp8(), {.resident = true, .pdl_first = true}), "pin pdl_first");
  Problem crowded = glm_tp8();
  crowded.num_experts = 32;  // more than four routes an expert from M 17 on
  contains(refusal(crowded, {.resident = true}), "one launch exists for tiles of c8");
  contains(refusal(crowded, {.resident = true}), "nearest: M 16");
  crowded.num_tokens = 16;
  EXPECT_EQ(planned(crowded, sm90(), {.resident = true}).rung(16)->steps.size(), 1U);
  const Result<Plan> odd = make_plan(glm_tp8(8),
                                     sm90(131),
                                     {.family = ExecutionFamily::kDirect,
                                      .tile = "w24r1k4a2c8i0b1+w24r1k4a2c8i0b1x2",
                                      .resident = true});
  contains(odd.status().to_string(), "131 blocks in clusters of 2 leave one over");
}

TEST(CudaPlanning, OtherTypesOfXAreRoundedByAStepOfTheirOwn) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    Problem problem = glm_tp8(16);
    problem.io_dtype = dtype;
    for (const bool resident : {false, true}) {
      const Plan plan = planned(problem, sm90(), {.resident = resident});
      const std::vector<Step>& steps = plan.rung(16)->steps;
      ASSERT_EQ(steps.size(), resident ? 2U : 3U);
      EXPECT_EQ(steps[0].kernel, kCastKernel);
      EXPECT_EQ(steps[0].grid, (Dim3{24, plan.rung(16)->m_max, 1}));
      EXPECT_FALSE(steps[0].pdl_edge);
      const auto operand = std::find_if(
          plan->workspace.begin(), plan->workspace.end(), [](const WorkspaceSlice& slice) {
            return slice.name == "x_operand";
          });
      ASSERT_NE(operand, plan->workspace.end());
      EXPECT_EQ(operand->bytes, 16 * 6144 * 2);
    }
    const std::vector<Step> chained = planned(problem, sm90(), {.pdl_first = true}).rung(16)->steps;
    EXPECT_TRUE(chained[0].pdl_edge);
    EXPECT_FALSE(chained[1].pdl_edge);
    EXPECT_TRUE(chained[2].pdl_edge);
  }
}

TEST(CudaPlanning, GridsFollowTheDevice) {
  const Plan small = planned(glm_tp8(), sm90(66));
  const Plan large = planned(glm_tp8(), sm90(132));
  EXPECT_EQ(small.rung(64)->steps[0].grid.x * 2, large.rung(64)->steps[0].grid.x);
}

TEST(CudaPlanning, WorkspaceIsMonotoneAndBounded) {
  std::int64_t before = 0;
  for (std::int64_t tokens = 1; tokens <= 64; ++tokens) {
    const std::int64_t bytes = planned(glm_tp8(tokens)).workspace_bytes();
    EXPECT_GE(bytes, before) << tokens;
    before = bytes;
  }
  // reference.md 4.6: less than 16 MiB.
  Problem problem = glm_tp8();
  problem.num_experts = 160;
  problem.intermediate_size = 512;
  EXPECT_LT(planned(problem).workspace_bytes(), 16 << 20);
}

TEST(CudaPlanning, EverythingUpToTheLimitsIsServed) {
  int planned_count = 0;
  for (const Recipe recipe : {Recipe::kW4a16Nvfp4, Recipe::kW4a16Mxfp4}) {
    for (const std::int64_t experts : {1, 8, 32, 256, 1024}) {
      for (const std::int64_t top_k : {1, 2, 8, 32}) {
        for (const std::int64_t inner : {8, 112, 2048, 14336}) {
          for (const std::int64_t hidden : {8, 2880, 16384}) {
            Problem problem = glm_tp8();
            problem.recipe = recipe;
            problem.num_experts = experts;
            problem.top_k = std::min(top_k, experts);
            problem.intermediate_size = inner;
            problem.hidden_size = hidden;
            const Result<Plan> plan = make_plan(problem, sm90());
            ASSERT_TRUE(plan.has_value()) << plan.status().to_string();
            ++planned_count;
          }
        }
      }
    }
  }
  EXPECT_EQ(planned_count, 480);
}

TEST(CudaPlanning, RefusalsNameValuesAndWhatIsThere) {
  const auto contains = [](const std::string& text, std::string_view part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  Problem problem = glm_tp8();
  problem.batch_invariant = true;
  contains(refusal(problem), "batch_invariant");
  contains(refusal(glm_tp8(65)), "M 65, at most 64 tokens a call");
  contains(refusal(glm_tp8(), {.route_block_rows = 16}), "route_block_rows=16");
  contains(refusal(glm_tp8(), {.tile = "m4n16"}), "pin tile=m4n16, expected GATE_UP+DOWN");
  contains(refusal(glm_tp8(), {.tile = "m4n16"}), "w24r1k4a2c8i0b1");
  problem = glm_tp8();
  problem.routing = Routing{.num_experts = 256, .top_k = 8};
  contains(refusal(problem, {.pdl_first = true}), "pin pdl_first");
  DeviceDescriptor device = sm90();
  device.smem_per_block_bytes = 49152;
  contains(make_plan(glm_tp8(), device, {.family = ExecutionFamily::kDirect}).status().to_string(),
           "no variant fits 49152 bytes of shared memory at M 64");
  device = *device_from_name("sm_100a");
  EXPECT_EQ(planned(glm_tp8(), device).rung(1)->steps[0].status, StepStatus::kPlanned);
}

TEST(CudaPlanning, PinsAreHonoured) {
  const Plan tile = planned(glm_tp8(), sm90(), {.tile = "w16r2k4a1c16i1b1+w24r1k4a2c8i0b1x2"});
  // One kernel; down's shared memory grows once, when its table of results does.
  EXPECT_LE(tile->ladder.size(), 2U);
  EXPECT_EQ(tile.rung(1)->steps[0].kernel,
            "decode_gemv.w4a16_nvfp4.gate_up_w16r2k4a1c16i1b1.sm90a");
  EXPECT_EQ(tile.rung(1)->steps[1].kernel, "decode_gemv.w4a16_nvfp4.down_w24r1k4a2c8i0b1x2.sm90a");
  EXPECT_TRUE(planned(glm_tp8(), sm90(), {.pdl_first = true}).rung(1)->steps[0].pdl_edge);
}

/// What run hands the family, with addresses that are never read.
struct FakeCall {
  explicit FakeCall(const Plan& wanted) : plan(wanted) {
    const Problem& problem = plan.problem();
    layout = *plan::packed_layout(problem, plan->device);
    const auto at = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
    arguments.x = matrix_view(static_cast<const void*>(at(0x10000)),
                              DType::kBf16,
                              problem.num_tokens,
                              problem.hidden_size);
    arguments.topk_ids = matrix_view(
        static_cast<const void*>(at(0x20000)), DType::kI64, problem.num_tokens, problem.top_k);
    arguments.topk_weights = matrix_view(
        static_cast<const void*>(at(0x30000)), DType::kF32, problem.num_tokens, problem.top_k);
    arguments.out = matrix_view(at(0x40000), DType::kBf16, problem.num_tokens, problem.hidden_size);
    call.plan = &*plan;
    call.arguments = &arguments;
    call.weights = {&layout, static_cast<const std::byte*>(at(0x100000))};
    call.slices.fill(static_cast<std::byte*>(at(0x50000)));
  }

  Args launch(const Step& step, std::int64_t begin, std::int64_t tokens, plan::Launch& out) {
    call.step = &step;
    call.token_begin = begin;
    call.num_tokens = tokens;
    const Status status = kCuda.launch(call, out);
    EXPECT_TRUE(status.ok()) << status.to_string();
    Args args{};
    EXPECT_EQ(out.arguments.bytes().size(), sizeof(args));
    std::memcpy(&args, out.arguments.bytes().data(), sizeof(args));
    return args;
  }

  Plan plan;
  plan::PackedLayout layout;
  RunArguments arguments{};
  plan::CudaCall call;
};

std::int64_t slice_bytes(const Plan& plan, std::string_view name) {
  for (const WorkspaceSlice& slice : plan->workspace) {
    if (slice.name == name) {
      return slice.bytes;
    }
  }
  return 0;
}

/// What a down launch may write beyond shared memory lies within the slice.
void expect_spill_fits(const Plan& plan, const Step& step, const Args& args) {
  const std::int64_t routes = std::int64_t{args.num_tokens} * args.top_k;
  if (args.result_rows >= routes) {
    return;
  }
  const Variant variant = *variant_from_name(step.kernel);
  if (splits_steps(variant.spec)) {
    const std::int64_t groups = (args.hidden + 255) / 256;
    EXPECT_GE(slice_bytes(plan, "grid_barrier"), groups * 8);
    EXPECT_LE((routes * groups + step.grid.x * variant.spec.max_columns) * 1024,
              slice_bytes(plan, "scratch"));
    return;
  }
  const std::int64_t clusters = step.grid.x / variant.cluster;
  const std::int64_t tiles = device::fp4_row_tiles(args.hidden, 1);
  const std::int64_t rows = (tiles + clusters - 1) / clusters * 16;
  const std::int64_t row = std::int64_t{4} * result_stride(static_cast<std::int32_t>(rows));
  const std::int64_t shared = std::int64_t{variant.cluster - 1} * variant.spec.max_columns;
  EXPECT_LE(clusters * (routes + shared) * row, slice_bytes(plan, "scratch"));
}

/// One token count of a rung: every step as it would be launched.
int launch_steps(FakeCall& fake, const Rung& rung, std::int64_t tokens) {
  int launches = 0;
  for (const Step& step : rung.steps) {
    plan::Launch out;
    const Args args = fake.launch(step, 0, tokens, out);
    const Variant variant = *variant_from_name(step.kernel);
    EXPECT_LE(out.geometry.smem_bytes, step.smem_bytes);
    EXPECT_EQ(out.geometry.cluster.x, variant.cluster);
    if (variant.spec.role == Role::kDown) {
      expect_spill_fits(fake.plan, step, args);
    }
    ++launches;
  }
  return launches;
}

TEST(CudaLaunch, ManyRoutesPerExpertShareItemsAndCountersThatGateUpClears) {
  Problem problem = glm_tp8();
  problem.num_experts = 32;
  problem.intermediate_size = 2048;
  FakeCall fake(planned(problem));
  const Rung& rung = fake.plan->ladder.back();
  ASSERT_EQ(rung.steps.size(), 2U);
  for (const Step& step : rung.steps) {
    const std::optional<Variant> variant = variant_from_name(step.kernel);
    ASSERT_TRUE(variant.has_value()) << step.kernel;
    EXPECT_TRUE(shares_items(variant->spec)) << step.kernel;
    EXPECT_EQ(step.grid.x, 132);
    plan::Launch out;
    const Args args = fake.launch(step, 0, 64, out);
    EXPECT_NE(args.arrivals, nullptr);
    EXPECT_NE(args.spill, nullptr);
  }
  EXPECT_EQ(slice_bytes(fake.plan, "grid_barrier"), 6144 / 256 * 8);
}

TEST(CudaLaunch, FitsThePlanAtEveryTokenCountAndNeverSpillsBeyondTheSlice) {
  int launches = 0;
  for (const std::int64_t inner : {256, 2048}) {
    for (const std::int64_t experts : {8, 256}) {
      Problem problem = glm_tp8();
      problem.intermediate_size = inner;
      problem.num_experts = experts;
      FakeCall fake(planned(problem));
      for (const Rung& rung : fake.plan->ladder) {
        for (std::int64_t tokens = 1; tokens <= rung.m_max; ++tokens) {
          launches += launch_steps(fake, rung, tokens);
        }
      }
    }
  }
  EXPECT_GE(launches, 500);
}

TEST(CudaLaunch, ResidentGivesEachRoleWhatItsOwnLaunchGets) {
  int launches = 0;
  for (const std::int64_t inner : {256, 2048}) {
    Problem problem = glm_tp8();
    problem.intermediate_size = inner;
    FakeCall two(planned(problem));
    FakeCall one(planned(problem, sm90(), {.resident = true}));
    for (std::size_t i = 0; i < one.plan->ladder.size(); ++i) {
      const Rung& rung = two.plan->ladder[i];
      const Step& step = one.plan->ladder[i].steps[0];
      for (std::int64_t tokens = rung.m_min; tokens <= rung.m_max; ++tokens) {
        plan::Launch out;
        one.call.step = &step;
        one.call.num_tokens = tokens;
        if (tokens == 0) {
          continue;
        }
        ASSERT_TRUE(kCuda.launch(one.call, out).ok());
        ResidentArgs args{};
        ASSERT_EQ(out.arguments.bytes().size(), sizeof(args));
        std::memcpy(&args, out.arguments.bytes().data(), sizeof(args));
        EXPECT_EQ(out.cleared.begin, args.arrivals);
        EXPECT_EQ(out.cleared.size, 4U);
        for (const Role role : {Role::kGateUp, Role::kDown}) {
          plan::Launch alone;
          const Args own = two.launch(rung.steps[role == Role::kDown ? 1 : 0], 0, tokens, alone);
          const Args& within = role == Role::kDown ? args.down : args.gate_up;
          EXPECT_EQ(within.blocks, own.blocks);
          EXPECT_EQ(within.weights, own.weights);
          EXPECT_GE(within.ring_bytes, own.ring_bytes);
          EXPECT_GE(within.result_rows, own.result_rows);
          ++launches;
        }
      }
    }
  }
  EXPECT_GE(launches, 200);
}

TEST(CudaLaunch, EverySemanticReachesTheKernel) {
  Problem problem = glm_tp8(8);
  problem.activation.kind = ActivationKind::kSwigluOai;
  problem.gate_up_bias = true;
  problem.down_bias = true;
  problem.routed_scaling = 2.5F;
  problem.router_weight_on_input = true;
  problem.combine_order = CombineOrder::kExpert;
  problem.shared = SharedInput::kF32;
  problem.expert_map = true;
  problem.router_experts = 512;
  FakeCall fake(planned(problem));
  fake.arguments.expert_map = reinterpret_cast<const std::int32_t*>(std::uintptr_t{0x70000});
  fake.arguments.shared = matrix_view(reinterpret_cast<const void*>(std::uintptr_t{0x80000}),
                                      DType::kF32,
                                      problem.num_tokens,
                                      problem.hidden_size);
  const std::vector<Step>& steps = fake.plan.rung(8)->steps;
  plan::Launch out;
  const Args args = fake.launch(steps[0], 2, 3, out);
  const std::byte* base = fake.call.weights.base;
  EXPECT_EQ(args.num_tokens, 3);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(args.x), 0x10000U + 2 * 6144 * 2);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(args.ids), 0x20000U + 2 * 8 * 8);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(args.route_weights), 0x30000U + 2 * 8 * 4);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(args.out), 0x40000U + 2 * 6144 * 2);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(args.shared_input), 0x80000U + 2 * 6144 * 4);
  EXPECT_EQ(args.shared_type, IoType::kF32);
  EXPECT_EQ(args.ids_are_i64, 1);
  EXPECT_EQ(args.router_experts, 512);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(args.expert_map), 0x70000U);
  EXPECT_EQ(args.weight_scale, 2.5F);
  EXPECT_EQ(args.sum_scale, 1.0F);
  EXPECT_EQ(args.weight_on_input, 1);
  EXPECT_EQ(args.expert_order, 1);
  EXPECT_EQ(args.activation.kind, device::ActivationKind::kSwigluOai);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(args.weights), base + fake.layout.gate_up.offset);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(args.up_bias), base + fake.layout.up_bias_offset);
  plan::Launch second;
  const Args down = fake.launch(steps[1], 0, 8, second);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(down.weights), base + fake.layout.down.offset);
  EXPECT_EQ(down.expert_stride_bytes, fake.layout.down.expert_stride_bytes);
}

TEST(CudaLaunch, RowsOfXMustBeWholeCopies) {
  FakeCall fake(planned(glm_tp8(8)));
  EXPECT_TRUE(kCuda.check_call(fake.call).ok());
  fake.arguments.x.data = reinterpret_cast<const void*>(std::uintptr_t{0x10008});
  EXPECT_NE(kCuda.check_call(fake.call).message().find("8 modulo 16"), std::string::npos);
  fake.arguments.x.data = reinterpret_cast<const void*>(std::uintptr_t{0x10000});
  fake.arguments.x.strides[0] = 6148;
  EXPECT_NE(kCuda.check_call(fake.call).message().find("rows 12296 bytes apart"),
            std::string::npos);
}

}  // namespace
}  // namespace moekit::kernels::decode_gemv
