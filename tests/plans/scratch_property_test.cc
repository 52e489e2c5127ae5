// SPDX-License-Identifier: Apache-2.0

// Workspace over thousands of random problems and the shapes of public models: one number wherever
// it is asked, monotone in tokens, total over the capacity, slices disjoint, bounded by what is
// reachable.

#include <algorithm>
#include <random>

#include "tests/plans/plan_cases.h"

namespace moekit::tests {
namespace {

// Hidden size, width of an expert, experts, top-k of public models, and the widths that tensor
// parallel ranks of them have.
struct Shape {
  std::int64_t hidden;
  std::int64_t inner;
  std::int64_t experts;
  std::int64_t top_k;
};

constexpr Shape kModels[] = {
    {5120, 1536, 160, 8},  {4096, 1408, 128, 8},  {2048, 1536, 64, 4},   {6144, 2048, 256, 8},
    {7168, 2048, 256, 8},  {4096, 2048, 256, 6},  {7168, 3072, 384, 6},  {7168, 2048, 384, 8},
    {3584, 3072, 896, 16}, {2048, 768, 128, 8},   {4096, 1536, 128, 8},  {2048, 512, 512, 10},
    {3072, 1024, 256, 8},  {4096, 1024, 512, 10}, {2880, 2880, 32, 4},   {2880, 2880, 128, 4},
    {4096, 14336, 8, 2},   {6144, 16384, 8, 2},   {5120, 8192, 16, 1},   {3072, 1536, 256, 8},
    {6144, 3072, 128, 4},  {2688, 1856, 128, 6},  {1024, 2688, 512, 22}, {4096, 1280, 288, 8},
    {2816, 704, 128, 8},
};
constexpr std::int64_t kWidths[] = {64,   96,   128,  160,  176,  192,  232,  256,  320,  336, 352,
                                    384,  464,  512,  640,  672,  704,  768,  800,  896,  928, 1024,
                                    1280, 1344, 1408, 1536, 1792, 1856, 2048, 2688, 2880, 3072};
constexpr std::int64_t kExperts[] = {1,   8,   16,  20,  32,  33,  40,  41,  48,
                                     60,  62,  64,  72,  128, 129, 160, 161, 256,
                                     257, 272, 288, 384, 385, 512, 513, 576, 896};
constexpr Recipe kServed[] = {Recipe::kW4a16Nvfp4,
                              Recipe::kW4a16Mxfp4,
                              Recipe::kW16a16,
                              Recipe::kW4a4Nvfp4,
                              Recipe::kW4a8Nvfp4,
                              Recipe::kW4a8Mxfp4};
constexpr std::string_view kDevices[] = {
    "cpu:avx2", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a", "sm_121a", "sm_120a:num_sms=24"};

template <typename Range>
auto pick(const Range& range, std::mt19937& random) {
  return *(std::begin(range) +
           static_cast<std::ptrdiff_t>(random() % static_cast<unsigned>(std::size(range))));
}

Problem random_problem(std::mt19937& random) {
  const Shape model = pick(kModels, random);
  Problem problem;
  problem.recipe = pick(kServed, random);
  problem.hidden_size = model.hidden;
  problem.intermediate_size = random() % 2 == 0 ? model.inner : pick(kWidths, random);
  problem.num_experts = random() % 2 == 0 ? model.experts : pick(kExperts, random);
  problem.top_k = random() % 4 == 0 ? 1 + static_cast<std::int64_t>(random() % 22) : model.top_k;
  problem.activation.kind = static_cast<ActivationKind>(random() % 5);
  problem.io_dtype = pick(std::array{DType::kBf16, DType::kBf16, DType::kF16, DType::kF32}, random);
  problem.allow_atomics = random() % 4 == 0;
  problem.batch_invariant = random() % 8 == 0;
  problem.gate_up_bias = random() % 4 == 0;
  if (random() % 4 == 0) {
    problem.expert_map = true;
    problem.router_experts = std::min<std::int64_t>(
        1024, problem.num_experts * (1 + static_cast<std::int64_t>(random() % 8)));
  }
  problem.top_k = std::min(problem.top_k, num_router_experts(problem));
  if (random() % 3 == 0) {
    problem.routing = Routing{.num_experts = num_router_experts(problem), .top_k = problem.top_k};
  }
  return problem;
}

void expect_total_and_disjoint(const Plan& plan) {
  std::int64_t next = 0;
  for (const Rung& rung : plan->ladder) {
    ASSERT_EQ(rung.m_min, next);
    ASSERT_GE(rung.m_max, rung.m_min);
    ASSERT_FALSE(rung.steps.empty());
    ASSERT_GE(rung.chunk_tokens, std::min<std::int64_t>(rung.m_max, 1));
    next = rung.m_max + 1;
    for (const Step& step : rung.steps) {
      ASSERT_GE(step.grid.x, 1) << step.kernel;
      if (plan->device.arch != Arch::kCpu) {
        ASSERT_LE(step.smem_bytes, plan->device.smem_per_block_bytes) << step.kernel;
        ASSERT_GE(step.block.x, 32) << step.kernel;
      }
    }
  }
  ASSERT_EQ(next, plan.problem().num_tokens + 1);
  std::int64_t end = 0;
  for (const WorkspaceSlice& slice : plan->workspace) {
    ASSERT_GE(slice.offset, end) << slice.name;
    ASSERT_EQ(slice.offset % static_cast<std::int64_t>(kWorkspaceAlignment), 0) << slice.name;
    ASSERT_GT(slice.bytes, 0) << slice.name;
    end = slice.offset + slice.bytes;
  }
  ASSERT_LE(end, plan.workspace_bytes());
}

std::int64_t slice_bytes(const Plan& plan, std::string_view name) {
  for (const WorkspaceSlice& slice : plan->workspace) {
    if (slice.name == name) {
      return slice.bytes;
    }
  }
  return 0;
}

// Capacities around every kind of boundary, ascending.
std::vector<std::int64_t> capacities(std::mt19937& random) {
  std::vector<std::int64_t> tokens{0, 1, 2, 7, 8, 9, 64, 65, 1535, 1536};
  for (int i = 0; i < 6; ++i) {
    tokens.push_back(static_cast<std::int64_t>(random() % 10000));
  }
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

// A sanitizer looks for errors of memory, which the first hundreds show; it takes ten times as
// long.
#ifdef MOEKIT_SANITIZED
constexpr int kRandomProblems = 300;
constexpr std::int64_t kTokenSteps = 9;
constexpr std::int64_t kFarSteps = 391;
#else
constexpr int kRandomProblems = 3000;
constexpr std::int64_t kTokenSteps = 1;
constexpr std::int64_t kFarSteps = 97;
#endif

TEST(Scratch, MonotoneTotalAndDisjointOverRandomProblems) {
  std::mt19937 random(6);
  int problems = 0;
  int plans = 0;
  int refused = 0;
  while (problems < kRandomProblems) {
    Problem problem = random_problem(random);
    const DeviceDescriptor device = device_of(pick(kDevices, random));
    PlanOverrides overrides;
    overrides.resident = random() % 8 == 0;
    if (random() % 8 == 0) {
      overrides.route_block_rows = 16;
    }
    if (random() % 8 == 0) {
      overrides.family = ExecutionFamily::kDirect;  // far beyond where it is chosen
    }
    std::int64_t before = 0;
    ++problems;
    for (const std::int64_t tokens : capacities(random)) {
      problem.num_tokens = tokens;
      const Result<Plan> plan = make_plan(problem, device, overrides);
      const Result<std::int64_t> bytes = required_bytes(problem, device, overrides);
      ASSERT_EQ(plan.has_value(), bytes.has_value());
      if (!plan.has_value()) {
        ASSERT_EQ(plan.status().code(), StatusCode::kUnsupported) << plan.status().to_string();
        ++refused;
        break;  // a pin or combination that is refused is so at every capacity
      }
      ASSERT_EQ(plan->workspace_bytes(), *bytes);
      ASSERT_GE(plan->workspace_bytes(), before) << tokens << "\n" << *plan->to_text(tokens);
      before = plan->workspace_bytes();
      expect_total_and_disjoint(*plan);
      if (HasFatalFailure()) {
        FAIL() << *plan->to_text(tokens);
      }
      ++plans;
    }
  }
  EXPECT_GT(plans, kRandomProblems * 6);
  EXPECT_LT(refused, kRandomProblems * 6 / 10);
}

TEST(Scratch, EveryModelOnEveryDeviceThatServesIt) {
  int plans = 0;
  for (const Shape& model : kModels) {
    for (const std::string_view name : kDevices) {
      Problem problem;
      problem.recipe = Recipe::kW4a16Nvfp4;
      problem.hidden_size = model.hidden;
      problem.intermediate_size = model.inner;
      problem.num_experts = model.experts;
      problem.top_k = model.top_k;
      std::int64_t before = 0;
      for (std::int64_t tokens = 0; tokens <= 3200;
           tokens += tokens < 72 ? kTokenSteps : kFarSteps) {
        problem.num_tokens = tokens;
        const Plan plan = plan_of(problem, name);
        ASSERT_GE(plan.workspace_bytes(), before) << name << " " << tokens;
        before = plan.workspace_bytes();
        ++plans;
      }
    }
  }
  EXPECT_EQ(plans, std::int64_t{25} * 8 * (72 / kTokenSteps + (3200 - 72) / kFarSteps + 1));
}

// A variant makes way for a smaller one as the routes' tables grow in shared memory: that ends a
// rung, so a plan of more tokens has the kernels of a smaller one and needs no less.
TEST(Scratch, PinnedDirectPlansKeepTheRungsOfSmallerOnes) {
  struct Case {
    const char* device;
    Recipe recipe;
    std::int64_t experts, top_k, hidden, inner;
  };

  for (const Case& c : {Case{"sm_120a", Recipe::kW4a16Nvfp4, 512, 10, 2048, 512},
                        Case{"sm_121a:num_sms=158", Recipe::kW4a4Nvfp4, 563, 17, 512, 64},
                        Case{"sm_86", Recipe::kW4a16Nvfp4, 856, 9, 536, 240}}) {
    Problem problem;
    problem.recipe = c.recipe;
    problem.hidden_size = c.hidden;
    problem.intermediate_size = c.inner;
    problem.num_experts = c.experts;
    problem.top_k = c.top_k;
    const PlanOverrides direct{.family = ExecutionFamily::kDirect};
    problem.num_tokens = 64;
    const Plan large = plan_of(problem, c.device, direct);
    EXPECT_GT(large->ladder.size(), 1U) << c.device;
    std::int64_t before = 0;
    for (std::int64_t tokens = 1; tokens <= 64; ++tokens) {
      problem.num_tokens = tokens;
      const Plan plan = plan_of(problem, c.device, direct);
      EXPECT_GE(plan.workspace_bytes(), before) << c.device << " " << tokens;
      before = plan.workspace_bytes();
      for (std::size_t step = 0; step < 2; ++step) {
        EXPECT_EQ(plan.rung(tokens)->steps[step].kernel, large.rung(tokens)->steps[step].kernel)
            << c.device << " " << tokens;
      }
    }
  }
}

// reference.md 4.7: a capacity of 1536 needed fewer tiles than the 1535 tokens that it had to
// serve.
TEST(Scratch, CapacityServesEveryLiveCountBelowIt) {
  int compared = 0;
  for (const Recipe recipe : {Recipe::kW4a4Nvfp4, Recipe::kW4a8Mxfp4, Recipe::kW4a16Nvfp4}) {
    const Plan capacity = plan_of(glm_tp8(recipe, 1536), "sm_120a");
    for (const std::int64_t live : {1535, 1534, 1151, 921, 512, 480, 479, 64, 8, 7, 1}) {
      const Plan exact = plan_of(glm_tp8(recipe, live), "sm_120a");
      for (const WorkspaceSlice& slice : exact->workspace) {
        EXPECT_GE(slice_bytes(capacity, slice.name), slice.bytes) << slice.name << " " << live;
        ++compared;
      }
      EXPECT_NE(capacity.rung(live), nullptr);
    }
  }
  EXPECT_GT(compared, 150);
  // The route blocks of the smaller tile count: 32 rows at M 1535, 64 at 1536.
  const Plan plan = plan_of(glm_tp8(Recipe::kW4a4Nvfp4, 1536), "sm_120a");
  EXPECT_GE(slice_bytes(plan, "route_blocks"), (1535 * 8 + 256 * 31) / 32 * 4);
  EXPECT_GE(slice_bytes(plan, "route_order"), (1536 * 8 + 256 * 63) * 4);
}

TEST(Scratch, SixtyFourTokensStayBelowSixteenMebibytes) {
  Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 64);
  problem.num_experts = 160;
  problem.intermediate_size = 512;
  for (const std::string_view device : kGpus) {
    EXPECT_LT(required_bytes(problem, device_of(device)).value(), 16 << 20) << device;
  }
  // Only the block of 8 is reachable; a pinned 64 is priced as such: 160 experts * 63 pad rows.
  const std::int64_t automatic = required_bytes(problem, device_of("sm_120a")).value();
  const Plan pinned = plan_of(problem, "sm_120a", {.route_block_rows = 64});
  EXPECT_EQ(required_bytes(problem, device_of("sm_120a"), {.route_block_rows = 8}).value(),
            automatic);
  EXPECT_EQ(slice_bytes(plan_of(problem, "sm_120a"), "route_order"), 1632 * 4);
  EXPECT_EQ(slice_bytes(pinned, "route_order"), 10592 * 4);
  EXPECT_EQ(slice_bytes(pinned, "route_blocks"), 166 * 4);
  EXPECT_GT(pinned.workspace_bytes(), automatic + std::int64_t{32} * 1024);
}

TEST(Scratch, FewerExpertsThanRoutesOfAToken) {
  for (const std::string_view device : kGpus) {
    Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 2);
    problem.num_experts = 1;  // one local expert behind a router of eight: top-k exceeds it
    problem.router_experts = 8;
    problem.expert_map = true;
    problem.hidden_size = 7168;
    const Plan plan = plan_of(problem, device);
    EXPECT_GE(slice_bytes(plan, "intermediate"), 2 * 8 * 256 * 2) << device;
  }
  Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 64);
  problem.num_experts = 4;
  problem.router_experts = 16;
  problem.expert_map = true;
  const Plan grouped = plan_of(problem, "sm_120a", {.family = ExecutionFamily::kGrouped});
  // 512 routes at most, in blocks of 48; each of the four experts pads one block.
  EXPECT_EQ(slice_bytes(grouped, "route_order"), (512 + 4 * 47) * 4);
}

// reference.md 4.9: mapped direct decode of 8 tokens needed 512 slots where 176 were planned.
TEST(Scratch, MappedRoutesArePricedApart) {
  Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 8);
  problem.num_experts = 4;
  problem.router_experts = 16;
  problem.expert_map = true;
  const Plan direct = plan_of(problem, "sm_120a");
  EXPECT_EQ(direct.rung(8)->family, ExecutionFamily::kDirect);
  EXPECT_EQ(slice_bytes(direct, "route_order"), 0);  // routes are the ids themselves
  EXPECT_EQ(slice_bytes(direct, "intermediate"), 64 * 256 * 2);
  const Plan packed = plan_of(problem, "sm_120a", {.family = ExecutionFamily::kGrouped});
  EXPECT_EQ(slice_bytes(packed, "route_experts"), 64 * 4);
  Problem whole = problem;
  whole.num_experts = 16;
  whole.router_experts = 0;
  whole.expert_map = false;
  const Plan unmapped = plan_of(whole, "sm_120a", {.family = ExecutionFamily::kGrouped});
  EXPECT_EQ(slice_bytes(unmapped, "route_experts"), 0);
}

