// SPDX-License-Identifier: Apache-2.0
#include "plan/concurrency.h"

#include <algorithm>

#include "base/text.h"

namespace moekit::plan {
namespace {

using base::cat;

// CUDA C++ programming guide, technical specifications per compute capability.
struct SmLimits {
  Arch arch;
  std::int64_t threads;
  std::int64_t smem_bytes;
};

constexpr std::int64_t kKib = 1024;
constexpr SmLimits kSmLimits[] = {
    {Arch::kSm80, 2048, 164 * kKib},
    {Arch::kSm86, 1536, 100 * kKib},
    {Arch::kSm89, 1536, 100 * kKib},
    {Arch::kSm90a, 2048, 228 * kKib},
    {Arch::kSm100a, 2048, 228 * kKib},
    {Arch::kSm120a, 1536, 100 * kKib},
    {Arch::kSm121a, 1536, 100 * kKib},
};
constexpr std::int64_t kReservedBytes = kKib;  // of each block, by the system

}  // namespace

std::int64_t max_smem_per_block(Arch arch) {
  for (const SmLimits& limits : kSmLimits) {
    if (limits.arch == arch) {
      return limits.smem_bytes - kReservedBytes;
    }
  }
  return 0;
}

std::int64_t resident_blocks(const DeviceDescriptor& device,
                             std::int64_t num_threads,
                             std::int64_t smem_bytes) {
  for (const SmLimits& limits : kSmLimits) {
    if (limits.arch == device.arch) {
      const std::int64_t by_threads = limits.threads / std::max<std::int64_t>(1, num_threads);
      const std::int64_t by_smem = limits.smem_bytes / (smem_bytes + kReservedBytes);
      return device.num_sms * std::min(by_threads, by_smem);
    }
  }
  return 0;
}

Concurrency concurrency_of(std::span<const Step> steps) {
  Concurrency concurrency;
  concurrency.launches = static_cast<std::int64_t>(steps.size());
  for (const Step& step : steps) {
    concurrency.grid_barrier |= step.grid_barrier;
    concurrency.cooperative |= step.cooperative;
    concurrency.atomics |= step.atomics;
    concurrency.pdl_edges += step.pdl_edge ? 1 : 0;
    if (step.grid_barrier) {
      concurrency.resident_blocks =
          std::max(concurrency.resident_blocks, step.grid.x * step.grid.y * step.grid.z);
    }
  }
  return concurrency;
}

Concurrency worst_of(const Concurrency& a, const Concurrency& b) {
  Concurrency worst;
  worst.launches = std::max(a.launches, b.launches);
  worst.grid_barrier = a.grid_barrier || b.grid_barrier;
  worst.cooperative = a.cooperative || b.cooperative;
  worst.atomics = a.atomics || b.atomics;
  worst.resident_blocks = std::max(a.resident_blocks, b.resident_blocks);
  worst.pdl_edges = std::max(a.pdl_edges, b.pdl_edges);
  return worst;
}

AuxStreamOverlap overlap_of(std::span<const Step> steps, const DeviceDescriptor& device) {
  AuxStreamOverlap overlap{OverlapVerdict::kSafe, "no step has a grid-wide barrier"};
  for (const Step& step : steps) {
    if (!step.grid_barrier) {
      continue;
    }
    if (!step.cooperative) {
      return {OverlapVerdict::kUnsafe,
              cat("step ", step.kernel, " has a grid barrier without a cooperative launch")};
    }
    const std::int64_t blocks = step.grid.x * step.grid.y * step.grid.z;
    const std::int64_t held = resident_blocks(device, step.block.x, step.smem_bytes);
    if (blocks > held) {
      return {OverlapVerdict::kUnsafe,
              cat("step ",
                  step.kernel,
                  " has a grid barrier over ",
                  blocks,
                  " blocks, the device holds ",
                  held,
                  " at once")};
    }
    overlap = {OverlapVerdict::kJoinFirst,
               cat("step ",
                   step.kernel,
                   " is a cooperative launch with a grid barrier: join auxiliary work before it")};
  }
  return overlap;
}

AuxStreamOverlap overlap_of(const std::vector<Rung>& ladder) {
  const auto worst =
      std::max_element(ladder.begin(), ladder.end(), [](const Rung& a, const Rung& b) {
        return a.aux_stream_overlap.verdict < b.aux_stream_overlap.verdict;
      });
  return worst == ladder.end() ? AuxStreamOverlap{} : worst->aux_stream_overlap;
}

}  // namespace moekit::plan
