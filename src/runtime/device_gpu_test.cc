// SPDX-License-Identifier: Apache-2.0

// The catalogue on a real GPU: known answers, bits equal to the host's, and the capture contract on
// the real driver.

#include <cmath>
#include <cstring>
#include <random>
#include <unistd.h>

#include <gtest/gtest.h>

#include "moekit/kernels.h"

#include "base/config.h"
#include "cuda/execute.h"
#include "cuda/launch.h"
#include "device/numerics/bf16.h"
#include "kernels/catalog.h"
#include "kernels/quantize_rows/quantize.h"
#include "kernels/route_topk/launch_cuda.h"
#include "runtime/cuda_runtime.h"
#include "runtime/kernel_folders.h"

namespace moekit {
namespace {

namespace quantize = kernels::quantize_rows;
namespace topk = kernels::route_topk;

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<CudaRuntime>> opened = CudaRuntime::open(0, {});
    if (!opened) {
      GTEST_SKIP() << opened.status().message();
    }
    cuda = *std::move(opened);
    Result<cuda::Stream> made = cuda::Stream::create(cuda->device());
    ASSERT_TRUE(made.has_value());
    stream.emplace(*std::move(made));
  }

  template <typename T>
  cuda::DeviceBuffer to_device(const std::vector<T>& values) {
    cuda::DeviceBuffer buffer =
        *cuda::DeviceBuffer::allocate(cuda->device(), values.size() * sizeof(T));
    EXPECT_TRUE(stream->upload(buffer.address(), std::as_bytes(std::span(values))).ok());
    return buffer;
  }

  template <typename T>
  std::vector<T> to_host(const cuda::DeviceBuffer& buffer) {
    std::vector<T> values(buffer.bytes() / sizeof(T));
    EXPECT_TRUE(stream->download(std::as_writable_bytes(std::span(values)), buffer.address()).ok());
    EXPECT_TRUE(stream->synchronize().ok());
    return values;
  }

  Arch arch() const { return cuda->device()->descriptor().arch; }

  std::unique_ptr<CudaRuntime> cuda;
  std::optional<cuda::Stream> stream;
};

TEST_F(Gpu, EveryKernelOfTheCatalogueKnowsItsAnswer) {
  std::size_t warmed = 0;
  for (const kernels::CudaEntry& entry : kernels::cuda_catalog()) {
    for (const plan::KernelSource& source : entry.cuda->catalog(arch())) {
      const Status status = cuda->kernels().prewarm(*entry.cuda, source.kernel);
      EXPECT_TRUE(status.ok()) << status.to_string();
      ++warmed;
    }
  }
  EXPECT_GE(warmed, 4U);
}

TEST_F(Gpu, QuantisersGiveTheHostsBytes) {
  std::size_t checked = 0;
  for (const quantize::Rule rule :
       {quantize::Rule::kQ4, quantize::Rule::kQ8, quantize::Rule::kQ8b}) {
    // Rows 0 to 65535 / cols: every BF16 there is, non-finite ones and both zeros included; then
    // random rows.
    constexpr std::int64_t kCols = 2056;  // short last groups
    constexpr std::int64_t kRows = 2000;
    std::vector<std::uint16_t> x(kRows * kCols);
    std::mt19937 generator(11);
    std::normal_distribution<float> normal(0.0F, 3.0F);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = i < 65536 ? static_cast<std::uint16_t>(i) : device::bf16_from_f32(normal(generator));
    }
    const float global = 0.0123F;
    const std::int64_t groups =
        (kCols + quantize::group_size(rule) - 1) / quantize::group_size(rule);
    std::vector<std::uint8_t> codes(
        static_cast<std::size_t>(kRows * kCols / 8 * quantize::lane_code_bytes(rule)));
    std::vector<std::uint8_t> scales(
        static_cast<std::size_t>(kRows * groups * quantize::scale_bytes(rule)));
    std::vector<std::uint16_t> operand(x.size());
    const cuda::DeviceBuffer d_x = to_device(x);
    const cuda::DeviceBuffer d_global = to_device(std::vector<float>{global});
    const cuda::DeviceBuffer d_codes = to_device(codes);
    const cuda::DeviceBuffer d_scales = to_device(scales);
    const cuda::DeviceBuffer d_operand = to_device(operand);
    quantize::quantize_on_host(
        rule,
        {x.data(), codes.data(), scales.data(), operand.data(), &global, kRows, kCols, kCols});
    const quantize::Args args = {reinterpret_cast<const std::uint16_t*>(d_x.pointer()),
                                 reinterpret_cast<std::uint8_t*>(d_codes.pointer()),
                                 d_scales.pointer(),
                                 reinterpret_cast<std::uint16_t*>(d_operand.pointer()),
                                 reinterpret_cast<const float*>(d_global.pointer()),
                                 kRows,
                                 kCols,
                                 kCols};
    plan::Launch launch;
    ASSERT_TRUE(quantize::describe_launch(rule, args, launch).ok());
    const Result<const cuda::LoadedKernel*> kernel = cuda->kernels().resolve(
        quantize::kCuda, quantize::kernel_name(rule, arch()), stream->handle());
    ASSERT_TRUE(kernel.has_value()) << kernel.status().to_string();
    ASSERT_TRUE(
        cuda::launch_kernel(
            *cuda->device(), **kernel, launch.geometry, launch.arguments.bytes(), stream->handle())
            .ok());
    EXPECT_EQ(to_host<std::uint8_t>(d_codes), codes);
    EXPECT_EQ(to_host<std::uint8_t>(d_scales), scales);
    EXPECT_EQ(to_host<std::uint16_t>(d_operand), operand);
    ++checked;
  }
  EXPECT_EQ(checked, 3U);
}