TEST(Scratch, RouteSlicesOnlyWithARouting) {
  int plans = 0;
  for (const std::string_view device : kDevices) {
    Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 64);
    EXPECT_EQ(slice_bytes(plan_of(problem, device), "topk_ids"), 0) << device;
    const std::int64_t without = plan_of(problem, device).workspace_bytes();
    problem.routing = Routing{.num_experts = 256, .top_k = 8};
    const Plan routed = plan_of(problem, device);
    EXPECT_EQ(slice_bytes(routed, "topk_ids"), 64 * 8 * 4) << device;
    EXPECT_EQ(slice_bytes(routed, "topk_weights"), 64 * 8 * 4) << device;
    EXPECT_EQ(routed.workspace_bytes(), without + std::int64_t{2} * 64 * 8 * 4) << device;
    ++plans;
  }
  EXPECT_EQ(plans, 8);
}

TEST(Scratch, BoundCutsTokensAndKeepsFamiliesAndBlocks) {
  int cut = 0;
  for (const std::string_view device : {"sm_80", "sm_120a", "cpu:avx2"}) {
    for (const std::int64_t part : {4, 16}) {
      Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 4096);
      const Plan free = plan_of(problem, device);
      const std::int64_t bound = free.workspace_bytes() / part;
      problem.max_workspace_bytes = bound;
      const Plan bounded = plan_of(problem, device);
      EXPECT_LE(bounded.workspace_bytes(), bound);
      EXPECT_GT(bounded.workspace_bytes(), bound / 2) << device;
      ASSERT_EQ(bounded->ladder.size(), free->ladder.size());
      for (std::size_t i = 0; i < free->ladder.size(); ++i) {
        EXPECT_EQ(bounded->ladder[i].steps, free->ladder[i].steps);
      }
      EXPECT_LT(bounded.rung(4096)->chunk_tokens, 4096);
      ++cut;
    }
  }
  EXPECT_EQ(cut, 6);
  Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 64);
  problem.max_workspace_bytes = 1024;
  EXPECT_NE(refusal_of(problem, "sm_120a").find("max_workspace_bytes 1024 is below the"),
            std::string::npos);
}

