// SPDX-License-Identifier: Apache-2.0
#pragma once

// How, here: an immutable value that says, for every token count up to a capacity, which kernels
// run with which geometry and where their workspace lies. Planning is a pure function of problem,
// device and overrides; it touches no driver, clock, environment or file.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/device.h"
#include "moekit/problem.h"
#include "moekit/status.h"

#pragma GCC visibility push(default)

namespace moekit {

/// Execution family of a rung: direct takes routes straight from top-k; grouped packs them per
/// expert.
enum class ExecutionFamily : std::uint8_t { kDirect, kGrouped };
[[nodiscard]] std::string_view execution_family_name(ExecutionFamily family) noexcept;

/// What is known of a step: its kernels were measured, only compile, or are planned but unwritten.
enum class StepStatus : std::uint8_t { kMeasured, kCompiled, kPlanned };
[[nodiscard]] std::string_view step_status_name(StepStatus status) noexcept;

/// Typed pins, part of the plan's key: honoured or refused with the legal values, never ignored.
struct PlanOverrides {
  std::optional<ExecutionFamily> family{};
  std::optional<std::int64_t> route_block_rows{};  // 8 | 16 | 32 | 48 | 64
  std::optional<std::string> tile{};               // a kernel name suffix of the family
  bool resident = false;                           // one cooperative launch (CUDA)
  bool pdl_first = false;  // chain the first launch to the previous call (CUDA)

  friend bool operator==(const PlanOverrides&, const PlanOverrides&) = default;
};

struct Dim3 {
  std::int64_t x = 1;
  std::int64_t y = 1;
  std::int64_t z = 1;
  friend bool operator==(const Dim3&, const Dim3&) = default;
};

/// One launch (CUDA) or one parallel region (CPU). `kernel` is the full name
/// `<family>.<recipe>.<role>_<tile>.<arch>`; the family's Spec can be read back from it.
struct Step {
  std::string family{};  // the kernel family's folder
  std::string kernel{};
  Dim3 grid{};
  Dim3 block{};
  std::int64_t smem_bytes = 0;
  StepStatus status = StepStatus::kCompiled;
  bool grid_barrier = false;
  bool cooperative = false;
  bool atomics = false;
  bool pdl_edge = false;  // programmatic dependent launch on the step before it
  friend bool operator==(const Step&, const Step&) = default;
};

struct Concurrency {
  std::int64_t launches = 0;
  bool grid_barrier = false;
  bool cooperative = false;
  bool atomics = false;
  std::int64_t resident_blocks = 0;  // that a grid barrier needs on the device at once
  std::int64_t pdl_edges = 0;        // launches that may begin before the one before them has ended
  friend bool operator==(const Concurrency&, const Concurrency&) = default;
};

/// May other streams run beside this plan? safe: no step has a grid-wide barrier. join_first: every
/// such step is launched cooperatively within residency; join auxiliary work before submitting it.
/// unsafe: never planned.
enum class OverlapVerdict : std::uint8_t { kSafe, kJoinFirst, kUnsafe };
[[nodiscard]] std::string_view overlap_verdict_name(OverlapVerdict verdict) noexcept;

struct AuxStreamOverlap {
  OverlapVerdict verdict = OverlapVerdict::kSafe;
  std::string reason{};
  friend bool operator==(const AuxStreamOverlap&, const AuxStreamOverlap&) = default;
};

/// What serves m_min <= M <= m_max. `chunk_tokens` < m_max when max_workspace_bytes cuts M into
/// chunks.
struct Rung {
  std::int64_t m_min = 0;
  std::int64_t m_max = 0;
  std::int64_t chunk_tokens = 0;
  ExecutionFamily family = ExecutionFamily::kDirect;
  std::vector<Step> steps{};
  bool deterministic = true;
  Concurrency concurrency{};
  AuxStreamOverlap aux_stream_overlap{};
  friend bool operator==(const Rung&, const Rung&) = default;
};

struct WorkspaceSlice {
  std::string name{};
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const WorkspaceSlice&, const WorkspaceSlice&) = default;
};

struct Refusal {
  std::string family{};
  std::string reason{};
  friend bool operator==(const Refusal&, const Refusal&) = default;
};

enum class PreparePolicy : std::uint8_t { kViewSource, kRepack };
[[nodiscard]] std::string_view prepare_policy_name(PreparePolicy policy) noexcept;

