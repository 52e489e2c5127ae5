// SPDX-License-Identifier: Apache-2.0

// A whole sm_90a plan through the public API on a fake driver: what is launched, how, and what bind
// refuses. What the kernels compute is shown under the gpu label.

#include <cstring>
#include <mutex>

#include <gtest/gtest.h>

#include "moekit/kernels.h"

#include "kernels/catalog.h"
#include "kernels/decode_gemv/args.h"
#include "kernels/decode_gemv/variants.h"
#include "runtime/state.h"
#include "runtime/test_fake_cuda.h"
#include "runtime/test_layer.h"

namespace moekit {
namespace {

namespace decode = kernels::decode_gemv;

struct Seen {
  std::string entry;
  unsigned grid = 0;
  unsigned cluster = 1;
  bool pdl = false;
  bool cooperative = false;
  decode::Args args{};
  decode::ResidentArgs resident{};
  decode::CastArgs cast{};
  device::u32 arrivals = 0;  // what the word of the barrier held
};

Problem small_layer() {
  Problem problem;
  problem.num_tokens = 16;
  problem.num_experts = 8;
  problem.top_k = 2;
  problem.hidden_size = 64;
  problem.intermediate_size = 48;
  problem.recipe = Recipe::kW4a16Mxfp4;
  return problem;
}

class DecodeRun : public testing::Test {
 protected:
  void SetUp() override { open(small_layer()); }

  void open(const Problem& problem, const PlanOverrides& overrides = {}) {
    nvrtc = jit::NvrtcFake::table();
    runtime.emplace(runtime_on_fakes(cuda::DriverFake::table(), nvrtc));
    device = runtime->state()->cuda->device();
    seen.clear();
    cuda::DriverFake::set_body([this](const std::string& entry,
                                      const cuda::CuLaunchConfig& config,
                                      const void* arguments) {
      Seen launch{entry, config.grid_x};
      for (unsigned i = 0; i < config.num_attributes; ++i) {
        const cuda::CuLaunchAttribute& attribute = config.attributes[i];
        launch.pdl |= attribute.id == cuda::kCuLaunchProgrammaticSerialization;
        launch.cooperative |= attribute.id == cuda::kCuLaunchCooperative;
        if (attribute.id == cuda::kCuLaunchClusterDimension) {
          launch.cluster = attribute.value.dimensions[0];
        }
      }
      if (entry.find("cast") != std::string::npos) {
        std::memcpy(&launch.cast, arguments, sizeof(launch.cast));
        launch.grid = config.grid_y;
      } else if (entry.find("resident") != std::string::npos) {
        std::memcpy(&launch.resident, arguments, sizeof(launch.resident));
        launch.arrivals = *launch.resident.arrivals;
        *launch.resident.arrivals += config.grid_x;
      } else if (entry.starts_with("decode_gemv")) {
        std::memcpy(&launch.args, arguments, sizeof(launch.args));
      }
      seen.push_back(launch);
    });
    plan.emplace(*make_plan(problem, device->descriptor(), overrides));
    layer.emplace(problem);
    const Result<PackedExperts> packed = prepare(*plan, layer->source);
    ASSERT_TRUE(packed.has_value()) << packed.status().to_string();
    experts = *upload(*runtime, *packed);
    x = allocate(problem.num_tokens * problem.hidden_size * 4 + 16);
    ids = allocate(problem.num_tokens * problem.top_k * 8);
    weights = allocate(problem.num_tokens * problem.top_k * 4);
    logits = allocate(problem.num_tokens * num_router_experts(problem) * 4);
    out = allocate(problem.num_tokens * problem.hidden_size * 4);
    workspace = allocate(plan->workspace_bytes());
  }

  cuda::DeviceBuffer allocate(std::int64_t bytes) {
    return *cuda::DeviceBuffer::allocate(device, static_cast<std::size_t>(bytes));
  }

