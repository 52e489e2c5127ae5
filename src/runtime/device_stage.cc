// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_stage.h"

#include "base/border.h"
#include "device/portable.h"
#include "runtime/state.h"

namespace moekit {

Result<std::byte*> DeviceStage::add(Mirror mirror) {
  const std::int64_t bytes =
      mirror.num_rows == 0 ? 0
                           : (mirror.num_rows - 1) * mirror.device_stride_bytes + mirror.row_bytes;
  const auto size = static_cast<std::size_t>(bytes);
  if (memory_ == StageMemory::kGuarded) {
    MOEKIT_ASSIGN_OR_RETURN(mirror.buffer,
                            cuda::DeviceBuffer::allocate_guarded(cuda_.device(), size));
  } else {
    MOEKIT_ASSIGN_OR_RETURN(mirror.buffer, cuda::DeviceBuffer::allocate(cuda_.device(), size));
  }
  mirrors_.push_back(std::move(mirror));
  return mirrors_.back().buffer.pointer();
}

template <typename View>
Status DeviceStage::add_matrix(const View& host,
                               View& device,
                               std::int64_t row_alignment,
                               bool comes_back) {
  device = host;
  if (host.data == nullptr || host.rank != 2) {
    return {};
  }
  const std::int64_t width = dtype_bits(host.dtype) / 8;
  Mirror mirror;
  mirror.host = static_cast<std::byte*>(const_cast<void*>(host.data));
  mirror.num_rows = host.shape[0];
  mirror.row_bytes = host.shape[1] * width;
  mirror.host_stride_bytes = host.strides[0] * width;
  mirror.device_stride_bytes = device::round_up(mirror.host_stride_bytes, row_alignment);
  mirror.comes_back = comes_back;
  device.strides[0] = mirror.device_stride_bytes / width;
  MOEKIT_ASSIGN_OR_RETURN(device.data, add(std::move(mirror)));
  return {};
}

Result<DeviceStage> DeviceStage::make(CudaRuntime& cuda,
                                      const Problem& problem,
                                      const RunArguments& host,
                                      std::span<std::byte> workspace,
                                      StageMemory memory) {
  constexpr std::int64_t kCopyBytes = 16;  // kernels copy rows of x in units of this size
  MOEKIT_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::create(cuda.device()));
  DeviceStage stage(cuda, std::move(stream), memory);
  RunArguments& device = stage.device_;
  MOEKIT_RETURN_IF_ERROR(stage.add_matrix(host.x, device.x, kCopyBytes, false));
  MOEKIT_RETURN_IF_ERROR(stage.add_matrix(host.topk_ids, device.topk_ids, 1, false));
  MOEKIT_RETURN_IF_ERROR(stage.add_matrix(host.topk_weights, device.topk_weights, 1, false));
  MOEKIT_RETURN_IF_ERROR(stage.add_matrix(host.router_logits, device.router_logits, 1, false));
  MOEKIT_RETURN_IF_ERROR(stage.add_matrix(host.shared, device.shared, 1, false));
  MOEKIT_RETURN_IF_ERROR(stage.add_matrix(host.out, device.out, 1, true));
  const auto add_vector = [&stage](const void* data, std::int64_t bytes) {
    Mirror mirror;
    mirror.host = static_cast<std::byte*>(const_cast<void*>(data));
    mirror.num_rows = data == nullptr ? 0 : 1;
    mirror.row_bytes = mirror.host_stride_bytes = mirror.device_stride_bytes = bytes;
    return stage.add(std::move(mirror));
  };
  const std::int64_t experts = num_router_experts(problem);
  MOEKIT_ASSIGN_OR_RETURN(const std::byte* const bias,
                          add_vector(host.correction_bias, experts * 4));
  MOEKIT_ASSIGN_OR_RETURN(const std::byte* const map, add_vector(host.expert_map, experts * 4));
  device.correction_bias = reinterpret_cast<const float*>(bias);
  device.expert_map = reinterpret_cast<const std::int32_t*>(map);
  Mirror scratch;
  scratch.host = workspace.data();
  scratch.num_rows = workspace.empty() ? 0 : 1;
  scratch.row_bytes = static_cast<std::int64_t>(workspace.size());
  scratch.comes_back = true;
  stage.workspace_ = stage.mirrors_.size();
  MOEKIT_RETURN_IF_ERROR(stage.add(std::move(scratch)).status());
  return stage;
}

