// SPDX-License-Identifier: Apache-2.0
#pragma once

// The two expert steps on a CPU, for every execution family, format and ISA: gate_up with the
// activation, and down with the weighted sum. Families differ in what they plan, not in how a
// processor walks panels.
//
// Work is cut by output rows, statically, and each output element is computed by one thread in an
// order that depends on nothing but the plan: the number of threads changes no bit. Weights of an
// active expert are read once by the thread that owns their rows; those of others are not touched.

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "panels/body.h"
#include "plan/family.h"

namespace moekit::panels {

/// Per-thread room in the scratch slice. Planner and steps compute it with the same function; every
/// figure grows with num_tokens, so a call with fewer tokens fits what was planned.
struct ScratchLayout {
  std::int64_t num_workers = 1;
  std::int64_t operand_rows = 0;  // of the longest kind that have room; shorter ones more
  std::int64_t spare_rows = 0;    // rows that wait to be interleaved, a tile's at most
  std::int64_t operand_row_bytes = 0;
  std::int64_t route_sums_bytes = 0;  // f32 [num_routes, 16 * panels of a block] of the down step
  std::int64_t worker_bytes = 0;
};

[[nodiscard]] ScratchLayout scratch_layout(const Problem& problem,
                                           const DeviceDescriptor& device,
                                           std::int64_t num_tokens) noexcept;

/// Workspace of both steps for `num_tokens` tokens.
[[nodiscard]] std::vector<plan::SliceRequest> step_slices(const plan::FamilyContext& context,
                                                          std::int64_t num_tokens);

/// intermediate[route] = bf16(activation(gate_up of the route's expert and token)).
///
/// Shapes   x [num_tokens, hidden] of io_dtype; intermediate [num_tokens * top_k, intermediate]
///          bf16, rows of inactive routes untouched
/// Numerics per body.h; a token with a NaN or an infinity in x gives NaN throughout
/// Effects  also writes route_experts, expert_offsets and route_order
void gate_up_step(const plan::CpuCall& call, base::ThreadPool& pool, const Body& body) noexcept;

/// out[token] = io(Σ_slot p * (down of the intermediate * global + bias) [+ shared]), one rounding.
///
/// Order    slots ascending, or experts ascending (slots within one), as the problem says
/// Effects  reads what gate_up_step wrote
void down_step(const plan::CpuCall& call, base::ThreadPool& pool, const Body& body) noexcept;

}  // namespace moekit::panels
