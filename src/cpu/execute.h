// SPDX-License-Identifier: Apache-2.0
#pragma once

// The CPU backend: runs the steps of one rung, chunk of tokens by chunk. It chooses nothing.

#include <span>

#include "base/thread_pool.h"
#include "plan/family.h"

namespace moekit::cpu {

/// Runs every step for tokens [0, num_tokens), at most `chunk_tokens` at a time. `call` carries
/// everything but step, token_begin and num_tokens.
void execute(plan::CpuCall call,
             const Rung& rung,
             std::span<void (*const)()> kernels,
             std::int64_t num_tokens,
             base::ThreadPool& pool) noexcept;

}  // namespace moekit::cpu
