// SPDX-License-Identifier: Apache-2.0

// A plan as JSON, and its hash, which is one of that text. Field names are those of
// `moekit plan --json`. One function per struct, in the order of those that read (plan_json.cc).

#include "moekit/plan.h"

#include "base/border.h"
#include "base/json_writer.h"

namespace moekit {
namespace {

using base::JsonWriter;

template <typename T>
void write_optional(JsonWriter& json, std::string_view key, const std::optional<T>& value) {
  if (value.has_value()) {
    json.member(key, *value);
  }
}

void write_activation(JsonWriter& json, const Activation& a) {
  json.begin_object();
  json.member("kind", activation_name(a.kind));
  write_optional(json, "limit", a.limit);
  write_optional(json, "alpha", a.alpha);
  write_optional(json, "beta", a.beta);
  write_optional(json, "gate_scale", a.gate_scale);
  write_optional(json, "up_scale", a.up_scale);
  json.end_object();
}

void write_routing(JsonWriter& json, const Routing& r) {
  json.begin_object();
  json.member("scoring", scoring_name(r.scoring));
  json.member("num_experts", r.num_experts);
  json.member("top_k", r.top_k);
  json.member("num_groups", r.num_groups);
  json.member("top_groups", r.top_groups);
  json.member("renormalize", r.renormalize);
  json.member("scale", r.scale);
  json.member("correction_bias", r.correction_bias);
  json.member("expert_scale", r.expert_scale);
  json.member("hash_table", r.hash_table);
  json.end_object();
}

void write_problem(JsonWriter& json, const Problem& p) {
  json.begin_object();
  json.member("num_tokens", p.num_tokens);
  json.member("num_experts", p.num_experts);
  json.member("top_k", p.top_k);
  json.member("hidden_size", p.hidden_size);
  json.member("intermediate_size", p.intermediate_size);
  json.member("recipe", recipe_info(p.recipe).name);
  json.key("activation");
  write_activation(json, p.activation);
  json.member("row_order", row_order_name(p.row_order));
  json.member("gate_up_bias", p.gate_up_bias);
  json.member("down_bias", p.down_bias);
  json.member("routed_scaling", p.routed_scaling);
  json.member("routed_scaling_place", scaling_place_name(p.routed_scaling_place));
  json.member("router_weight_on_input", p.router_weight_on_input);
  json.member("io_dtype", dtype_name(p.io_dtype));
  json.member("shared", shared_input_name(p.shared));
  json.member("combine_order", combine_order_name(p.combine_order));
  json.member("router_experts", p.router_experts);
  json.member("expert_map", p.expert_map);
  json.member("max_workspace_bytes", p.max_workspace_bytes);
  json.member("allow_atomics", p.allow_atomics);
  json.member("batch_invariant", p.batch_invariant);
  json.member("down_group_offset", p.down_group_offset);
  json.member("gate_up_row_offset", p.gate_up_row_offset);
  json.member("weight_group_size", p.weight_group_size);
  if (p.out_dtype.has_value()) {
    json.member("out_dtype", dtype_name(*p.out_dtype));
  }
  if (p.routing.has_value()) {
    json.key("routing");
    write_routing(json, *p.routing);
  }
  json.end_object();
}

void write_device(JsonWriter& json, const DeviceDescriptor& d) {
  json.begin_object();
  json.member("arch", arch_name(d.arch));
  json.member("name", d.name);
  json.member("num_sms", d.num_sms);
  json.member("smem_per_block_bytes", d.smem_per_block_bytes);
  json.member("l2_bytes", d.l2_bytes);
  json.member("isa", isa_name(d.isa));
  json.member("num_threads", d.num_threads);
  json.member("l1d_bytes", d.l1d_bytes);
  json.member("l2_per_core_bytes", d.l2_per_core_bytes);
  json.end_object();
}

void write_overrides(JsonWriter& json, const PlanOverrides& o) {
  json.begin_object();
  json.member("resident", o.resident);
  json.member("pdl_first", o.pdl_first);
  if (o.family.has_value()) {
    json.member("family", execution_family_name(*o.family));
  }
  write_optional(json, "route_block_rows", o.route_block_rows);
  write_optional(json, "tile", o.tile);
  json.end_object();
}

void write_dim(JsonWriter& json, std::string_view key, const Dim3& dim) {
  json.key(key);
  json.begin_array();
  json.value(dim.x);
  json.value(dim.y);
  json.value(dim.z);
  json.end_array();
}

// An array of objects; write(item) writes an item's members.
template <typename Item, typename Write>
void write_objects(JsonWriter& json,
                   std::string_view key,
                   const std::vector<Item>& items,
                   Write write) {
  json.key(key);
  json.begin_array();
  for (const Item& item : items) {
    json.begin_object();
    write(item);
    json.end_object();
  }
  json.end_array();
}

void write_steps(JsonWriter& json, const std::vector<Step>& steps) {
  write_objects(json, "steps", steps, [&json](const Step& s) {
    json.member("family", s.family);
    json.member("kernel", s.kernel);
    write_dim(json, "grid", s.grid);
    write_dim(json, "block", s.block);
    json.member("smem_bytes", s.smem_bytes);
    json.member("status", step_status_name(s.status));
    json.member("grid_barrier", s.grid_barrier);
    json.member("cooperative", s.cooperative);
    json.member("atomics", s.atomics);
    json.member("pdl_edge", s.pdl_edge);
  });
}

void write_concurrency(JsonWriter& json, const Concurrency& c) {
  json.key("concurrency");
  json.begin_object();
  json.member("launches", c.launches);
  json.member("grid_barrier", c.grid_barrier);
  json.member("cooperative", c.cooperative);
  json.member("atomics", c.atomics);
  json.member("resident_blocks", c.resident_blocks);
  json.member("pdl_edges", c.pdl_edges);
  json.end_object();
}

void write_overlap(JsonWriter& json, const AuxStreamOverlap& overlap) {
  json.key("aux_stream_overlap");
  json.begin_object();
  json.member("verdict", overlap_verdict_name(overlap.verdict));
  json.member("reason", overlap.reason);
  json.end_object();
}

void write_ladder(JsonWriter& json, const std::vector<Rung>& ladder) {
  write_objects(json, "ladder", ladder, [&json](const Rung& rung) {
    json.member("m_min", rung.m_min);
    json.member("m_max", rung.m_max);
    json.member("chunk_tokens", rung.chunk_tokens);
    json.member("family", execution_family_name(rung.family));
    write_steps(json, rung.steps);
    json.member("deterministic", rung.deterministic);
    write_concurrency(json, rung.concurrency);
    write_overlap(json, rung.aux_stream_overlap);
  });
}

void write_workspace(JsonWriter& json, const std::vector<WorkspaceSlice>& slices) {
  write_objects(json, "workspace", slices, [&json](const WorkspaceSlice& slice) {
    json.member("name", slice.name);
    json.member("offset", slice.offset);
    json.member("bytes", slice.bytes);
  });
}

void write_refused(JsonWriter& json, const std::vector<Refusal>& refused) {
  write_objects(json, "refused", refused, [&json](const Refusal& refusal) {
    json.member("family", refusal.family);
    json.member("reason", refusal.reason);
  });
}

void write_tail(JsonWriter& json, const PlanData& plan) {
  json.member("workspace_bytes", plan.workspace_bytes);
  write_workspace(json, plan.workspace);
  json.member("deterministic", plan.deterministic);
  write_concurrency(json, plan.concurrency);
  write_overlap(json, plan.aux_stream_overlap);
  write_refused(json, plan.refused);
  json.key("prepare");
  json.begin_object();
  json.member("policy", prepare_policy_name(plan.prepare.policy));
  json.member("peak_extra_bytes", plan.prepare.peak_extra_bytes);
  json.member("packed_bytes", plan.prepare.packed_bytes);
  json.end_object();
  json.key("notes");
  json.begin_array();
  for (const std::string& note : plan.notes) {
    json.value(note);
  }
  json.end_array();
}

// `here` is the rung that serves `num_tokens`; null beyond the capacity.
void write_plan(JsonWriter& json, const PlanData& plan, std::int64_t num_tokens, const Rung* here) {
  json.begin_object();
  json.member("schema", kPlanSchema);
  json.member("tokens", num_tokens);
  json.key("problem");
  write_problem(json, plan.problem);
  json.key("device");
  write_device(json, plan.device);
  json.key("overrides");
  write_overrides(json, plan.overrides);
  json.member("layout_id", plan.layout_id);
  if (here != nullptr) {
    json.member("family", execution_family_name(here->family));
    write_steps(json, here->steps);
  }
  write_ladder(json, plan.ladder);
  write_tail(json, plan);
  json.end_object();
}

}  // namespace

Result<std::string> Plan::to_json(std::int64_t num_tokens) const noexcept {
  return base::at_border([&]() -> Result<std::string> {
    std::string text;
    auto append = [&](std::string_view piece) { text += piece; };
    JsonWriter json(append);
    write_plan(json, *state_, num_tokens, rung(num_tokens));
    return text;
  });
}

std::uint64_t Plan::hash() const noexcept {
  // FNV-1a over the JSON text, which is never held: stable over processes, machines and compilers,
  // and without memory.
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  auto mix = [&](std::string_view piece) {
    for (const char c : piece) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
    }
  };
  JsonWriter json(mix);
  const std::int64_t tokens = state_->problem.num_tokens;
  write_plan(json, *state_, tokens, rung(tokens));
  return hash;
}

}  // namespace moekit
