// SPDX-License-Identifier: Apache-2.0
#include "cpu/execute.h"

#include <algorithm>

namespace moekit::cpu {

void execute(plan::CpuCall call,
             const Rung& rung,
             std::span<void (*const)()> kernels,
             std::int64_t num_tokens,
             base::ThreadPool& pool) noexcept {
  for (std::int64_t begin = 0; begin < num_tokens; begin += rung.chunk_tokens) {
    call.token_begin = begin;
    call.num_tokens = std::min(rung.chunk_tokens, num_tokens - begin);
    for (std::size_t i = 0; i < rung.steps.size(); ++i) {
      call.step = &rung.steps[i];
      reinterpret_cast<plan::CpuKernel>(kernels[i])(call, pool);
    }
  }
}

}  // namespace moekit::cpu