/// The routing kernel beside route(), on one set of buffers.
class RouteProbe {
 public:
  static constexpr std::int64_t kTokens = 77;

  RouteProbe(CudaRuntime& cuda, const cuda::Stream& stream, const Routing& routing, unsigned seed)
      : cuda_(cuda), stream_(stream), routing_(routing), generator_(seed) {
    const auto routes = static_cast<std::size_t>(kTokens * routing.top_k);
    ids_.resize(routes);
    weights_.resize(routes);
    d_logits_ = buffer(static_cast<std::size_t>(kTokens * routing.num_experts) * 4);
    d_bias_ = buffer(static_cast<std::size_t>(routing.num_experts) * 4);
    d_ids_ = buffer(routes * 4);
    d_weights_ = buffer(routes * 4);
    plan_.problem.routing = routing;
    arguments_.router_logits = matrix_view(
        static_cast<const void*>(d_logits_.pointer()), DType::kF32, kTokens, routing.num_experts);
    arguments_.correction_bias = reinterpret_cast<const float*>(d_bias_.pointer());
    step_ = topk::cuda_step(routing, cuda.device()->descriptor().arch, kTokens);
    call_.plan = &plan_;
    call_.arguments = &arguments_;
    call_.num_tokens = kTokens;
    call_.slices[static_cast<std::size_t>(plan::SliceId::kTopkIds)] = d_ids_.pointer();
    call_.slices[static_cast<std::size_t>(plan::SliceId::kTopkWeights)] = d_weights_.pointer();
  }

  /// Other logits and bias, on the host and on the device.
  Status draw() {
    logits_ = values(static_cast<std::size_t>(kTokens * routing_.num_experts), 1.0F);
    bias_ = values(static_cast<std::size_t>(routing_.num_experts), 0.25F);
    MOEKIT_RETURN_IF_ERROR(stream_.upload(d_logits_.address(), std::as_bytes(std::span(logits_))));
    return stream_.upload(d_bias_.address(), std::as_bytes(std::span(bias_)));
  }

  Status submit() {
    MOEKIT_RETURN_IF_ERROR(cuda_.kernels().prewarm(topk::kCuda, step_.kernel));
    return submit_loaded();
  }

  Status submit_loaded() {
    const cuda::StepWork work = {&topk::kCuda, &step_, cuda_.kernels().find(step_.kernel)};
    return cuda::execute(cuda_.kernels(), std::span(&work, 1), call_, stream_.handle());
  }

  /// Downloads and compares with route() bit for bit.
  void expect_host(const char* when) {
    std::vector<std::int32_t> ids(ids_.size());
    std::vector<float> weights(weights_.size());
    const std::int64_t top_k = routing_.top_k;
    ASSERT_TRUE(
        route(routing_,
              {.logits = matrix_view(static_cast<const void*>(logits_.data()),
                                     DType::kF32,
                                     kTokens,
                                     routing_.num_experts),
               .correction_bias = routing_.correction_bias ? bias_.data() : nullptr,
               .topk_ids = matrix_view(static_cast<void*>(ids.data()), DType::kI32, kTokens, top_k),
               .topk_weights =
                   matrix_view(static_cast<void*>(weights.data()), DType::kF32, kTokens, top_k)})
            .ok());
    ASSERT_TRUE(stream_.download(std::as_writable_bytes(std::span(ids_)), d_ids_.address()).ok());
    ASSERT_TRUE(
        stream_.download(std::as_writable_bytes(std::span(weights_)), d_weights_.address()).ok());
    ASSERT_TRUE(stream_.synchronize().ok());
    EXPECT_EQ(ids_, ids) << when << " experts " << routing_.num_experts;
    EXPECT_EQ(std::memcmp(weights_.data(), weights.data(), weights.size() * 4), 0) << when;
  }

 private:
  cuda::DeviceBuffer buffer(std::size_t bytes) {
    return *cuda::DeviceBuffer::allocate(cuda_.device(), bytes);
  }

  std::vector<float> values(std::size_t count, float factor) {
    std::normal_distribution<float> normal(0.0F, 3.0F);
    std::vector<float> made(count);
    for (float& value : made) {
      value = std::round(normal(generator_) * 4.0F) / 4.0F * factor;  // quarters: many ties
    }
    return made;
  }

