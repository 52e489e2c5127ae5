// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tensors of a call in host memory, mirrored on a GPU: what `run_host_tensors`, verification
// and timing stand on.

#include <span>
#include <vector>

#include "moekit/runtime.h"

#include "cuda/memory.h"
#include "runtime/cuda_runtime.h"

namespace moekit {

/// How a stage takes its memory: plainly, or so that any access past the end of a tensor faults.
enum class StageMemory : std::uint8_t { kPlain, kGuarded };

class DeviceStage {
 public:
  /// Mirrors every tensor that `host` has, and `workspace`. Nothing is copied yet.
  [[nodiscard]] static Result<DeviceStage> make(CudaRuntime& cuda,
                                                const Problem& problem,
                                                const RunArguments& host,
                                                std::span<std::byte> workspace,
                                                StageMemory memory);

  /// Device pointers in the host's shapes.
  [[nodiscard]] const RunArguments& arguments() const noexcept { return device_; }

  [[nodiscard]] std::span<std::byte> workspace() const noexcept;

  [[nodiscard]] const cuda::Stream& stream() const noexcept { return stream_; }

  /// Inputs, and what output and workspace hold before the call.
  [[nodiscard]] Status to_device() const;

  /// Output and workspace. Returns when all work of the stream is done.
  [[nodiscard]] Status to_host() const;

 private:
  struct Mirror {
    cuda::DeviceBuffer buffer{};
    std::byte* host = nullptr;
    std::int64_t num_rows = 0;
    std::int64_t row_bytes = 0;
    std::int64_t host_stride_bytes = 0;
    std::int64_t device_stride_bytes = 0;
    bool comes_back = false;
  };

  DeviceStage(CudaRuntime& cuda, cuda::Stream stream, StageMemory memory)
      : cuda_(cuda), stream_(std::move(stream)), memory_(memory) {}

  template <typename View>
  Status add_matrix(const View& host, View& device, std::int64_t row_alignment, bool comes_back);
  Result<std::byte*> add(Mirror mirror);

  CudaRuntime& cuda_;
  cuda::Stream stream_;
  StageMemory memory_;
  std::vector<Mirror> mirrors_{};
  std::size_t workspace_ = 0;  // index of its mirror
  RunArguments device_{};
};

}  // namespace moekit
