// SPDX-License-Identifier: Apache-2.0

// What `moekit bench` and `moekit run` do on a GPU, on a fake driver: tensors travel there and
// back, one graph holds every call, and what a replay takes is shared out among them.

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "kernels/catalog.h"
#include "kernels/decode_gemv/args.h"
#include "kernels/decode_gemv/launch_cuda.h"
#include "kernels/memory_floor/floor.h"
#include "runtime/state.h"
#include "runtime/test_fake_cuda.h"
#include "runtime/test_layer.h"

namespace moekit {
namespace {

namespace decode = kernels::decode_gemv;
namespace memory_floor = kernels::memory_floor;

constexpr std::int64_t kCallTokens = 4;
constexpr std::int64_t kCallHidden = 64;
constexpr std::int64_t kRow = 72;  // elements from row to row of host tensors

Problem timed_layer() {
  Problem problem;
  problem.num_tokens = 16;
  problem.num_experts = 8;
  problem.top_k = 2;
  problem.hidden_size = kCallHidden;
  problem.intermediate_size = 48;
  problem.recipe = Recipe::kW4a16Nvfp4;
  return problem;
}

/// Host tensors of one call; `first` is the expert of its first route.
struct HostCall {
  explicit HostCall(std::int32_t first)
      : x(kCallTokens * kRow),
        ids(kCallTokens * 2),
        weights(kCallTokens * 2, 0.5F),
        out(kCallTokens * kRow) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<std::uint16_t>(i + 1);
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = (first + static_cast<std::int32_t>(i) % 3) % 8;  // three experts a call
    }
    arguments.x =
        matrix_view(static_cast<const void*>(x.data()), DType::kBf16, kCallTokens, kCallHidden);
    arguments.x.strides[0] = kRow;
    arguments.topk_ids =
        matrix_view(static_cast<const void*>(ids.data()), DType::kI32, kCallTokens, 2);
    arguments.topk_weights =
        matrix_view(static_cast<const void*>(weights.data()), DType::kF32, kCallTokens, 2);
    arguments.out =
        matrix_view(static_cast<void*>(out.data()), DType::kBf16, kCallTokens, kCallHidden);
    arguments.out.strides[0] = kRow;
  }

  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

  std::vector<std::uint16_t> x;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::vector<std::uint16_t> out;
  RunArguments arguments{};
};

/// The first launch of a kernel is its self-test, which the device answers; later ones are noted,
/// and a decode kernel's is "computed": gate_up writes 0x1111, down what x holds plus one.
class Timing : public testing::Test {
 protected:
  Timing() {
    nvrtc = jit::NvrtcFake::table();
    runtime.emplace(runtime_on_fakes(cuda::DriverFake::table(), nvrtc));
    device = runtime->state()->cuda->device();
    plan.emplace(*make_plan(timed_layer(), device->descriptor()));
    layer.emplace(timed_layer());
    host_experts = *prepare(*plan, layer->source);
    for (const plan::KernelSource& source : decode::kCuda.catalog(Arch::kSm90a)) {
      tests[source.entry] = *decode::kCuda.self_test(source.kernel);
    }
    for (const std::string& kernel : memory_floor::kernel_names(Arch::kSm90a)) {
      tests[plan::entry_symbol(kernel)] = *memory_floor::kCuda.self_test(kernel);
    }
    cuda::DriverFake::set_body([this](const std::string& entry,
                                      const cuda::CuLaunchConfig&,
                                      const void* arguments) { launched(entry, arguments); });
  }

  void launched(const std::string& entry, const void* arguments) {
    if (self_tests && answered.insert(entry).second) {
      write_known_answer(tests.at(entry), arguments);
      return;
    }
    if (!entry.starts_with("decode_gemv")) {
      memory_floor::Args args{};
      std::memcpy(&args, arguments, sizeof(args));
      floors.push_back(args);
      return;
    }
    decode::Args args{};
    std::memcpy(&args, arguments, sizeof(args));
    calls.push_back(args);
    const auto* read = static_cast<const std::int32_t*>(args.ids);
    ids.emplace_back(read, read + std::int64_t{args.num_tokens} * args.top_k);
    if (entry.find("down") == std::string::npos) {
      const std::uint16_t mark = 0x1111;
      std::memcpy(args.intermediate, &mark, 2);
      return;
    }
    for (std::int64_t token = 0; token < args.num_tokens; ++token) {
      for (std::int64_t column = 0; column < args.hidden; ++column) {
        static_cast<std::uint16_t*>(args.out)[token * args.out_stride + column] =
            static_cast<std::uint16_t>(args.x[token * args.x_stride + column] + 1);
      }
    }
  }

