// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a kernel family is to the planner and to a backend: verdicts, workspace, steps, and the
// table of bodies. kernels/catalog.cc lists every family; nothing else names one.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/plan.h"
#include "moekit/runtime.h"

#include "base/thread_pool.h"
#include "plan/packed_layout.h"

namespace moekit::plan {

/// Named parts of the workspace. The names that a plan shows stand in slice_name().
enum class SliceId : std::uint8_t {
  kTopkIds,        // i32 [M, top_k], written by the route step
  kTopkWeights,    // f32 [M, top_k]
  kRouteExperts,   // i32 [M * top_k] local expert of each route, or -1
  kExpertOffsets,  // i32 [num_experts + 1], exclusive prefix sum over active routes
  kRouteOrder,     // i32 [M * top_k] route indices sorted by expert, token-major within one
  kRouteBlocks,    // i32 [route blocks] expert of each block of padded routes
  kXOperand,       // x as the products read it where that is not how it is given
  kInnerOperand,   // the intermediate as a recipe with quantised activations reads it
  kIntermediate,   // bf16 [M * top_k, intermediate] by route (token * top_k + slot)
  kRouteOutput,    // f32 [M * top_k, hidden] by route
  kGridBarrier,    // u32 that blocks of one launch count their arrival in: all of them, or a group
  kScratch,        // per-thread room of a CPU body
  kCount,
};

inline constexpr std::size_t kNumSlices = static_cast<std::size_t>(SliceId::kCount);

[[nodiscard]] std::string_view slice_name(SliceId id) noexcept;
[[nodiscard]] std::optional<SliceId> slice_from_name(std::string_view name) noexcept;

struct SliceRequest {
  SliceId id = SliceId::kScratch;
  std::int64_t bytes = 0;
};

/// Everything a family may look at when it plans.
struct FamilyContext {
  const Problem& problem;
  const DeviceDescriptor& device;
  const PlanOverrides& overrides;
  const PackedLayout& layout;
  /// In slices and lower: the last M of the rung, which its geometry is chosen for. A chunk of
  /// fewer tokens runs with that geometry, and slices must hold it.
  std::int64_t rung_tokens = 0;
};

/// accept(cost) or refuse(reason with values). A refusal is data: plans print it.
struct Verdict {
  bool accepted = false;
  double cost_us = 0.0;  // an estimate; lower wins, ties go to the catalogue's order
  std::string reason{};

  [[nodiscard]] static Verdict accept(double cost_us) { return {true, cost_us, {}}; }

  [[nodiscard]] static Verdict refuse(std::string reason) {
    return {false, 0.0, std::move(reason)};
  }
};

/// What a CPU body receives: every pointer resolved, every shape checked.
struct CpuCall {
  const PlanData* plan = nullptr;
  const Step* step = nullptr;
  const RunArguments* arguments = nullptr;
  PackedView weights{};
  std::int64_t token_begin =
      0;  // this chunk of tokens; slices are indexed from 0, tensors from token_begin
  std::int64_t num_tokens = 0;
  std::array<std::byte*, kNumSlices> slices{};

  template <typename T>
  [[nodiscard]] T* slice(SliceId id) const noexcept {
    return reinterpret_cast<T*>(slices[static_cast<std::size_t>(id)]);
  }
};

using CpuKernel = void (*)(const CpuCall& call, base::ThreadPool& pool);

struct CudaFamily;  // plan/launch.h

/// What a family does within a plan.
enum class FamilyJob : std::uint8_t {
  kRoute,    // logits to ids and weights
  kExperts,  // gate_up, activation, down, weighted sum
};

struct KernelFamily {
  std::string_view name;     // its folder
  std::string_view summary;  // one line
  FamilyJob job;
  ExecutionFamily execution;  // of a kExperts family

  /// Can this family serve every M in [m_min, m_max], and at what cost at m_max?
  Verdict (*check)(const FamilyContext& context, std::int64_t m_min, std::int64_t m_max);
  /// Token counts at which the family changes tile or grid, each the last M of a rung, the same
  /// for every capacity that they lie below; null: none.
  std::vector<std::int64_t> (*breakpoints)(const FamilyContext& context);
  /// Workspace for `num_tokens` live tokens of the rung. Must not shrink as num_tokens grows.
  std::vector<SliceRequest> (*slices)(const FamilyContext& context, std::int64_t num_tokens);
  /// The steps for a rung that `check` accepted.
  std::vector<Step> (*lower)(const FamilyContext& context, std::int64_t m_min, std::int64_t m_max);
  /// The body for a step of this family on a CPU; null when the name is not one of its own.
  CpuKernel (*cpu_kernel)(const Step& step);
  /// The family's CUDA half; null where it has none.
  const CudaFamily* cuda = nullptr;
  /// Whether a call may be cut into chunks of tokens: false where a row's sum is split by the
  /// routes of the whole call, so that a chunk would have other bits. Null: it may.
  bool (*may_be_cut)(const FamilyContext& context) = nullptr;
};

/// Steps' dotted names: `<family>.<recipe>.<role>_<tile>.<arch>`; the only code that writes them.
struct KernelName {
  std::string family{};
  std::string recipe{};
  std::string role_tile{};
  std::string arch{};  // `sm90a`, `avx2`, …
};

[[nodiscard]] std::string make_kernel_name(const KernelName& name);
[[nodiscard]] Result<KernelName> parse_kernel_name(std::string_view name);

/// `portable`, `avx2`, `avx512`, `amx` or `sm90a`: the last part of a kernel name on `device`.
[[nodiscard]] std::string kernel_arch(const DeviceDescriptor& device);

/// Ranks `families` for every M and lays the workspace out: the whole of make_plan after
/// validation.
[[nodiscard]] Result<Plan> choose(const Problem& problem,
                                  const DeviceDescriptor& device,
                                  const PlanOverrides& overrides,
                                  std::span<const KernelFamily* const> families);

}  // namespace moekit::plan
