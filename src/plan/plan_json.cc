// SPDX-License-Identifier: Apache-2.0

// A plan as JSON and back. Field names are those of `moekit plan --json`. One function per struct
// writes and one reads, side by side, so that a field added to one is missed in the other at a
// glance.

#include "plan/plan_json.h"

#include <exception>
#include <new>

#include <nlohmann/json.hpp>

#include "moekit/plan.h"

#include "base/border.h"
#include "base/text.h"
#include "plan/names.h"

namespace moekit {
namespace {

using base::cat;
using Json = nlohmann::ordered_json;

// Reading reports the first thing wrong by throwing inside this file; from_json turns it into a
// Status.
struct BadPlan : std::exception {
  explicit BadPlan(std::string text) : message(std::move(text)) {}

  [[nodiscard]] const char* what() const noexcept override { return message.c_str(); }

  std::string message;
};

template <typename T>
T named(std::optional<T> value, const Json& json, std::string_view what) {
  if (!value.has_value()) {
    throw BadPlan(cat("unknown ", what, " ", json.dump()));
  }
  return *value;
}

template <typename T, typename Lookup>
T read_name(const Json& json, std::string_view what, Lookup lookup) {
  return named<T>(lookup(json.get<std::string>()), json, what);
}

template <typename T>
void write_optional(Json& json, const char* key, const std::optional<T>& value) {
  if (value.has_value()) {
    json[key] = *value;
  }
}

template <typename T>
void read_optional(const Json& json, const char* key, std::optional<T>& value) {
  if (json.contains(key)) {
    value = json.at(key).get<T>();
  }
}

Json write_activation(const Activation& a) {
  Json json{{"kind", activation_name(a.kind)}};
  write_optional(json, "limit", a.limit);
  write_optional(json, "alpha", a.alpha);
  write_optional(json, "beta", a.beta);
  write_optional(json, "gate_scale", a.gate_scale);
  write_optional(json, "up_scale", a.up_scale);
  return json;
}

Activation read_activation(const Json& json) {
  Activation a;
  a.kind = read_name<ActivationKind>(json.at("kind"), "activation", activation_from_name);
  read_optional(json, "limit", a.limit);
  read_optional(json, "alpha", a.alpha);
  read_optional(json, "beta", a.beta);
  read_optional(json, "gate_scale", a.gate_scale);
  read_optional(json, "up_scale", a.up_scale);
  return a;
}

Json write_routing(const Routing& r) {
  return {{"scoring", scoring_name(r.scoring)},
          {"num_experts", r.num_experts},
          {"top_k", r.top_k},
          {"num_groups", r.num_groups},
          {"top_groups", r.top_groups},
          {"renormalize", r.renormalize},
          {"scale", r.scale},
          {"correction_bias", r.correction_bias},
          {"expert_scale", r.expert_scale},
          {"hash_table", r.hash_table}};
}

Routing read_routing(const Json& json) {
  Routing r;
  r.scoring = read_name<Scoring>(json.at("scoring"), "scoring", scoring_from_name);
  json.at("num_experts").get_to(r.num_experts);
  json.at("top_k").get_to(r.top_k);
  json.at("num_groups").get_to(r.num_groups);
  json.at("top_groups").get_to(r.top_groups);
  json.at("renormalize").get_to(r.renormalize);
  json.at("scale").get_to(r.scale);
  json.at("correction_bias").get_to(r.correction_bias);
  json.at("expert_scale").get_to(r.expert_scale);
  json.at("hash_table").get_to(r.hash_table);
  return r;
}

Json write_problem(const Problem& p) {
  Json json{{"num_tokens", p.num_tokens},
            {"num_experts", p.num_experts},
            {"top_k", p.top_k},
            {"hidden_size", p.hidden_size},
            {"intermediate_size", p.intermediate_size},
            {"recipe", recipe_info(p.recipe).name},
            {"activation", write_activation(p.activation)},
            {"row_order", row_order_name(p.row_order)},
            {"gate_up_bias", p.gate_up_bias},
            {"down_bias", p.down_bias},
            {"routed_scaling", p.routed_scaling},
            {"routed_scaling_place", scaling_place_name(p.routed_scaling_place)},
            {"router_weight_on_input", p.router_weight_on_input},
            {"io_dtype", dtype_name(p.io_dtype)},
            {"shared", shared_input_name(p.shared)},
            {"combine_order", combine_order_name(p.combine_order)},
            {"router_experts", p.router_experts},
            {"expert_map", p.expert_map},
            {"max_workspace_bytes", p.max_workspace_bytes},
            {"allow_atomics", p.allow_atomics},
            {"batch_invariant", p.batch_invariant}};
  json["down_group_offset"] = p.down_group_offset;
  json["gate_up_row_offset"] = p.gate_up_row_offset;
  json["weight_group_size"] = p.weight_group_size;
  if (p.out_dtype.has_value()) {
    json["out_dtype"] = dtype_name(*p.out_dtype);
  }
  if (p.routing.has_value()) {
    json["routing"] = write_routing(*p.routing);
  }
  return json;
}

Problem read_problem(const Json& json) {
  Problem p;
  json.at("num_tokens").get_to(p.num_tokens);
  json.at("num_experts").get_to(p.num_experts);
  json.at("top_k").get_to(p.top_k);
  json.at("hidden_size").get_to(p.hidden_size);
  json.at("intermediate_size").get_to(p.intermediate_size);
  p.recipe = read_name<Recipe>(json.at("recipe"), "recipe", recipe_from_name);
  p.activation = read_activation(json.at("activation"));
  p.row_order = read_name<RowOrder>(json.at("row_order"), "row_order", row_order_from_name);
  json.at("gate_up_bias").get_to(p.gate_up_bias);
  json.at("down_bias").get_to(p.down_bias);
  json.at("routed_scaling").get_to(p.routed_scaling);
  p.routed_scaling_place =
      read_name<ScalingPlace>(json.at("routed_scaling_place"), "place", scaling_place_from_name);
  json.at("router_weight_on_input").get_to(p.router_weight_on_input);
  p.io_dtype = read_name<DType>(json.at("io_dtype"), "dtype", dtype_from_name);
  p.shared = read_name<SharedInput>(json.at("shared"), "shared input", shared_input_from_name);
  p.combine_order =
      read_name<CombineOrder>(json.at("combine_order"), "combine order", combine_order_from_name);
  json.at("router_experts").get_to(p.router_experts);
  json.at("expert_map").get_to(p.expert_map);
  json.at("max_workspace_bytes").get_to(p.max_workspace_bytes);
  json.at("allow_atomics").get_to(p.allow_atomics);
  json.at("batch_invariant").get_to(p.batch_invariant);
  json.at("down_group_offset").get_to(p.down_group_offset);
  json.at("gate_up_row_offset").get_to(p.gate_up_row_offset);
  json.at("weight_group_size").get_to(p.weight_group_size);
  if (json.contains("out_dtype")) {
    p.out_dtype = read_name<DType>(json.at("out_dtype"), "dtype", dtype_from_name);
  }
  if (json.contains("routing")) {
    p.routing = read_routing(json.at("routing"));
  }
  return p;
}

Json write_device(const DeviceDescriptor& d) {
  return {{"arch", arch_name(d.arch)},
          {"name", d.name},
          {"num_sms", d.num_sms},
          {"smem_per_block_bytes", d.smem_per_block_bytes},
          {"l2_bytes", d.l2_bytes},
          {"isa", isa_name(d.isa)},
          {"num_threads", d.num_threads},
          {"l1d_bytes", d.l1d_bytes},
          {"l2_per_core_bytes", d.l2_per_core_bytes}};
}

DeviceDescriptor read_device(const Json& json) {
  DeviceDescriptor d;
  d.arch = read_name<Arch>(json.at("arch"), "arch", arch_from_name);
  json.at("name").get_to(d.name);
  json.at("num_sms").get_to(d.num_sms);
  json.at("smem_per_block_bytes").get_to(d.smem_per_block_bytes);
  json.at("l2_bytes").get_to(d.l2_bytes);
  d.isa = read_name<Isa>(json.at("isa"), "isa", isa_from_name);
  json.at("num_threads").get_to(d.num_threads);
  json.at("l1d_bytes").get_to(d.l1d_bytes);
  json.at("l2_per_core_bytes").get_to(d.l2_per_core_bytes);
  return d;
}

Json write_overrides(const PlanOverrides& o) {
  Json json{{"resident", o.resident}, {"pdl_first", o.pdl_first}};
  if (o.family.has_value()) {
    json["family"] = execution_family_name(*o.family);
  }
  write_optional(json, "route_block_rows", o.route_block_rows);
  write_optional(json, "tile", o.tile);
  return json;
}

ExecutionFamily read_family(const Json& json) {
  return read_name<ExecutionFamily>(json, "family", [](const std::string& name) {
    return base::value_of(plan::kExecutionFamilies, name);
  });
}

PlanOverrides read_overrides(const Json& json) {
  PlanOverrides o;
  json.at("resident").get_to(o.resident);
  json.at("pdl_first").get_to(o.pdl_first);
  if (json.contains("family")) {
    o.family = read_family(json.at("family"));
  }
  read_optional(json, "route_block_rows", o.route_block_rows);
  read_optional(json, "tile", o.tile);
  return o;
}

Json write_dim(const Dim3& dim) {
  return Json::array({dim.x, dim.y, dim.z});
}

Dim3 read_dim(const Json& json) {
  return {json.at(0).get<std::int64_t>(),
          json.at(1).get<std::int64_t>(),
          json.at(2).get<std::int64_t>()};
}

Json write_steps(const std::vector<Step>& steps) {
  Json list = Json::array();
  for (const Step& s : steps) {
    list.push_back({{"family", s.family},
                    {"kernel", s.kernel},
                    {"grid", write_dim(s.grid)},
                    {"block", write_dim(s.block)},
                    {"smem_bytes", s.smem_bytes},
                    {"status", step_status_name(s.status)},
                    {"grid_barrier", s.grid_barrier},
                    {"cooperative", s.cooperative},
                    {"atomics", s.atomics},
                    {"pdl_edge", s.pdl_edge}});
  }
  return list;
}

std::vector<Step> read_steps(const Json& json) {
  std::vector<Step> steps;
  for (const Json& item : json) {
    Step s;
    item.at("family").get_to(s.family);
    item.at("kernel").get_to(s.kernel);
    s.grid = read_dim(item.at("grid"));
    s.block = read_dim(item.at("block"));
    item.at("smem_bytes").get_to(s.smem_bytes);
    s.status = read_name<StepStatus>(item.at("status"), "status", [](const std::string& name) {
      return base::value_of(plan::kStepStatuses, name);
    });
    item.at("grid_barrier").get_to(s.grid_barrier);
    item.at("cooperative").get_to(s.cooperative);
    item.at("atomics").get_to(s.atomics);
    item.at("pdl_edge").get_to(s.pdl_edge);
    steps.push_back(std::move(s));
  }
  return steps;
}

Json write_concurrency(const Concurrency& c) {
  return {{"launches", c.launches},
          {"grid_barrier", c.grid_barrier},
          {"cooperative", c.cooperative},
          {"atomics", c.atomics},
          {"resident_blocks", c.resident_blocks},
          {"pdl_edges", c.pdl_edges}};
}

Concurrency read_concurrency(const Json& json) {
  Concurrency c;
  json.at("launches").get_to(c.launches);
  json.at("grid_barrier").get_to(c.grid_barrier);
  json.at("cooperative").get_to(c.cooperative);
  json.at("atomics").get_to(c.atomics);
  json.at("resident_blocks").get_to(c.resident_blocks);
  json.at("pdl_edges").get_to(c.pdl_edges);
  return c;
}

Json write_overlap(const AuxStreamOverlap& overlap) {
  return {{"verdict", overlap_verdict_name(overlap.verdict)}, {"reason", overlap.reason}};
}

AuxStreamOverlap read_overlap(const Json& json) {
  AuxStreamOverlap overlap;
  overlap.verdict =
      read_name<OverlapVerdict>(json.at("verdict"), "verdict", [](const std::string& name) {
        return base::value_of(plan::kOverlapVerdicts, name);
      });
  json.at("reason").get_to(overlap.reason);
  return overlap;
}

Json write_ladder(const std::vector<Rung>& ladder) {
  Json list = Json::array();
  for (const Rung& rung : ladder) {
    list.push_back({{"m_min", rung.m_min},
                    {"m_max", rung.m_max},
                    {"chunk_tokens", rung.chunk_tokens},
                    {"family", execution_family_name(rung.family)},
                    {"steps", write_steps(rung.steps)},
                    {"deterministic", rung.deterministic},
                    {"concurrency", write_concurrency(rung.concurrency)},
                    {"aux_stream_overlap", write_overlap(rung.aux_stream_overlap)}});
  }
  return list;
}

std::vector<Rung> read_ladder(const Json& json) {
  std::vector<Rung> ladder;
  for (const Json& item : json) {
    Rung rung;
    item.at("m_min").get_to(rung.m_min);
    item.at("m_max").get_to(rung.m_max);
    item.at("chunk_tokens").get_to(rung.chunk_tokens);
    rung.family = read_family(item.at("family"));
    rung.steps = read_steps(item.at("steps"));
    item.at("deterministic").get_to(rung.deterministic);
    rung.concurrency = read_concurrency(item.at("concurrency"));
    rung.aux_stream_overlap = read_overlap(item.at("aux_stream_overlap"));
    ladder.push_back(std::move(rung));
  }
  return ladder;
}

Json write_workspace(const std::vector<WorkspaceSlice>& slices) {
  Json list = Json::array();
  for (const WorkspaceSlice& slice : slices) {
    list.push_back({{"name", slice.name}, {"offset", slice.offset}, {"bytes", slice.bytes}});
  }
  return list;
}

Json write_refused(const std::vector<Refusal>& refused) {
  Json list = Json::array();
  for (const Refusal& refusal : refused) {
    list.push_back({{"family", refusal.family}, {"reason", refusal.reason}});
  }
  return list;
}

void read_tail(const Json& json, PlanData& plan) {
  json.at("workspace_bytes").get_to(plan.workspace_bytes);
  for (const Json& item : json.at("workspace")) {
    plan.workspace.push_back({item.at("name").get<std::string>(),
                              item.at("offset").get<std::int64_t>(),
                              item.at("bytes").get<std::int64_t>()});
  }
  json.at("deterministic").get_to(plan.deterministic);
  plan.concurrency = read_concurrency(json.at("concurrency"));
  plan.aux_stream_overlap = read_overlap(json.at("aux_stream_overlap"));
  for (const Json& item : json.at("refused")) {
    plan.refused.push_back(
        {item.at("family").get<std::string>(), item.at("reason").get<std::string>()});
  }
  const Json& prepare = json.at("prepare");
  plan.prepare.policy =
      read_name<PreparePolicy>(prepare.at("policy"), "policy", [](const std::string& name) {
        return base::value_of(plan::kPreparePolicies, name);
      });
  prepare.at("peak_extra_bytes").get_to(plan.prepare.peak_extra_bytes);
  prepare.at("packed_bytes").get_to(plan.prepare.packed_bytes);
  json.at("notes").get_to(plan.notes);
}

}  // namespace

std::string Plan::to_json(std::int64_t num_tokens) const {
  const PlanData& plan = *state_;
  Json json{{"schema", kPlanSchema},
            {"tokens", num_tokens},
            {"problem", write_problem(plan.problem)},
            {"device", write_device(plan.device)},
            {"overrides", write_overrides(plan.overrides)},
            {"layout_id", plan.layout_id}};
  if (const Rung* here = rung(num_tokens); here != nullptr) {
    json["family"] = execution_family_name(here->family);
    json["steps"] = write_steps(here->steps);
  }
  json["ladder"] = write_ladder(plan.ladder);
  json["workspace_bytes"] = plan.workspace_bytes;
  json["workspace"] = write_workspace(plan.workspace);
  json["deterministic"] = plan.deterministic;
  json["concurrency"] = write_concurrency(plan.concurrency);
  json["aux_stream_overlap"] = write_overlap(plan.aux_stream_overlap);
  json["refused"] = write_refused(plan.refused);
  json["prepare"] = {{"policy", prepare_policy_name(plan.prepare.policy)},
                     {"peak_extra_bytes", plan.prepare.peak_extra_bytes},
                     {"packed_bytes", plan.prepare.packed_bytes}};
  json["notes"] = plan.notes;
  return json.dump(2);
}

namespace plan {

Result<Plan> read_plan_json(std::string_view json_text) {
  const Json json = Json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return invalid_argument("plan is not a JSON object");
  }
  try {
    const int schema = json.at("schema").get<int>();
    if (schema != kPlanSchema) {
      return unsupported(cat("plan schema ", schema, "; this library reads ", kPlanSchema));
    }
    PlanData plan;
    plan.problem = read_problem(json.at("problem"));
    plan.device = read_device(json.at("device"));
    plan.overrides = read_overrides(json.at("overrides"));
    json.at("layout_id").get_to(plan.layout_id);
    plan.ladder = read_ladder(json.at("ladder"));
    read_tail(json, plan);
    return Plan(std::move(plan));
  } catch (const std::bad_alloc&) {
    return base::host_memory_exhausted();  // not the text's fault
  } catch (const std::exception& error) {
    return invalid_argument(cat("plan JSON: ", error.what()));
  }
}

}  // namespace plan
}  // namespace moekit
