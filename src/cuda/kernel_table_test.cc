// SPDX-License-Identifier: Apache-2.0

// The capture contract of spec section 8, read off the calls that fakes recorded.

#include "cuda/kernel_table.h"

#include <algorithm>
#include <latch>
#include <thread>

#include <gtest/gtest.h>

#include "base/text.h"
#include "cuda/driver_fake.h"
#include "cuda/execute.h"
#include "jit/nvrtc_fake.h"
#include "jit/test_folder.h"

namespace moekit::cuda {
namespace {

using Calls = std::vector<std::string>;

struct Args {
  const float* x;
  float* out;
  alignas(64) std::array<std::byte, 128> map;
  std::int32_t count;
};

// A family that doubles numbers: what its kernels compute is written in `double_body`.
Result<plan::KernelSource> source(std::string_view kernel) {
  return plan::KernelSource{.kernel = std::string(kernel),
                            .entry = plan::entry_symbol(kernel),
                            .arch = Arch::kSm90a,
                            .prelude = base::cat("#include \"device/portable.h\"\n// ", kernel),
                            .num_threads = 128,
                            .smem_bytes = 4096,
                            .shares_sm = kernel.find("beside") != std::string_view::npos};
}

Status launch(const plan::CudaCall& call, plan::Launch& out) {
  Args args{};
  args.count = static_cast<std::int32_t>(call.num_tokens);
  out.arguments.set(args);
  if (call.step->kernel.find("mapped") != std::string::npos) {
    out.tensor_maps[0] = {.argument_offset = offsetof(Args, map), .rank = 2};
    out.num_tensor_maps = 1;
  }
  return {};
}

Result<plan::SelfTest> self_test(std::string_view) {
  plan::SelfTest test;
  test.geometry.block.x = 128;
  Args args{};
  args.count = 2;
  test.arguments.resize(sizeof(Args));
  std::memcpy(test.arguments.data(), &args, sizeof(args));
  test.pointers = {{.argument_offset = offsetof(Args, x), .buffer = 0},
                   {.argument_offset = offsetof(Args, out), .buffer = 1}};
  const std::array<float, 2> before = {1.0F, 3.0F};
  const std::array<float, 2> after = {2.0F, 6.0F};
  const auto bytes = [](const std::array<float, 2>& values) {
    const auto span = std::as_bytes(std::span(values));
    return std::vector<std::byte>(span.begin(), span.end());
  };
  test.buffers = {{.before = bytes(before)}, {.before = bytes({}), .after = bytes(after)}};
  return test;
}

void double_body(const std::string&, const CuLaunchConfig&, const void* arguments) {
  Args args{};
  std::memcpy(&args, arguments, sizeof(args));
  for (std::int32_t i = 0; i < args.count && args.out != nullptr; ++i) {
    args.out[i] = 2.0F * args.x[i];
  }
}

constexpr plan::CudaFamily kFamily = {
    .catalog = nullptr, .source = source, .launch = launch, .self_test = self_test};

class CountingFiles : public jit::Files {
 public:
  Result<std::optional<jit::EntryContents>> read_entry(const std::string& folder,
                                                       const std::string& name) override {
    accesses += 1;
    return Files::read_entry(folder, name);
  }

  Status publish(const std::string& folder,
                 const std::string& name,
                 const jit::EntryContents& contents,
                 bool replace) override {
    accesses += 1;
    return Files::publish(folder, name, contents, replace);
  }

  std::atomic<int> accesses{0};
};

class KernelTableTest : public testing::Test {
 protected:
  KernelTableTest() {
    nvrtc = jit::NvrtcFake::table();
    store = std::make_unique<jit::ImageStore>(
        jit::StoreOptions{.cache_folder = folder.path() + "/cache",
                          .open_compiler = [this] { return Result<jit::NvrtcTable>(nvrtc); },
                          .sources = jit::embedded_sources()},
        files);
    device = *Device::open(driver, 0);
    table = std::make_unique<KernelTable>(device, *store, gate);
    DriverFake::set_body(double_body);
    DriverFake::forget_calls();
  }

  /// Runs the step named `kernel` as the runtime does.
  Status run(const std::string& kernel, CuStream on, bool bound = true) {
    Step step{.family = "f", .kernel = kernel};
    step.grid.x = 7;
    step.block.x = 128;
    step.smem_bytes = 1024;
    const StepWork work = {
        .family = &kFamily, .step = &step, .kernel = bound ? table->find(kernel) : nullptr};
    plan::CudaCall call;
    call.num_tokens = 0;
    return execute(*table, std::span(&work, 1), call, on);
  }

