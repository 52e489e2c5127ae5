// SPDX-License-Identifier: Apache-2.0

// The ladder with two made-up families, so that what is tested here is the choosing and not a
// kernel.

#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "base/text.h"
#include "plan/family.h"
#include "plan/plan_json.h"
#include "plan/workspace.h"

namespace moekit::plan {
namespace {

Step make_step(const FamilyContext& context, std::string_view family, std::string_view role) {
  Step step;
  step.family = std::string(family);
  step.kernel = make_kernel_name({step.family,
                                  std::string(recipe_info(context.problem.recipe).name),
                                  std::string(role),
                                  kernel_arch(context.device)});
  return step;
}

Verdict accept_all(const FamilyContext&, std::int64_t, std::int64_t) {
  return Verdict::accept(1.0);
}

Verdict refuse_large(const FamilyContext&, std::int64_t, std::int64_t m_max) {
  return m_max > 8 ? Verdict::refuse(base::cat("m ", m_max, " > 8")) : Verdict::accept(1.0);
}

std::vector<std::int64_t> breaks_at_two(const FamilyContext&) {
  return {2};
}

std::vector<SliceRequest> direct_slices(const FamilyContext& context, std::int64_t tokens) {
  return {{SliceId::kIntermediate, tokens * context.problem.top_k * 2}, {SliceId::kScratch, 4096}};
}

std::vector<SliceRequest> grouped_slices(const FamilyContext& context, std::int64_t tokens) {
  return {{SliceId::kIntermediate, tokens * context.problem.top_k * 2},
          {SliceId::kRouteOrder, tokens * context.problem.top_k * 4}};
}

std::vector<Step> direct_steps(const FamilyContext& context, std::int64_t, std::int64_t) {
  return {make_step(context, "decode_fake", "gate_up_r16"),
          make_step(context, "decode_fake", "down_r16")};
}

std::vector<Step> grouped_steps(const FamilyContext& context, std::int64_t, std::int64_t) {
  Step step = make_step(context, "grouped_fake", "all_r16");
  step.atomics = context.problem.allow_atomics;
  return {step};
}

std::vector<Step> barrier_steps(const FamilyContext& context, std::int64_t, std::int64_t) {
  Step step = make_step(context, "decode_fake", "resident_r16");
  step.grid_barrier = true;
  step.cooperative = context.overrides.resident;
  return {step};
}

constexpr KernelFamily kDirect{"decode_fake",
                               "direct",
                               FamilyJob::kExperts,
                               ExecutionFamily::kDirect,
                               refuse_large,
                               breaks_at_two,
                               direct_slices,
                               direct_steps,
                               nullptr};
constexpr KernelFamily kGrouped{"grouped_fake",
                                "grouped",
                                FamilyJob::kExperts,
                                ExecutionFamily::kGrouped,
                                accept_all,
                                nullptr,
                                grouped_slices,
                                grouped_steps,
                                nullptr};
constexpr KernelFamily kBarrier{"decode_fake",
                                "resident",
                                FamilyJob::kExperts,
                                ExecutionFamily::kDirect,
                                accept_all,
                                nullptr,
                                direct_slices,
                                barrier_steps,
                                nullptr};
constexpr const KernelFamily* kBoth[] = {&kDirect, &kGrouped};
constexpr const KernelFamily* kOnlyDirect[] = {&kDirect};
constexpr const KernelFamily* kOnlyBarrier[] = {&kBarrier, &kGrouped};

Problem problem_of(std::int64_t tokens) {
  Problem problem;
  problem.num_tokens = tokens;
  problem.num_experts = 16;
  problem.top_k = 4;
  problem.hidden_size = 64;
  problem.intermediate_size = 48;
  problem.recipe = Recipe::kW4a16Nvfp4;
  return problem;
}

DeviceDescriptor cpu() {
  DeviceDescriptor device;
  device.arch = Arch::kCpu;
  device.num_threads = 2;
  return device;
}

TEST(Choose, LadderCoversEveryTokenCountOnce) {
  const Result<Plan> plan = choose(problem_of(33), cpu(), {}, kBoth);
  ASSERT_TRUE(plan.has_value()) << plan.status().to_string();
  std::int64_t expected = 0;
  for (const Rung& rung : (*plan)->ladder) {
    EXPECT_EQ(rung.m_min, expected);
    EXPECT_GE(rung.m_max, rung.m_min);
    EXPECT_FALSE(rung.steps.empty());
    expected = rung.m_max + 1;
  }
  EXPECT_EQ(expected, 34);
  EXPECT_EQ((*plan)->ladder.size(), 3U);  // 0..2, 3..4 direct, 5..33 grouped
  EXPECT_EQ(plan->rung(4)->family, ExecutionFamily::kDirect);
  EXPECT_EQ(plan->rung(5)->family, ExecutionFamily::kGrouped);
  EXPECT_EQ(plan->rung(34), nullptr);
  EXPECT_EQ(plan->rung(-1), nullptr);
}

TEST(Choose, CapacityZeroIsAPlan) {
  const Result<Plan> plan = choose(problem_of(0), cpu(), {}, kBoth);
  ASSERT_TRUE(plan.has_value()) << plan.status().to_string();
  EXPECT_NE(plan->rung(0), nullptr);
  EXPECT_EQ(plan->rung(1), nullptr);
}

TEST(Choose, WorkspaceIsMonotoneAndDisjoint) {
  std::int64_t last = 0;
  for (std::int64_t tokens = 0; tokens <= 64; ++tokens) {
    const Result<Plan> plan = choose(problem_of(tokens), cpu(), {}, kBoth);
    ASSERT_TRUE(plan.has_value());
    EXPECT_GE(plan->workspace_bytes(), last) << tokens;
    last = plan->workspace_bytes();
    std::int64_t end = 0;
    for (const WorkspaceSlice& slice : (*plan)->workspace) {
      EXPECT_GE(slice.offset, end) << slice.name;
      EXPECT_EQ(slice.offset % static_cast<std::int64_t>(kWorkspaceAlignment), 0) << slice.name;
      end = slice.offset + slice.bytes;
    }
    EXPECT_LE(end, plan->workspace_bytes());
  }
  EXPECT_GT(last, 4096);
}

TEST(Choose, PinnedFamilyIsHonouredOrRefusedWithItsReason) {
  PlanOverrides pins;
  pins.family = ExecutionFamily::kGrouped;
  const Result<Plan> grouped = choose(problem_of(4), cpu(), pins, kBoth);
  ASSERT_TRUE(grouped.has_value());
  EXPECT_EQ((*grouped)->ladder.size(), 1U);
  EXPECT_EQ(grouped->rung(1)->family, ExecutionFamily::kGrouped);
  pins.family = ExecutionFamily::kDirect;
  const Result<Plan> direct = choose(problem_of(64), cpu(), pins, kBoth);
  ASSERT_FALSE(direct.has_value());
  EXPECT_EQ(direct.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(direct.status().message().find("decode_fake: m 64 > 8"), std::string_view::npos)
      << direct.status().to_string();
}

TEST(Choose, NoFamilyGivesEveryReason) {
  const Result<Plan> plan = choose(problem_of(64), cpu(), {}, kOnlyDirect);
  ASSERT_FALSE(plan.has_value());
  EXPECT_NE(plan.status().message().find("m 64 > 8"), std::string_view::npos);
}

TEST(Choose, BoundedWorkspaceCutsIntoChunksOrRefuses) {
  Problem problem = problem_of(1000);
  const std::int64_t unbounded = choose(problem, cpu(), {}, kBoth)->workspace_bytes();
  problem.max_workspace_bytes = 8192;
  ASSERT_GT(unbounded, problem.max_workspace_bytes);
  const Result<Plan> plan = choose(problem, cpu(), {}, kBoth);
  ASSERT_TRUE(plan.has_value()) << plan.status().to_string();
  EXPECT_LE(plan->workspace_bytes(), problem.max_workspace_bytes);
  EXPECT_LT(plan->rung(1000)->chunk_tokens, 1000);
  EXPECT_GE(plan->rung(1000)->chunk_tokens, 1);
  problem.max_workspace_bytes = 64;
  const Result<Plan> refused = choose(problem, cpu(), {}, kBoth);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.status().message().find("max_workspace_bytes 64 is below"),
            std::string_view::npos);
}

TEST(Choose, DeterminismAndOverlapFollowFromTheSteps) {
  Problem problem = problem_of(64);
  EXPECT_TRUE((*choose(problem, cpu(), {}, kBoth))->deterministic);
  problem.allow_atomics = true;
  const Result<Plan> atomic = choose(problem, cpu(), {}, kBoth);
  EXPECT_FALSE((*atomic)->deterministic);
  EXPECT_TRUE(atomic->rung(4)->deterministic);
  EXPECT_FALSE(atomic->rung(5)->deterministic);
  EXPECT_EQ((*atomic)->aux_stream_overlap.verdict, OverlapVerdict::kSafe);

  PlanOverrides resident;
  resident.resident = true;
  const DeviceDescriptor gpu = *device_from_name("sm_90a");
  const Result<Plan> joined = choose(problem, gpu, resident, kOnlyBarrier);
  ASSERT_TRUE(joined.has_value()) << joined.status().to_string();
  EXPECT_EQ((*joined)->aux_stream_overlap.verdict, OverlapVerdict::kJoinFirst);
  EXPECT_NE((*joined)->aux_stream_overlap.reason.find("resident_r16"), std::string::npos);
  const Result<Plan> unsafe = choose(problem, gpu, {}, kOnlyBarrier);
  ASSERT_FALSE(unsafe.has_value());  // never planned
  EXPECT_EQ(unsafe.status().code(), StatusCode::kInternal);
}

TEST(PlanJson, RoundTripsRandomProblems) {
  std::mt19937 random(7);
  int checked = 0;
  for (int i = 0; i < 200; ++i) {
    Problem problem = problem_of(static_cast<std::int64_t>(random() % 200));
    problem.activation.kind = static_cast<ActivationKind>(random() % 5);
    if (problem.activation.kind == ActivationKind::kSwigluOai) {
      problem.activation.alpha = 1.702F;
      problem.activation.limit = 0.1F * static_cast<float>(1 + random() % 100);
    }
    problem.routed_scaling = 1.0F / static_cast<float>(1 + random() % 7);
    problem.shared = static_cast<SharedInput>(random() % 3);
    problem.io_dtype = std::array{DType::kBf16, DType::kF16, DType::kF32}[random() % 3];
    if (random() % 2 != 0) {
      problem.routing = Routing{Scoring::kSigmoid, 16, 4, 4, 2, true, 2.5F, true};
    }
    problem.routing.reset();  // no fake route family; the field itself is covered below
    const Result<Plan> plan = choose(problem, cpu(), {}, kBoth);
    ASSERT_TRUE(plan.has_value()) << plan.status().to_string();
    const Result<Plan> back = read_plan_json(*plan->to_json(problem.num_tokens));
    ASSERT_TRUE(back.has_value()) << back.status().to_string();
    EXPECT_EQ(*back, *plan);
    EXPECT_EQ(back->hash(), plan->hash());
    EXPECT_EQ(*back->to_text(1), *plan->to_text(1));
    ++checked;
  }
  EXPECT_EQ(checked, 200);
}

TEST(PlanJson, EveryFieldSurvives) {
  PlanData content;
  content.problem = problem_of(5);
  content.problem.routing = Routing{Scoring::kSigmoid, 16, 4, 4, 2, true, 2.5F, true};
  content.problem.expert_map = true;
  content.problem.router_experts = 32;
  content.overrides = {ExecutionFamily::kDirect, 16, "n64", true, true};
  content.device = *device_from_name("sm_90a");
  content.layout_id = "layout";
  Step step;
  step.family = "f";
  step.kernel = "f.r.t.a";
  step.grid = {1, 2, 3};
  step.block = {4, 5, 6};
  step.smem_bytes = 7;
  step.status = StepStatus::kMeasured;
  step.grid_barrier = step.cooperative = step.atomics = step.pdl_edge = true;
  content.ladder = {{0,
                     5,
                     2,
                     ExecutionFamily::kGrouped,
                     {step},
                     false,
                     {1, true, true, true, 6, 1},
                     {OverlapVerdict::kJoinFirst, "rung"}}};
  content.workspace = {{"scratch", 256, 512}};
  content.workspace_bytes = 768;
  content.deterministic = false;
  content.concurrency = {1, true, true, true, 132, 1};
  content.aux_stream_overlap = {OverlapVerdict::kJoinFirst, "because"};
  content.refused = {{"g", "reason"}};
  content.prepare = {PreparePolicy::kViewSource, 11, 12};
  content.notes = {"note"};
  const Plan plan(std::make_shared<const PlanData>(content));
  const Result<Plan> back = read_plan_json(*plan.to_json(3));
  ASSERT_TRUE(back.has_value()) << back.status().to_string();
  EXPECT_TRUE(*back == plan);
}

TEST(PlanJson, BadTextIsAnErrorWithItsPlace) {
  EXPECT_EQ(read_plan_json("[1]").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read_plan_json("{").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read_plan_json(R"({"schema": 99})").status().message(),
            "plan schema 99; this library reads 1");
  EXPECT_NE(read_plan_json(R"({"schema": 1})").status().message().find("problem"),
            std::string_view::npos);
  std::string json = *choose(problem_of(4), cpu(), {}, kBoth)->to_json(1);
  json.replace(json.find("w4a16_nvfp4"), 11, "w4a17_nvfp4");
  EXPECT_NE(read_plan_json(json).status().message().find("w4a17_nvfp4"), std::string_view::npos);
}

TEST(KernelName, RoundTripAndRefusals) {
  const KernelName name{"decode_gemv", "w4a16_nvfp4", "gate_up_r16", "avx2"};
  const std::string text = make_kernel_name(name);
  EXPECT_EQ(text, "decode_gemv.w4a16_nvfp4.gate_up_r16.avx2");
  const Result<KernelName> back = parse_kernel_name(text);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(make_kernel_name(*back), text);
  for (const char* bad : {"", "a", "a.b.c", "a.b.c.d.e", "a..c.d", "a.b.c."}) {
    EXPECT_FALSE(parse_kernel_name(bad).has_value()) << bad;
  }
}

TEST(Slices, NamesRoundTrip) {
  for (std::size_t i = 0; i < kNumSlices; ++i) {
    const auto id = static_cast<SliceId>(i);
    EXPECT_EQ(slice_from_name(slice_name(id)), id);
  }
  EXPECT_FALSE(slice_from_name("nothing").has_value());
}

}  // namespace
}  // namespace moekit::plan
