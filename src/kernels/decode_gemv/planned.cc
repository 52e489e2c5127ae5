// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode_gemv/planned.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "kernels/decode_gemv/geometry.h"
#include "kernels/decode_gemv/variants.h"
#include "plan/concurrency.h"
#include "plan/family_rules.h"
#include "plan/tuning/table.h"

namespace moekit::kernels::decode_gemv {
namespace {

using base::cat;
using plan::FamilyContext;
using plan::SliceId;

// In order of preference: the variant that was measured best at few tokens on another arch, then
// what fits in less shared memory.
constexpr Spec kGateUpSpecs[] = {
    {.role = Role::kGateUp},
    {.role = Role::kGateUp, .warps = 8, .lookahead = 2},
    {.role = Role::kGateUp, .warps = 4, .k_tiles = 2, .lookahead = 2},
};
constexpr Spec kDownSpecs[] = {
    {.role = Role::kDown},
    {.role = Role::kDown, .warps = 8, .lookahead = 2},
    {.role = Role::kDown, .warps = 4, .k_tiles = 2, .lookahead = 2},
};

struct Choice {
  Spec spec{};
  Geometry geometry{};
};

LaunchShape launch_shape(const FamilyContext& context, std::int64_t num_tokens) {
  const Problem& problem = context.problem;
  LaunchShape shape;
  shape.num_tokens = static_cast<std::int32_t>(std::max<std::int64_t>(1, num_tokens));
  shape.top_k = static_cast<std::int32_t>(problem.top_k);
  shape.num_experts = static_cast<std::int32_t>(problem.num_experts);
  shape.hidden = static_cast<std::int32_t>(problem.hidden_size);
  shape.num_sms = static_cast<std::int32_t>(context.device.num_sms);
  shape.smem_bytes = static_cast<std::int32_t>(context.device.smem_per_block_bytes);
  shape.max_clusters = shape.num_sms;
  return shape;
}

std::optional<Choice> choose_spec(const FamilyContext& context,
                                  Role role,
                                  std::int64_t num_tokens) {
  const LaunchShape shape = launch_shape(context, num_tokens);
  const std::span<const Spec> specs = role == Role::kGateUp ? std::span<const Spec>(kGateUpSpecs)
                                                            : std::span<const Spec>(kDownSpecs);
  for (Spec spec : specs) {
    spec.group_size = static_cast<std::int32_t>(
        format_info(recipe_info(context.problem.recipe).weights).group_size);
    const Geometry geometry =
        role == Role::kGateUp ? gate_up_geometry(spec, shape) : down_geometry(spec, shape);
    if (geometry.fits && why_invalid(spec) == nullptr) {
      return Choice{spec, geometry};
    }
  }
  return std::nullopt;
}

std::string pin_name(const FamilyContext& context, std::int64_t num_tokens) {
  const std::optional<Choice> gate_up = choose_spec(context, Role::kGateUp, num_tokens);
  const std::optional<Choice> down = choose_spec(context, Role::kDown, num_tokens);
  return gate_up.has_value() && down.has_value()
             ? cat(tile_name({gate_up->spec, 1}), "+", tile_name({down->spec, 1}))
             : std::string();
}

std::string refused_pin(const FamilyContext& context, std::int64_t m_max) {
  const PlanOverrides& overrides = context.overrides;
  if (overrides.route_block_rows.has_value()) {
    return cat("pin route_block_rows=",
               *overrides.route_block_rows,
               " has no meaning here: routes are not padded");
  }
  if (std::string reason = plan::refused_pdl_first(context); !reason.empty()) {
    return reason;
  }
  if (overrides.tile.has_value() && *overrides.tile != pin_name(context, m_max)) {
    return cat("pin tile=", *overrides.tile, ", expected ", pin_name(context, m_max));
  }
  return {};
}

std::string refused_planned_problem(const FamilyContext& context, std::int64_t m_max) {
  const Problem& problem = context.problem;
  if (std::string reason = plan::refused_operands(context); !reason.empty()) {
    return reason;
  }
  if (problem.batch_invariant) {
    return "batch_invariant: down splits K by the routes of the whole call";
  }
  if (m_max > kMaxTokens) {
    return cat("M ", m_max, ", at most ", kMaxTokens, " tokens a call");
  }
  for (const Role role : {Role::kGateUp, Role::kDown}) {
    if (!choose_spec(context, role, m_max).has_value()) {
      return cat("no variant fits ",
                 context.device.smem_per_block_bytes,
                 " bytes of shared memory at M ",
                 m_max,
                 ", top-",
                 problem.top_k,
                 ", ",
                 problem.num_experts,
                 " experts");
    }
  }
  return {};
}

Step make_step(const FamilyContext& context, std::string_view role, const Choice& choice) {
  Step step;
  step.family = "decode_gemv";
  step.kernel = plan::make_kernel_name({step.family,
                                        std::string(recipe_info(context.problem.recipe).name),
                                        cat(role, "_", tile_name({choice.spec, 1})),
                                        plan::kernel_arch(context.device)});
  step.grid.x = choice.geometry.grid;
  step.block.x = num_threads(choice.spec);
  step.smem_bytes = choice.geometry.smem_bytes;
  step.status = StepStatus::kPlanned;
  return step;
}

bool is_atomic(const FamilyContext& context) {
  const plan::DirectRow* row =
      plan::direct_row(*plan::tuning_table(context.device.arch), context.problem);
  return row != nullptr && row->atomic;
}

// gate_up, a grid-wide barrier, then down: one launch, so every block must be resident.
Step resident_step(const FamilyContext& context, const Choice& choice) {
  Step step = make_step(context, "resident", choice);
  const plan::GridRow* row = plan::grid_row(*plan::tuning_table(context.device.arch),
                                            ExecutionFamily::kDirect,
                                            context.rung_tokens * context.problem.top_k);
  const std::int64_t held = plan::resident_blocks(context.device, step.block.x, step.smem_bytes);
  step.grid.x = std::min({held, context.device.num_sms, row == nullptr ? held : row->blocks});
  step.grid_barrier = true;
  step.cooperative = true;
  step.atomics = is_atomic(context);
  step.pdl_edge = context.overrides.pdl_first;
  return step;
}

}  // namespace

plan::Verdict check_planned(const FamilyContext& context, std::int64_t m_max) {
  for (std::string reason :
       {refused_planned_problem(context, m_max), refused_pin(context, m_max)}) {
    if (!reason.empty()) {
      return plan::Verdict::refuse(std::move(reason));
    }
  }
  // Active bytes at 1 byte a picosecond and two launches: it ranks, nothing is read off it.
  return plan::Verdict::accept(5.0 + plan::active_weight_bytes(context, m_max) / 1e6);
}

std::vector<std::int64_t> breakpoints_planned(const FamilyContext& context) {
  std::vector<std::int64_t> ends;
  if (context.overrides.resident) {
    for (const plan::GridRow& row : plan::tuning_table(context.device.arch)->grids) {
      if (row.family == ExecutionFamily::kDirect && row.max_routes != plan::kNoLimit) {
        ends.push_back(row.max_routes / context.problem.top_k);
      }
    }
  }
  // A rung ends where shared memory makes way for another variant: a plan of more tokens then runs
  // what a smaller one runs, and needs no less.
  const std::int64_t last = std::min<std::int64_t>(context.problem.num_tokens, kMaxTokens);
  for (std::int64_t tokens = 1; tokens < last; ++tokens) {
    if (pin_name(context, tokens) != pin_name(context, tokens + 1)) {
      ends.push_back(tokens);
    }
  }
  return ends;
}

std::vector<plan::SliceRequest> slices_planned(const FamilyContext& context,
                                               std::int64_t num_tokens) {
  const Problem& problem = context.problem;
  // Room for what the rung's launch may spill, whatever the size of a chunk.
  const std::optional<Choice> down = choose_spec(context, Role::kDown, context.rung_tokens);
  const std::int64_t spill = num_tokens == 0 || !down.has_value() ? 0 : down->geometry.spill_bytes;
  const std::int64_t routes = num_tokens * problem.top_k;
  const bool converts = problem.io_dtype != DType::kBf16;
  return {{SliceId::kXOperand, converts ? num_tokens * problem.hidden_size * 2 : 0},
          {SliceId::kIntermediate, routes * problem.intermediate_size * 2},
          {SliceId::kScratch, spill}};
}

std::vector<Step> lower_planned(const FamilyContext& context) {
  const std::optional<Choice> gate_up = choose_spec(context, Role::kGateUp, context.rung_tokens);
  const std::optional<Choice> down = choose_spec(context, Role::kDown, context.rung_tokens);
  if (!gate_up.has_value() || !down.has_value()) {
    return {};  // check has refused it
  }
  if (context.overrides.resident) {
    const bool first = gate_up->geometry.smem_bytes >= down->geometry.smem_bytes;
    return {resident_step(context, first ? *gate_up : *down)};
  }
  std::vector<Step> steps{make_step(context, "gate_up", *gate_up),
                          make_step(context, "down", *down)};
  steps.front().pdl_edge = context.overrides.pdl_first;
  steps.back().atomics = is_atomic(context);
  steps.back().pdl_edge = context.device.arch >= Arch::kSm90a;
  return steps;
}

}  // namespace moekit::kernels::decode_gemv
