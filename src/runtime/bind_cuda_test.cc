// SPDX-License-Identifier: Apache-2.0

// bind and run of CUDA plans through the public API, on a fake driver whose device computes routes
// with the host's token loop.

#include <cstring>
#include <memory>

#include <gtest/gtest.h>

#include "moekit/kernels.h"

#include "kernels/route_topk/args.h"
#include "kernels/route_topk/launch_cuda.h"
#include "kernels/route_topk/route.h"
#include "runtime/state.h"
#include "runtime/test_fake_cuda.h"

namespace moekit {
namespace {

using Calls = std::vector<std::string>;

constexpr std::int64_t kTokens = 6;
constexpr std::int64_t kExperts = 16;
constexpr std::int64_t kHidden = 64;
constexpr std::int64_t kTopK = 2;

void route_body(const std::string&, const cuda::CuLaunchConfig&, const void* arguments) {
  kernels::route_topk::Args args{};
  std::memcpy(&args, arguments, sizeof(args));
  kernels::route_topk::route_tokens(
      args.params,
      matrix_view(args.logits, DType::kF32, args.num_tokens, args.params.num_experts),
      {.correction_bias = args.bias},
      {0, args.num_tokens, args.ids, args.params.top_k, args.weights, args.params.top_k});
}

/// A plan whose one step routes: what the experts do after it is another family's business.
Plan routing_plan(std::int64_t chunk_tokens) {
  PlanData content;
  content.problem = {.num_tokens = kTokens,
                     .num_experts = kExperts,
                     .top_k = kTopK,
                     .hidden_size = kHidden,
                     .intermediate_size = 64};
  content.problem.routing = Routing{.num_experts = kExperts, .top_k = kTopK};
  content.device.arch = Arch::kSm90a;
  content.layout_id = "sm90.test";
  Rung rung;
  rung.m_max = kTokens;
  rung.chunk_tokens = chunk_tokens;
  rung.steps = {kernels::route_topk::cuda_step(*content.problem.routing, Arch::kSm90a, kTokens)};
  content.ladder = {rung};
  content.workspace = {{"topk_ids", 0, 256}, {"topk_weights", 256, 256}};
  content.workspace_bytes = 512;
  return Plan(std::make_shared<const PlanData>(content));
}

class CudaRun : public testing::Test {
 protected:
  CudaRun() {
    driver = cuda::DriverFake::table();
    nvrtc = jit::NvrtcFake::table();
    runtime.emplace(runtime_on_fakes(driver, nvrtc));
    device = runtime->state()->cuda->device();
    cuda::DriverFake::set_body(route_body);
    auto packed = std::make_shared<PackedExperts::State>();
    packed->layout_id = "sm90.test";
    packed->problem.num_experts = kExperts;
    packed->bytes = 512;
    host_weights.resize(512, std::byte{7});
    packed->base = host_weights.data();
    host_experts = PackedExperts(packed);
    experts = *upload(*runtime, host_experts);
    x = *cuda::DeviceBuffer::allocate(device, kTokens * kHidden * 2);
    out = *cuda::DeviceBuffer::allocate(device, kTokens * kHidden * 2);
    logits = *cuda::DeviceBuffer::allocate(device, kTokens * kExperts * 4);
    workspace = *cuda::DeviceBuffer::allocate(device, 512);
    auto* values = reinterpret_cast<float*>(logits.pointer());
    for (std::int64_t i = 0; i < kTokens * kExperts; ++i) {
      values[i] = static_cast<float>((i * 37) % 101) * 0.125F;
    }
    arguments.x =
        matrix_view(static_cast<const void*>(x.pointer()), DType::kBf16, kTokens, kHidden);
    arguments.router_logits =
        matrix_view(static_cast<const void*>(logits.pointer()), DType::kF32, kTokens, kExperts);
    arguments.out = matrix_view(static_cast<void*>(out.pointer()), DType::kBf16, kTokens, kHidden);
    cuda::DriverFake::forget_calls();
  }

  Result<Binding> bound(const Plan& plan) {
    return moekit::bind(
        *runtime, plan, experts, {workspace.pointer(), workspace.bytes()}, arguments);
  }

