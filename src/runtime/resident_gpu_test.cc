// SPDX-License-Identifier: Apache-2.0

// The pin `resident` on a real GPU: one cooperative launch gives the bits of the default plan's
// two, whatever the workspace held, eager and replayed, and beside other work.

#include <cstring>

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

class ResidentGpu : public Sm90aTest {};

/// One plan of the layer, its tensors on the device, and what it leaves there.
struct Lane {
  Plan plan;
  std::vector<std::byte> workspace;
  GpuCall call;
  std::optional<DeviceStage> stage;
  std::optional<Binding> binding;

  std::vector<std::byte> intermediate() const {
    for (const WorkspaceSlice& slice : plan->workspace) {
      if (slice.name == "intermediate") {
        const auto begin = workspace.begin() + slice.offset;
        return {begin, begin + call.arguments.x.shape[0] * GlmTp8Layer::kTopK * 256 * 2};
      }
    }
    return {};
  }
};

class ResidentGlmTp8 : public ResidentGpu {
 protected:
  void SetUp() override {
    ResidentGpu::SetUp();
    if (cuda == nullptr || IsSkipped()) {
      return;
    }
    plain.emplace(*make_plan(layer.problem, device));
    const Result<Plan> pinned = make_plan(layer.problem, device, {.resident = true});
    ASSERT_TRUE(pinned.has_value()) << pinned.status().to_string();
    resident.emplace(*pinned);
    const Result<PackedExperts> packed = prepare(*plain, layer.source);
    ASSERT_TRUE(packed.has_value()) << packed.status().to_string();
    const Result<PackedExperts> uploaded = upload(*runtime, *packed);
    ASSERT_TRUE(uploaded.has_value()) << uploaded.status().to_string();
    experts = *uploaded;
    for (const Plan& plan : {*plain, *resident}) {
      const Status warmed = prewarm(*runtime, plan);
      ASSERT_TRUE(warmed.ok()) << warmed.to_string();
    }
  }

  /// `call` is copied: each lane has an output of its own.
  std::unique_ptr<Lane> lane_of(const Plan& plan, const GpuCall& call, StageMemory memory) {
    auto lane = std::make_unique<Lane>(Lane{plan, {}, call, {}, {}});
    lane->workspace.assign(static_cast<std::size_t>(plan.workspace_bytes()), std::byte{0xFF});
    lane->call.arguments.x.data = lane->call.x.data();
    lane->call.arguments.topk_ids.data = lane->call.ids.data();
    lane->call.arguments.topk_weights.data = lane->call.weights.data();
    lane->call.arguments.out.data = lane->call.out.data();
    Result<DeviceStage> stage =
        DeviceStage::make(*cuda, layer.problem, lane->call.arguments, lane->workspace, memory);
    EXPECT_TRUE(stage.has_value()) << stage.status().to_string();
    lane->stage.emplace(*std::move(stage));
    Result<Binding> binding =
        moekit::bind(*runtime, plan, experts, lane->stage->workspace(), lane->stage->arguments());
    EXPECT_TRUE(binding.has_value()) << binding.status().to_string();
    lane->binding.emplace(*std::move(binding));
    return lane;
  }

  Status submit(const Lane& lane) {
    return run(*runtime, *lane.binding, {lane.stage->stream().handle()});
  }

  /// Runs in memory that held `poison` everywhere.
  void run_poisoned(Lane& lane, int poison, const cuda::Graph* graph = nullptr) {
    std::fill(lane.workspace.begin(), lane.workspace.end(), static_cast<std::byte>(poison));
    std::memset(lane.call.out.data(), poison, lane.call.out.size() * 2);
    ASSERT_TRUE(lane.stage->to_device().ok());
    const Status ran = graph == nullptr ? submit(lane) : graph->launch(lane.stage->stream());
    ASSERT_TRUE(ran.ok()) << ran.to_string();
    const Status back = lane.stage->to_host();
    ASSERT_TRUE(back.ok()) << back.to_string();
  }

  GlmTp8Layer layer{64};
  std::optional<Plan> plain;
  std::optional<Plan> resident;
  PackedExperts experts;
};

TEST_F(ResidentGlmTp8, DefaultAndResidentAgreeBitForBit) {
  const Watchdog watchdog(std::chrono::seconds(120));
  std::size_t compared = 0;
  for (const std::int64_t tokens : {1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 33, 64}) {
    SCOPED_TRACE(cat("M ", tokens));
    ASSERT_EQ(resident->rung(tokens)->steps.size(), 1U);
    const GpuCall call = layer.make_call(tokens);
    const std::unique_ptr<Lane> two = lane_of(*plain, call, StageMemory::kGuarded);
    const std::unique_ptr<Lane> one = lane_of(*resident, call, StageMemory::kGuarded);
    run_poisoned(*two, 0xFF);
    for (const int poison : {0xFF, 0x00, 0x01, 0xA5}) {
      run_poisoned(*one, poison);
      if (HasFatalFailure()) {
        return;
      }
      EXPECT_EQ(one->intermediate(), two->intermediate()) << poison;
      EXPECT_EQ(one->call.out, two->call.out) << poison;
      ++compared;
    }
    EXPECT_FALSE(one->intermediate().empty());
    const Result<VerifyReport> report =
        verify_call(*resident, layer.source, one->call.arguments, one->workspace);
    ASSERT_TRUE(report.has_value()) << report.status().to_string();
    EXPECT_TRUE(report->passed) << report->first_failure;
    EXPECT_GE(report->cosine, 0.9999);
  }
  EXPECT_EQ(compared, 48U);
}

