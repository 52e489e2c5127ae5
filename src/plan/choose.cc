// SPDX-License-Identifier: Apache-2.0

// The ladder: which family serves which token counts, and how much workspace that takes. Boundaries
// are data (tuning/ladder.h); families only accept, price and lower.

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/text.h"
#include "plan/family.h"
#include "plan/tuning/ladder.h"
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

struct Range {
  std::int64_t m_min;
  std::int64_t m_max;
  ExecutionFamily wanted;
};

// [0, capacity] cut where the tuning table changes family; a pin keeps it whole.
Result<std::vector<Range>> execution_ranges(const FamilyContext& context) {
  const std::int64_t capacity = context.problem.num_tokens;
  if (context.overrides.family.has_value()) {
    return std::vector<Range>{{0, capacity, *context.overrides.family}};
  }
  const LadderRow* row = ladder_row(context.device.arch, context.problem.recipe);
  if (row == nullptr) {
    return unsupported(cat("no tuning table for ",
                           arch_name(context.device.arch),
                           " and recipe ",
                           recipe_info(context.problem.recipe).name));
  }
  const std::int64_t last_direct = direct_max_tokens(*row, context.problem.top_k);
  std::vector<Range> ranges;
  ranges.push_back({0, std::min(capacity, last_direct), ExecutionFamily::kDirect});
  if (capacity > last_direct) {
    ranges.push_back({last_direct + 1, capacity, ExecutionFamily::kGrouped});
  }
  return ranges;
}

Concurrency concurrency_of(const std::vector<Step>& steps) {
  Concurrency concurrency;
  concurrency.launches = static_cast<std::int64_t>(steps.size());
  for (const Step& step : steps) {
    concurrency.grid_barrier |= step.grid_barrier;
    concurrency.cooperative |= step.cooperative;
    concurrency.atomics |= step.atomics;
  }
  return concurrency;
}

// Follows from the lowered steps alone: a grid-wide barrier needs every block resident at once.
AuxStreamOverlap overlap_of(const std::vector<Rung>& ladder) {
  AuxStreamOverlap overlap{OverlapVerdict::kSafe, "no step has a grid-wide barrier"};
  for (const Rung& rung : ladder) {
    for (const Step& step : rung.steps) {
      if (!step.grid_barrier) {
        continue;
      }
      if (!step.cooperative) {
        return {OverlapVerdict::kUnsafe,
                cat("step ", step.kernel, " has a grid barrier without a cooperative launch")};
      }
      overlap = {
          OverlapVerdict::kJoinFirst,
          cat("step ",
              step.kernel,
              " is a cooperative launch with a grid barrier: join auxiliary work before it")};
    }
  }
  return overlap;
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
    MOEKIT_ASSIGN_OR_RETURN(const std::vector<Range> ranges, execution_ranges(context_));
    for (const Range& range : ranges) {
      MOEKIT_RETURN_IF_ERROR(add_range(range, plan));
    }
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
    const Choice choice =
        chooser_.best(FamilyJob::kExperts, range.wanted, range.m_min, range.m_max, plan.refused);
    if (choice.family == nullptr) {
      return unsupported(cat("no kernel family serves M ",
                             range.m_min,
                             "..",
                             range.m_max,
                             " of ",
                             recipe_info(context_.problem.recipe).name,
                             " on ",
                             arch_name(context_.device.arch),
                             ": ",
                             all_reasons(plan.refused)));
    }
    std::vector<std::int64_t> ends{range.m_max};
    if (choice.family->breakpoints != nullptr) {
      for (const std::int64_t end : choice.family->breakpoints(context_)) {
        if (end >= range.m_min && end < range.m_max) {
          ends.push_back(end);
        }
      }
      std::sort(ends.begin(), ends.end());
      ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    }
    std::int64_t m_min = range.m_min;
    for (const std::int64_t m_max : ends) {
      add_rung(*choice.family, m_min, m_max, plan);
      m_min = m_max + 1;
    }
    return {};
  }

  void add_rung(const KernelFamily& family,
                std::int64_t m_min,
                std::int64_t m_max,
                PlanData& plan) {
    Rung rung;
    rung.m_min = m_min;
    rung.m_max = m_max;
    rung.chunk_tokens = m_max;
    rung.family = family.execution;
    if (route_ != nullptr) {
      append(rung.steps, route_->lower(context_, m_min, m_max));
    }
    append(rung.steps, family.lower(context_, m_min, m_max));
    rung.concurrency = concurrency_of(rung.steps);
    rung.deterministic = !rung.concurrency.atomics;
    plan.ladder.push_back(std::move(rung));
    rung_families_.push_back(&family);
  }

  // Running maximum of every slice over the rungs, at most `chunk` tokens at a time.
  WorkspaceNeeds needs_for(const PlanData& plan, std::int64_t chunk) const {
    WorkspaceNeeds needs;
    for (std::size_t i = 0; i < plan.ladder.size(); ++i) {
      const std::int64_t tokens = std::min(chunk, plan.ladder[i].m_max);
      if (route_ != nullptr) {
        needs.add(route_->slices(context_, tokens));
      }
      needs.add(rung_families_[i]->slices(context_, tokens));
    }
    return needs;
  }

  Status lay_workspace_out(PlanData& plan) const {
    const std::int64_t capacity = context_.problem.num_tokens;
    const std::int64_t bound = context_.problem.max_workspace_bytes;
    std::int64_t chunk = capacity;
    if (bound != 0 && needs_for(plan, capacity).total_bytes() > bound) {
      const std::int64_t least = needs_for(plan, std::min<std::int64_t>(capacity, 1)).total_bytes();
      if (least > bound) {
        return unsupported(cat(
            "max_workspace_bytes ", bound, " is below the ", least, " bytes that one token needs"));
      }
      chunk = largest_chunk(plan, bound);
      plan.notes.push_back(
          cat("max_workspace_bytes ", bound, " cuts calls into chunks of ", chunk, " tokens"));
    }
    for (Rung& rung : plan.ladder) {
      rung.chunk_tokens = std::min(rung.m_max, chunk);
    }
    const WorkspaceNeeds needs = needs_for(plan, chunk);
    plan.workspace = needs.layout();
    plan.workspace_bytes = needs.total_bytes();
    return {};
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

  const FamilyContext& context_;
  Chooser chooser_;
  const KernelFamily* route_ = nullptr;
  std::vector<const KernelFamily*> rung_families_;
};

