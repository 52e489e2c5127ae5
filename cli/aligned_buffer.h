// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory for workspaces, outputs and probes: aligned, not zeroed, an error instead of an exception.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include <fmt/format.h>

#include "moekit/plan.h"
#include "moekit/status.h"

namespace moekit::cli {

class AlignedBuffer {
 public:
  AlignedBuffer() noexcept = default;

  [[nodiscard]] static Result<AlignedBuffer> allocate(std::int64_t bytes) {
    const std::size_t size = bytes > 0 ? static_cast<std::size_t>(bytes) : 1;
    void* memory = ::operator new(size, kAlignment, std::nothrow);
    if (memory == nullptr) {
      return out_of_memory(fmt::format("could not allocate {} bytes", size));
    }
    AlignedBuffer buffer;
    buffer.memory_.reset(static_cast<std::byte*>(memory));
    buffer.bytes_ = bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
    return buffer;
  }

  [[nodiscard]] std::byte* begin() const noexcept { return memory_.get(); }

  [[nodiscard]] std::span<std::byte> span() const noexcept { return {memory_.get(), bytes_}; }

 private:
  static constexpr std::align_val_t kAlignment{kWorkspaceAlignment};

  struct Release {
    void operator()(std::byte* memory) const noexcept { ::operator delete(memory, kAlignment); }
  };

  std::unique_ptr<std::byte, Release> memory_{};
  std::size_t bytes_ = 0;
};

}  // namespace moekit::cli
