// SPDX-License-Identifier: Apache-2.0

// The decode path on a real GPU: the oracle over recipes, activations, token counts and widths, in
// memory that ends where its mapping ends; repeats beside a saturated memory system; captures.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "moekit/kernels.h"
#include "moekit/verify.h"

#include "base/text.h"
#include "device/numerics/bf16.h"
#include "runtime/device_stage.h"
#include "runtime/state.h"

namespace moekit {
namespace {

using base::cat;

/// Ends the process where a launch hangs: nothing else can.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::seconds limit)
      : thread_([this, limit](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          if (!wake_.wait_for(lock, stop, limit, [] { return false; }) && !stop.stop_requested()) {
            std::fputs("watchdog: the GPU did not finish\n", stdout);
            std::fflush(stdout);
            ::_exit(3);
          }
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

class DecodeGpu : public testing::Test {
 protected:
  void SetUp() override {
    runtime.emplace(*Runtime::create());
    Result<CudaRuntime*> opened = runtime->state()->cuda_runtime();
    if (!opened) {
      GTEST_SKIP() << opened.status().message();
    }
    cuda = *opened;
    device = cuda->device()->descriptor();
    if (device.arch != Arch::kSm90a) {
      GTEST_SKIP() << "kernels are for sm_90a, this is " << arch_name(device.arch);
    }
  }

  /// Every case on one of several runtimes; the oracle is most of the work.
  void check_all(const std::vector<VerifyCase>& cases, double least_cosine = 0.0) {
    std::atomic<std::size_t> next{0};
    std::atomic<std::size_t> passed{0};
    std::mutex mutex;
    std::size_t failures = 0;
    std::vector<std::jthread> workers;
    for (unsigned i = 0; i < std::min(12U, std::max(1U, std::thread::hardware_concurrency()));
         ++i) {
      workers.emplace_back([&] {
        const Runtime own = *Runtime::create({.num_threads = 1});
        for (std::size_t at = next++; at < cases.size(); at = next++) {
          const Result<VerifyReport> report = run_verify_case(own, cases[at], device);
          if (report.has_value() && report->passed && report->cosine >= least_cosine) {
            ++passed;
            continue;
          }
          const std::lock_guard lock(mutex);
          if (++failures <= 10) {
            ADD_FAILURE() << verify_case_line(cases[at]) << "\n"
                          << (report.has_value() ? report->first_failure
                                                 : report.status().to_string());
          }
        }
      });
    }
    workers.clear();
    EXPECT_EQ(passed, cases.size());
    std::printf("%zu of %zu cases passed\n", passed.load(), cases.size());
  }

  std::optional<Runtime> runtime;
  CudaRuntime* cuda = nullptr;
  DeviceDescriptor device;
};

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

/// Every step of the rung has a kernel; plans name steps that nobody wrote yet, too.
bool is_written(const Plan& plan, std::int64_t num_tokens) {
  const std::vector<Step>& steps = plan.rung(num_tokens)->steps;
  return std::none_of(steps.begin(), steps.end(), [](const Step& step) {
    return step.status == StepStatus::kPlanned;
  });
}

TEST_F(DecodeGpu, EveryCaseOfTheSuitesThatItServes) {
  std::vector<VerifyCase> cases;
  for (const VerifyCase& verify_case : verify_suite(VerifySuite::kFull)) {
    const Problem& problem = verify_case.problem;
    const double weights = static_cast<double>(problem.num_experts) *
                           static_cast<double>(problem.hidden_size) *
                           static_cast<double>(problem.intermediate_size);
    const Result<Plan> plan = make_plan(problem, device, verify_case.overrides);
    if (weights < 3e7 && plan.has_value() && is_written(*plan, verify_case.num_tokens)) {
      cases.push_back(verify_case);
    }
  }
  EXPECT_GE(cases.size(), 30U);  // 38 of the suite; a new recipe or axis deals the array anew
  check_all(cases);
}

// Small enough for compute-sanitizer's racecheck (scripts/gpu_check): both formats, ragged widths,
// more routes than columns, inactive ids.
TEST_F(DecodeGpu, ReducedSetForTheSanitizers) {
  std::size_t checked = 0;
  for (const char* line :
       {"recipe=w4a16_nvfp4 h=136 i=112 e=4 k=2 m=1 seed=1 quirk=none",
        "recipe=w4a16_mxfp4 h=136 i=112 e=4 k=2 m=3 seed=2 bias=both quirk=inactive_ids",
        "recipe=w4a16_nvfp4 h=256 i=176 e=4 k=2 m=9 seed=3 quirk=int64_ids",
        "recipe=w4a16_mxfp4 h=256 i=232 e=4 k=2 m=16 seed=4 activation=relu2 quirk=duplicate_ids",
        "recipe=w4a16_nvfp4 h=136 i=776 e=2 k=2 m=33 seed=5 quirk=none",
        "recipe=w4a16_mxfp4 h=136 i=256 e=16 k=4 m=20 seed=6 quirk=none"}) {
    const Result<VerifyCase> made = parse_verify_case(line);
    ASSERT_TRUE(made.has_value()) << made.status().to_string();
    const Result<VerifyReport> report = run_verify_case(*runtime, *made, device);
    ASSERT_TRUE(report.has_value()) << report.status().to_string();
    EXPECT_TRUE(report->passed) << line << "\n" << report->first_failure;
    ++checked;
  }
  EXPECT_EQ(checked, 6U);
}

/// GLM-5.2 TP8: 256 experts of 6144 x 256, made of a few sets of codes with their own globals.
class GlmTp8 : public DecodeGpu {
 protected:
  static constexpr std::int64_t kCapacity = 16;
  static constexpr std::int64_t kHidden = 6144;
  static constexpr std::int64_t kTopK = 8;
  static constexpr std::int64_t kExperts = 256;

  void SetUp() override {
    DecodeGpu::SetUp();
    if (cuda == nullptr || IsSkipped()) {
      return;
    }
    problem.num_tokens = kCapacity;
    problem.num_experts = kExperts;
    problem.top_k = kTopK;
    problem.hidden_size = kHidden;
    problem.intermediate_size = 256;
    problem.recipe = Recipe::kW4a16Nvfp4;
    make_source();
    plan.emplace(*make_plan(problem, device));
    const Result<PackedExperts> packed = prepare(*plan, source);
    ASSERT_TRUE(packed.has_value()) << packed.status().to_string();
    const Result<PackedExperts> uploaded = upload(*runtime, *packed);
    ASSERT_TRUE(uploaded.has_value()) << uploaded.status().to_string();
    experts = *uploaded;
    host_workspace.assign(static_cast<std::size_t>(plan->workspace_bytes()), std::byte{0xFF});
  }

  WeightMatrix matrix(std::int64_t rows, std::int64_t cols) {
    WeightMatrix view;
    view.format = Format::kNvfp4;
    view.rows = rows;
    view.cols = cols;
    view.row_stride_bytes = cols / 2;
    view.scale_row_stride_bytes = cols / 16;
    std::vector<std::uint8_t>& codes =
        storage.emplace_back(static_cast<std::size_t>(rows * cols / 2));
    for (std::uint8_t& code : codes) {
      code = static_cast<std::uint8_t>(random());
    }
    std::vector<std::uint8_t>& scales =
        storage.emplace_back(static_cast<std::size_t>(rows * cols / 16));
    for (std::uint8_t& scale : scales) {
      scale = static_cast<std::uint8_t>(0x30 + random() % 16);
    }
    view.codes = codes.data();
    view.scales = scales.data();
    return view;
  }

  void make_source() {
    storage.reserve(24);
    std::array<ExpertWeights, 4> sets;
    for (ExpertWeights& set : sets) {
      set.gate = matrix(problem.intermediate_size, kHidden);
      set.up = matrix(problem.intermediate_size, kHidden);
      set.down = matrix(kHidden, problem.intermediate_size);
    }
    for (std::int64_t expert = 0; expert < kExperts; ++expert) {
      ExpertWeights weights = sets[static_cast<std::size_t>(expert % 4)];
      const float factor = 1.0F + static_cast<float>(expert) / 256.0F;
      weights.gate.global_scale = factor / 300.0F;
      weights.up.global_scale = factor / 280.0F;
      weights.down.global_scale = factor / 60.0F;
      source.experts.push_back(weights);
    }
  }

  /// Host tensors of one call.
  struct Call {
    std::vector<std::uint16_t> x;
    std::vector<std::int32_t> ids;
    std::vector<float> weights;
    std::vector<std::uint16_t> out;
    RunArguments arguments{};
  };

  Call make_call(std::int64_t tokens) {
    Call call;
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < tokens * kHidden; ++i) {
      call.x.push_back(device::bf16_from_f32(normal(random)));
    }
    for (std::int64_t i = 0; i < tokens * kTopK; ++i) {
      call.ids.push_back(static_cast<std::int32_t>(random() % kExperts));
      call.weights.push_back(0.125F + static_cast<float>(random() % 64) / 1024.0F);
    }
    call.out.assign(call.x.size(), 0xFFFF);
    RunArguments& made = call.arguments;
    made.x = matrix_view(static_cast<const void*>(call.x.data()), DType::kBf16, tokens, kHidden);
    made.topk_ids =
        matrix_view(static_cast<const void*>(call.ids.data()), DType::kI32, tokens, kTopK);
    made.topk_weights =
        matrix_view(static_cast<const void*>(call.weights.data()), DType::kF32, tokens, kTopK);
    made.out = matrix_view(static_cast<void*>(call.out.data()), DType::kBf16, tokens, kHidden);
    return call;
  }

  Result<DeviceStage> stage_of(Call& call) {
    return DeviceStage::make(*cuda, problem, call.arguments, host_workspace, StageMemory::kPlain);
  }

  Result<Binding> bound(const DeviceStage& stage) {
    return moekit::bind(*runtime, *plan, experts, stage.workspace(), stage.arguments());
  }

  std::mt19937 random{7};
  Problem problem;
  std::vector<std::vector<std::uint8_t>> storage;
  ExpertsSource source;
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
    Call call = make_call(tokens);
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
            verify_call(*plan, source, call.arguments, host_workspace);
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
  Call call = make_call(kTokens);
  const Result<DeviceStage> stage = stage_of(call);
  ASSERT_TRUE(stage.has_value());
  const Result<Binding> binding = bound(*stage);
  ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
  const auto submit = [&] { return run(*runtime, *binding, {stage->stream().handle()}); };
  const Result<cuda::Graph> graph = cuda::Graph::capture(stage->stream(), submit);
  ASSERT_TRUE(graph.has_value()) << graph.status().to_string();
  std::size_t compared = 0;
  for (int replay = 0; replay < 200; ++replay) {
    const Call other = make_call(kTokens);
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
  Call call = make_call(3);
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