void note_conversions(PlanData& plan) {
  if (plan.problem.io_dtype != DType::kBf16) {
    plan.notes.push_back(cat("x is rounded once from ",
                             dtype_name(plan.problem.io_dtype),
                             " to bf16, to nearest, ties to even"));
  }
  plan.notes.push_back(cat("routes of a token are summed in f32 in ",
                           combine_order_name(plan.problem.combine_order),
                           " order"));
}

}  // namespace

Result<Plan> choose(const Problem& problem,
                    const DeviceDescriptor& device,
                    const PlanOverrides& overrides,
                    std::span<const KernelFamily* const> families) {
  MOEKIT_ASSIGN_OR_RETURN(const PackedLayout layout, packed_layout(problem, device));
  const FamilyContext context{problem, device, overrides, layout};
  PlanData plan;
  plan.problem = problem;
  plan.device = device;
  plan.overrides = overrides;
  plan.layout_id = layout.id;
  plan.prepare = {PreparePolicy::kRepack, 0, layout.total_bytes};
  MOEKIT_RETURN_IF_ERROR(LadderBuilder(context, families).build(plan));
  for (const Rung& rung : plan.ladder) {
    plan.deterministic &= rung.deterministic;
    plan.concurrency.launches = std::max(plan.concurrency.launches, rung.concurrency.launches);
    plan.concurrency.grid_barrier |= rung.concurrency.grid_barrier;
    plan.concurrency.cooperative |= rung.concurrency.cooperative;
    plan.concurrency.atomics |= rung.concurrency.atomics;
  }
  plan.aux_stream_overlap = overlap_of(plan.ladder);
  if (plan.aux_stream_overlap.verdict == OverlapVerdict::kUnsafe) {
    return internal_error(plan.aux_stream_overlap.reason);
  }
  note_conversions(plan);
  return Plan(std::move(plan));
}

}  // namespace moekit::plan