  CudaRuntime& cuda_;
  const cuda::Stream& stream_;
  Routing routing_;
  std::mt19937 generator_;
  std::vector<float> logits_;
  std::vector<float> bias_;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
  cuda::DeviceBuffer d_logits_;
  cuda::DeviceBuffer d_bias_;
  cuda::DeviceBuffer d_ids_;
  cuda::DeviceBuffer d_weights_;
  PlanData plan_;
  RunArguments arguments_{};
  Step step_;
  plan::CudaCall call_;
};

Routing routing_of(std::int64_t experts, Scoring scoring, bool grouped) {
  return {.scoring = scoring,
          .num_experts = experts,
          .top_k = std::min<std::int64_t>(experts / 2, 10),
          .num_groups = grouped ? 8 : 1,
          .top_groups = grouped ? 4 : 1,
          .renormalize = grouped,
          .scale = 2.5F,
          .correction_bias = grouped};
}

TEST_F(Gpu, RoutesAreTheHostsBitForBitEagerAndReplayed) {
  unsigned checked = 0;
  for (const std::int64_t experts : {8, 64, 128, 256, 512, 1024}) {
    for (const Scoring scoring :
         {Scoring::kSoftmax, Scoring::kSigmoid, Scoring::kSoftmaxSelected, Scoring::kNone}) {
      for (const bool grouped : {false, true}) {
        RouteProbe probe(*cuda, *stream, routing_of(experts, scoring, grouped), ++checked);
        ASSERT_TRUE(probe.draw().ok());
        const Status eager = probe.submit();
        ASSERT_TRUE(eager.ok()) << eager.to_string();
        probe.expect_host("eager");
        const Result<cuda::Graph> graph =
            cuda::Graph::capture(*stream, [&] { return probe.submit_loaded(); });
        ASSERT_TRUE(graph.has_value()) << graph.status().to_string();
        ASSERT_TRUE(probe.draw().ok());
        ASSERT_TRUE(graph->launch(*stream).ok());
        probe.expect_host("replayed with other logits");
      }
    }
  }
  EXPECT_EQ(checked, 48U);
}

TEST_F(Gpu, AnUnresolvedStepInARealCaptureFailsAndTheNextCaptureWorks) {
  const Result<std::unique_ptr<CudaRuntime>> fresh = CudaRuntime::open(0, {});
  ASSERT_TRUE(fresh.has_value());
  RouteProbe probe(**fresh, *stream, routing_of(64, Scoring::kSoftmax, true), 3);
  ASSERT_TRUE(probe.draw().ok());
  ASSERT_TRUE(stream->synchronize().ok());
  const auto submit = [&] { return probe.submit_loaded(); };
  const Status refused = cuda::Graph::capture(*stream, submit).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused.to_string();
  EXPECT_NE(refused.message().find("route_topk.any"), std::string::npos);
  ASSERT_TRUE(probe.submit().ok());
  const Result<cuda::Graph> graph = cuda::Graph::capture(*stream, submit);
  ASSERT_TRUE(graph.has_value()) << graph.status().to_string();
  ASSERT_TRUE(probe.draw().ok());
  EXPECT_TRUE(graph->launch(*stream).ok());
  probe.expect_host("first capture after a refused one");
}

/// Launches a kernel on an address that is no memory; true when every report is as it should be.
bool fault_is_reported() {
  const Result<std::unique_ptr<CudaRuntime>> own = CudaRuntime::open(0, {});
  const cuda::DevicePointer& device = (*own)->device();
  const cuda::Stream lane = *cuda::Stream::create(device);
  const quantize::Args args = {reinterpret_cast<const std::uint16_t*>(std::uintptr_t{16}),
                               nullptr,
                               nullptr,
                               nullptr,
                               nullptr,
                               1,
                               8,
                               8};
  plan::Launch launch;
  if (!quantize::describe_launch(quantize::Rule::kQ8, args, launch).ok()) {
    return false;
  }
  const cuda::LoadedKernel* kernel = *(*own)->kernels().resolve(
      quantize::kCuda,
      quantize::kernel_name(quantize::Rule::kQ8, device->descriptor().arch),
      lane.handle());
  const auto submit = [&] {
    return cuda::launch_kernel(
        *device, *kernel, launch.geometry, launch.arguments.bytes(), lane.handle());
  };
  const bool launched = submit().ok();
  const bool seen = lane.synchronize().code() == StatusCode::kDevice;
  const bool kept = device->sticky_error().code() == StatusCode::kDevice;
  return launched && seen && kept && submit().message().find(kernel->name) != std::string::npos;
}

TEST_F(Gpu, AFaultIsStickyAndNamesTheStep) {
  // In a child that starts from the beginning: the fault takes the context of its process with it,
  // and a driver does not live through fork.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(::_exit(fault_is_reported() ? 42 : 1), testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace moekit
