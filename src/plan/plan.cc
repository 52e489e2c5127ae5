// SPDX-License-Identifier: Apache-2.0
#include "moekit/plan.h"

#include "base/border.h"
#include "base/named.h"
#include "base/text.h"
#include "plan/names.h"

namespace moekit {
namespace {

using base::cat;

void append_step(std::string& text, std::size_t number, const Step& step) {
  text += cat(number == 1 ? "steps      " : "           ",
              number,
              "  ",
              step.kernel,
              "  grid ",
              step.grid.x);
  if (step.grid.y != 1 || step.grid.z != 1) {
    text += cat("x", step.grid.y, "x", step.grid.z);
  }
  if (step.smem_bytes != 0) {
    text += cat("  smem ", step.smem_bytes, " B");
  }
  text += cat("  ",
              step_status_name(step.status),
              step.cooperative ? "  cooperative" : "",
              step.pdl_edge ? "  pdl" : "",
              step.atomics ? "  atomics" : "",
              "\n");
}

std::string device_text(const DeviceDescriptor& device) {
  std::string text = std::string(arch_name(device.arch));
  if (device.arch == Arch::kCpu) {
    text += cat(" ", isa_name(device.isa), ", ", device.num_threads, " threads");
  } else {
    text += cat(", ", device.num_sms, " SMs, ", device.smem_per_block_bytes, " B shared memory");
  }
  return device.name.empty() ? text : cat(text, " (", device.name, ")");
}

std::string problem_text(const Problem& p, std::int64_t num_tokens) {
  std::string text = cat("tokens=",
                         num_tokens,
                         " capacity=",
                         p.num_tokens,
                         " routed_rows=",
                         num_tokens * p.top_k,
                         " experts=",
                         p.num_experts,
                         " top_k=",
                         p.top_k,
                         " hidden=",
                         p.hidden_size,
                         " intermediate=",
                         p.intermediate_size,
                         " recipe=",
                         recipe_info(p.recipe).name,
                         " activation=",
                         activation_name(p.activation.kind));
  if (p.activation.limit.has_value()) {
    text += cat(" limit=", *p.activation.limit);
  }
  text += p.activation.alpha.has_value() ? cat(" alpha=", *p.activation.alpha) : "";
  text += p.activation.beta.has_value() ? cat(" beta=", *p.activation.beta) : "";
  text += cat(" row_order=", row_order_name(p.row_order), " io=", dtype_name(p.io_dtype));
  text += output_dtype(p) != p.io_dtype ? cat(" out=", dtype_name(output_dtype(p))) : "";
  text += p.down_group_offset != 0 ? cat(" down_group_offset=", p.down_group_offset) : "";
  text += p.gate_up_row_offset != 0 ? cat(" gate_up_row_offset=", p.gate_up_row_offset) : "";
  text += p.weight_group_size != 0 ? cat(" group_size=", p.weight_group_size) : "";
  text += p.gate_up_bias ? " gate_up_bias" : "";
  text += p.down_bias ? " down_bias" : "";
  text += p.router_weight_on_input ? " router_weight_on_input" : "";
  text += p.expert_map ? cat(" expert_map=", num_router_experts(p)) : "";
  if (p.routed_scaling != 1.0F) {
    text +=
        cat(" routed_scaling=", p.routed_scaling, "@", scaling_place_name(p.routed_scaling_place));
  }
  if (p.shared != SharedInput::kNone) {
    text += cat(" shared=", shared_input_name(p.shared));
  }
  if (p.routing.has_value()) {
    text += cat(" routing=", scoring_name(p.routing->scoring));
  }
  text += p.allow_atomics ? " allow_atomics" : "";
  text += p.batch_invariant ? " batch_invariant" : "";
  text += p.max_workspace_bytes != 0 ? cat(" max_workspace_bytes=", p.max_workspace_bytes) : "";
  return text;
}

std::string text_of(const Plan& whole, std::int64_t num_tokens) {
  const PlanData& plan = *whole;
  std::string text = cat("problem    ", problem_text(plan.problem, num_tokens), "\n");
  text += cat("device     ", device_text(plan.device), "\n");
  const Rung* here = whole.rung(num_tokens);
  if (here != nullptr) {
    text += cat("family     ",
                execution_family_name(here->family),
                " for M ",
                here->m_min,
                "..",
                here->m_max,
                "\n");
    std::size_t number = 0;
    for (const Step& step : here->steps) {
      append_step(text, ++number, step);
    }
  }
  for (const Rung& rung : plan.ladder) {
    text += cat("ladder     M ",
                rung.m_min,
                "..",
                rung.m_max,
                "  ",
                execution_family_name(rung.family),
                ", ",
                rung.steps.size(),
                " steps");
    text += rung.chunk_tokens < rung.m_max ? cat(", chunks of ", rung.chunk_tokens, " tokens") : "";
    text += rung.aux_stream_overlap.verdict == OverlapVerdict::kSafe
                ? ""
                : cat(", overlap ", overlap_verdict_name(rung.aux_stream_overlap.verdict));
    text += rung.deterministic ? "\n" : ", not deterministic\n";
  }
  text += cat("layout     ",
              plan.layout_id,
              ", ",
              plan.prepare.packed_bytes,
              " B, ",
              prepare_policy_name(plan.prepare.policy),
              "\n");
  text += cat("workspace  ", plan.workspace_bytes, " B");
  for (const WorkspaceSlice& slice : plan.workspace) {
    text += cat("  ", slice.name, " ", slice.bytes, " @", slice.offset);
  }
  // Of the rung shown; the ladder says where another one's differs.
  const AuxStreamOverlap& overlap =
      here != nullptr ? here->aux_stream_overlap : plan.aux_stream_overlap;
  text += cat("\noverlap    ", overlap_verdict_name(overlap.verdict), ": ", overlap.reason, "\n");
  for (const std::string& note : plan.notes) {
    text += cat("note       ", note, "\n");
  }
  for (const Refusal& refusal : plan.refused) {
    text += cat("refused    ", refusal.family, "  ", refusal.reason, "\n");
  }
  return text;
}

}  // namespace

std::string_view execution_family_name(ExecutionFamily family) noexcept {
  return base::name_of(plan::kExecutionFamilies, family);
}

std::string_view step_status_name(StepStatus status) noexcept {
  return base::name_of(plan::kStepStatuses, status);
}

std::string_view overlap_verdict_name(OverlapVerdict verdict) noexcept {
  return base::name_of(plan::kOverlapVerdicts, verdict);
}

std::string_view prepare_policy_name(PreparePolicy policy) noexcept {
  return base::name_of(plan::kPreparePolicies, policy);
}

const Rung* Plan::rung(std::int64_t num_tokens) const noexcept {
  for (const Rung& rung : state_->ladder) {
    if (num_tokens >= rung.m_min && num_tokens <= rung.m_max) {
      return &rung;
    }
  }
  return nullptr;
}

Result<std::string> Plan::to_text(std::int64_t num_tokens) const noexcept {
  return base::at_border([&]() -> Result<std::string> { return text_of(*this, num_tokens); });
}

}  // namespace moekit