  void expect_untouched() {
    EXPECT_EQ(files.accesses, 0);
    EXPECT_EQ(jit::NvrtcFake::calls(), Calls{});
    EXPECT_EQ(store->counts(), jit::StoreCounts{});
  }

  const CuStream stream = reinterpret_cast<CuStream>(std::uintptr_t{0x100});
  const CuStream other = reinterpret_cast<CuStream>(std::uintptr_t{0x200});
  const jit::TestFolder folder;
  jit::NvrtcTable nvrtc;
  DriverTable driver = DriverFake::table();
  CountingFiles files;
  jit::FreezeGate gate;
  std::unique_ptr<jit::ImageStore> store;
  DevicePointer device;
  std::unique_ptr<KernelTable> table;
};

const std::string kKernel = "f.r.double_t1.sm90a";

TEST_F(KernelTableTest, PrewarmedRunCallsNothingButTheLaunch) {
  ASSERT_TRUE(table->prewarm(kFamily, kKernel).ok());
  for (const bool bound : {true, false}) {
    DriverFake::forget_calls();
    files.accesses = 0;
    const jit::StoreCounts before = store->counts();
    ASSERT_TRUE(run(kKernel, stream, bound).ok());
    EXPECT_EQ(DriverFake::calls(), Calls{"launch"});
    EXPECT_EQ(files.accesses, 0);
    EXPECT_EQ(store->counts(), before);
  }
  const CuLaunchConfig config = DriverFake::launches().back();
  EXPECT_EQ(config.grid_x, 7U);
  EXPECT_EQ(config.block_x, 128U);
  EXPECT_EQ(config.smem_bytes, 1024U);
  EXPECT_EQ(config.stream, stream);
  EXPECT_EQ(config.num_attributes, 0U);
}

TEST_F(KernelTableTest, PrewarmedRunIsTheLaunchAloneInCaptureAndWhenFrozen) {
  ASSERT_TRUE(table->prewarm(kFamily, kKernel).ok());
  DriverFake::set_capture(stream, kCuCaptureActive);
  gate.freeze("serving");
  DriverFake::forget_calls();
  ASSERT_TRUE(run(kKernel, stream).ok());
  EXPECT_EQ(DriverFake::calls(), Calls{"launch"});
}

TEST_F(KernelTableTest, UnresolvedStepInCaptureFailsBeforeAnythingElse) {
  for (const int status : {kCuCaptureActive, kCuCaptureInvalidated}) {
    DriverFake::set_capture(stream, status);
    DriverFake::forget_calls();
    const Status refused = run(kKernel, stream);
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(refused.message().find(kKernel), std::string::npos) << refused.message();
    EXPECT_NE(refused.message().find(status == kCuCaptureActive ? "active" : "invalidated"),
              std::string::npos);
    EXPECT_EQ(DriverFake::calls(), Calls{"stream_is_capturing"});
    expect_untouched();
  }
}

TEST_F(KernelTableTest, AnotherStreamsCaptureIsNoObstacle) {
  DriverFake::set_capture(other, kCuCaptureActive);
  EXPECT_TRUE(run(kKernel, stream).ok());
  EXPECT_EQ(run("f.r.second_t1.sm90a", other).code(), StatusCode::kFailedPrecondition);
}

TEST_F(KernelTableTest, FrozenProcessRefusesWithItsReasonAndWithoutADriverCall) {
  gate.freeze("engine warm-up is over");
  const Status refused = run(kKernel, stream);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find(kKernel), std::string::npos);
  EXPECT_NE(refused.message().find("engine warm-up is over"), std::string::npos);
  EXPECT_EQ(DriverFake::calls(), Calls{});
  expect_untouched();
  gate.unfreeze("reload");
  EXPECT_TRUE(run(kKernel, stream).ok());
}

TEST_F(KernelTableTest, AStreamThatTheDriverDoesNotKnowIsAnErrorBeforeAnythingElse) {
  DriverFake::fail_next("stream_is_capturing", kCuInvalidHandle);
  const Status status = run(kKernel, stream);
  EXPECT_EQ(status.code(), StatusCode::kDevice);
  EXPECT_NE(status.message().find(kKernel), std::string::npos);
  expect_untouched();
}

TEST_F(KernelTableTest, EagerResolutionAsksOnceLocksOnceCompilesOnceAndLaunches) {
  ASSERT_TRUE(run(kKernel, stream).ok());
  EXPECT_EQ(DriverFake::calls(),
            (Calls{"stream_is_capturing",
                   "context_push",
                   "thread_exchange_capture_mode",
                   "module_load_data",
                   "module_get_function",
                   "function_set_attribute",
                   "function_get_attribute",
                   "thread_exchange_capture_mode",
                   "context_pop",
                   "launch"}));
  EXPECT_EQ(store->counts(), (jit::StoreCounts{.locks = 1, .compiles = 1, .published = 1}));
  DriverFake::forget_calls();
  ASSERT_TRUE(run(kKernel, stream).ok());
  EXPECT_EQ(DriverFake::calls(), Calls{"launch"});
}

TEST_F(KernelTableTest, AKernelThatSharesItsSmAsksForAllOfItsSharedMemory) {
  ASSERT_TRUE(run("f.r.beside_t1.sm90a", stream).ok());
  const Calls calls = DriverFake::calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "function_set_attribute"), 2);
  DriverFake::forget_calls();
  DriverFake::fail_next("function_set_attribute", kCuInvalidHandle);
  EXPECT_EQ(run("f.r.beside_t2.sm90a", stream).code(), StatusCode::kDevice);
}

