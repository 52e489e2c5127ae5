// SPDX-License-Identifier: Apache-2.0

// time_on_device: one graph of many calls, each with its own routing and weight copy, beside one
// graph that only reads the same experts.

#include <algorithm>
#include <limits>

#include "base/border.h"
#include "base/text.h"
#include "cuda/launch.h"
#include "kernels/memory_floor/floor.h"
#include "runtime/device_stage.h"
#include "runtime/state.h"

namespace moekit {
namespace {

using base::cat;
namespace memory_floor = kernels::memory_floor;

std::int64_t id_at(const TensorView& ids, std::int64_t token, std::int64_t slot) {
  const std::int64_t at = token * ids.strides[0] + slot;
  return ids.dtype == DType::kI64 ? static_cast<const std::int64_t*>(ids.data)[at]
                                  : static_cast<const std::int32_t*>(ids.data)[at];
}

/// Local experts that a call reads, ascending.
std::vector<std::int32_t> active_experts(const Problem& problem, const RunArguments& call) {
  std::vector<bool> active(static_cast<std::size_t>(problem.num_experts));
  for (std::int64_t token = 0; token < call.topk_ids.shape[0]; ++token) {
    for (std::int64_t slot = 0; slot < problem.top_k; ++slot) {
      const std::int64_t id = id_at(call.topk_ids, token, slot);
      if (id >= 0 && id < problem.num_experts) {
        active[static_cast<std::size_t>(id)] = true;
      }
    }
  }
  std::vector<std::int32_t> experts;
  for (std::size_t expert = 0; expert < active.size(); ++expert) {
    if (active[expert]) {
      experts.push_back(static_cast<std::int32_t>(expert));
    }
  }
  return experts;
}

class Timer {
 public:
  Timer(const Runtime& runtime,
        CudaRuntime& cuda,
        const Plan& plan,
        std::span<const PackedExperts> copies)
      : runtime_(runtime), cuda_(cuda), plan_(plan), copies_(copies) {}

  Status set_up(std::span<const RunArguments> calls) {
    MOEKIT_RETURN_IF_ERROR(cuda_.prewarm(plan_));
    MOEKIT_ASSIGN_OR_RETURN(workspace_,
                            cuda::DeviceBuffer::allocate(
                                cuda_.device(), static_cast<std::size_t>(plan_.workspace_bytes())));
    MOEKIT_ASSIGN_OR_RETURN(arrivals_, cuda::DeviceBuffer::allocate(cuda_.device(), 4));
    MOEKIT_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::create(cuda_.device()));
    stream_.emplace(std::move(stream));
    MOEKIT_RETURN_IF_ERROR(stream_->fill(arrivals_.address(), 4, 0));
    stages_.reserve(calls.size());
    for (const RunArguments& call : calls) {
      MOEKIT_RETURN_IF_ERROR(add(call));
    }
    return stream_->synchronize();
  }