TEST_F(ResidentGlmTp8, TwoHundredReplaysWithOtherInputsGiveTheDefaultBits) {
  const Watchdog watchdog(std::chrono::seconds(120));
  constexpr std::int64_t kTokens = 7;
  const GpuCall first = layer.make_call(kTokens);
  const std::unique_ptr<Lane> two = lane_of(*plain, first, StageMemory::kPlain);
  const std::unique_ptr<Lane> one = lane_of(*resident, first, StageMemory::kPlain);
  const Result<cuda::Graph> graph =
      cuda::Graph::capture(one->stage->stream(), [&] { return submit(*one); });
  ASSERT_TRUE(graph.has_value()) << graph.status().to_string();
  std::size_t compared = 0;
  for (int replay = 0; replay < 200; ++replay) {
    const GpuCall other = layer.make_call(kTokens);
    for (Lane* const lane : {one.get(), two.get()}) {
      std::copy(other.x.begin(), other.x.end(), lane->call.x.begin());
      std::copy(other.ids.begin(), other.ids.end(), lane->call.ids.begin());
      std::copy(other.weights.begin(), other.weights.end(), lane->call.weights.begin());
    }
    run_poisoned(*one, replay % 256, &*graph);
    run_poisoned(*two, 0xFF);
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_EQ(one->call.out, two->call.out) << "replay " << replay;
    ++compared;
  }
  EXPECT_EQ(compared, 200U);
  // Without anything in between: the word of the barrier is where the replay before left it.
  for (int replay = 0; replay < 200; ++replay) {
    ASSERT_TRUE(graph->launch(one->stage->stream()).ok());
  }
  ASSERT_TRUE(one->stage->to_host().ok());
  EXPECT_EQ(one->call.out, two->call.out);
}

TEST_F(ResidentGlmTp8, RepeatsAreBitIdenticalBesideASaturatedMemory) {
  const Watchdog watchdog(std::chrono::seconds(120));
  const cuda::Stream noise = *cuda::Stream::create(cuda->device());
  const cuda::DeviceBuffer large = *cuda::DeviceBuffer::allocate(cuda->device(), 1U << 30U);
  std::size_t repeats = 0;
  for (const std::int64_t tokens : {7, 8}) {
    const GpuCall call = layer.make_call(tokens);
    const std::unique_ptr<Lane> one = lane_of(*resident, call, StageMemory::kPlain);
    std::vector<std::uint16_t> first;
    for (int repeat = 0; repeat < 8; ++repeat) {
      for (int i = 0; i < 4 && repeat % 2 == 1; ++i) {
        ASSERT_TRUE(noise.fill(large.address(), large.bytes(), 0x11).ok());
      }
      run_poisoned(*one, 0x7F - repeat);
      ASSERT_FALSE(HasFatalFailure());
      first = first.empty() ? one->call.out : first;
      EXPECT_EQ(one->call.out, first) << "repeat " << repeat << ", " << tokens << " tokens";
      ++repeats;
    }
    ASSERT_TRUE(noise.synchronize().ok());
  }
  EXPECT_EQ(repeats, 16U);
}

/// Cases of both formats, every activation, ragged widths and every kind of ids.
std::vector<VerifyCase> oracle_cases() {
  constexpr std::array kQuirks = {"none", "inactive_ids", "duplicate_ids", "int64_ids"};
  std::vector<VerifyCase> cases;
  for (const char* recipe : {"w4a16_nvfp4", "w4a16_mxfp4"}) {
    for (const char* activation : {"silu", "swiglu_oai", "situ", "gelu_tanh", "relu2"}) {
      for (const int tokens : {1, 2, 3, 7, 8, 9, 16}) {
        for (const int inner : {112, 256, 352, 2880}) {
          const std::size_t n = cases.size();
          const std::string line = cat("recipe=",
                                       recipe,
                                       " h=",
                                       n % 3 == 0 || inner > 256 ? 136 : 2120,
                                       " i=",
                                       inner,
                                       " e=8 k=2 m=",
                                       tokens,
                                       " activation=",
                                       activation,
                                       n % 2 == 0 ? " bias=both" : "",
                                       n % 5 == 0 ? " order=expert" : "",
                                       n % 11 == 0 ? " io=f32" : "",
                                       " resident=1 seed=",
                                       n + 1,
                                       " quirk=",
                                       kQuirks[n % kQuirks.size()]);
          const Result<VerifyCase> made = parse_verify_case(line);
          EXPECT_TRUE(made.has_value()) << made.status().to_string();
          cases.push_back(*made);
        }
      }
    }
  }
  return cases;
}

TEST_F(ResidentGpu, OracleInGuardedMemory) {
  const Watchdog watchdog(std::chrono::seconds(90));
  const std::vector<VerifyCase> cases = oracle_cases();
  ASSERT_EQ(cases.size(), 280U);
  check_all(cases);
}

// Small enough for compute-sanitizer (scripts/gpu_check).
TEST_F(ResidentGpu, ReducedSetForTheSanitizers) {
  check_in_turn({"recipe=w4a16_nvfp4 h=136 i=112 e=4 k=2 m=1 seed=1 resident=1 quirk=none",
                 "recipe=w4a16_mxfp4 h=2120 i=112 e=4 k=2 m=3 seed=2 bias=both resident=1 "
                 "quirk=inactive_ids",
                 "recipe=w4a16_nvfp4 h=256 i=176 e=4 k=2 m=8 seed=3 resident=1 quirk=int64_ids"});
}

}  // namespace
}  // namespace moekit