std::span<std::byte> DeviceStage::workspace() const noexcept {
  const cuda::DeviceBuffer& buffer = mirrors_[workspace_].buffer;
  return {buffer.pointer(), buffer.bytes()};
}

Status DeviceStage::to_device() const {
  for (const Mirror& mirror : mirrors_) {
    // What lies between rows is NaN, or id -1.
    MOEKIT_RETURN_IF_ERROR(stream_.fill(mirror.buffer.address(), mirror.buffer.bytes(), 0xFF));
    for (std::int64_t row = 0; row < mirror.num_rows; ++row) {
      const std::byte* from = mirror.host + row * mirror.host_stride_bytes;
      MOEKIT_RETURN_IF_ERROR(
          stream_.upload(mirror.buffer.address() +
                             static_cast<cuda::CuDevicePointer>(row * mirror.device_stride_bytes),
                         {from, static_cast<std::size_t>(mirror.row_bytes)}));
    }
  }
  return {};
}

Status DeviceStage::to_host() const {
  for (const Mirror& mirror : mirrors_) {
    for (std::int64_t row = 0; mirror.comes_back && row < mirror.num_rows; ++row) {
      MOEKIT_RETURN_IF_ERROR(stream_.download(
          {mirror.host + row * mirror.host_stride_bytes,
           static_cast<std::size_t>(mirror.row_bytes)},
          mirror.buffer.address() +
              static_cast<cuda::CuDevicePointer>(row * mirror.device_stride_bytes)));
    }
  }
  return stream_.synchronize();
}

namespace {

Status run_staged(const Runtime& runtime,
                  const Plan& plan,
                  const PackedExperts& experts,
                  std::span<std::byte> workspace,
                  const RunArguments& arguments) {
  MOEKIT_ASSIGN_OR_RETURN(CudaRuntime* const cuda, runtime.state()->cuda_runtime());
  PackedExperts uploaded = experts;
  if (experts.state() != nullptr && !experts.state()->on_device) {
    MOEKIT_ASSIGN_OR_RETURN(uploaded, upload(runtime, experts));
  }
  MOEKIT_ASSIGN_OR_RETURN(
      const DeviceStage stage,
      DeviceStage::make(*cuda, plan.problem(), arguments, workspace, StageMemory::kPlain));
  MOEKIT_RETURN_IF_ERROR(stage.to_device());
  MOEKIT_ASSIGN_OR_RETURN(
      const Binding binding,
      moekit::bind(runtime, plan, uploaded, stage.workspace(), stage.arguments()));
  MOEKIT_RETURN_IF_ERROR(run(runtime, binding, {stage.stream().handle()}));
  return stage.to_host();
}

}  // namespace

Status run_host_tensors(const Runtime& runtime,
                        const Plan& plan,
                        const PackedExperts& experts,
                        std::span<std::byte> workspace,
                        const RunArguments& arguments) noexcept {
  return base::at_border([&]() -> Status {
    if (runtime.state() == nullptr) {
      return invalid_argument("runtime was not created");
    }
    if (plan->device.arch != Arch::kCpu) {
      return run_staged(runtime, plan, experts, workspace, arguments);
    }
    MOEKIT_ASSIGN_OR_RETURN(const Binding binding,
                            moekit::bind(runtime, plan, experts, workspace, arguments));
    return run(runtime, binding);
  });
}

}  // namespace moekit