  Result<DeviceTiming> measure(const DeviceTimingOptions& options) {
    DeviceTiming timing;
    timing.device = cuda_.device()->descriptor().name;
    timing.driver_version = cuda_.device()->driver().version;
    timing.calls_per_replay = static_cast<std::int64_t>(bindings_.size());
    timing.active_bytes = active_bytes_ / static_cast<double>(bindings_.size());
    MOEKIT_ASSIGN_OR_RETURN(const cuda::Graph layer,
                            cuda::Graph::capture(*stream_, [this] { return submit_layer(); }));
    double best = std::numeric_limits<double>::infinity();
    for (const std::string& kernel :
         memory_floor::kernel_names(cuda_.device()->descriptor().arch)) {
      MOEKIT_RETURN_IF_ERROR(cuda_.kernels().prewarm(memory_floor::kCuda, kernel));
      // The count of arrivals is in units of one kernel's grid.
      MOEKIT_RETURN_IF_ERROR(stream_->fill(arrivals_.address(), 4, 0));
      MOEKIT_RETURN_IF_ERROR(stream_->synchronize());
      MOEKIT_ASSIGN_OR_RETURN(const cuda::Graph floor,
                              cuda::Graph::capture(*stream_, [&] { return submit_floor(kernel); }));
      MOEKIT_ASSIGN_OR_RETURN(Series series, replay_in_turn(layer, floor, options));
      timing.layer_us.insert(timing.layer_us.end(), series.layer.begin(), series.layer.end());
      std::vector<double> sorted = series.floor;
      std::sort(sorted.begin(), sorted.end());
      if (sorted[sorted.size() / 2] < best) {
        best = sorted[sorted.size() / 2];
        timing.floor_us = std::move(series.floor);
        timing.floor_kernel = kernel;
      }
    }
    return timing.floor_us.empty()
               ? Result<DeviceTiming>(unsupported(cat("the memory floor has no kernel for ",
                                                      arch_name(plan_->device.arch),
                                                      "; nearest: sm_90a")))
               : Result<DeviceTiming>(std::move(timing));
  }

 private:
  struct Series {
    std::vector<double> layer{};
    std::vector<double> floor{};
  };

  Status add(const RunArguments& call) {
    const Problem& problem = plan_.problem();
    MOEKIT_ASSIGN_OR_RETURN(
        DeviceStage stage,
        DeviceStage::make(cuda_, problem, call, std::span<std::byte>(), StageMemory::kPlain));
    MOEKIT_RETURN_IF_ERROR(stage.to_device());
    MOEKIT_RETURN_IF_ERROR(stage.stream().synchronize());
    const PackedExperts& copy = copies_[bindings_.size() % copies_.size()];
    MOEKIT_ASSIGN_OR_RETURN(
        Binding binding,
        moekit::bind(
            runtime_, plan_, copy, {workspace_.pointer(), workspace_.bytes()}, stage.arguments()));
    stages_.push_back(std::move(stage));
    bindings_.push_back(std::move(binding));
    const std::vector<std::int32_t> experts = active_experts(problem, call);
    if (experts.empty()) {
      return invalid_argument("a call without an active expert has no floor");
    }
    MOEKIT_ASSIGN_OR_RETURN(
        cuda::DeviceBuffer list,
        cuda::DeviceBuffer::allocate(cuda_.device(), experts.size() * sizeof(std::int32_t)));
    MOEKIT_RETURN_IF_ERROR(stream_->upload(list.address(), std::as_bytes(std::span(experts))));
    MOEKIT_RETURN_IF_ERROR(stream_->synchronize());
    const PackedExperts::State& state = *copy.state();
    memory_floor::Args args{};
    args.gate_up = reinterpret_cast<const std::uint8_t*>(state.base + state.layout.gate_up.offset);
    args.down = reinterpret_cast<const std::uint8_t*>(state.base + state.layout.down.offset);
    args.experts = reinterpret_cast<const std::int32_t*>(list.pointer());
    args.arrivals = reinterpret_cast<std::uint32_t*>(arrivals_.pointer());
    args.gate_up_stride_bytes = state.layout.gate_up.expert_stride_bytes;
    args.down_stride_bytes = state.layout.down.expert_stride_bytes;
    args.num_active = static_cast<std::int32_t>(experts.size());
    active_bytes_ += static_cast<double>(args.num_active) *
                     static_cast<double>(args.gate_up_stride_bytes + args.down_stride_bytes);
    floors_.push_back(args);
    lists_.push_back(std::move(list));
    return {};
  }

  Status submit_layer() {
    for (const Binding& binding : bindings_) {
      MOEKIT_RETURN_IF_ERROR(run(runtime_, binding, {stream_->handle()}));
    }
    return {};
  }

