// SPDX-License-Identifier: Apache-2.0

// run_verify_case: one generated layer through the public API, in a fixture that owns every buffer.
// Workspace slices are moved apart and the room between them guarded; workspace and output are
// poisoned; the call runs twice under two poisons and must give the same bits and touch nothing
// else; then the oracle judges.

#include <algorithm>
#include <cstring>
#include <memory>

#include "moekit/verify.h"

#include "base/border.h"
#include "base/text.h"
#include "runtime/device_stage.h"
#include "runtime/state.h"
#include "runtime/verify_buffers.h"
#include "runtime/verify_quirks.h"
#include "runtime/verify_tensors.h"
#include "runtime/verify_weights.h"

namespace moekit {
namespace {

using base::cat;
using verify::CaseTensors;
using verify::CaseWeights;
using verify::GuardedBuffer;
using verify::Quirks;

// A NaN of every float type and id -1; and the largest finite values, which no check for NaN sees.
constexpr std::byte kPoisons[] = {std::byte{0xFF}, std::byte{0x7F}};
constexpr std::byte kGap{0xC3};
constexpr auto kAlignment = static_cast<std::int64_t>(kWorkspaceAlignment);

// The same plan with every slice 256 bytes or more away from the next: the plan is a value, and
// bind reads offsets from it alone.
Plan spread_slices(const Plan& plan) {
  PlanData spread = *plan;
  std::int64_t moved = kAlignment;
  for (WorkspaceSlice& slice : spread.workspace) {
    slice.offset += moved;
    moved += kAlignment;
  }
  spread.workspace_bytes += moved;
  return Plan(std::make_shared<const PlanData>(std::move(spread)));
}

struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Bytes of the workspace that belong to no slice.
std::vector<ByteRange> gaps_of(const Plan& plan) {
  std::vector<ByteRange> slices;
  for (const WorkspaceSlice& slice : plan->workspace) {
    slices.push_back({slice.offset, slice.offset + slice.bytes});
  }
  std::sort(slices.begin(), slices.end(), [](const ByteRange& a, const ByteRange& b) {
    return a.begin < b.begin;
  });
  std::vector<ByteRange> gaps;
  std::int64_t end = 0;
  for (const ByteRange& slice : slices) {
    gaps.push_back({end, slice.begin});
    end = std::max(end, slice.end);
  }
  gaps.push_back({end, plan.workspace_bytes()});
  return gaps;
}

std::span<std::byte> part_of(std::span<std::byte> bytes, const ByteRange& range) {
  return range.begin >= range.end
             ? std::span<std::byte>()
             : bytes.subspan(static_cast<std::size_t>(range.begin),
                             static_cast<std::size_t>(range.end - range.begin));
}

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte b) { return b == value; });
}

class Fixture {
 public:
  Fixture(const Runtime& runtime, const VerifyCase& verify_case, const Quirks& quirks)
      : runtime_(runtime), case_(verify_case), quirks_(quirks) {}

  Result<VerifyReport> run(const DeviceDescriptor& device) {
    MOEKIT_ASSIGN_OR_RETURN(const Problem problem, problem_for(device));
    MOEKIT_ASSIGN_OR_RETURN(const Plan planned, make_plan(problem, device, case_.overrides));
    plan_.emplace(spread_slices(planned));
    MOEKIT_ASSIGN_OR_RETURN(weights_, verify::make_weights(case_, quirks_));
    tensors_ = verify::make_tensors(case_, quirks_);
    MOEKIT_RETURN_IF_ERROR(pack());
    workspace_ = GuardedBuffer(plan_->workspace_bytes());
    const std::uint64_t before = tensors_.input_hash();
    const std::uint64_t weights_before = weights_.hash() ^ packed_hash();
    std::vector<std::byte> first_out;
    for (const std::byte poison : kPoisons) {
      MOEKIT_RETURN_IF_ERROR(run_poisoned(poison));
      note_touched(poison);
      if (first_out.empty()) {
        first_out = rows_of_out();
      } else if (first_out != rows_of_out()) {
        note("two runs under different poisons differ");
      }
    }
    if (before != tensors_.input_hash()) {
      note("an input has changed");
    }
    if (weights_before != (weights_.hash() ^ packed_hash())) {
      note("weights have changed");
    }
    return report();
  }

