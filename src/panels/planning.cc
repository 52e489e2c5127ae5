// SPDX-License-Identifier: Apache-2.0
#include "panels/planning.h"

#include <algorithm>

#include "base/text.h"
#include "formats/packing_panel16.h"
#include "panels/expert_steps.h"
#include "plan/family_rules.h"

namespace moekit::panels {

namespace {

using base::cat;
using plan::CpuCall;
using plan::CpuKernel;
using plan::Verdict;

constexpr std::string_view kGateUp = "gate_up";
constexpr std::string_view kDown = "down";

std::string tile_name(const plan::FamilyContext& context) {
  const device::Panel16Element element =
      formats::panel16_shape(context.layout.gate_up.shape).element;
  const Body& body = body_of(body_for(context.device.isa), element);
  return cat("m", body.max_tokens, "n", kPanelRows);
}

// One function per (step, ISA, family): a step's body is a plain function pointer.
template <Isa kIsa, ExecutionFamily kFamily>
void gate_up(const CpuCall& call, base::ThreadPool& pool) {
  gate_up_step(call, pool, running_body(kIsa, kFamily));
}

template <Isa kIsa, ExecutionFamily kFamily>
void down(const CpuCall& call, base::ThreadPool& pool) {
  down_step(call, pool, running_body(kIsa, kFamily));
}

struct StepKernels {
  CpuKernel gate_up;
  CpuKernel down;
};

struct IsaKernels {
  Isa isa;
  StepKernels direct;
  StepKernels grouped;
  StepStatus status;
};

template <Isa kIsa>
constexpr IsaKernels kernels_on(StepStatus status) {
  constexpr auto kDirect = ExecutionFamily::kDirect;
  constexpr auto kGrouped = ExecutionFamily::kGrouped;
  return {kIsa,
          {gate_up<kIsa, kDirect>, down<kIsa, kDirect>},
          {gate_up<kIsa, kGrouped>, down<kIsa, kGrouped>},
          status};
}

constexpr IsaKernels kIsaKernels[] = {
    kernels_on<Isa::kPortable>(StepStatus::kMeasured),
    kernels_on<Isa::kAvx2>(StepStatus::kMeasured),
    kernels_on<Isa::kAvx512>(StepStatus::kCompiled),
    kernels_on<Isa::kAmx>(StepStatus::kCompiled),
};

const IsaKernels& kernels_of(Isa isa) {
  return *std::find_if(std::begin(kIsaKernels), std::end(kIsaKernels), [isa](const auto& row) {
    return row.isa == isa;
  });
}

std::string refused_pin(const plan::FamilyContext& context) {
  const PlanOverrides& overrides = context.overrides;
  if (overrides.route_block_rows.has_value()) {
    return cat("pin route_block_rows=",
               *overrides.route_block_rows,
               " has no meaning on a cpu, which does not pad routes; leave it out");
  }
  if (overrides.resident) {
    return "pin resident asks for one cooperative launch; a cpu has none";
  }
  if (overrides.pdl_first) {
    return "pin pdl_first chains launches; a cpu has none";
  }
  if (overrides.tile.has_value() && *overrides.tile != tile_name(context)) {
    return cat("pin tile=",
               *overrides.tile,
               ", the tile of ",
               isa_name(context.device.isa),
               " is ",
               tile_name(context));
  }
  return {};
}

// Consumes `prefix` from the front of `text`.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) {
    return false;
  }
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

Verdict check_cpu(const plan::FamilyContext& context, std::int64_t num_tokens) {
  std::string reason = refused_pin(context);
  if (!reason.empty()) {
    return Verdict::refuse(std::move(reason));
  }
  // The larger of reading the active experts at 10 bytes a nanosecond and computing 100 multiply-
  // adds a nanosecond: nominal figures of one server core, there to rank and not to be read.
  const Problem& problem = context.problem;
  const std::int64_t routes = num_tokens * problem.top_k;
  const double bytes = plan::active_weight_bytes(context, num_tokens);
  const double products =
      static_cast<double>(routes) *
      static_cast<double>(num_gate_up_rows(problem) + problem.intermediate_size) *
      static_cast<double>(problem.hidden_size);
  return Verdict::accept(std::max(bytes / 10e3, products / 100e3));
}

std::vector<Step> lower_cpu(const plan::FamilyContext& context, std::string_view family) {
  std::vector<Step> steps;
  for (const std::string_view role : {kGateUp, kDown}) {
    Step step;
    step.family = family;
    step.kernel = plan::make_kernel_name({std::string(family),
                                          std::string(recipe_info(context.problem.recipe).name),
                                          cat(role, "_", tile_name(context)),
                                          std::string(isa_name(context.device.isa))});
    step.grid.x = std::max<std::int64_t>(1, context.device.num_threads);
    step.status = kernels_of(context.device.isa).status;
    steps.push_back(std::move(step));
  }
  return steps;
}

CpuKernel cpu_kernel(const Step& step,
                     std::string_view family,
                     ExecutionFamily execution) noexcept {
  std::string_view name = step.kernel;
  if (!take(name, family) || !take(name, ".")) {
    return nullptr;
  }
  name.remove_prefix(std::min(name.find('.'), name.size()));  // any recipe: bodies read the layout
  const bool is_gate_up = take(name, ".gate_up_");
  if (!is_gate_up && !take(name, ".down_")) {
    return nullptr;
  }
  name.remove_prefix(std::min(name.find('.'), name.size()));
  for (const IsaKernels& kernels : kIsaKernels) {
    std::string_view rest = name;
    if (take(rest, ".") && rest == isa_name(kernels.isa)) {
      // Binding asks the processor, so that the first run of a process does not.
      static_cast<void>(running_body(kernels.isa, execution));
      const StepKernels& steps =
          execution == ExecutionFamily::kDirect ? kernels.direct : kernels.grouped;
      return is_gate_up ? steps.gate_up : steps.down;
    }
  }
  return nullptr;
}

}  // namespace moekit::panels
