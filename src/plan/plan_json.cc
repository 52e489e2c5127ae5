// SPDX-License-Identifier: Apache-2.0

// A plan read back from JSON: one function per struct, the mirror of those in plan_write.cc.

#include "plan/plan_json.h"

#include <exception>
#include <memory>
#include <new>

#include <nlohmann/json.hpp>

#include "moekit/plan.h"

#include "base/border.h"
#include "base/json_document.h"
#include "base/text.h"
#include "plan/names.h"

namespace moekit {
namespace {

using base::cat;
using Json = nlohmann::json;

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
void read_optional(const Json& json, const char* key, std::optional<T>& value) {
  if (json.contains(key)) {
    value = json.at(key).get<T>();
  }
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

Dim3 read_dim(const Json& json) {
  return {json.at(0).get<std::int64_t>(),
          json.at(1).get<std::int64_t>(),
          json.at(2).get<std::int64_t>()};
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

AuxStreamOverlap read_overlap(const Json& json) {
  AuxStreamOverlap overlap;
  overlap.verdict =
      read_name<OverlapVerdict>(json.at("verdict"), "verdict", [](const std::string& name) {
        return base::value_of(plan::kOverlapVerdicts, name);
      });
  json.at("reason").get_to(overlap.reason);
  return overlap;
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

namespace plan {

Result<Plan> read_plan_json(std::string_view json_text) {
  const Result<base::JsonDocument<Json>> document = base::parse_json<Json>(json_text);
  if (!document.has_value()) {
    return document.status().with_context("plan JSON");
  }
  const Json& json = **document;
  if (!json.is_object()) {
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
    return Plan(std::make_shared<const PlanData>(std::move(plan)));
  } catch (const std::bad_alloc&) {
    return base::host_memory_exhausted();  // not the text's fault
  } catch (const std::exception& error) {
    return invalid_argument(cat("plan JSON: ", error.what()));
  }
}

}  // namespace plan
}  // namespace moekit
