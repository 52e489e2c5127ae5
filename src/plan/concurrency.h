// SPDX-License-Identifier: Apache-2.0
#pragma once

// What running a plan asks of the device, derived from the lowered steps and from nothing else.

#include <span>
#include <vector>

#include "moekit/plan.h"

namespace moekit::plan {

[[nodiscard]] Concurrency concurrency_of(std::span<const Step> steps);

/// The worst of both, member by member.
[[nodiscard]] Concurrency worst_of(const Concurrency& a, const Concurrency& b);

/// safe without a grid-wide barrier; join_first where every step with one is a cooperative launch
/// whose blocks `device` holds at once; unsafe otherwise, naming the step.
[[nodiscard]] AuxStreamOverlap overlap_of(std::span<const Step> steps,
                                          const DeviceDescriptor& device);

/// The worst of all rungs.
[[nodiscard]] AuxStreamOverlap overlap_of(const std::vector<Rung>& ladder);

/// What one block of `arch` may have at most; 0 for a CPU.
[[nodiscard]] std::int64_t max_smem_per_block(Arch arch);

/// Blocks of `num_threads` threads and `smem_bytes` that `device` holds at once.
[[nodiscard]] std::int64_t resident_blocks(const DeviceDescriptor& device,
                                           std::int64_t num_threads,
                                           std::int64_t smem_bytes);

}  // namespace moekit::plan
