// SPDX-License-Identifier: Apache-2.0
#include "kernels/grouped_gemm/planner_cuda.h"

#include <algorithm>

#include "base/text.h"
#include "kernels/grouped_gemm/spec.h"
#include "plan/concurrency.h"
#include "plan/family_rules.h"
#include "plan/tuning/table.h"

namespace moekit::kernels::grouped_gemm {
namespace {

using base::cat;
using plan::FamilyContext;
using plan::SliceId;
using plan::Verdict;

constexpr std::string_view kFamilyName = "grouped_gemm";
constexpr std::int64_t kCombineThreads = 256;
constexpr std::int64_t kPackThreads = 1024;

bool has_native_fp4(Arch arch) {
  return arch == Arch::kSm100a || arch == Arch::kSm120a || arch == Arch::kSm121a;
}

bool quantises(const Problem& problem) {
  return recipe_info(problem.recipe).quantizer != Quantizer::kNone;
}

// Without FP4 tensor cores a quantised operand is its value, code * scale, in bf16: exact for the
// rules that fit (spec section 2, "Executing them").
std::int64_t operand_bits(const FamilyContext& context) {
  return has_native_fp4(context.device.arch)
             ? dtype_bits(recipe_info(context.problem.recipe).operand)
             : 16;
}

std::int64_t operand_group(const Problem& problem) {
  return quantizer_info(recipe_info(problem.recipe).quantizer).group_size;
}

std::int64_t block_rows(const FamilyContext& context) {
  return context.overrides.route_block_rows.value_or(plan::route_block_rows(
      *plan::tuning_table(context.device.arch), context.problem, context.rung_tokens));
}

bool is_atomic(const FamilyContext& context) {
  return plan::may_combine_by_atomics(*plan::tuning_table(context.device.arch), context.problem);
}

std::string tile_name(const Spec& spec) {
  return cat("m",
             spec.block_rows,
             "n",
             spec.tile_n,
             "k",
             spec.tile_k,
             "s",
             spec.num_stages,
             "w",
             spec.num_warps);
}

// The tile without the block, which a pin of its own sets.
std::string pin_name(const Spec& spec) {
  return cat("n", spec.tile_n, "k", spec.tile_k, "s", spec.num_stages, "w", spec.num_warps);
}

struct Candidate {
  Spec spec{};
  std::int64_t blocks_per_sm = 0;  // 0: does not fit
};

std::vector<Candidate> candidates(const FamilyContext& context, Role role, std::int64_t rows) {
  const RecipeInfo& recipe = recipe_info(context.problem.recipe);
  std::vector<Candidate> made;
  for (const plan::TileRow& row : plan::tuning_table(context.device.arch)->tiles) {
    const bool wide = row.max_block_rows == plan::kNoLimit;
    if (rows > row.max_block_rows || (wide && rows <= 16)) {
      continue;
    }
    Spec spec;
    spec.role = role;
    spec.group_size = static_cast<std::int32_t>(format_info(recipe.weights).group_size);
    spec.operand_bits = static_cast<std::int32_t>(operand_bits(context));
    if (spec.operand_bits != 16) {
      spec.operand_group = static_cast<std::int32_t>(operand_group(context.problem));
    }
    spec.block_rows = static_cast<std::int32_t>(rows);
    spec.tile_n = row.tile_n;
    spec.tile_k = row.tile_k;
    spec.num_warps = row.num_warps;
    const std::int64_t bytes = smem_bytes(spec);
    const bool fits = why_invalid(spec) == nullptr && bytes <= context.device.smem_per_block_bytes;
    made.push_back({spec,
                    fits ? plan::resident_blocks(context.device, num_threads(spec), bytes) /
                               context.device.num_sms
                         : 0});
  }
  return made;
}

// The pinned tile, or the one with most blocks per SM, the first of equals.
Candidate best_tile(const FamilyContext& context, Role role, std::int64_t rows) {
  Candidate best;
  for (const Candidate& candidate : candidates(context, role, rows)) {
    const bool pinned_away =
        context.overrides.tile.has_value() && *context.overrides.tile != pin_name(candidate.spec);
    if (!pinned_away && candidate.blocks_per_sm > best.blocks_per_sm) {
      best = candidate;
    }
  }
  return best;
}

std::string refused_pin(const FamilyContext& context) {
  const PlanOverrides& overrides = context.overrides;
  const Arch arch = context.device.arch;
  // Where the direct kernels run, a pin would trade a plan that runs for one that does not.
  const bool pinned = overrides.family == ExecutionFamily::kGrouped ||
                      overrides.route_block_rows.has_value() || overrides.tile.has_value() ||
                      overrides.resident || overrides.pdl_first;
  if (arch == Arch::kSm90a && pinned) {
    return "no grouped kernel is written for sm_90a yet, so none can be pinned; leave the pin out";
  }
  return plan::refused_pdl_first(context);
}

std::string refused_problem(const FamilyContext& context) {
  return has_native_fp4(context.device.arch) ? std::string() : plan::refused_operands(context);
}

std::string tiles_that_fit(const FamilyContext& context, std::int64_t rows) {
  std::string names;
  for (const Candidate& candidate : candidates(context, Role::kGateUp, rows)) {
    if (candidate.blocks_per_sm > 0) {
      names += cat(names.empty() ? "" : ", ", pin_name(candidate.spec));
    }
  }
  return names;
}

std::string refused_tile(const FamilyContext& context, std::int64_t m_max) {
  FamilyContext rung = context;
  rung.rung_tokens = m_max;
  const std::int64_t rows = block_rows(rung);
  if (best_tile(rung, Role::kGateUp, rows).blocks_per_sm > 0) {
    return {};
  }
  const std::string names = tiles_that_fit(rung, rows);
  if (!names.empty()) {
    return cat("pin tile=", *context.overrides.tile, ", expected one of ", names);
  }
  std::string refused = cat("no tile for blocks of ",
                            rows,
                            " routes fits ",
                            context.device.smem_per_block_bytes,
                            " bytes of shared memory");
  for (std::int64_t fewer = rows - 8; fewer >= 8; fewer -= 8) {
    const bool pinnable = fewer % 16 == 0 || fewer == 8;
    if (const std::string fit = pinnable ? tiles_that_fit(rung, fewer) : ""; !fit.empty()) {
      return cat(refused, "; nearest: pin route_block_rows=", fewer, " with tile ", fit);
    }
  }
  return refused;
}

Step make_step(const FamilyContext& context, std::string_view role_tile, Dim3 grid) {
  Step step;
  step.family = kFamilyName;
  step.kernel = plan::make_kernel_name({std::string(kFamilyName),
                                        std::string(recipe_info(context.problem.recipe).name),
                                        std::string(role_tile),
                                        plan::kernel_arch(context.device)});
  step.grid = grid;
  step.status = StepStatus::kPlanned;
  return step;
}

std::string_view role_name(Role role) {
  return role == Role::kGateUp ? "gate_up" : role == Role::kDown ? "down" : "resident";
}

// As many blocks as the device holds, or as there are tiles.
Step product_step(const FamilyContext& context, Role role) {
  const Problem& problem = context.problem;
  const Candidate tile = best_tile(context, role, block_rows(context));
  const std::int64_t routes = context.rung_tokens * problem.top_k;
  const std::int64_t rows = role == Role::kDown ? problem.hidden_size : num_gate_up_rows(problem);
  const std::int64_t tiles = device::ceil_div(rows, std::int64_t{tile.spec.tile_n}) *
                             num_route_blocks(tile.spec.block_rows, routes, problem.num_experts);
  const std::int64_t held = context.device.num_sms * tile.blocks_per_sm;
  Step step = make_step(context, cat(role_name(role), "_", tile_name(tile.spec)), {});
  step.grid.x = std::clamp<std::int64_t>(tiles, 1, held);
  step.block.x = num_threads(tile.spec);
  step.smem_bytes = smem_bytes(tile.spec);
  step.atomics = role != Role::kGateUp && is_atomic(context);
  return step;
}

Step resident_step(const FamilyContext& context) {
  Step step = product_step(context, Role::kResident);
  const plan::GridRow* row = plan::grid_row(*plan::tuning_table(context.device.arch),
                                            ExecutionFamily::kGrouped,
                                            context.rung_tokens * context.problem.top_k);
  const std::int64_t held = plan::resident_blocks(context.device, step.block.x, step.smem_bytes);
  step.grid.x = std::min(held, row == nullptr ? held : row->blocks);
  step.grid_barrier = true;
  step.cooperative = true;
  step.pdl_edge = context.overrides.pdl_first;
  return step;
}

std::int64_t operand_bytes(const FamilyContext& context, std::int64_t cols) {
  const std::int64_t bits = operand_bits(context);
  const std::int64_t scales =
      bits == 16 ? 0 : device::ceil_div(cols, operand_group(context.problem));
  return cols * bits / 8 + scales;
}

}  // namespace

Verdict check_cuda(const FamilyContext& context, std::int64_t m_max) {
  for (std::string reason :
       {refused_problem(context), refused_pin(context), refused_tile(context, m_max)}) {
    if (!reason.empty()) {
      return Verdict::refuse(std::move(reason));
    }
  }
  // Active bytes at 4 bytes a picosecond and four launches: it ranks, nothing is read off it.
  return Verdict::accept(10.0 + plan::active_weight_bytes(context, m_max) / 4e6);
}

std::vector<std::int64_t> breakpoints_cuda(const FamilyContext& context) {
  const plan::TuningTable& table = *plan::tuning_table(context.device.arch);
  const std::int64_t last = context.problem.num_tokens;
  std::vector<std::int64_t> ends;
  if (!context.overrides.route_block_rows.has_value()) {
    ends = plan::block_ends(table, context.problem, last);
  }
  if (context.overrides.resident) {
    for (const plan::GridRow& row : table.grids) {
      const std::int64_t end = row.max_routes / context.problem.top_k;
      if (row.family == ExecutionFamily::kGrouped && end < last) {
        ends.push_back(end);
      }
    }
  }
  return ends;
}

std::vector<plan::SliceRequest> slices_cuda(const FamilyContext& context, std::int64_t num_tokens) {
  const Problem& problem = context.problem;
  const std::int64_t routes = num_tokens * problem.top_k;
  const std::int64_t rows = block_rows(context);
  const std::int64_t experts = problem.num_experts;
  const std::int64_t result_rows = is_atomic(context) ? num_tokens : routes;
  std::vector<plan::SliceRequest> slices{
      {SliceId::kExpertOffsets, (experts + 1) * 4},
      {SliceId::kRouteOrder, padded_routes(rows, routes, experts) * 4},
      {SliceId::kRouteBlocks, num_route_blocks(rows, routes, experts) * 4},
      {SliceId::kIntermediate, routes * problem.intermediate_size * 2},
      {SliceId::kRouteOutput, result_rows * problem.hidden_size * 4},
  };
  if (problem.expert_map) {
    slices.push_back({SliceId::kRouteExperts, routes * 4});
  }
  if (quantises(problem)) {
    slices.push_back(
        {SliceId::kXOperand, num_tokens * operand_bytes(context, problem.hidden_size)});
    slices.push_back(
        {SliceId::kInnerOperand, routes * operand_bytes(context, problem.intermediate_size)});
  } else if (problem.io_dtype != DType::kBf16) {
    slices.push_back({SliceId::kXOperand, num_tokens * problem.hidden_size * 2});
  }
  return slices;
}

std::vector<Step> lower_cuda(const FamilyContext& context) {
  if (context.overrides.resident) {
    return {resident_step(context)};
  }
  const Problem& problem = context.problem;
  Step pack = make_step(context, cat("pack_m", block_rows(context)), {problem.num_experts, 1, 1});
  pack.block.x = kPackThreads;
  pack.pdl_edge = context.overrides.pdl_first;
  Step combine =
      make_step(context,
                cat("combine_t", kCombineThreads),
                {device::ceil_div(problem.hidden_size, kCombineThreads * 2),
                 std::max<std::int64_t>(1, std::min<std::int64_t>(context.rung_tokens, 65535)),
                 1});
  combine.block.x = kCombineThreads;
  return {std::move(pack),
          product_step(context, Role::kGateUp),
          product_step(context, Role::kDown),
          std::move(combine)};
}

}  // namespace moekit::kernels::grouped_gemm