TEST(Scratch, ACallWhoseSumsFollowItsRoutesIsNotCut) {
  int whole = 0;
  for (const std::string_view device : {"sm_90a", "sm_120a", "sm_80"}) {
    Problem problem = glm_tp8(Recipe::kW4a16Nvfp4, 4096);
    const Plan free = plan_of(problem, device);
    problem.max_workspace_bytes = free.workspace_bytes() / 16;
    const Plan bounded = plan_of(problem, device);
    for (const Rung& rung : bounded->ladder) {
      whole += static_cast<int>(rung.family == ExecutionFamily::kDirect);
      if (rung.family == ExecutionFamily::kDirect) {
        EXPECT_EQ(rung.chunk_tokens, rung.m_max) << device;
      }
    }
    EXPECT_LT(bounded.rung(4096)->chunk_tokens, 4096) << device;

    // What one token takes does not hold the direct family's largest call.
    std::int64_t largest = 0;
    for (const Rung& rung : free->ladder) {
      largest = rung.family == ExecutionFamily::kDirect ? rung.m_max : largest;
    }
    problem.num_tokens = largest;
    problem.max_workspace_bytes = 0;
    const std::int64_t needed = plan_of(problem, device).workspace_bytes();
    problem.max_workspace_bytes = needed;
    EXPECT_EQ(plan_of(problem, device).rung(largest)->chunk_tokens, largest) << device;
    problem.max_workspace_bytes = needed - 1;
    EXPECT_NE(refusal_of(problem, device)
                  .find("tokens of the direct family need, whose calls are not cut"),
              std::string::npos)
        << device;
  }
  EXPECT_GE(whole, 3);
}

}  // namespace
}  // namespace moekit::tests
