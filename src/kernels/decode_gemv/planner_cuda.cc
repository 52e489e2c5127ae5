// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode_gemv/planner_cuda.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "kernels/decode_gemv/geometry.h"
#include "kernels/decode_gemv/variants.h"
#include "plan/concurrency.h"
#include "plan/family_rules.h"

namespace moekit::kernels::decode_gemv {
namespace {

using base::cat;

struct PinnedTiles {
  std::string_view gate_up{};
  std::string_view down{};
};

/// `tile=GATE_UP+DOWN`.
PinnedTiles pinned_tiles(const PlanOverrides& overrides) {
  if (!overrides.tile.has_value()) {
    return {};
  }
  const std::string_view tile = *overrides.tile;
  const std::size_t plus = std::min(tile.find('+'), tile.size());
  return {tile.substr(0, plus), tile.substr(std::min(plus + 1, tile.size()))};
}

struct Choices {
  RoleChoice gate_up;
  RoleChoice down;
};

std::optional<Choices> choices_for(const plan::FamilyContext& context, std::int64_t num_tokens) {
  CallShape shape =
      call_shape(context.problem, context.device, context.layout.down.shape.group_offset);
  shape.num_tokens = static_cast<std::int32_t>(num_tokens);
  const PinnedTiles tiles = pinned_tiles(context.overrides);
  std::optional<RoleChoice> gate_up = choose_variant(Role::kGateUp, shape, tiles.gate_up);
  std::optional<RoleChoice> down = choose_variant(Role::kDown, shape, tiles.down);
  if (!gate_up.has_value() || !down.has_value()) {
    return std::nullopt;
  }
  return Choices{*gate_up, *down};
}

std::string tiles_of(Role role, bool mxfp4) {
  std::string names;
  for (const VariantRow& row : variant_rows(role)) {
    const std::string name = tile_name(row.variant);
    if (names.find(name) == std::string::npos && compiled_for(row, mxfp4 ? 32 : 16)) {
      names += cat(names.empty() ? "" : ", ", name);
    }
  }
  return names;
}

std::string refused_pin(const plan::FamilyContext& context) {
  const PlanOverrides& overrides = context.overrides;
  if (overrides.route_block_rows.has_value()) {
    return cat("pin route_block_rows=",
               *overrides.route_block_rows,
               " has no meaning here: routes are not padded; leave it out");
  }
  if (overrides.resident && overrides.pdl_first) {
    return "pin pdl_first: a resident launch comes behind the clearing of its barrier, which no "
           "launch is chained to; leave one of the two pins out";
  }
  if (overrides.pdl_first && context.problem.routing.has_value()) {
    return "pin pdl_first: the plan begins with route_topk, which reads its logits at once; route "
           "before the call or leave the pin out";
  }
  const PinnedTiles tiles = pinned_tiles(overrides);
  const bool mxfp4 = context.problem.recipe == Recipe::kW4a16Mxfp4;
  const auto known = [mxfp4](Role role, std::string_view tile) {
    const auto rows = variant_rows(role);
    return std::any_of(rows.begin(), rows.end(), [&](const VariantRow& row) {
      return tile_name(row.variant) == tile && compiled_for(row, mxfp4 ? 32 : 16);
    });
  };
  if (overrides.tile.has_value() &&
      (!known(Role::kGateUp, tiles.gate_up) || !known(Role::kDown, tiles.down))) {
    return cat("pin tile=",
               *overrides.tile,
               ", expected GATE_UP+DOWN with a gate_up tile of ",
               tiles_of(Role::kGateUp, mxfp4),
               " and a down tile of ",
               tiles_of(Role::kDown, mxfp4));
  }
  return {};
}

std::string refused_problem(const plan::FamilyContext& context, std::int64_t m_max) {
  const Problem& problem = context.problem;
  if (context.device.arch != Arch::kSm90a) {
    return cat("device is ", arch_name(context.device.arch), ", kernels exist for sm_90a and cpu");
  }
  if (problem.recipe != Recipe::kW4a16Nvfp4 && problem.recipe != Recipe::kW4a16Mxfp4) {
    return cat("recipe ",
               recipe_info(problem.recipe).name,
               ", kernels on sm_90a exist for w4a16_nvfp4 and w4a16_mxfp4");
  }
  if (problem.batch_invariant) {
    return "batch_invariant: down splits K over a cluster by the routes of the whole call";
  }
  if (m_max > kMaxTokens) {
    return cat("M ", m_max, ", at most ", kMaxTokens, " tokens a call");
  }
  return {};
}

/// Fewer tokens that one launch exists for, as the end of a refusal.
std::string nearest_resident(const plan::FamilyContext& context, std::int64_t num_tokens) {
  for (std::int64_t tokens = num_tokens - 1; tokens > 0; --tokens) {
    const std::optional<Choices> choices = choices_for(context, tokens);
    if (choices.has_value() && pairs_with(choices->gate_up.variant, choices->down.variant)) {
      return cat("nearest: M ", tokens);
    }
  }
  return "leave it out";
}

/// Why the two launches cannot be one of the same shares, so of the same bits; empty where they
/// can.
std::string refused_resident(const plan::FamilyContext& context, std::int64_t m_max) {
  const Choices choices = *choices_for(context, m_max);
  const Variant& gate_up = choices.gate_up.variant;
  const Variant& down = choices.down.variant;
  if (!pairs_with(gate_up, down)) {
    return cat("pin resident: M ",
               m_max,
               " takes tiles ",
               tile_name(gate_up),
               " and ",
               tile_name(down),
               ", one launch exists for tiles of c",
               kResidentColumns,
               "; ",
               nearest_resident(context, m_max));
  }
  const std::int32_t blocks = choices.gate_up.grid;
  if (blocks % down.cluster != 0) {
    return cat("pin resident: ",
               blocks,
               " blocks in clusters of ",
               down.cluster,
               " leave one over; nearest: pin tile with a down tile that ends in x1");
  }
  const std::int64_t held =
      std::min(context.device.num_sms,
               plan::resident_blocks(context.device,
                                     std::max(num_threads(gate_up.spec), num_threads(down.spec)),
                                     std::max(choices.gate_up.smem_bytes, choices.down.smem_bytes) +
                                         kStaticSmemBytes));
  if (blocks > held || choices.down.grid > blocks) {
    return cat("pin resident: ",
               std::max(blocks, choices.down.grid),
               " blocks, the device holds ",
               held,
               " of one launch at once; leave it out");
  }
  return {};
}

/// Token counts 1…capacity at which the launches change, the last included.
std::vector<std::int64_t> rung_ends(const plan::FamilyContext& context) {
  const std::int64_t last = std::min<std::int64_t>(context.problem.num_tokens, kMaxTokens);
  std::vector<std::int64_t> ends;
  std::optional<Choices> before;
  for (std::int64_t tokens = 1; tokens <= last; ++tokens) {
    const std::optional<Choices> now = choices_for(context, tokens);
    if (before.has_value() && now.has_value() &&
        !(same_launch(before->gate_up, now->gate_up) && same_launch(before->down, now->down))) {
      ends.push_back(tokens - 1);
    }
    before = now;
  }
  ends.push_back(std::max<std::int64_t>(last, 0));
  return ends;
}

Step step_for(const RoleChoice& choice, bool pdl_edge) {
  Step step;
  step.family = "decode_gemv";
  step.kernel = kernel_name(choice.variant);
  step.grid.x = choice.grid;
  step.block.x = num_threads(choice.variant.spec);
  step.smem_bytes = choice.smem_bytes;
  step.status = choice.measured ? StepStatus::kMeasured : StepStatus::kCompiled;
  step.pdl_edge = pdl_edge;
  return step;
}

Step cast_step(std::int64_t hidden, std::int64_t num_tokens) {
  Step step;
  step.family = "decode_gemv";
  step.kernel = kCastKernel;
  step.grid = {
      (hidden + kCastThreads - 1) / kCastThreads, std::max<std::int64_t>(1, num_tokens), 1};
  step.block.x = kCastThreads;
  step.status = StepStatus::kCompiled;
  return step;
}

Step resident_step(const Choices& choices) {
  const ResidentVariant variant{choices.gate_up.variant, choices.down.variant};
  Step step;
  step.family = "decode_gemv";
  step.kernel = kernel_name(variant);
  step.grid.x = choices.gate_up.grid;
  step.block.x = num_threads(variant.spec());
  step.smem_bytes = std::max(choices.gate_up.smem_bytes, choices.down.smem_bytes);
  step.status = StepStatus::kCompiled;
  step.grid_barrier = true;
  step.cooperative = true;
  return step;
}

}  // namespace

plan::Verdict check_cuda(const plan::FamilyContext& context, std::int64_t m_max) {
  std::string reason = refused_problem(context, m_max);
  if (reason.empty()) {
    reason = refused_pin(context);
  }
  if (!reason.empty()) {
    return plan::Verdict::refuse(std::move(reason));
  }
  // Routes only grow with M, so whatever fits the most tokens fits fewer.
  if (!choices_for(context, m_max).has_value()) {
    return plan::Verdict::refuse(cat("no variant fits ",
                                     context.device.smem_per_block_bytes,
                                     " bytes of shared memory at M ",
                                     m_max,
                                     ", top-",
                                     context.problem.top_k,
                                     ", ",
                                     context.problem.num_experts,
                                     " experts"));
  }
  if (context.overrides.resident) {
    reason = refused_resident(context, m_max);
    if (!reason.empty()) {
      return plan::Verdict::refuse(std::move(reason));
    }
  }
  // Active bytes at 4.5 bytes a picosecond and two launches: it ranks, nothing is read off it.
  return plan::Verdict::accept(5.0 + plan::active_weight_bytes(context, m_max) / 4.5e6);
}

std::vector<std::int64_t> breakpoints_cuda(const plan::FamilyContext& context) {
  return rung_ends(context);
}

std::vector<plan::SliceRequest> slices_cuda(const plan::FamilyContext& context,
                                            std::int64_t num_tokens) {
  const Problem& problem = context.problem;
  const CallShape shape =
      call_shape(problem, context.device, context.layout.down.shape.group_offset);
  // A chunk runs with the kernels of its rung, whatever its own size.
  const std::optional<Choices> choices = choices_for(context, context.rung_tokens);
  const std::int64_t spill =
      choices.has_value()
          ? spill_bytes(choices->down, shape, std::min(context.rung_tokens, num_tokens))
          : 0;
  const std::int64_t operand =
      problem.io_dtype == DType::kBf16 ? 0 : num_tokens * problem.hidden_size * 2;
  const std::int64_t arrivals = context.overrides.resident ? 4
                                : choices.has_value()
                                    ? arrival_bytes(choices->down.variant.spec, problem.hidden_size)
                                    : 0;
  return {
      {plan::SliceId::kXOperand, operand},
      {plan::SliceId::kIntermediate, num_tokens * problem.top_k * problem.intermediate_size * 2},
      {plan::SliceId::kGridBarrier, num_tokens > 0 ? arrivals : 0},
      {plan::SliceId::kScratch, num_tokens == 0 ? 0 : spill}};
}

std::vector<Step> lower_cuda(const plan::FamilyContext& context, std::int64_t m_max) {
  const std::optional<Choices> choices = choices_for(context, m_max);
  if (!choices.has_value()) {
    return {};  // check has refused it
  }
  std::vector<Step> steps;
  if (context.problem.io_dtype != DType::kBf16) {
    steps.push_back(cast_step(context.problem.hidden_size, m_max));
  }
  if (context.overrides.resident) {
    steps.push_back(resident_step(*choices));
  } else {
    steps.push_back(step_for(choices->gate_up, false));
    steps.push_back(step_for(choices->down, true));
  }
  steps.front().pdl_edge = context.overrides.pdl_first;
  return steps;
}

}  // namespace moekit::kernels::decode_gemv