 private:
  // `chunked` asks for the workspace of a third of the tokens, or the least that the plan takes.
  Result<Problem> problem_for(const DeviceDescriptor& device) const {
    Problem problem = case_.problem;
    if (quirks_.plan != verify::PlanQuirk::kChunked) {
      return problem;
    }
    Problem part = problem;
    part.num_tokens = (case_.num_tokens + 2) / 3;
    MOEKIT_ASSIGN_OR_RETURN(problem.max_workspace_bytes,
                            required_bytes(part, device, case_.overrides));
    MOEKIT_ASSIGN_OR_RETURN(const std::int64_t most,
                            required_bytes(case_.problem, device, case_.overrides));
    while (problem.max_workspace_bytes < most &&
           required_bytes(problem, device, case_.overrides).status().code() ==
               StatusCode::kUnsupported) {
      problem.max_workspace_bytes += kAlignment * 4;
    }
    return problem;
  }

  Status pack() {
    packed_ = GuardedBuffer((*plan_)->prepare.packed_bytes);
    PrepareOptions options;
    options.destination = packed_.bytes();
    options.num_threads = runtime_.num_threads();
    std::fill(options.destination.begin(), options.destination.end(), kPoisons[0]);
    MOEKIT_ASSIGN_OR_RETURN(experts_, prepare(*plan_, weights_.prepared, options));
    if (!packed_.intact()) {
      note("prepare wrote beyond its destination");
    }
    return {};
  }

  Status run_poisoned(std::byte poison) {
    const std::span<std::byte> workspace = workspace_.bytes();
    std::fill(workspace.begin(), workspace.end(), poison);
    for (const ByteRange& gap : gaps_of(*plan_)) {
      const std::span<std::byte> bytes = part_of(workspace, gap);
      std::fill(bytes.begin(), bytes.end(), kGap);
    }
    const std::span<std::byte> out = tensors_.out.bytes();
    std::fill(out.begin(), out.end(), poison);
    if ((*plan_)->device.arch != Arch::kCpu) {
      return run_on_device();
    }
    MOEKIT_ASSIGN_OR_RETURN(
        const Binding binding,
        moekit::bind(runtime_, *plan_, experts_, workspace, tensors_.arguments));
    return moekit::run(runtime_, binding);
  }

  // Every tensor ends where its mapping does: an access past it is a fault.
  Status run_on_device() {
    MOEKIT_ASSIGN_OR_RETURN(CudaRuntime* const cuda, runtime_.state()->cuda_runtime());
    MOEKIT_ASSIGN_OR_RETURN(const DeviceStage stage,
                            DeviceStage::make(*cuda,
                                              plan_->problem(),
                                              tensors_.arguments,
                                              workspace_.bytes(),
                                              StageMemory::kGuarded));
    MOEKIT_RETURN_IF_ERROR(stage.to_device());
    MOEKIT_ASSIGN_OR_RETURN(
        cuda::DeviceBuffer weights,
        cuda::DeviceBuffer::allocate_guarded(cuda->device(), packed_.bytes().size()));
    MOEKIT_ASSIGN_OR_RETURN(const PackedExperts uploaded,
                            upload(runtime_, experts_, {weights.pointer(), weights.bytes()}));
    MOEKIT_ASSIGN_OR_RETURN(
        const Binding binding,
        moekit::bind(runtime_, *plan_, uploaded, stage.workspace(), stage.arguments()));
    MOEKIT_RETURN_IF_ERROR(moekit::run(runtime_, binding, {stage.stream().handle()}));
    return stage.to_host();
  }