TEST_F(KernelTableTest, ARungIsResolvedWholeBeforeItsFirstLaunch) {
  ASSERT_TRUE(table->prewarm(kFamily, kKernel).ok());
  DriverFake::set_capture(stream, kCuCaptureActive);
  DriverFake::forget_calls();
  const Step first{.family = "f", .kernel = kKernel};
  const Step second{.family = "f", .kernel = "f.r.second_t1.sm90a"};
  const std::array<StepWork, 2> work = {StepWork{&kFamily, &first, table->find(kKernel)},
                                        StepWork{&kFamily, &second, nullptr}};
  plan::CudaCall call;
  EXPECT_EQ(execute(*table, work, call, stream).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(DriverFake::calls(), Calls{"stream_is_capturing"});
}

TEST_F(KernelTableTest, PrewarmTestsAnImageOnceAndLeavesNoMemoryBehind) {
  const std::int64_t before = DriverFake::live_allocations();
  ASSERT_TRUE(table->prewarm(kFamily, kKernel).ok());
  const auto count = [](std::string_view name) {
    const Calls calls = DriverFake::calls();
    return std::count(calls.begin(), calls.end(), name);
  };
  EXPECT_EQ(count("launch"), 1);
  ASSERT_TRUE(table->prewarm(kFamily, kKernel).ok());
  EXPECT_EQ(count("launch"), 1);
  EXPECT_EQ(count("module_load_data"), 1);
  EXPECT_EQ(DriverFake::live_allocations(), before);
}

TEST_F(KernelTableTest, WrongAnswerNamesKernelDeviceBufferAndByte) {
  DriverFake::set_body([](const std::string&, const CuLaunchConfig&, const void* arguments) {
    Args args{};
    std::memcpy(&args, arguments, sizeof(args));
    args.out[0] = 2.0F;
    args.out[1] = 7.0F;  // 0x40e00000 where 6 is 0x40c00000: byte 6 differs
  });
  const Status status = table->prewarm(kFamily, kKernel);
  EXPECT_EQ(status.code(), StatusCode::kDevice);
  EXPECT_NE(status.message().find(kKernel), std::string::npos);
  EXPECT_NE(status.message().find("cuda:0 (NVIDIA H200)"), std::string::npos);
  EXPECT_NE(status.message().find("buffer 1 byte 6 is 224, expected 192"), std::string::npos)
      << status.message();
  EXPECT_EQ(DriverFake::live_allocations(), 0);
  // It stays untested: the next prewarm finds out again.
  EXPECT_EQ(table->prewarm(kFamily, kKernel).code(), StatusCode::kDevice);
}

TEST_F(KernelTableTest, PrewarmIsLegalWhenFrozen) {
  gate.freeze("serving");
  EXPECT_TRUE(table->prewarm(kFamily, kKernel).ok());
  EXPECT_TRUE(run(kKernel, stream).ok());
}

TEST_F(KernelTableTest, AThreadWithoutTheContextEntersItForTheLaunch) {
  ASSERT_TRUE(table->prewarm(kFamily, kKernel).ok());
  DriverFake::need_context(true);
  DriverFake::forget_calls();
  ASSERT_TRUE(run(kKernel, stream).ok());
  EXPECT_EQ(DriverFake::calls(),
            (Calls{"launch",
                   "context_push",
                   "thread_exchange_capture_mode",
                   "launch",
                   "thread_exchange_capture_mode",
                   "context_pop"}));
}

TEST_F(KernelTableTest, StickyFaultIsKeptWithItsStep) {
  ASSERT_TRUE(table->prewarm(kFamily, kKernel).ok());
  EXPECT_TRUE(device->sticky_error().ok());
  DriverFake::fail_next("launch", 700);
  const Status status = run(kKernel, stream);
  EXPECT_EQ(status.code(), StatusCode::kDevice);
  EXPECT_NE(status.message().find(kKernel), std::string::npos);
  DriverFake::fail_next("launch", 719);
  EXPECT_FALSE(run(kKernel, stream).ok());
  EXPECT_EQ(device->sticky_error(), status);
}

TEST_F(KernelTableTest, OlderDriverIsRefusedNamingBothBeforeTheModuleLoads) {
  ASSERT_TRUE(run(kKernel, stream).ok());  // published to the cache
  DriverTable old = DriverFake::table(12080);
  jit::ImageStore fresh({.cache_folder = folder.path() + "/cache",
                         .open_compiler = [this] { return Result<jit::NvrtcTable>(nvrtc); },
                         .sources = jit::embedded_sources()},
                        files);
  KernelTable other_table(*Device::open(old, 0), fresh, gate);
  DriverFake::forget_calls();
  const Status status = other_table.prewarm(kFamily, kKernel);
  EXPECT_NE(status.message().find("needs driver 13000"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("the driver is 12080"), std::string::npos);
  EXPECT_EQ(DriverFake::calls(), Calls{});
}

TEST_F(KernelTableTest, AttributesAndTensorMapsArePerformedAsDescribed) {
  const std::string kernel = "f.r.mapped_t1.sm90a";
  ASSERT_TRUE(table->prewarm(kFamily, kernel).ok());
  Step step{.family = "f", .kernel = kernel};
  step.cooperative = true;
  step.pdl_edge = true;
  const StepWork work = {&kFamily, &step, table->find(kernel)};
  plan::CudaCall call;
  std::uint64_t map_word = 0;
  DriverFake::set_body([&](const std::string&, const CuLaunchConfig& config, const void* args) {
    ASSERT_EQ(config.num_attributes, 2U);
    EXPECT_EQ(config.attributes[0].id, kCuLaunchCooperative);
    EXPECT_EQ(config.attributes[0].value.flag, 1);
    EXPECT_EQ(config.attributes[1].id, kCuLaunchProgrammaticSerialization);
    std::memcpy(&map_word, static_cast<const std::byte*>(args) + offsetof(Args, map), 8);
  });
  DriverFake::forget_calls();
  ASSERT_TRUE(execute(*table, std::span(&work, 1), call, stream).ok());
  EXPECT_EQ(DriverFake::calls(), (Calls{"tensor_map_encode", "launch"}));
  EXPECT_EQ(map_word, 2U);  // rank 2 of u8, as the fake encodes it
}

TEST_F(KernelTableTest, ConcurrentPrewarmRunAndFreeze) {
  constexpr int kThreads = 6;
  constexpr int kRounds = 60;
  std::latch start(kThreads);
  std::atomic<int> ran{0};
  std::atomic<int> refused{0};
  std::atomic<int> wrong{0};
  DriverFake::set_body(double_body);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        start.arrive_and_wait();
        for (int i = 0; i < kRounds; ++i) {
          const std::string kernel = base::cat("f.r.k", (i * 7 + t) % 20, ".sm90a");
          if (t == 0) {
            gate.freeze("round");
            gate.unfreeze("round");
          } else if (t < 3) {
            wrong += table->prewarm(kFamily, kernel).ok() ? 0 : 1;
          } else {
            const Status status = run(kernel, stream);
            (status.ok() ? ran : refused) += 1;
            wrong += status.ok() || status.code() == StatusCode::kFailedPrecondition ? 0 : 1;
          }
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(ran + refused, 3 * kRounds);
  EXPECT_GT(ran, 0);
  EXPECT_EQ(table->size(), 20);
  EXPECT_EQ(store->counts().compiles, 20);
}

}  // namespace
}  // namespace moekit::cuda
