// SPDX-License-Identifier: Apache-2.0

// bind and run allocate nothing, on the real driver: every driver call that obtains memory or an
// object is counted on its way, every operator new of the calling thread too, and the device has as
// much free memory afterwards as before.

#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "moekit/kernels.h"

#include "base/config.h"
#include "runtime/device_stage.h"
#include "runtime/kernel_folders.h"
#include "runtime/state.h"
#include "runtime/test_layer.h"

namespace {
thread_local std::int64_t num_news = 0;
}  // namespace

// The pair below is malloc and free on both sides; the compiler sees only one of them inlined.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

void* operator new(std::size_t size) {
  ++num_news;
  if (void* memory = std::malloc(size == 0 ? 1 : size); memory != nullptr) {
    return memory;
  }
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace moekit {
namespace {

/// The real driver, and how often it was asked for something that takes memory.
struct Counted {
  static inline cuda::DriverTable real;
  static inline std::atomic<std::int64_t> calls{0};
};

cuda::DriverTable counting(const cuda::DriverTable& real) {
  Counted::real = real;
  cuda::DriverTable table = real;
  table.memory_alloc = [](cuda::CuDevicePointer* pointer, std::size_t bytes) {
    ++Counted::calls;
    return Counted::real.memory_alloc(pointer, bytes);
  };
  table.memory_create = [](cuda::CuMemoryHandle* handle,
                           std::size_t bytes,
                           const cuda::CuAllocationProperties* properties,
                           unsigned long long flags) {
    ++Counted::calls;
    return Counted::real.memory_create(handle, bytes, properties, flags);
  };
  table.address_reserve = [](cuda::CuDevicePointer* pointer,
                             std::size_t bytes,
                             std::size_t alignment,
                             cuda::CuDevicePointer wanted,
                             unsigned long long flags) {
    ++Counted::calls;
    return Counted::real.address_reserve(pointer, bytes, alignment, wanted, flags);
  };
  table.host_alloc = [](void** pointer, std::size_t bytes, unsigned flags) {
    ++Counted::calls;
    return Counted::real.host_alloc(pointer, bytes, flags);
  };
  table.stream_create = [](cuda::CuStream* stream, unsigned flags) {
    ++Counted::calls;
    return Counted::real.stream_create(stream, flags);
  };
  table.event_create = [](cuda::CuEvent* event, unsigned flags) {
    ++Counted::calls;
    return Counted::real.event_create(event, flags);
  };
  table.module_load_data = [](cuda::CuModule* module, const void* image) {
    ++Counted::calls;
    return Counted::real.module_load_data(module, image);
  };
  return table;
}

struct Counts {
  std::int64_t driver = Counted::calls.load();
  std::int64_t host = num_news;

  friend bool operator==(const Counts&, const Counts&) = default;
};

class NoAllocation : public testing::Test {
 protected:
  void SetUp() override {
    const base::Config& config = base::environment_config();
    const Result<cuda::DriverTable> driver = cuda::open_driver(config.cuda_library);
    if (!driver) {
      GTEST_SKIP() << driver.status().message();
    }
    const KernelFolders folders = environment_folders();
    CudaRuntimeOptions options;
    options.store = {.bundle_folder = folders.bundle,
                     .cache_folder = folders.cache,
                     .cache_mode = config.cache_mode,
                     .open_compiler = open_environment_nvrtc,
                     .sources = jit::embedded_sources()};
    Result<std::unique_ptr<CudaRuntime>> made = CudaRuntime::create(counting(*driver), options);
    if (!made) {
      GTEST_SKIP() << made.status().message();
    }
    auto state = std::make_shared<Runtime::State>();
    state->cuda = *std::move(made);
    cuda = state->cuda.get();
    runtime.emplace(std::move(state));
    if (cuda->device()->descriptor().arch != Arch::kSm90a) {
      GTEST_SKIP() << "kernels are for sm_90a";
    }
  }

  std::size_t free_bytes() const {
    const cuda::CurrentContext current(*cuda->device());
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(cuda->device()->driver().memory_get_info(&free, &total), cuda::kCuSuccess);
    return free;
  }

  std::optional<Runtime> runtime;
  CudaRuntime* cuda = nullptr;
};

Problem small_layer() {
  Problem problem;
  problem.num_tokens = 16;
  problem.num_experts = 8;
  problem.top_k = 2;
  problem.hidden_size = 256;
  problem.intermediate_size = 112;
  problem.recipe = Recipe::kW4a16Nvfp4;
  return problem;
}

/// Host tensors of a call, all zero: what is computed is no matter here.
struct HostCall {
  explicit HostCall(const Problem& problem, std::int64_t tokens)
      : x(static_cast<std::size_t>(tokens * problem.hidden_size)),
        ids(static_cast<std::size_t>(tokens * problem.top_k)),
        floats(static_cast<std::size_t>(tokens * problem.num_experts)),
        out(x.size()) {
    const auto in = [tokens](const auto& values, DType dtype, std::int64_t cols) {
      return matrix_view(static_cast<const void*>(values.data()), dtype, tokens, cols);
    };
    arguments.x = in(x, DType::kBf16, problem.hidden_size);
    if (problem.routing.has_value()) {
      arguments.router_logits = in(floats, DType::kF32, problem.num_experts);
    } else {
      arguments.topk_ids = in(ids, DType::kI32, problem.top_k);
      arguments.topk_weights = in(floats, DType::kF32, problem.top_k);
    }
    arguments.out =
        matrix_view(static_cast<void*>(out.data()), DType::kBf16, tokens, problem.hidden_size);
  }

  std::vector<std::uint16_t> x;
  std::vector<std::int32_t> ids;
  std::vector<float> floats;
  std::vector<std::uint16_t> out;
  RunArguments arguments{};
};

struct Kind {
  const char* name;
  bool resident;
  bool routed;
};

TEST_F(NoAllocation, InBindAndRunEagerAndCaptured) {
  std::size_t checked = 0;
  for (const Kind& kind : {Kind{"two launches", false, false},
                           Kind{"resident", true, false},
                           Kind{"routed", false, true}}) {
    SCOPED_TRACE(kind.name);
    Problem problem = small_layer();
    if (kind.routed) {
      problem.routing = Routing{.num_experts = problem.num_experts, .top_k = problem.top_k};
    }
    const Result<Plan> plan =
        make_plan(problem, cuda->device()->descriptor(), {.resident = kind.resident});
    ASSERT_TRUE(plan.has_value()) << plan.status().to_string();
    const TestLayer layer(problem);
    const Result<PackedExperts> packed = prepare(*plan, layer.source);
    ASSERT_TRUE(packed.has_value()) << packed.status().to_string();
    const Counts unprepared;
    const PackedExperts experts = *upload(*runtime, *packed);
    // The counters count: an upload takes memory and a stream, a copy of bytes takes the heap.
    EXPECT_GE(Counts().driver, unprepared.driver + 2);
    EXPECT_GT(Counts().host, unprepared.host);
    const Status warmed = prewarm(*runtime, *plan);
    ASSERT_TRUE(warmed.ok()) << warmed.to_string();
    std::vector<std::byte> workspace(static_cast<std::size_t>(plan->workspace_bytes()));
    for (const std::int64_t tokens : {1, 7, 16}) {
      HostCall call(problem, tokens);
      const Result<DeviceStage> stage =
          DeviceStage::make(*cuda, problem, call.arguments, workspace, StageMemory::kPlain);
      ASSERT_TRUE(stage.has_value()) << stage.status().to_string();
      ASSERT_TRUE(stage->to_device().ok());
      const Stream stream{stage->stream().handle()};
      const auto bind_and_run = [&]() -> Status {
        const Result<Binding> binding =
            moekit::bind(*runtime, *plan, experts, stage->workspace(), stage->arguments());
        return binding.has_value() ? run(*runtime, *binding, stream) : binding.status();
      };
      // The first launch of a kernel may make the driver reserve what the kernel needs.
      ASSERT_TRUE(bind_and_run().ok());
      ASSERT_TRUE(stage->stream().synchronize().ok());
      const std::size_t free_before = free_bytes();
      const Counts before;
      for (int i = 0; i < 50; ++i) {
        const Status ran = bind_and_run();
        if (!ran.ok()) {
          FAIL() << ran.to_string();
        }
      }
      EXPECT_EQ(Counts(), before) << "eager, M " << tokens;
      ASSERT_TRUE(stage->stream().synchronize().ok());
      EXPECT_EQ(free_bytes(), free_before) << "eager, M " << tokens;
      const Result<cuda::Graph> graph = cuda::Graph::capture(stage->stream(), [&]() -> Status {
        const Counts at_start;
        Status ran = bind_and_run();
        EXPECT_EQ(Counts(), at_start) << "captured, M " << tokens;
        return ran;
      });
      ASSERT_TRUE(graph.has_value()) << graph.status().to_string();
      ASSERT_TRUE(graph->launch(stage->stream()).ok());
      ASSERT_TRUE(stage->to_host().ok());
      ++checked;
    }
  }
  EXPECT_EQ(checked, 9U);
}

}  // namespace
}  // namespace moekit
