// SPDX-License-Identifier: Apache-2.0

// The ladder: which family serves which token counts, and how much workspace that takes. Boundaries
// are data (tuning/table.h); families only accept, price and lower.

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>

#include "base/text.h"
#include "plan/concurrency.h"
#include "plan/family.h"
#include "plan/tuning/table.h"
#include "plan/workspace.h"

namespace moekit::plan {
namespace {

using base::cat;

struct Choice {
  const KernelFamily* family = nullptr;
  double cost_us = std::numeric_limits<double>::infinity();
};

void add_refusal(std::vector<Refusal>& refused, std::string_view family, std::string reason) {
  Refusal refusal{std::string(family), std::move(reason)};
  if (std::find(refused.begin(), refused.end(), refusal) == refused.end()) {
    refused.push_back(std::move(refusal));
  }
}

class Chooser {
 public:
  Chooser(const FamilyContext& context, std::span<const KernelFamily* const> families)
      : context_(context), families_(families) {}

  /// Best family of `job` for [m_min, m_max]; of the wanted execution family, or of any other where
  /// none of that one accepts and no pin asks for it.
  Choice best(FamilyJob job,
              std::optional<ExecutionFamily> wanted,
              std::int64_t m_min,
              std::int64_t m_max,
              std::vector<Refusal>& refused) const {
    Choice choice = ranked(job, wanted, m_min, m_max, refused);
    const bool pinned = context_.overrides.family.has_value();
    if (choice.family == nullptr && wanted.has_value() && !pinned) {
      choice = ranked(job, std::nullopt, m_min, m_max, refused);
    }
    return choice;
  }

  [[nodiscard]] std::span<const KernelFamily* const> families() const { return families_; }

 private:
  Choice ranked(FamilyJob job,
                std::optional<ExecutionFamily> wanted,
                std::int64_t m_min,
                std::int64_t m_max,
                std::vector<Refusal>& refused) const {
    Choice best;
    for (const KernelFamily* family : families_) {
      if (family->job != job || (wanted.has_value() && family->execution != *wanted)) {
        continue;
      }
      Verdict verdict = family->check(context_, m_min, m_max);
      if (!verdict.accepted) {
        add_refusal(refused, family->name, std::move(verdict.reason));
      } else if (verdict.cost_us < best.cost_us) {
        best = {family, verdict.cost_us};
      }
    }
    return best;
  }