  static std::int64_t count(const std::string& name) {
    const std::vector<std::string> names = cuda::DriverFake::calls();
    return std::count(names.begin(), names.end(), name);
  }

  jit::NvrtcTable nvrtc;
  cuda::DevicePointer device;
  std::optional<Runtime> runtime;
  std::optional<Plan> plan;
  std::optional<TestLayer> layer;
  PackedExperts host_experts;
  std::map<std::string, plan::SelfTest> tests;
  std::set<std::string> answered;
  bool self_tests = true;
  std::vector<decode::Args> calls;
  std::vector<std::vector<std::int32_t>> ids;  // of each of `calls`
  std::vector<memory_floor::Args> floors;
};

TEST_F(Timing, OneGraphOfEveryCallBesideOneThatOnlyReads) {
  const std::vector<PackedExperts> copies = {*upload(*runtime, host_experts),
                                             *upload(*runtime, host_experts)};
  const std::array<HostCall, 3> host = {HostCall(0), HostCall(3), HostCall(6)};
  std::vector<RunArguments> arguments;
  for (const HostCall& call : host) {
    arguments.push_back(call.arguments);
  }
  arguments[2].topk_ids.data = host[1].ids.data();  // the third call routes as the second
  const Result<DeviceTiming> timing =
      time_on_device(*runtime, *plan, copies, arguments, {.warmups = 1, .repeats = 2});
  ASSERT_TRUE(timing.has_value()) << timing.status().to_string();
  const std::vector<std::string> kernels = memory_floor::kernel_names(Arch::kSm90a);
  const auto floors_tried = static_cast<std::int64_t>(kernels.size());
  EXPECT_EQ(timing->device, "NVIDIA H200");
  EXPECT_EQ(timing->driver_version, 13000);
  EXPECT_EQ(timing->calls_per_replay, 3);
  // The fake's events are 1.5 ms apart: 500 us a call.
  EXPECT_EQ(timing->layer_us, std::vector<double>(static_cast<std::size_t>(2 * floors_tried), 500));
  EXPECT_EQ(timing->floor_us, (std::vector<double>{500, 500}));
  EXPECT_NE(std::find(kernels.begin(), kernels.end(), timing->floor_kernel), kernels.end());
  const plan::PackedLayout& layout = copies[0].state()->layout;
  const std::int64_t bytes = layout.gate_up.expert_stride_bytes + layout.down.expert_stride_bytes;
  EXPECT_EQ(timing->active_bytes, static_cast<double>(3 * bytes));
  // One capture of the layer and one of each floor; a replay of both per round.
  EXPECT_EQ(count("stream_begin_capture"), 1 + floors_tried);
  EXPECT_EQ(count("graph_launch"), 6 * floors_tried);
  ASSERT_EQ(calls.size(), 6U);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const PackedExperts& copy = copies[i / 2 % 2];
    const std::int64_t offset = i % 2 == 0 ? layout.gate_up.offset : layout.down.offset;
    EXPECT_EQ(reinterpret_cast<const std::byte*>(calls[i].weights), copy.state()->base + offset);
    EXPECT_EQ(calls[i].num_tokens, kCallTokens);
    EXPECT_EQ(ids[i], host[std::min<std::size_t>(i / 2, 1)].ids);
  }
  ASSERT_EQ(static_cast<std::int64_t>(floors.size()), 3 * floors_tried);
  for (std::size_t i = 0; i < floors.size(); ++i) {
    EXPECT_EQ(floors[i].num_active, 3);
    EXPECT_EQ(reinterpret_cast<const std::byte*>(floors[i].down),
              copies[i % 3 % 2].state()->base + layout.down.offset);
  }
}

