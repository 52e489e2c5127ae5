// SPDX-License-Identifier: Apache-2.0
#include "moekit/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/border.h"
#include "base/named.h"
#include "base/text.h"

namespace moekit {
namespace {

using base::cat;
using base::Named;

constexpr Named<RowOrder> kRowOrders[] = {{RowOrder::kGateUp, "gate_up"},
                                          {RowOrder::kUpGate, "up_gate"},
                                          {RowOrder::kInterleaved, "interleaved"}};
constexpr Named<CombineOrder> kCombineOrders[] = {{CombineOrder::kSlot, "slot"},
                                                  {CombineOrder::kExpert, "expert"}};
constexpr Named<ScalingPlace> kScalingPlaces[] = {{ScalingPlace::kWeights, "weights"},
                                                  {ScalingPlace::kSum, "sum"}};
constexpr Named<SharedInput> kSharedInputs[] = {
    {SharedInput::kNone, "none"}, {SharedInput::kIo, "io"}, {SharedInput::kF32, "f32"}};

// Extents beyond this are a mistake in the caller's units; every index product stays far below
// 2^63.
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 20;
// Route indices are i32 in the workspace.
constexpr std::int64_t kMaxRoutes = std::numeric_limits<std::int32_t>::max();

Status check_extent(std::string_view name, std::int64_t value) {
  if (value < kExtentMultiple || value > kMaxExtent) {
    return invalid_argument(
        cat(name, " ", value, ", expected ", kExtentMultiple, "..", kMaxExtent));
  }
  if (value % kExtentMultiple != 0) {
    return invalid_argument(cat(name,
                                " ",
                                value,
                                ", expected a multiple of ",
                                kExtentMultiple,
                                " (nearest: ",
                                value / kExtentMultiple * kExtentMultiple,
                                " or ",
                                (value / kExtentMultiple + 1) * kExtentMultiple,
                                ")"));
  }
  return {};
}

Status check_counts(const Problem& problem) {
  if (problem.num_experts < 1) {
    return invalid_argument(cat("num_experts ", problem.num_experts, ", expected at least 1"));
  }
  const std::int64_t router_experts = num_router_experts(problem);
  if (problem.num_experts > kMaxExperts || router_experts > kMaxExperts) {
    return unsupported(cat("num_experts ",
                           problem.num_experts,
                           ", router_experts ",
                           router_experts,
                           "; at most ",
                           kMaxExperts,
                           " are supported"));
  }
  if (problem.router_experts < 0) {
    return invalid_argument(cat("router_experts ",
                                problem.router_experts,
                                ", expected 0 (as num_experts) or the ids a router can give"));
  }
  if (problem.top_k < 1) {
    return invalid_argument(cat("top_k ", problem.top_k, ", expected at least 1"));
  }
  if (problem.top_k > kMaxTopK) {
    return unsupported(cat("top_k ", problem.top_k, "; at most ", kMaxTopK, " is supported"));
  }
  if (problem.top_k > router_experts) {
    return invalid_argument(cat("top_k ",
                                problem.top_k,
                                " exceeds the ",
                                router_experts,
                                " experts that a router can choose from"));
  }
  if (router_experts < problem.num_experts) {
    return invalid_argument(cat("router_experts ",
                                router_experts,
                                " is below num_experts ",
                                problem.num_experts,
                                "; every local expert needs a router id"));
  }
  if (!problem.expert_map && router_experts != problem.num_experts) {
    return invalid_argument(cat("router_experts ",
                                router_experts,
                                " differs from num_experts ",
                                problem.num_experts,
                                ", which needs expert_map"));
  }
  if (problem.num_tokens < 0 || problem.num_tokens > kMaxRoutes / problem.top_k) {
    return invalid_argument(cat("num_tokens ",
                                problem.num_tokens,
                                " with top_k ",
                                problem.top_k,
                                ", expected 0..",
                                kMaxRoutes / problem.top_k));
  }
  return {};
}

struct ActivationParameter {
  std::string_view name;
  const std::optional<float>& value;
  bool allowed;
  bool positive;
};

Status check_activation(const Activation& activation) {
  const ActivationKind kind = activation.kind;
  const bool oai = kind == ActivationKind::kSwigluOai;
  const bool situ = kind == ActivationKind::kSitu;
  const ActivationParameter parameters[] = {
      {"limit", activation.limit, oai || kind == ActivationKind::kSilu, true},
      {"alpha", activation.alpha, oai, false},
      {"beta", activation.beta, oai, false},
      {"gate_scale", activation.gate_scale, situ, true},
      {"up_scale", activation.up_scale, situ, true},
  };
  for (const ActivationParameter& parameter : parameters) {
    if (!parameter.value.has_value()) {
      continue;
    }
    if (!parameter.allowed) {
      return invalid_argument(cat("activation ",
                                  activation_name(kind),
                                  " has no parameter ",
                                  parameter.name,
                                  " (given ",
                                  *parameter.value,
                                  ")"));
    }
    if (!std::isfinite(*parameter.value) || (parameter.positive && *parameter.value <= 0.0F)) {
      return invalid_argument(cat("activation ",
                                  activation_name(kind),
                                  " parameter ",
                                  parameter.name,
                                  " ",
                                  *parameter.value,
                                  ", expected a finite",
                                  parameter.positive ? " positive" : "",
                                  " value"));
    }
  }
  return {};
}

// An enumerator that a cast made up has no name.
Status check_enumerators(const Problem& problem) {
  const std::pair<std::string_view, bool> checks[] = {
      {"recipe", recipe_info(problem.recipe).recipe == problem.recipe},
      {"activation kind",
       activation_from_name(activation_name(problem.activation.kind)) == problem.activation.kind},
      {"row_order", row_order_from_name(row_order_name(problem.row_order)).has_value()},
      {"combine_order",
       combine_order_from_name(combine_order_name(problem.combine_order)).has_value()},
      {"routed_scaling_place",
       scaling_place_from_name(scaling_place_name(problem.routed_scaling_place)).has_value()},
      {"shared", shared_input_from_name(shared_input_name(problem.shared)).has_value()},
  };
  for (const auto& [name, known] : checks) {
    if (!known) {
      return invalid_argument(cat(name, " is not an enumerator"));
    }
  }
  return {};
}

Status check_group_offset(const Problem& problem) {
  const FormatInfo& format = format_info(recipe_info(problem.recipe).weights);
  const std::int64_t own = format.group_size;
  const std::int64_t given = problem.weight_group_size;
  const bool variable = format.element == DType::kI4;
  if (!takes_group_size(format, given)) {
    return invalid_argument(cat("weight_group_size ",
                                given,
                                own == 0   ? ", expected 0: no groups share a scale ("
                                : variable ? ", expected 0, 32, 64 or "
                                           : ", expected 0 or ",
                                own == 0 ? std::string() : cat(own, " ("),
                                format.name,
                                ")"));
  }
  if (problem.gate_up_row_offset < 0 || problem.gate_up_row_offset >= format.group_rows) {
    return invalid_argument(cat("gate_up_row_offset ",
                                problem.gate_up_row_offset,
                                ", expected 0 or more, below the ",
                                format.group_rows,
                                " rows that share a scale of ",
                                format.name));
  }
  const std::int64_t groups_end = std::max<std::int64_t>(1, given != 0 ? given : own);
  if (problem.down_group_offset < 0 || problem.down_group_offset >= groups_end ||
      problem.down_group_offset % kExtentMultiple != 0) {
    return invalid_argument(cat("down_group_offset ",
                                problem.down_group_offset,
                                ", expected a multiple of ",
                                kExtentMultiple,
                                " below the group size ",
                                groups_end,
                                " of ",
                                format.name));
  }
  return {};
}

Status check_semantics(const Problem& problem) {
  if (problem.io_dtype != DType::kBf16 && problem.io_dtype != DType::kF16 &&
      problem.io_dtype != DType::kF32) {
    return invalid_argument(
        cat("io_dtype ", dtype_name(problem.io_dtype), ", expected bf16, f16 or f32"));
  }
  const DType out = output_dtype(problem);
  if (out != DType::kBf16 && out != DType::kF16 && out != DType::kF32) {
    return invalid_argument(cat("out_dtype ", dtype_name(out), ", expected bf16, f16 or f32"));
  }
  if (!std::isfinite(problem.routed_scaling)) {
    return invalid_argument(cat("routed_scaling ", problem.routed_scaling, ", expected finite"));
  }
  if (problem.max_workspace_bytes < 0) {
    return invalid_argument(cat(
        "max_workspace_bytes ", problem.max_workspace_bytes, ", expected 0 (unbounded) or more"));
  }
  if (!problem.routing.has_value()) {
    return {};
  }
  MOEKIT_RETURN_IF_ERROR(validate_routing(*problem.routing));
  if (problem.routing->num_experts != num_router_experts(problem) ||
      problem.routing->top_k != problem.top_k) {
    return invalid_argument(cat("routing for ",
                                problem.routing->num_experts,
                                " experts and top_k ",
                                problem.routing->top_k,
                                ", the problem has ",
                                num_router_experts(problem),
                                " and ",
                                problem.top_k));
  }
  return {};
}

Status check_problem(const Problem& problem) {
  MOEKIT_RETURN_IF_ERROR(check_enumerators(problem));
  MOEKIT_RETURN_IF_ERROR(check_counts(problem));
  MOEKIT_RETURN_IF_ERROR(check_extent("hidden_size", problem.hidden_size));
  MOEKIT_RETURN_IF_ERROR(check_extent("intermediate_size", problem.intermediate_size));
  MOEKIT_RETURN_IF_ERROR(check_group_offset(problem));
  MOEKIT_RETURN_IF_ERROR(check_activation(problem.activation));
  return check_semantics(problem);
}

}  // namespace

std::string_view row_order_name(RowOrder order) noexcept {
  return base::name_of(kRowOrders, order);
}

std::optional<RowOrder> row_order_from_name(std::string_view name) noexcept {
  return base::value_of(kRowOrders, name);
}

std::string_view combine_order_name(CombineOrder order) noexcept {
  return base::name_of(kCombineOrders, order);
}

std::optional<CombineOrder> combine_order_from_name(std::string_view name) noexcept {
  return base::value_of(kCombineOrders, name);
}

std::string_view scaling_place_name(ScalingPlace place) noexcept {
  return base::name_of(kScalingPlaces, place);
}

std::optional<ScalingPlace> scaling_place_from_name(std::string_view name) noexcept {
  return base::value_of(kScalingPlaces, name);
}

std::string_view shared_input_name(SharedInput shared) noexcept {
  return base::name_of(kSharedInputs, shared);
}

std::optional<SharedInput> shared_input_from_name(std::string_view name) noexcept {
  return base::value_of(kSharedInputs, name);
}

Status validate_problem(const Problem& problem) noexcept {
  return base::at_border([&] { return check_problem(problem); });
}

}  // namespace moekit
