// SPDX-License-Identifier: Apache-2.0

// route(), and the routing loop that the plan's first step shares with it.

#include "base/border.h"
#include "base/text.h"
#include "device/numerics/bf16.h"
#include "kernels/route_topk/route.h"

namespace moekit {

namespace {

using base::cat;

Status check_matrix(const TensorView& view,
                    std::int64_t rows,
                    std::int64_t cols,
                    std::string_view name) {
  if (view.rank != 2 || view.shape[0] != rows || view.shape[1] != cols) {
    return invalid_argument(cat(name,
                                " has rank ",
                                view.rank,
                                " and shape [",
                                view.shape[0],
                                ", ",
                                view.shape[1],
                                "], expected [",
                                rows,
                                ", ",
                                cols,
                                "]"));
  }
  if (view.strides[1] != 1 || (rows > 1 && view.strides[0] < cols)) {
    return invalid_argument(cat(name,
                                " has strides [",
                                view.strides[0],
                                ", ",
                                view.strides[1],
                                "], expected a last stride of 1 and rows at least ",
                                cols,
                                " apart"));
  }
  return view.data == nullptr && rows > 0 ? invalid_argument(cat(name, " is null")) : Status();
}

TensorView read_only(const MutableTensorView& view) {
  return {view.data, view.dtype, view.rank, view.shape, view.strides};
}

Status check_hash_table(const HashTable& table, std::int64_t tokens) {
  const TensorView& ids = table.token_ids;
  if (table.expert_ids == nullptr || table.num_rows < 1) {
    return invalid_argument("the routing asks for a hash table, and it is null or without rows");
  }
  if ((ids.dtype != DType::kI32 && ids.dtype != DType::kI64) || ids.rank != 1 ||
      ids.shape[0] != tokens || (ids.data == nullptr && tokens > 0)) {
    return invalid_argument(cat("token_ids have dtype ",
                                dtype_name(ids.dtype),
                                ", rank ",
                                ids.rank,
                                " and ",
                                ids.shape[0],
                                " elements, expected i32 or i64 [",
                                tokens,
                                "]"));
  }
  return {};
}

Status check_arguments(const Routing& routing, const RouteArguments& arguments) {
  const DType dtype = arguments.logits.dtype;
  if (dtype != DType::kF32 && dtype != DType::kBf16 && dtype != DType::kF16) {
    return invalid_argument(
        cat("logits have dtype ", dtype_name(dtype), ", expected f32, bf16 or f16"));
  }
  const std::int64_t tokens = arguments.logits.shape[0];
  MOEKIT_RETURN_IF_ERROR(check_matrix(arguments.logits, tokens, routing.num_experts, "logits"));
  if (arguments.topk_ids.dtype != DType::kI32 || arguments.topk_weights.dtype != DType::kF32) {
    return invalid_argument(cat("topk_ids ",
                                dtype_name(arguments.topk_ids.dtype),
                                " and topk_weights ",
                                dtype_name(arguments.topk_weights.dtype),
                                ", expected i32 and f32"));
  }
  MOEKIT_RETURN_IF_ERROR(
      check_matrix(read_only(arguments.topk_ids), tokens, routing.top_k, "topk_ids"));
  MOEKIT_RETURN_IF_ERROR(
      check_matrix(read_only(arguments.topk_weights), tokens, routing.top_k, "topk_weights"));
  if (routing.correction_bias != (arguments.correction_bias != nullptr)) {
    return invalid_argument(cat("correction_bias is ",
                                arguments.correction_bias != nullptr ? "given" : "null",
                                ", but the routing says correction_bias=",
                                routing.correction_bias));
  }
  if (routing.expert_scale != (arguments.expert_scale != nullptr)) {
    return invalid_argument(cat("expert_scale is ",
                                arguments.expert_scale != nullptr ? "given" : "null",
                                ", but the routing says expert_scale=",
                                routing.expert_scale));
  }
  return routing.hash_table ? check_hash_table(arguments.hash_table, tokens) : Status();
}

}  // namespace

namespace kernels::route_topk {

namespace {

void load_logits(const TensorView& view, std::int64_t token, std::int64_t count, float* out) {
  const std::int64_t at = token * view.strides[0];
  switch (view.dtype) {
    case DType::kBf16:
      for (std::int64_t i = 0; i < count; ++i) {
        out[i] = device::router_logit(
            device::bf16_to_f32(static_cast<const std::uint16_t*>(view.data)[at + i]));
      }
      break;
    case DType::kF16:
      for (std::int64_t i = 0; i < count; ++i) {
        out[i] = device::router_logit(
            device::f16_to_f32(static_cast<const std::uint16_t*>(view.data)[at + i]));
      }
      break;
    default:
      for (std::int64_t i = 0; i < count; ++i) {
        out[i] = device::router_logit(static_cast<const float*>(view.data)[at + i]);
      }
  }
}

}  // namespace

device::RoutingParams routing_params(const Routing& routing) noexcept {
  static_assert(static_cast<int>(Scoring::kSoftmax) ==
                static_cast<int>(device::ScoringKind::kSoftmax));
  static_assert(static_cast<int>(Scoring::kNone) == static_cast<int>(device::ScoringKind::kNone));
  static_assert(static_cast<int>(Scoring::kSqrtSoftplus) ==
                static_cast<int>(device::ScoringKind::kSqrtSoftplus));
  static_assert(kMaxExperts == device::kMaxRouterExperts && kMaxTopK == device::kMaxRouterTopK);
  return {static_cast<device::ScoringKind>(routing.scoring),
          static_cast<std::int32_t>(routing.num_experts),
          static_cast<std::int32_t>(routing.top_k),
          static_cast<std::int32_t>(routing.num_groups),
          static_cast<std::int32_t>(routing.top_groups),
          routing.renormalize ? 1 : 0,
          routing.scale};
}

namespace {

// The table's row of a token; null where its id lies outside.
const std::int32_t* hash_row(const HashTable& table, std::int64_t token, std::int64_t top_k) {
  const std::int64_t at = token * table.token_ids.strides[0];
  const std::int64_t id = table.token_ids.dtype == DType::kI64
                              ? static_cast<const std::int64_t*>(table.token_ids.data)[at]
                              : static_cast<const std::int32_t*>(table.token_ids.data)[at];
  return id < 0 || id >= table.num_rows ? nullptr : table.expert_ids + id * top_k;
}

}  // namespace

void route_tokens(const device::RoutingParams& params,
                  const TensorView& logits,
                  const RouterTables& tables,
                  const TokenRange& range) noexcept {
  constexpr std::int32_t kNoExperts[kMaxTopK] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                                 -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                                 -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  float token_logits[kMaxExperts];
  float values[kMaxExperts];
  for (std::int64_t token = range.begin; token < range.end; ++token) {
    const std::int64_t row = token - range.begin;
    load_logits(logits, token, params.num_experts, token_logits);
    std::int32_t* ids = range.ids + row * range.ids_stride;
    float* weights = range.weights + row * range.weights_stride;
    if (tables.hash_table != nullptr) {
      const std::int32_t* entries = hash_row(*tables.hash_table, token, params.top_k);
      device::route_hashed_token(
          params, token_logits, entries == nullptr ? kNoExperts : entries, ids, weights);
    } else {
      device::route_token(params, tables.correction_bias, token_logits, values, ids, weights);
    }
    if (tables.expert_scale != nullptr) {
      device::scale_by_expert(tables.expert_scale, params.top_k, ids, weights);
    }
  }
}

}  // namespace kernels::route_topk

namespace {

Status route_checked(const Routing& routing, const RouteArguments& arguments) {
  MOEKIT_RETURN_IF_ERROR(validate_routing(routing));
  MOEKIT_RETURN_IF_ERROR(check_arguments(routing, arguments));
  kernels::route_topk::route_tokens(kernels::route_topk::routing_params(routing),
                                    arguments.logits,
                                    {arguments.correction_bias,
                                     arguments.expert_scale,
                                     routing.hash_table ? &arguments.hash_table : nullptr},
                                    {0,
                                     arguments.logits.shape[0],
                                     static_cast<std::int32_t*>(arguments.topk_ids.data),
                                     arguments.topk_ids.strides[0],
                                     static_cast<float*>(arguments.topk_weights.data),
                                     arguments.topk_weights.strides[0]});
  return {};
}

}  // namespace

Status route(const Routing& routing, const RouteArguments& arguments) noexcept {
  return base::at_border([&] { return route_checked(routing, arguments); });
}

}  // namespace moekit