  cuda::DriverTable driver;
  jit::NvrtcTable nvrtc;
  cuda::DevicePointer device;
  std::optional<Runtime> runtime;
  std::vector<std::byte> host_weights;
  PackedExperts host_experts;
  PackedExperts experts;
  cuda::DeviceBuffer x;
  cuda::DeviceBuffer out;
  cuda::DeviceBuffer logits;
  cuda::DeviceBuffer workspace;
  RunArguments arguments{};
  const Stream stream{reinterpret_cast<void*>(std::uintptr_t{0x700})};
};

TEST_F(CudaRun, PrewarmedRunIsOneLaunchAStepAndComputes) {
  const Plan plan = routing_plan(kTokens);
  ASSERT_TRUE(prewarm(*runtime, plan).ok());
  const Result<Binding> binding = bound(plan);
  ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
  cuda::DriverFake::forget_calls();
  ASSERT_TRUE(run(*runtime, *binding, stream).ok());
  EXPECT_EQ(cuda::DriverFake::calls(), Calls{"launch"});
  std::vector<std::int32_t> ids(kTokens * kTopK);
  std::vector<float> weights(ids.size());
  ASSERT_TRUE(
      route(*plan.problem().routing,
            {.logits = arguments.router_logits,
             .topk_ids = matrix_view(static_cast<void*>(ids.data()), DType::kI32, kTokens, kTopK),
             .topk_weights =
                 matrix_view(static_cast<void*>(weights.data()), DType::kF32, kTokens, kTopK)})
          .ok());
  EXPECT_EQ(std::memcmp(workspace.pointer(), ids.data(), ids.size() * 4), 0);
  EXPECT_EQ(std::memcmp(workspace.pointer() + 256, weights.data(), weights.size() * 4), 0);
}

TEST_F(CudaRun, ABindingMadeBeforePrewarmFindsTheKernelToo) {
  const Plan plan = routing_plan(kTokens);
  const Result<Binding> binding = bound(plan);
  ASSERT_TRUE(prewarm(*runtime, plan).ok());
  cuda::DriverFake::forget_calls();
  ASSERT_TRUE(run(*runtime, *binding, stream).ok());
  EXPECT_EQ(cuda::DriverFake::calls(), Calls{"launch"});
}

TEST_F(CudaRun, UnresolvedStepInCaptureOrFrozenFailsNamingIt) {
  const Plan plan = routing_plan(kTokens);
  const Result<Binding> binding = bound(plan);
  cuda::DriverFake::forget_calls();
  cuda::DriverFake::set_capture(static_cast<cuda::CuStream>(stream.handle), cuda::kCuCaptureActive);
  const Status captured = run(*runtime, *binding, stream);
  EXPECT_EQ(captured.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(captured.message().find("route_topk.any.select_t4.sm90a"), std::string::npos);
  EXPECT_EQ(cuda::DriverFake::calls(), Calls{"stream_is_capturing"});
  cuda::DriverFake::set_capture(static_cast<cuda::CuStream>(stream.handle), cuda::kCuCaptureNone);
  freeze_kernels("serving has begun");
  const Status frozen = run(*runtime, *binding, stream);
  unfreeze_kernels("test");
  EXPECT_EQ(frozen.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(frozen.message().find("serving has begun"), std::string::npos);
  EXPECT_TRUE(run(*runtime, *binding, stream).ok());
}

TEST_F(CudaRun, ChunksAreLaunchesOfTheirOwn) {
  const Plan plan = routing_plan(4);
  ASSERT_TRUE(prewarm(*runtime, plan).ok());
  const Result<Binding> binding = bound(plan);
  cuda::DriverFake::forget_calls();
  ASSERT_TRUE(run(*runtime, *binding, stream).ok());
  EXPECT_EQ(cuda::DriverFake::calls(), (Calls{"launch", "launch"}));
}

TEST_F(CudaRun, NoTokensTouchNothing) {
  const Plan plan = routing_plan(kTokens);
  arguments.x.shape[0] = arguments.router_logits.shape[0] = arguments.out.shape[0] = 0;
  const Result<Binding> binding = bound(plan);
  ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
  cuda::DriverFake::forget_calls();
  EXPECT_TRUE(run(*runtime, *binding, stream).ok());
  EXPECT_EQ(cuda::DriverFake::calls(), Calls{});
}

TEST_F(CudaRun, HostPointersAndHostExpertsAreErrorsNamingThem) {
  const Plan plan = routing_plan(kTokens);
  std::vector<float> on_host(kTokens * kExperts);
  const RunArguments good = arguments;
  arguments.router_logits.data = on_host.data();
  EXPECT_EQ(bound(plan).status().message(),
            "router_logits is not device memory, the plan is for cuda:0");
  arguments = good;
  experts = host_experts;
  EXPECT_NE(bound(plan).status().message().find("experts are in host memory"), std::string::npos);
}

TEST_F(CudaRun, UploadChecksItsDestination) {
  EXPECT_EQ(std::memcmp(experts.bytes().data(), host_weights.data(), 512), 0);
  EXPECT_EQ(upload(*runtime, experts).status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(upload(*runtime, host_experts, {workspace.pointer(), 256})
                .status()
                .message()
                .find("destination has 256 bytes, packed experts need 512"),
            std::string::npos);
  EXPECT_TRUE(upload(*runtime, host_experts, {workspace.pointer(), 512}).has_value());
}

}  // namespace
}  // namespace moekit