TEST_F(Timing, WhatCannotBeTimedIsRefusedWithValues) {
  const std::vector<PackedExperts> copies = {*upload(*runtime, host_experts)};
  HostCall call(0);
  const std::vector<RunArguments> arguments = {call.arguments};
  const auto refusal = [&](const Plan& wanted,
                           std::span<const PackedExperts> experts,
                           std::span<const RunArguments> tensors) {
    const Status status = time_on_device(*runtime, wanted, experts, tensors).status();
    return std::string(status.message());
  };
  const auto contains = [](const std::string& text, std::string_view part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(refusal(*plan, {}, arguments), "0 weight copies and 1 calls");
  contains(refusal(*plan, copies, {}), "1 weight copies and 0 calls");
  contains(refusal(*make_plan(timed_layer(), *device_from_name("cpu")), copies, arguments),
           "time_on_device is for GPUs");
  Problem routed = timed_layer();
  routed.routing = Routing{.num_experts = 8, .top_k = 2};
  contains(refusal(*make_plan(routed, device->descriptor()), copies, arguments),
           "begins with top-k ids");
  const std::vector<PackedExperts> on_host = {host_experts};
  contains(refusal(*plan, on_host, arguments), "experts are in host memory");
  std::fill(call.ids.begin(), call.ids.end(), -1);
  contains(refusal(*plan, copies, arguments), "without an active expert");
  EXPECT_TRUE(calls.empty());
}

TEST_F(Timing, HostTensorsTravelThereAndBack) {
  self_tests = false;
  HostCall call(1);
  const std::int64_t before = cuda::DriverFake::live_allocations();
  const AlignedBytes workspace(plan->workspace_bytes(), std::byte{0xAA});
  for (const bool uploaded : {false, true}) {
    SCOPED_TRACE(uploaded ? "experts on the device" : "experts on the host");
    const PackedExperts experts = uploaded ? *upload(*runtime, host_experts) : host_experts;
    std::fill(call.out.begin(), call.out.end(), std::uint16_t{0xFFFF});
    calls.clear();
    const Status ran = run_host_tensors(*runtime, *plan, experts, workspace.span(), call.arguments);
    ASSERT_TRUE(ran.ok()) << ran.to_string();
    ASSERT_EQ(calls.size(), 2U);
    EXPECT_EQ(calls[0].x_stride * 2 % 16, 0);
    for (std::size_t at = 0; at < call.out.size(); ++at) {
      const bool inside = at % kRow < kCallHidden;
      ASSERT_EQ(call.out[at], inside ? call.x[at] + 1 : 0xFFFF) << at;
    }
    std::int64_t offset = -1;
    for (const WorkspaceSlice& slice : (*plan)->workspace) {
      offset = slice.name == "intermediate" ? slice.offset : offset;
    }
    ASSERT_GE(offset, 0);
    EXPECT_EQ(workspace.span()[static_cast<std::size_t>(offset)], std::byte{0x11});
    EXPECT_EQ(workspace.span()[static_cast<std::size_t>(offset) + 2], std::byte{0xAA});
  }
  EXPECT_EQ(cuda::DriverFake::live_allocations(), before);
}

TEST_F(Timing, AFailedLaunchOfHostTensorsIsReportedAndLeavesNoMemory) {
  self_tests = false;
  HostCall call(1);
  const AlignedBytes workspace(plan->workspace_bytes());
  const std::int64_t before = cuda::DriverFake::live_allocations();
  cuda::DriverFake::fail_next("launch", 1);
  const Status failed =
      run_host_tensors(*runtime, *plan, host_experts, workspace.span(), call.arguments);
  EXPECT_EQ(failed.code(), StatusCode::kDevice);
  EXPECT_NE(failed.message().find(plan->rung(kCallTokens)->steps[0].kernel), std::string::npos)
      << failed.message();
  cuda::DriverFake::fail_next("memory_alloc", cuda::kCuOutOfMemory);
  EXPECT_EQ(
      run_host_tensors(*runtime, *plan, host_experts, workspace.span(), call.arguments).code(),
      StatusCode::kOutOfMemory);
  EXPECT_EQ(cuda::DriverFake::live_allocations(), before);
}

}  // namespace
}  // namespace moekit