  const FamilyContext& context_;
  std::span<const KernelFamily* const> families_;
};

// A part of the ladder that one execution family is wanted for. Where it ends does not depend on
// the capacity, so that a larger capacity only adds rungs.
struct Range {
  std::int64_t m_min;
  std::int64_t m_max;
  ExecutionFamily wanted;
};

// A pin keeps the ladder whole, and so does batch_invariant: a token's bits must not depend on how
// many others there are, and the grouped family serves any number of them.
Result<std::vector<Range>> execution_ranges(const FamilyContext& context, PlanData& plan) {
  const Problem& problem = context.problem;
  const std::int64_t capacity = problem.num_tokens;
  if (context.overrides.family.has_value()) {
    return std::vector<Range>{{0, capacity, *context.overrides.family}};
  }
  if (problem.batch_invariant) {
    plan.notes.emplace_back("batch_invariant: one family serves every M");
    return std::vector<Range>{{0, capacity, ExecutionFamily::kGrouped}};
  }
  const TuningTable* table = tuning_table(context.device.arch);
  if (table == nullptr) {
    return unsupported(cat("no tuning table for ", arch_name(context.device.arch)));
  }
  const DirectRow* row = direct_row(*table, problem);
  const std::int64_t last = last_direct(row, problem);
  plan.notes.push_back(row == nullptr
                           ? cat("grouped for every M: no direct row of ",
                                 arch_name(context.device.arch),
                                 " holds for this problem")
                           : cat("direct up to M ", last, ", grouped beyond: ", row->source));
  std::vector<Range> ranges;
  if (last >= 0) {
    ranges.push_back({0, last, ExecutionFamily::kDirect});
  }
  if (capacity > last) {
    ranges.push_back({last + 1, capacity, ExecutionFamily::kGrouped});
  }
  return ranges;
}

// A family pin or override that no family could honour.
Status check_overrides(const PlanOverrides& overrides) {
  constexpr std::int64_t kLegal[] = {8, 16, 32, 48, 64};
  if (overrides.route_block_rows.has_value() &&
      std::find(std::begin(kLegal), std::end(kLegal), *overrides.route_block_rows) ==
          std::end(kLegal)) {
    return invalid_argument(cat("pin route_block_rows=",
                                *overrides.route_block_rows,
                                ", expected one of ",
                                base::join(kLegal)));
  }
  if (overrides.family.has_value() && execution_family_name(*overrides.family).empty()) {
    return invalid_argument("pin family is not an enumerator, expected direct or grouped");
  }
  return {};
}

void append(std::vector<Step>& steps, std::vector<Step> more) {
  steps.insert(
      steps.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

std::string all_reasons(const std::vector<Refusal>& refused) {
  std::string text;
  for (const Refusal& refusal : refused) {
    text += cat(text.empty() ? "" : "; ", refusal.family, ": ", refusal.reason);
  }
  return text;
}

class LadderBuilder {
 public:
  LadderBuilder(const FamilyContext& context, std::span<const KernelFamily* const> families)
      : context_(context), chooser_(context, families) {}

  Status build(PlanData& plan) {
    MOEKIT_RETURN_IF_ERROR(choose_route_family(plan));
    MOEKIT_ASSIGN_OR_RETURN(const std::vector<Range> ranges, execution_ranges(context_, plan));
    for (const Range& range : ranges) {
      MOEKIT_RETURN_IF_ERROR(add_range(range, plan));
    }
    add_rungs(plan);
    return lay_workspace_out(plan);
  }

 private:
  Status choose_route_family(PlanData& plan) {
    if (!context_.problem.routing.has_value()) {
      return {};
    }
    route_ =
        chooser_.best(FamilyJob::kRoute, std::nullopt, 0, context_.problem.num_tokens, plan.refused)
            .family;
    return route_ != nullptr ? Status() : unsupported(cat("routing: ", all_reasons(plan.refused)));
  }

  Status add_range(const Range& range, PlanData& plan) {
    const std::int64_t capacity = context_.problem.num_tokens;
    std::int64_t m_min = range.m_min;
    for (const std::int64_t end : part_ends(range)) {
      if (m_min > capacity) {
        break;
      }
      const Choice choice =
          chooser_.best(FamilyJob::kExperts, range.wanted, m_min, end, plan.refused);
      if (choice.family == nullptr) {
        return unsupported(cat("no kernel family serves M ",
                               m_min,
                               "..",
                               end,
                               " of ",
                               recipe_info(context_.problem.recipe).name,
                               " on ",
                               arch_name(context_.device.arch),
                               ": ",
                               all_reasons(plan.refused)));
      }
      parts_.push_back({choice.family, m_min, std::min(end, capacity)});
      m_min = end + 1;
    }
    return {};
  }

  // Every M at which some family changes, and the end of the range.
  std::vector<std::int64_t> part_ends(const Range& range) const {
    std::vector<std::int64_t> ends{range.m_max};
    for (const KernelFamily* family : chooser_.families()) {
      for (const std::int64_t end : breakpoints(*family, range.m_max)) {
        if (end >= range.m_min && end < range.m_max) {
          ends.push_back(end);
        }
      }
    }
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    return ends;
  }

  std::vector<std::int64_t> breakpoints(const KernelFamily& family, std::int64_t last) const {
    if (family.job != FamilyJob::kExperts || family.breakpoints == nullptr) {
      return {};
    }
    Problem problem = context_.problem;
    problem.num_tokens = std::max(problem.num_tokens, last);
    return family.breakpoints({problem, context_.device, context_.overrides, context_.layout});
  }

  // Parts of one family are one rung unless that family changes between them.
  void add_rungs(PlanData& plan) {
    for (std::size_t i = 0; i < parts_.size();) {
      const Part& first = parts_[i];
      const std::vector<std::int64_t> changes = breakpoints(*first.family, plan.problem.num_tokens);
      std::int64_t m_max = first.m_max;
      for (++i; i < parts_.size() && parts_[i].family == first.family &&
                std::find(changes.begin(), changes.end(), m_max) == changes.end();
           ++i) {
        m_max = parts_[i].m_max;
      }
      add_rung(*first.family, first.m_min, m_max, plan);
    }
  }

  [[nodiscard]] FamilyContext rung_context(std::int64_t m_max) const {
    FamilyContext context = context_;
    context.rung_tokens = m_max;
    return context;
  }

  void add_rung(const KernelFamily& family,
                std::int64_t m_min,
                std::int64_t m_max,
                PlanData& plan) {
    const FamilyContext context = rung_context(m_max);
    Rung rung;
    rung.m_min = m_min;
    rung.m_max = m_max;
    rung.chunk_tokens = m_max;
    rung.family = family.execution;
    if (route_ != nullptr) {
      append(rung.steps, route_->lower(context, m_min, m_max));
    }
    append(rung.steps, family.lower(context, m_min, m_max));
    rung.concurrency = concurrency_of(rung.steps);
    rung.aux_stream_overlap = overlap_of(rung.steps, context_.device);
    rung.deterministic = !rung.concurrency.atomics;
    plan.ladder.push_back(std::move(rung));
    rung_families_.push_back(&family);
  }

  // What a rung's launches take at once where calls are cut into `chunk` tokens.
  [[nodiscard]] std::int64_t tokens_at_once(const PlanData& plan,
                                            std::size_t rung,
                                            std::int64_t chunk) const {
    const KernelFamily& family = *rung_families_[rung];
    const std::int64_t m_max = plan.ladder[rung].m_max;
    return family.may_be_cut == nullptr || family.may_be_cut(context_) ? std::min(chunk, m_max)
                                                                       : m_max;
  }

  // Running maximum of every slice over the rungs.
  WorkspaceNeeds needs_for(const PlanData& plan, std::int64_t chunk) const {
    WorkspaceNeeds needs;
    for (std::size_t i = 0; i < plan.ladder.size(); ++i) {
      const std::int64_t tokens = tokens_at_once(plan, i, chunk);
      if (route_ != nullptr) {
        needs.add(route_->slices(context_, tokens));
      }
      needs.add(rung_families_[i]->slices(rung_context(plan.ladder[i].m_max), tokens));
    }
    return needs;
  }

  Status lay_workspace_out(PlanData& plan) const {
    const std::int64_t capacity = context_.problem.num_tokens;
    const std::int64_t bound = context_.problem.max_workspace_bytes;
    std::int64_t chunk = capacity;
    if (bound != 0 && needs_for(plan, capacity).total_bytes() > bound) {
      MOEKIT_RETURN_IF_ERROR(check_least(plan));
      chunk = largest_chunk(plan, bound);
      plan.notes.push_back(
          cat("max_workspace_bytes ", bound, " cuts calls into chunks of ", chunk, " tokens"));
    }
    for (std::size_t i = 0; i < plan.ladder.size(); ++i) {
      plan.ladder[i].chunk_tokens = tokens_at_once(plan, i, chunk);
    }
    const WorkspaceNeeds needs = needs_for(plan, chunk);
    plan.workspace = needs.layout();
    plan.workspace_bytes = needs.total_bytes();
    return {};
  }

  // A budget that not even the smallest chunks fit.
  [[nodiscard]] Status check_least(const PlanData& plan) const {
    const std::int64_t least =
        needs_for(plan, std::min<std::int64_t>(context_.problem.num_tokens, 1)).total_bytes();
    if (least <= context_.problem.max_workspace_bytes) {
      return {};
    }
    std::int64_t whole = 0;  // tokens of the largest call that is not cut
    for (std::size_t i = 0; i < plan.ladder.size(); ++i) {
      whole = std::max(whole, tokens_at_once(plan, i, 1));
    }
    return unsupported(
        cat("max_workspace_bytes ",
            context_.problem.max_workspace_bytes,
            " is below the ",
            least,
            " bytes that ",
            whole <= 1 ? std::string("one token needs")
                       : cat(whole,
                             " tokens of the direct family need, whose calls are not cut: sums are "
                             "split by the routes of a whole call, chunks would have other bits")));
  }

  std::int64_t largest_chunk(const PlanData& plan, std::int64_t bound) const {
    std::int64_t fits = 1;
    std::int64_t too_many = context_.problem.num_tokens;
    while (too_many - fits > 1) {
      const std::int64_t middle = fits + (too_many - fits) / 2;
      (needs_for(plan, middle).total_bytes() <= bound ? fits : too_many) = middle;
    }
    return fits;
  }

  // Consecutive M that one family serves.
  struct Part {
    const KernelFamily* family;
    std::int64_t m_min;
    std::int64_t m_max;
  };

  const FamilyContext& context_;
  Chooser chooser_;
  const KernelFamily* route_ = nullptr;
  std::vector<Part> parts_;
  std::vector<const KernelFamily*> rung_families_;
};

void note_conversions(PlanData& plan) {
  if (plan.problem.io_dtype != DType::kBf16) {
    plan.notes.push_back(cat("x is rounded once from ",
                             dtype_name(plan.problem.io_dtype),
                             " to bf16, to nearest, ties to even"));
  }
  plan.notes.push_back(
      cat("routes of a token are summed in f32 in ",
          combine_order_name(plan.problem.combine_order),
          " order",
          plan.deterministic ? "" : ", by atomics in no order where not deterministic"));
}

/// Repacking goes from the source straight into the destination. Beyond both, prepare holds one row
/// of zero codes (a dormant expert's) and what its threads, progress and messages need.
/// runtime/prepare_test.cc measures it.
std::int64_t prepare_extra_bytes(const PackedLayout& layout) {
  constexpr std::int64_t kThreadsAndMessages = std::int64_t{256} << 10;
  const std::int64_t longest = std::max(layout.gate_up.shape.cols, layout.down.shape.cols);
  return code_row_bytes(layout.gate_up.shape.format, longest) + kThreadsAndMessages;
}

}  // namespace

Result<Plan> choose(const Problem& problem,
                    const DeviceDescriptor& device,
                    const PlanOverrides& overrides,
                    std::span<const KernelFamily* const> families) {
  MOEKIT_RETURN_IF_ERROR(check_overrides(overrides));
  MOEKIT_ASSIGN_OR_RETURN(const PackedLayout layout, packed_layout(problem, device));
  const FamilyContext context{problem, device, overrides, layout};
  PlanData plan;
  plan.problem = problem;
  plan.device = device;
  plan.overrides = overrides;
  plan.layout_id = layout.id;
  plan.prepare = {PreparePolicy::kRepack, prepare_extra_bytes(layout), layout.total_bytes};
  MOEKIT_RETURN_IF_ERROR(LadderBuilder(context, families).build(plan));
  for (const Rung& rung : plan.ladder) {
    plan.deterministic &= rung.deterministic;
    plan.concurrency = worst_of(plan.concurrency, rung.concurrency);
  }
  plan.aux_stream_overlap = overlap_of(plan.ladder);
  if (plan.aux_stream_overlap.verdict == OverlapVerdict::kUnsafe) {
    return internal_error(plan.aux_stream_overlap.reason);
  }
  note_conversions(plan);
  return Plan(std::make_shared<const PlanData>(std::move(plan)));
}

}  // namespace moekit::plan