  // What must still be as it was: guards, room between slices, columns between rows, and with no
  // tokens everything.
  void note_touched(std::byte poison) {
    if (!tensors_.intact() || !workspace_.intact() || !packed_.intact()) {
      note("a guard byte beside a buffer has changed");
    }
    const std::span<std::byte> workspace = workspace_.bytes();
    for (const ByteRange& gap : gaps_of(*plan_)) {
      if (!all_are(part_of(workspace, gap), kGap)) {
        note(cat("workspace bytes ", gap.begin, "..", gap.end, " between slices have changed"));
      }
    }
    for (const WorkspaceSlice& slice : (*plan_)->workspace) {
      const ByteRange range{slice.offset, slice.offset + slice.bytes};
      if (case_.num_tokens == 0 && !all_are(part_of(workspace, range), poison)) {
        note(cat("slice ", slice.name, " has changed in a call of no tokens"));
      }
    }
    const std::int64_t width = dtype_bits(output_dtype(case_.problem)) / 8;
    const std::int64_t row_bytes = case_.problem.hidden_size * width;
    const std::int64_t stride_bytes = tensors_.out_row_stride * width;
    const std::span<const std::byte> out = tensors_.out.bytes();
    for (std::int64_t at = 0; at < static_cast<std::int64_t>(out.size()); ++at) {
      if (at % stride_bytes >= row_bytes && out[static_cast<std::size_t>(at)] != poison) {
        note(cat("output byte ", at, " between rows has changed"));
        break;
      }
    }
  }

  [[nodiscard]] std::vector<std::byte> rows_of_out() const {
    const std::int64_t width = dtype_bits(output_dtype(case_.problem)) / 8;
    const auto row_bytes = static_cast<std::size_t>(case_.problem.hidden_size * width);
    std::vector<std::byte> rows;
    for (std::int64_t token = 0; token < case_.num_tokens; ++token) {
      const auto row = tensors_.out.bytes().subspan(
          static_cast<std::size_t>(token * tensors_.out_row_stride * width), row_bytes);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  }

  [[nodiscard]] std::uint64_t packed_hash() const { return verify::hash_bytes(packed_.bytes(), 1); }

  void note(const std::string& failure) {
    if (failure_.empty()) {
      failure_ = failure;
    }
  }

  Result<VerifyReport> report() {
    MOEKIT_ASSIGN_OR_RETURN(
        VerifyReport report,
        verify_call(*plan_, weights_.source, tensors_.arguments, workspace_.bytes()));
    if (!failure_.empty()) {
      report.passed = false;
      report.first_failure = failure_;
    }
    return report;
  }

  const Runtime& runtime_;
  const VerifyCase& case_;
  const Quirks& quirks_;
  std::optional<Plan> plan_{};
  CaseWeights weights_{};
  CaseTensors tensors_{};
  GuardedBuffer packed_{};
  GuardedBuffer workspace_{};
  PackedExperts experts_{};
  std::string failure_{};
};

}  // namespace

Result<VerifyReport> run_verify_case(const Runtime& runtime,
                                     const VerifyCase& verify_case,
                                     const DeviceDescriptor& device) noexcept {
  return base::at_border([&]() -> Result<VerifyReport> {
    MOEKIT_ASSIGN_OR_RETURN(const Quirks quirks, verify::quirks_from_name(verify_case.quirk));
    MOEKIT_RETURN_IF_ERROR(validate_problem(verify_case.problem));
    MOEKIT_RETURN_IF_ERROR(verify::check_quirks(quirks, verify_case.problem));
    if (verify_case.num_tokens < 0 || verify_case.num_tokens > verify_case.problem.num_tokens) {
      return invalid_argument(cat("case has ",
                                  verify_case.num_tokens,
                                  " tokens, its capacity is ",
                                  verify_case.problem.num_tokens));
    }
    return Fixture(runtime, verify_case, quirks).run(device);
  });
}

}  // namespace moekit
