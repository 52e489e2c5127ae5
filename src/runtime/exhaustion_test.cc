// SPDX-License-Identifier: Apache-2.0

// Memory that runs out at any allocation of a public call, and stays out: each says kOutOfMemory,
// and the process goes on. Calls that read JSON are not here: nlohmann::json allocates when it is
// destroyed.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/moekit.h"

#include "runtime/test_layer.h"

namespace moekit {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

/// Calls again and again with room for one more allocation until the outcome is `expected`; every
/// outcome before it must be kOutOfMemory. Returns how many allocations the last call was granted.
template <typename Call>
std::int64_t exhaust(const std::string& name, StatusCode expected, const Call& call) {
  constexpr std::int64_t kMostAllocations = 100000;
  for (std::int64_t granted = 0; granted < kMostAllocations; granted += 1 + granted / 64) {
    HeapCount::allowed = granted;
    const Status status = call();
    HeapCount::allowed = kUnlimited;
    if (status.code() == expected) {
      return granted;
    }
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory)
        << name << " with " << granted << " allocations: " << status.to_string();
    EXPECT_FALSE(status.message().empty()) << name;
    if (testing::Test::HasFailure()) {
      return -1;
    }
  }
  ADD_FAILURE() << name << " never ended";
  return -1;
}

TEST(Exhaustion, EveryPublicCallSaysOutOfMemoryAndLives) {
  const Problem problem = small_problem();
  const TestLayer layer(problem);
  const Plan plan = *make_plan(problem, host_cpu());
  const PackedExperts experts = *prepare(plan, layer.source);
  const Runtime runtime = *Runtime::create({2, {}});
  const std::string path = testing::TempDir() + "exhaustion.packed";
  const AlignedBytes workspace(plan.workspace_bytes());
  std::vector<std::uint16_t> x(std::size_t{2} * 48, 0x3F80);
  std::vector<std::uint16_t> out(x.size());
  const std::vector<std::int32_t> ids{0, 1, 2, 3};
  const std::vector<float> weights(4, 0.5F);
  RunArguments arguments;
  arguments.x = matrix_view(std::as_const(x).data(), DType::kBf16, 2, 48);
  arguments.topk_ids = matrix_view(ids.data(), DType::kI32, 2, 2);
  arguments.topk_weights = matrix_view(weights.data(), DType::kF32, 2, 2);
  arguments.out = matrix_view(out.data(), DType::kBf16, 2, 48);
  const Binding binding = *moekit::bind(runtime, plan, experts, workspace.span(), arguments);
  ASSERT_TRUE(run(runtime, binding).ok());
  RunArguments wrong = arguments;
  wrong.x.shape[1] = 56;
  Problem odd = problem;
  odd.hidden_size = 47;
  Routing routing;
  routing.num_experts = 0;

  constexpr StatusCode kOk = StatusCode::kOk;
  constexpr StatusCode kBad = StatusCode::kInvalidArgument;
  std::int64_t allocations = 0;
  int calls = 0;
  const auto judge = [&](const std::string& name, StatusCode expected, const auto& call) {
    allocations += exhaust(name, expected, call);
    ++calls;
  };
  judge("device_from_name", kOk, [] { return device_from_name("cpu").status(); });
  judge("device_from_name of a GPU", kOk, [] { return device_from_name("sm_90").status(); });
  judge("device_from_name unknown", kBad, [] { return device_from_name("cpu:mmx2").status(); });
  judge("validate_problem", kBad, [&] { return validate_problem(odd); });
  judge("validate_routing", kBad, [&] { return validate_routing(routing); });
  judge("make_plan", kOk, [&] { return make_plan(problem, plan->device).status(); });
  judge("make_plan refused", kBad, [&] { return make_plan(odd, plan->device).status(); });
  judge("required_bytes", kOk, [&] { return required_bytes(problem, plan->device).status(); });
  judge("Runtime::create", kOk, [] { return Runtime::create({2, {}}).status(); });
  judge("Runtime::create wrong", kBad, [] { return Runtime::create({-1, {}}).status(); });
  judge("prepare", kOk, [&] { return prepare(plan, layer.source).status(); });
  judge("prepare of nothing", kBad, [&] { return prepare(plan, ExpertsSource{}).status(); });
  judge("bind", kOk, [&] {
    return moekit::bind(runtime, plan, experts, workspace.span(), arguments).status();
  });
  judge("bind refused", kBad, [&] {
    return moekit::bind(runtime, plan, experts, workspace.span(), wrong).status();
  });
  judge("run", kOk, [&] { return run(runtime, binding); });
  judge("run_host_tensors", kOk, [&] {
    return run_host_tensors(runtime, plan, experts, workspace.span(), arguments);
  });
  judge("verify_call", kOk, [&] {
    return verify_call(plan, layer.source, arguments, workspace.span()).status();
  });
  judge("run_verify_case", kOk, [&] {
    VerifyCase verify_case;
    verify_case.problem = problem;
    verify_case.num_tokens = 2;
    verify_case.quirk = "none";
    return run_verify_case(runtime, verify_case, plan->device).status();
  });
  judge("unpack_expert", kOk, [&] {
    std::vector<std::byte> storage;
    return unpack_expert(experts, 0, storage).status();
  });
  judge("save_packed_experts", kOk, [&] { return save_packed_experts(experts, path); });
  judge("map_packed_experts", kOk, [&] { return map_packed_experts(plan, path).status(); });
  judge("Checkpoint::open of nothing", StatusCode::kIo, [] {
    return Checkpoint::open("/nowhere/at/all.safetensors").status();
  });
  std::filesystem::remove(path);
  EXPECT_EQ(calls, 22);
  EXPECT_GE(allocations, 300);
}

TEST(Exhaustion, DevicesAreListedWithoutMemoryForTheirNames) {
  int named = 0;
  for (const std::int64_t granted : {0, 1, 2, 3, 5, 8, 13, 21, 200}) {
    HeapCount::allowed = granted;
    const DeviceDescriptor host = host_cpu();
    const std::vector<DeviceDescriptor> devices = list_devices();
    HeapCount::allowed = kUnlimited;
    EXPECT_GE(host.num_threads, 1);
    EXPECT_EQ(host.isa, host_cpu().isa);
    EXPECT_LE(devices.size(), list_devices().size());
    named += host.name == host_cpu().name ? 1 : 0;
  }
  EXPECT_GE(named, 1);
}

}  // namespace
}  // namespace moekit
