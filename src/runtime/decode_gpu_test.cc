// SPDX-License-Identifier: Apache-2.0

// The decode path on a real GPU: the oracle over recipes, activations, token counts and widths, in
// memory that ends where its mapping ends; repeats beside a saturated memory system; captures.

#include <gtest/gtest.h>

#include "moekit/kernels.h"
#include "moekit/verify.h"

#include "base/text.h"
#include "runtime/device_stage.h"
#include "runtime/state.h"
#include "runtime/test_gpu_layer.h"

namespace moekit {
namespace {

using base::cat;

class DecodeGpu : public Sm90aTest {};

// The kernels of many routes per expert, which plans of layers this small would not choose.
constexpr std::string_view kSharedTiles = " tile=w20r16k4a1c24i2b1+w20r16k4a1c24i2b1x1";
constexpr std::string_view kSharedTiles16 = " tile=w20r16k4a1c16i2b1+w20r16k4a1c16i2b1x1";  // nvfp4

TEST_F(DecodeGpu, OracleOverRecipesActivationsTokensAndWidths) {
  constexpr std::array kQuirks = {"none", "inactive_ids", "duplicate_ids", "int64_ids"};
  std::vector<VerifyCase> cases;
  for (const char* recipe : {"w4a16_nvfp4", "w4a16_mxfp4"}) {
    for (const char* activation : {"silu", "swiglu_oai", "situ", "gelu_tanh", "relu2"}) {
      for (const int tokens : {1, 2, 3, 7, 8, 9, 16, 33, 64}) {
        for (const int inner : {112, 176, 232, 256, 352, 704, 768, 2048, 2880}) {
          const std::size_t n = cases.size();
          const Result<VerifyCase> made = parse_verify_case(cat("recipe=",
                                                                recipe,
                                                                " h=",
                                                                n % 3 == 0 ? 136 : 256,
                                                                " i=",
                                                                inner,
                                                                " e=8 k=2 m=",
                                                                tokens,
                                                                " activation=",
                                                                activation,
                                                                n % 2 == 0 ? " bias=both" : "",
                                                                " seed=",
                                                                n + 1,
                                                                " quirk=",
                                                                kQuirks[n % kQuirks.size()]));
          ASSERT_TRUE(made.has_value()) << made.status().to_string();
          cases.push_back(*made);
        }
      }
    }
  }
  ASSERT_EQ(cases.size(), 810U);
  check_all(cases);
}

// Their K is split between blocks wherever it is longer than a step: every width.
TEST_F(DecodeGpu, OracleOfSharedItemsOverRecipesTokensAndWidths) {
  constexpr std::array kQuirks = {"none", "inactive_ids", "duplicate_ids", "all_to_one_expert"};
  constexpr std::array kActivations = {"silu", "swiglu_oai", "situ", "gelu_tanh", "relu2"};
  std::vector<VerifyCase> cases;
  for (const char* recipe : {"w4a16_nvfp4", "w4a16_mxfp4"}) {
    for (const int tokens : {1, 9, 33, 64}) {
      for (const int inner : {112, 176, 232, 256, 352, 704, 768, 2048, 2880}) {
        const std::size_t n = cases.size();
        const bool few = n < 36 && n % 2 == 0;  // columns
        const Result<VerifyCase> made = parse_verify_case(cat("recipe=",
                                                              recipe,
                                                              " h=",
                                                              n % 3 == 0 ? 264 : 1032,
                                                              " i=",
                                                              inner,
                                                              " e=4 k=2 m=",
                                                              tokens,
                                                              " activation=",
                                                              kActivations[n % 5],
                                                              n % 4 < 2 ? " bias=both" : "",
                                                              few ? kSharedTiles16 : kSharedTiles,
                                                              " seed=",
                                                              n + 1,
                                                              " quirk=",
                                                              kQuirks[n / 2 % kQuirks.size()]));
        ASSERT_TRUE(made.has_value()) << made.status().to_string();
        cases.push_back(*made);
      }
    }
  }
  ASSERT_EQ(cases.size(), 72U);
  check_all(cases);
}

// What the grids above do not vary: expert maps, ids that only look like legal ones, rows that
// stand apart, non-finite and extreme values, orders and places of the weights.
TEST_F(DecodeGpu, OracleOverIdsMapsViewsAndValues) {
  constexpr std::array kQuirks = {"none",
                                  "duplicate_ids+int64_ids",
                                  "duplicate_ids",
                                  "inactive_ids+int64_ids",
                                  "out_of_range_ids",
                                  "out_of_range_ids+int64_ids",
                                  "int64_wide_ids",
                                  "inactive_ids+int64_wide_ids",
                                  "inactive_tokens",
                                  "zero_weights+int64_ids",
                                  "strided",
                                  "duplicate_ids+int64_ids+strided",
                                  "nan_token",
                                  "inf_token",
                                  "large_x",
                                  "subnormal_x",
                                  "one_hot_x",
                                  "raw_codes",
                                  "subnormal_scales",
                                  "zero_scales",
                                  "wide_scales",
                                  "unequal_globals",
                                  "dormant_expert",
                                  "all_to_one_expert",
                                  "all_inactive",
                                  "negative_zero_x",
                                  "chunked",
                                  "f16_strided_bias"};
  std::vector<VerifyCase> cases;
  for (const char* recipe : {"w4a16_nvfp4", "w4a16_mxfp4"}) {
    for (const char* map : {"", " map=1 router_experts=24"}) {
      for (const char* quirk : kQuirks) {
        for (const int tokens : {1, 5, 20, 60, 64}) {
          const std::size_t n = cases.size();
          const Result<VerifyCase> made =
              parse_verify_case(cat("recipe=",
                                    recipe,
                                    " h=264 i=112 e=8 k=3 m=",
                                    tokens,
                                    map,
                                    n % 3 == 0 ? " order=expert" : "",
                                    n % 5 == 0 ? " weight_on_input=1" : "",
                                    n % 7 == 0 ? " shared=f32" : "",
                                    n % 11 == 0   ? " io=f32"
                                    : n % 11 == 5 ? " io=f16"
                                                  : "",
                                    n / 4 % 2 == 0 ? " bias=both" : "",
                                    tokens == 60 ? kSharedTiles : std::string_view(),
                                    " seed=",
                                    n + 1,
                                    " quirk=",
                                    quirk));
          ASSERT_TRUE(made.has_value()) << made.status().to_string();
          cases.push_back(*made);
        }
      }
    }
  }
  ASSERT_EQ(cases.size(), 560U);
  check_all(cases);
}

/// Every step of the rung has a kernel; plans name steps that nobody wrote yet, too.
bool is_written(const Plan& plan, std::int64_t num_tokens) {
  const std::vector<Step>& steps = plan.rung(num_tokens)->steps;
  return std::none_of(steps.begin(), steps.end(), [](const Step& step) {
    return step.status == StepStatus::kPlanned;
  });
}

TEST_F(DecodeGpu, EveryCaseOfTheSuitesThatItServes) {
  std::vector<VerifyCase> cases;
  const std::vector<VerifyCase> suite = *verify_suite(VerifySuite::kFull);
  for (const VerifyCase& verify_case : suite) {
    const Problem& problem = verify_case.problem;
    const double weights = static_cast<double>(problem.num_experts) *
                           static_cast<double>(problem.hidden_size) *
                           static_cast<double>(problem.intermediate_size);
    const Result<Plan> plan = make_plan(problem, device, verify_case.overrides);
    if (weights < 3e7 && plan.has_value() && is_written(*plan, verify_case.num_tokens)) {
      cases.push_back(verify_case);
    }
  }
  EXPECT_GE(cases.size(), 90U);  // 114 of the suite; a new recipe or axis deals the array anew
  check_all(cases);
}

// Small enough for compute-sanitizer's racecheck (scripts/gpu_check): both formats, ragged widths,
// more routes than columns, inactive ids, and items that warps share.
TEST_F(DecodeGpu, ReducedSetForTheSanitizers) {
  check_in_turn(
      {"recipe=w4a16_nvfp4 h=136 i=112 e=4 k=2 m=1 seed=1 quirk=none",
       "recipe=w4a16_mxfp4 h=136 i=112 e=4 k=2 m=3 seed=2 bias=both quirk=inactive_ids",
       "recipe=w4a16_nvfp4 h=256 i=176 e=4 k=2 m=9 seed=3 quirk=int64_ids",
       "recipe=w4a16_mxfp4 h=256 i=232 e=4 k=2 m=16 seed=4 activation=relu2 quirk=duplicate_ids",
       "recipe=w4a16_nvfp4 h=136 i=776 e=2 k=2 m=33 seed=5 quirk=none",
       "recipe=w4a16_mxfp4 h=136 i=256 e=16 k=4 m=20 seed=6 quirk=none",
       "recipe=w4a16_nvfp4 h=264 i=328 e=3 k=2 m=33 tile=w20r16k4a1c24i2b1+w20r16k4a1c24i2b1x1 "
       "seed=7 quirk=inactive_ids"});
}

class GlmTp8 : public DecodeGpu {
 protected:
  void SetUp() override {
    DecodeGpu::SetUp();
    if (cuda == nullptr || IsSkipped()) {
      return;
    }
    plan.emplace(*make_plan(layer.problem, device));
    const Result<PackedExperts> packed = prepare(*plan, layer.source);
    ASSERT_TRUE(packed.has_value()) << packed.status().to_string();
    const Result<PackedExperts> uploaded = upload(*runtime, *packed);
    ASSERT_TRUE(uploaded.has_value()) << uploaded.status().to_string();
    experts = *uploaded;
    host_workspace.assign(static_cast<std::size_t>(plan->workspace_bytes()), std::byte{0xFF});
  }

