// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests of the runtime without a GPU: a Runtime on the fake driver and compiler.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "moekit/runtime.h"

#include "cuda/driver_fake.h"
#include "jit/nvrtc_fake.h"
#include "plan/launch.h"
#include "runtime/cuda_runtime.h"
#include "runtime/state.h"

namespace moekit {

/// A Runtime on `driver` that compiles with `nvrtc`, which must outlive it: a test may change it
/// later.
inline Runtime runtime_on_fakes(const cuda::DriverTable& driver, const jit::NvrtcTable& nvrtc) {
  auto state = std::make_shared<Runtime::State>();
  state->cuda = *CudaRuntime::create(
      driver,
      {.store = {.open_compiler = [&nvrtc] { return Result<jit::NvrtcTable>(nvrtc); },
                 .sources = jit::embedded_sources()}});
  return Runtime(std::move(state));
}

/// What a launch of the self-test with `arguments` writes on a device: every known answer.
inline void write_known_answer(const plan::SelfTest& test, const void* arguments) {
  for (const plan::SelfTestPointer& pointer : test.pointers) {
    const plan::SelfTestBuffer& buffer = test.buffers[pointer.buffer];
    std::uint64_t address = 0;
    std::memcpy(&address, static_cast<const std::byte*>(arguments) + pointer.argument_offset, 8);
    std::copy(buffer.after.begin(), buffer.after.end(), reinterpret_cast<std::byte*>(address));
  }
}

}  // namespace moekit