  Status submit_floor(const std::string& kernel) {
    const cuda::LoadedKernel* loaded = cuda_.kernels().find(kernel);
    for (const memory_floor::Args& args : floors_) {
      plan::Launch launch;
      MOEKIT_RETURN_IF_ERROR(memory_floor::describe_launch(
          kernel, args, cuda_.device()->descriptor().num_sms, launch));
      MOEKIT_RETURN_IF_ERROR(cuda::launch_kernel(
          *cuda_.device(), *loaded, launch.geometry, launch.arguments.bytes(), stream_->handle()));
    }
    return {};
  }

  Result<double> replay_us(const cuda::Graph& graph) {
    MOEKIT_ASSIGN_OR_RETURN(const cuda::Event begin, cuda::Event::create(cuda_.device()));
    MOEKIT_ASSIGN_OR_RETURN(const cuda::Event end, cuda::Event::create(cuda_.device()));
    MOEKIT_RETURN_IF_ERROR(begin.record(*stream_));
    MOEKIT_RETURN_IF_ERROR(graph.launch(*stream_));
    MOEKIT_RETURN_IF_ERROR(end.record(*stream_));
    MOEKIT_RETURN_IF_ERROR(end.synchronize());
    MOEKIT_ASSIGN_OR_RETURN(const float ms, end.elapsed_ms(begin));
    return static_cast<double>(ms) * 1e3 / static_cast<double>(bindings_.size());
  }

  Result<Series> replay_in_turn(const cuda::Graph& layer,
                                const cuda::Graph& floor,
                                const DeviceTimingOptions& options) {
    Series series;
    for (int i = 0; i < options.warmups + std::max(options.repeats, 1); ++i) {
      MOEKIT_ASSIGN_OR_RETURN(const double layer_us, replay_us(layer));
      MOEKIT_ASSIGN_OR_RETURN(const double floor_us, replay_us(floor));
      if (i >= options.warmups) {
        series.layer.push_back(layer_us);
        series.floor.push_back(floor_us);
      }
    }
    return series;
  }

  const Runtime& runtime_;
  CudaRuntime& cuda_;
  const Plan& plan_;
  std::span<const PackedExperts> copies_;
  std::optional<cuda::Stream> stream_{};
  cuda::DeviceBuffer workspace_{};
  cuda::DeviceBuffer arrivals_{};
  std::vector<DeviceStage> stages_{};
  std::vector<Binding> bindings_{};
  std::vector<memory_floor::Args> floors_{};
  std::vector<cuda::DeviceBuffer> lists_{};
  double active_bytes_ = 0.0;
};

Status check(const Runtime& runtime,
             const Plan& plan,
             std::span<const PackedExperts> copies,
             std::span<const RunArguments> calls) {
  if (runtime.state() == nullptr) {
    return invalid_argument("runtime was not created");
  }
  if (plan->device.arch == Arch::kCpu) {
    return invalid_argument("the plan is for the cpu, time_on_device is for GPUs");
  }
  if (copies.empty() || calls.empty()) {
    return invalid_argument(cat(copies.size(),
                                " weight copies and ",
                                calls.size(),
                                " calls, expected at least one of each"));
  }
  if (plan.problem().routing.has_value() || plan.problem().expert_map) {
    return invalid_argument("a timed call begins with top-k ids of local experts");
  }
  return {};
}

}  // namespace

Result<DeviceTiming> time_on_device(const Runtime& runtime,
                                    const Plan& plan,
                                    std::span<const PackedExperts> copies,
                                    std::span<const RunArguments> calls,
                                    const DeviceTimingOptions& options) noexcept {
  return base::at_border([&]() -> Result<DeviceTiming> {
    MOEKIT_RETURN_IF_ERROR(check(runtime, plan, copies, calls));
    MOEKIT_ASSIGN_OR_RETURN(CudaRuntime* const cuda, runtime.state()->cuda_runtime());
    Timer timer(runtime, *cuda, plan, copies);
    MOEKIT_RETURN_IF_ERROR(timer.set_up(calls));
    return timer.measure(options);
  });
}

}  // namespace moekit