  Result<DeviceStage> stage_of(GpuCall& call) {
    return DeviceStage::make(
        *cuda, layer.problem, call.arguments, host_workspace, StageMemory::kPlain);
  }

  Result<Binding> bound(const DeviceStage& stage) {
    return moekit::bind(*runtime, *plan, experts, stage.workspace(), stage.arguments());
  }

  GlmTp8Layer layer{16};
  std::optional<Plan> plan;
  PackedExperts experts;
  std::vector<std::byte> host_workspace;
};

TEST_F(GlmTp8, EightRepeatsAreBitIdenticalBesideASaturatedMemory) {
  const Watchdog watchdog(std::chrono::seconds(120));
  ASSERT_TRUE(prewarm(*runtime, *plan).ok());
  const cuda::Stream noise = *cuda::Stream::create(cuda->device());
  const cuda::DeviceBuffer large = *cuda::DeviceBuffer::allocate(cuda->device(), 1U << 30U);
  const auto saturate = [&] {
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(noise.fill(large.address(), large.bytes(), 0x11).ok());
    }
  };
  for (const std::int64_t tokens : {7, 8}) {
    GpuCall call = layer.make_call(tokens);
    const Result<DeviceStage> stage = stage_of(call);
    ASSERT_TRUE(stage.has_value()) << stage.status().to_string();
    const Result<Binding> binding = bound(*stage);
    ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
    const auto submit = [&] { return run(*runtime, *binding, {stage->stream().handle()}); };
    const Result<cuda::Graph> graph = cuda::Graph::capture(stage->stream(), submit);
    ASSERT_TRUE(graph.has_value()) << graph.status().to_string();
    std::vector<std::uint16_t> first;
    for (int repeat = 0; repeat < 16; ++repeat) {
      std::fill(call.out.begin(), call.out.end(), static_cast<std::uint16_t>(0x7F00 + repeat));
      std::fill(host_workspace.begin(), host_workspace.end(), std::byte{0xFF});
      ASSERT_TRUE(stage->to_device().ok());
      ASSERT_TRUE(stage->stream().synchronize().ok());
      if (repeat % 4 >= 2) {
        saturate();
      }
      ASSERT_TRUE((repeat < 8 ? submit() : graph->launch(stage->stream())).ok());
      if (repeat % 4 == 3) {
        saturate();
      }
      ASSERT_TRUE(stage->to_host().ok());
      if (first.empty()) {
        first = call.out;
        const Result<VerifyReport> report =
            verify_call(*plan, layer.source, call.arguments, host_workspace);
        ASSERT_TRUE(report.has_value()) << report.status().to_string();
        EXPECT_TRUE(report->passed) << report->first_failure;
        EXPECT_GE(report->cosine, 0.9999);
        EXPECT_EQ(report->tokens_checked, tokens);
      }
      EXPECT_EQ(first, call.out) << "repeat " << repeat << ", " << tokens << " tokens";
    }
    ASSERT_TRUE(noise.synchronize().ok());
  }
}

TEST_F(GlmTp8, TwoHundredReplaysWithOtherInputsGiveTheEagerBits) {
  const Watchdog watchdog(std::chrono::seconds(120));
  ASSERT_TRUE(prewarm(*runtime, *plan).ok());
  constexpr std::int64_t kTokens = 7;  // below the capacity
  GpuCall call = layer.make_call(kTokens);
  const Result<DeviceStage> stage = stage_of(call);
  ASSERT_TRUE(stage.has_value());
  const Result<Binding> binding = bound(*stage);
  ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
  const auto submit = [&] { return run(*runtime, *binding, {stage->stream().handle()}); };
  const Result<cuda::Graph> graph = cuda::Graph::capture(stage->stream(), submit);
  ASSERT_TRUE(graph.has_value()) << graph.status().to_string();
  std::size_t compared = 0;
  for (int replay = 0; replay < 200; ++replay) {
    const GpuCall other = layer.make_call(kTokens);
    std::copy(other.x.begin(), other.x.end(), call.x.begin());
    std::copy(other.ids.begin(), other.ids.end(), call.ids.begin());
    std::copy(other.weights.begin(), other.weights.end(), call.weights.begin());
    ASSERT_TRUE(stage->to_device().ok());
    ASSERT_TRUE(graph->launch(stage->stream()).ok());
    ASSERT_TRUE(stage->to_host().ok());
    const std::vector<std::uint16_t> replayed = call.out;
    std::fill(call.out.begin(), call.out.end(), std::uint16_t{0xFFFF});
    ASSERT_TRUE(stage->to_device().ok());
    ASSERT_TRUE(submit().ok());
    ASSERT_TRUE(stage->to_host().ok());
    ASSERT_EQ(replayed, call.out) << "replay " << replay;
    ++compared;
  }
  EXPECT_EQ(compared, 200U);
}

TEST_F(GlmTp8, AnUnresolvedStepInARealCaptureFailsNamingIt) {
  GpuCall call = layer.make_call(3);
  const Result<DeviceStage> stage = stage_of(call);
  ASSERT_TRUE(stage.has_value());
  ASSERT_TRUE(stage->to_device().ok());
  ASSERT_TRUE(stage->stream().synchronize().ok());
  const Result<Binding> binding = bound(*stage);
  ASSERT_TRUE(binding.has_value());
  const auto submit = [&] { return run(*runtime, *binding, {stage->stream().handle()}); };
  const Status refused = cuda::Graph::capture(stage->stream(), submit).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused.to_string();
  EXPECT_NE(refused.message().find(plan->rung(3)->steps[0].kernel), std::string::npos)
      << refused.message();
  ASSERT_TRUE(prewarm(*runtime, *plan).ok());
  const Result<cuda::Graph> graph = cuda::Graph::capture(stage->stream(), submit);
  ASSERT_TRUE(graph.has_value()) << graph.status().to_string();
  ASSERT_TRUE(graph->launch(stage->stream()).ok());
  ASSERT_TRUE(stage->to_host().ok());
}

TEST_F(DecodeGpu, AnAccessPastGuardedMemoryIsAFault) {
  // What the guard is worth: a child reads one element beyond x and must die of it.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto past_the_end = [] {
    const Runtime own = *Runtime::create();
    CudaRuntime& gpu = **own.state()->cuda_runtime();
    const cuda::DeviceBuffer buffer = *cuda::DeviceBuffer::allocate_guarded(gpu.device(), 4096);
    const cuda::Stream lane = *cuda::Stream::create(gpu.device());
    std::vector<std::byte> bytes(8192);
    const bool inside = lane.download(std::span(bytes).first(4096), buffer.address()).ok() &&
                        lane.synchronize().ok();
    const bool beyond = lane.download(bytes, buffer.address()).ok() && lane.synchronize().ok();
    return inside && !beyond;
  };
  EXPECT_EXIT(::_exit(past_the_end() ? 42 : 1), testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace moekit
