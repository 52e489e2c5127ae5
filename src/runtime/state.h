// SPDX-License-Identifier: Apache-2.0
#pragma once

// What stands behind the opaque types of the public headers.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "moekit/experts.h"
#include "moekit/runtime.h"

#include "base/files.h"
#include "base/thread_pool.h"
#include "plan/packed_layout.h"
#include "runtime/cuda_runtime.h"

namespace moekit {

struct Runtime::State {
  RuntimeOptions options{};
  std::unique_ptr<base::ThreadPool> pool{};
  base::Log log{};
  Isa host_isa = Isa::kPortable;  // asked once, so that bind need not
  std::mutex cuda_mutex{};        // guards the making of `cuda`
  std::unique_ptr<CudaRuntime> cuda{};

  /// The GPU of options.cuda_device, opened at the first call that asks for it.
  [[nodiscard, gnu::visibility("hidden")]] Result<CudaRuntime*> cuda_runtime();
};

struct PackedExperts::State {
  std::string layout_id{};
  plan::PackedLayout layout{};
  Problem problem{};                   // the shape it was packed for; num_tokens means nothing here
  std::shared_ptr<std::byte> owned{};  // null where the caller gave the destination
  std::byte* base = nullptr;           // of the device where `on_device`: not to be read here
  std::int64_t bytes = 0;
  bool on_device = false;
  cuda::DeviceBuffer device_memory{};  // empty where the caller gave the destination
  std::int64_t peak_extra_bytes = 0;
  // An expert whose input scale of x or of the intermediate is not in the buffer; -1: none. The one
  // thing that recipes ask for and layout_id does not tell.
  std::int64_t expert_without_input_scale = -1;
  std::shared_ptr<base::MappedFile> mapped{};  // of a saved file: `base` must not be written
};

}  // namespace moekit