  RunArguments arguments(std::int64_t tokens, DType id_dtype = DType::kI32) {
    const DType io = plan->problem().io_dtype;
    const Problem& problem = plan->problem();
    const auto in = [tokens](const cuda::DeviceBuffer& buffer, DType dtype, std::int64_t cols) {
      return matrix_view(static_cast<const void*>(buffer.pointer()), dtype, tokens, cols);
    };
    RunArguments made;
    made.x = in(x, io, problem.hidden_size);
    if (problem.routing.has_value()) {
      made.router_logits = in(logits, DType::kF32, num_router_experts(problem));
    } else {
      made.topk_ids = in(ids, id_dtype, problem.top_k);
      made.topk_weights = in(weights, DType::kF32, problem.top_k);
    }
    made.out = matrix_view(static_cast<void*>(out.pointer()), io, tokens, problem.hidden_size);
    return made;
  }

  Result<Binding> bound(const RunArguments& call) {
    return moekit::bind(*runtime, *plan, experts, {workspace.pointer(), workspace.bytes()}, call);
  }

  jit::NvrtcTable nvrtc;
  cuda::DevicePointer device;
  std::optional<Runtime> runtime;
  std::optional<Plan> plan;
  std::optional<TestLayer> layer;
  PackedExperts experts;
  cuda::DeviceBuffer x;
  cuda::DeviceBuffer ids;
  cuda::DeviceBuffer weights;
  cuda::DeviceBuffer logits;
  cuda::DeviceBuffer out;
  cuda::DeviceBuffer workspace;
  std::vector<Seen> seen;
  const Stream stream{reinterpret_cast<void*>(std::uintptr_t{0x700})};
};

TEST_F(DecodeRun, TwoLaunchesTheSecondInClustersBehindTheFirst) {
  for (const DType id_dtype : {DType::kI32, DType::kI64}) {
    seen.clear();
    const Result<Binding> binding = bound(arguments(5, id_dtype));
    ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
    ASSERT_TRUE(run(*runtime, *binding, stream).ok());
    ASSERT_EQ(seen.size(), 2U);
    const std::vector<Step>& steps = plan->rung(5)->steps;
    EXPECT_EQ(seen[0].entry, plan::entry_symbol(steps[0].kernel));
    EXPECT_EQ(seen[1].entry, plan::entry_symbol(steps[1].kernel));
    EXPECT_EQ(seen[0].grid, steps[0].grid.x);
    EXPECT_FALSE(seen[0].pdl);
    EXPECT_TRUE(seen[1].pdl);
    EXPECT_EQ(seen[0].cluster, 1U);
    EXPECT_EQ(static_cast<std::int32_t>(seen[1].cluster),
              decode::variant_from_name(steps[1].kernel).value().cluster);
    EXPECT_FALSE(seen[1].cooperative);
    EXPECT_EQ(seen[0].args.num_tokens, 5);
    EXPECT_EQ(seen[0].args.ids_are_i64, id_dtype == DType::kI64 ? 1 : 0);
    EXPECT_EQ(seen[0].args.ids, ids.pointer());
    EXPECT_EQ(seen[1].args.out, out.pointer());
    EXPECT_EQ(seen[0].args.intermediate, seen[1].args.intermediate);
  }
}

TEST_F(DecodeRun, ResidentIsOneCooperativeLaunchWhoseBarrierIsClearedBeforeIt) {
  open(small_layer(), {.resident = true});
  const Result<Binding> binding = bound(arguments(5));
  ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
  ASSERT_TRUE(run(*runtime, *binding, stream).ok());
  std::fill_n(workspace.pointer(), workspace.bytes(), std::byte{0xFF});
  seen.clear();
  cuda::DriverFake::forget_calls();
  ASSERT_TRUE(run(*runtime, *binding, stream).ok());
  ASSERT_TRUE(run(*runtime, *binding, stream).ok());
  EXPECT_EQ(cuda::DriverFake::calls(),
            (std::vector<std::string>{"fill_bytes", "launch", "fill_bytes", "launch"}));
  ASSERT_EQ(seen.size(), 2U);
  const Step& step = plan->rung(5)->steps[0];
  for (const Seen& launch : seen) {
    EXPECT_EQ(launch.entry, plan::entry_symbol(step.kernel));
    EXPECT_EQ(launch.grid, step.grid.x);
    EXPECT_TRUE(launch.cooperative);
    EXPECT_FALSE(launch.pdl);
    EXPECT_EQ(launch.arrivals, 0U);
    EXPECT_EQ(static_cast<std::int32_t>(launch.cluster),
              decode::resident_from_name(step.kernel).value().down.cluster);
    EXPECT_EQ(launch.resident.gate_up.blocks, step.grid.x);
    EXPECT_EQ(launch.resident.down.blocks, 4);  // of 16 rows each
    EXPECT_EQ(launch.resident.gate_up.intermediate, launch.resident.down.intermediate);
    EXPECT_NE(launch.resident.gate_up.weights, launch.resident.down.weights);
    EXPECT_EQ(launch.resident.down.out, out.pointer());
    const auto* word = reinterpret_cast<const std::byte*>(launch.resident.arrivals);
    EXPECT_GE(word, workspace.pointer());
    EXPECT_LE(word + 4, workspace.pointer() + workspace.bytes());
  }
}

TEST_F(DecodeRun, ABarrierThatCannotBeClearedIsAnErrorBeforeTheLaunch) {
  open(small_layer(), {.resident = true});
  const Result<Binding> binding = bound(arguments(5));
  ASSERT_TRUE(run(*runtime, *binding, stream).ok());
  seen.clear();
  cuda::DriverFake::fail_next("fill_bytes", 1);
  const Status failed = run(*runtime, *binding, stream);
  EXPECT_EQ(failed.code(), StatusCode::kDevice);
  EXPECT_NE(failed.message().find("clearing 4 bytes"), std::string::npos) << failed.message();
  EXPECT_NE(failed.message().find(plan->rung(5)->steps[0].kernel), std::string::npos);
  EXPECT_TRUE(seen.empty());
  // In a thread without a context both calls enter it.
  cuda::DriverFake::need_context(true);
  cuda::DriverFake::forget_calls();
  EXPECT_TRUE(run(*runtime, *binding, stream).ok());
  std::vector<std::string> work = cuda::DriverFake::calls();
  std::erase_if(work,
                [](const std::string& call) { return call != "fill_bytes" && call != "launch"; });
  EXPECT_EQ(work, (std::vector<std::string>{"fill_bytes", "fill_bytes", "launch", "launch"}));
  EXPECT_EQ(seen.size(), 1U);
}

TEST_F(DecodeRun, OtherTypesOfXAreCastIntoTheWorkspaceFirst) {
  for (const DType io : {DType::kF16, DType::kF32}) {
    Problem problem = small_layer();
    problem.io_dtype = io;
    open(problem);
    jit::NvrtcFake::set_log("ptxas info    : Used 14 registers, used 0 barriers\n");
    RunArguments call = arguments(5);
    call.x.data = x.pointer() + 4;  // read element by element: nothing need be 16-aligned
    const Result<Binding> binding = bound(call);
    ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
    const Status ran = run(*runtime, *binding, stream);
    ASSERT_TRUE(ran.ok()) << ran.to_string();
    ASSERT_EQ(seen.size(), 3U);
    EXPECT_EQ(seen[0].entry, "decode_gemv_any_cast_t256_sm90a");
    EXPECT_EQ(seen[0].grid, 5U);
    EXPECT_EQ(seen[0].cast.x, call.x.data);
    EXPECT_EQ(seen[0].cast.operand, seen[1].args.x);
    EXPECT_EQ(seen[1].args.x_stride, problem.hidden_size);
    EXPECT_GE(reinterpret_cast<const std::byte*>(seen[1].args.x), workspace.pointer());
    EXPECT_EQ(seen[2].args.out_type,
              io == DType::kF16 ? decode::IoType::kF16 : decode::IoType::kF32);
    EXPECT_FALSE(seen[1].pdl);
    EXPECT_TRUE(seen[2].pdl);
  }
}

TEST_F(DecodeRun, RoutingIsTheFirstOfThreeLaunchesAndFeedsTheOthers) {
  Problem problem = small_layer();
  problem.routing = Routing{.num_experts = 8, .top_k = 2};
  open(problem);
  const Result<Binding> binding = bound(arguments(7));
  ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
  ASSERT_TRUE(run(*runtime, *binding, stream).ok());
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_TRUE(seen[0].entry.starts_with("route_topk_any"));
  EXPECT_FALSE(seen[1].pdl);
  EXPECT_EQ(seen[1].args.ids_stride, 2);
  EXPECT_EQ(seen[1].args.ids_are_i64, 0);
  EXPECT_GE(static_cast<const std::byte*>(seen[1].args.ids), workspace.pointer());
  EXPECT_LT(static_cast<const std::byte*>(seen[1].args.ids),
            workspace.pointer() + workspace.bytes());
}

TEST_F(DecodeRun, NoTokensLaunchNothing) {
  RunArguments none = arguments(0);
  none.x.data = none.topk_ids.data = none.topk_weights.data = nullptr;
  none.out.data = nullptr;
  const Result<Binding> binding = bound(none);
  ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
  cuda::DriverFake::forget_calls();
  EXPECT_TRUE(run(*runtime, *binding, stream).ok());
  EXPECT_TRUE(seen.empty());
  EXPECT_TRUE(cuda::DriverFake::calls().empty());
}

TEST_F(DecodeRun, PlannedRungsAreNamedByBindAndLeftOutByPrewarm) {
  Problem problem = small_layer();
  problem.num_tokens = 100;
  open(problem);
  EXPECT_EQ(plan->rung(100)->steps[0].status, StepStatus::kPlanned);
  // The fake computes nothing, so a known answer of the first rung fails; no planned step is asked.
  EXPECT_EQ(prewarm(*runtime, *plan).message().find("grouped_gemm"), std::string::npos);
  EXPECT_TRUE(bound(arguments(64)).has_value());
  const Status refused = bound(arguments(65)).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.message().find(plan->rung(65)->steps[0].kernel), std::string::npos);
  EXPECT_NE(refused.message().find("is planned, its kernel is not written yet; nearest: M 0.."),
            std::string::npos)
      << refused.message();
}

TEST_F(DecodeRun, BindRefusesRowsThatAreNoWholeCopies) {
  RunArguments call = arguments(4);
  call.x.data = x.pointer() + 2;
  const Status status = bound(call).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("2 modulo 16"), std::string::npos) << status.message();
}

TEST_F(DecodeRun, ACaptureBelowCapacityNeedsThePrewarmOfItsRung) {
  const Result<Binding> binding = bound(arguments(3));
  const auto handle = static_cast<cuda::CuStream>(stream.handle);
  cuda::DriverFake::set_capture(handle, cuda::kCuCaptureActive);
  const Status refused = run(*runtime, *binding, stream);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find(plan->rung(3)->steps[0].kernel), std::string::npos);
  EXPECT_TRUE(seen.empty());
  cuda::DriverFake::set_capture(handle, cuda::kCuCaptureNone);
  ASSERT_TRUE(run(*runtime, *binding, stream).ok());
  cuda::DriverFake::set_capture(handle, cuda::kCuCaptureActive);
  cuda::DriverFake::forget_calls();
  EXPECT_TRUE(run(*runtime, *binding, stream).ok());
  EXPECT_EQ(cuda::DriverFake::calls(), (std::vector<std::string>{"launch", "launch"}));
}

}  // namespace
}  // namespace moekit