struct PrepareInfo {
  PreparePolicy policy = PreparePolicy::kRepack;
  std::int64_t peak_extra_bytes = 0;  // that prepare holds beyond source and destination, at most
  std::int64_t packed_bytes = 0;      // of a layer's packed experts
  friend bool operator==(const PrepareInfo&, const PrepareInfo&) = default;
};

/// Everything a plan says. Value type; `Plan` shares one of these.
struct PlanData {
  Problem problem{};
  DeviceDescriptor device{};
  PlanOverrides overrides{};
  std::string layout_id{};
  std::vector<Rung> ladder{};  // ascending, without gaps, from 0 (or 1) to problem.num_tokens
  std::vector<WorkspaceSlice> workspace{};
  std::int64_t workspace_bytes = 0;
  bool deterministic = true;  // holds for all rungs
  Concurrency concurrency{};  // the worst over all rungs
  AuxStreamOverlap aux_stream_overlap{};
  std::vector<Refusal> refused{};
  PrepareInfo prepare{};
  std::vector<std::string> notes{};  // what the plan does that the caller may not expect
  friend bool operator==(const PlanData&, const PlanData&) = default;
};

/// Alignment that every workspace buffer must have.
inline constexpr std::size_t kWorkspaceAlignment = 256;

/// Version of the JSON form; a plan of another schema is refused on reading.
inline constexpr int kPlanSchema = 1;

/// What make_plan decided, shared: cheap to copy. `*plan` and `plan->` read all of it.
class Plan {
 public:
  /// Of what somebody decided; not null. For tools and tests: only make_plan's and from_json's
  /// plans are known to hold together.
  explicit Plan(std::shared_ptr<const PlanData> content) noexcept : state_(std::move(content)) {}

  [[nodiscard]] const PlanData& operator*() const noexcept { return *state_; }

  [[nodiscard]] const PlanData* operator->() const noexcept { return state_.get(); }

  [[nodiscard]] const Problem& problem() const noexcept { return state_->problem; }

  [[nodiscard]] std::int64_t workspace_bytes() const noexcept { return state_->workspace_bytes; }

  /// The rung that serves `num_tokens`; null beyond the capacity or below 0.
  [[nodiscard]] const Rung* rung(std::int64_t num_tokens) const noexcept;

  /// For a person, the rung of `num_tokens` first; none where the plan does not serve that many.
  [[nodiscard]] Result<std::string> to_text(std::int64_t num_tokens) const noexcept;

  /// What `moekit plan --json` prints; `family` and `steps` are of the rung that serves
  /// `num_tokens` and absent beyond the capacity.
  [[nodiscard]] Result<std::string> to_json(std::int64_t num_tokens) const noexcept;

  /// Reads to_json back; equal to the plan it came from. The text's problem, device and overrides
  /// are planned again, and a text that says anything else than the outcome is refused: a plan
  /// decides how much memory kernels write.
  ///
  /// Errors  kInvalidArgument  not a plan's JSON, or not what this library plans
  ///         kUnsupported      another schema
  [[nodiscard]] static Result<Plan> from_json(std::string_view json) noexcept;

  /// Stable over processes and machines; allocates nothing.
  [[nodiscard]] std::uint64_t hash() const noexcept;

  friend bool operator==(const Plan& left, const Plan& right) noexcept {
    return left.state_ == right.state_ || *left.state_ == *right.state_;
  }

 private:
  std::shared_ptr<const PlanData> state_;
};

/// Decides everything for all 0 <= M <= problem.num_tokens on `device`.
///
/// Errors  kInvalidArgument  validate_problem, or a pin outside its legal values
///         kUnsupported      no family accepts; the message carries every reason and the nearest
///                           supported thing
/// Effects pure: same inputs, same plan, in any process
[[nodiscard]] Result<Plan> make_plan(const Problem& problem,
                                     const DeviceDescriptor& device,
                                     const PlanOverrides& overrides = {}) noexcept;

/// plan.workspace_bytes() of make_plan, with its errors; monotone in problem.num_tokens where
/// max_workspace_bytes is 0. Under a budget it never exceeds the budget, and more tokens may leave
/// a chunk, and with it the sum, a little smaller.
[[nodiscard]] Result<std::int64_t> required_bytes(const Problem& problem,
                                                  const DeviceDescriptor& device,
                                                  const PlanOverrides& overrides = {}) noexcept;

}  // namespace moekit

#pragma GCC visibility pop
