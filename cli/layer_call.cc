// SPDX-License-Identifier: Apache-2.0
#include "cli/layer_call.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace moekit::cli {
namespace {

float widen_f16(std::uint16_t bits) {
  const int exponent = (bits >> 10U) & 0x1F;
  const int mantissa = bits & 0x3FF;
  float magnitude = 0.0F;
  if (exponent == 0x1F) {
    magnitude = mantissa == 0 ? HUGE_VALF : NAN;
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

float widen(const std::byte* element, DType dtype) {
  if (dtype == DType::kF32) {
    float value = 0.0F;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, element, sizeof bits);
  return dtype == DType::kF16 ? widen_f16(bits)
                              : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

Result<std::vector<float>> own_router_logits(const CheckpointLayer& layer, const TensorView& x) {
  if (layer.router.weight.data == nullptr) {
    return invalid_argument(fmt::format(
        "layer {} has no router weight that x multiplies, and the input has neither topk_ids nor "
        "router_logits",
        layer.layer));
  }
  MOEKIT_ASSIGN_OR_RETURN(const std::vector<float> bias, widen_vector(layer.router.bias));
  const std::int64_t num_experts = layer.router.weight.shape[0];
  std::vector<float> logits(static_cast<std::size_t>(x.shape[0] * num_experts));
  MOEKIT_RETURN_IF_ERROR(
      router_logits(x,
                    layer.router.weight,
                    bias.empty() ? nullptr : bias.data(),
                    matrix_view(logits.data(), DType::kF32, x.shape[0], num_experts)));
  return logits;
}

/// `: REASON` of a layer that is read without a routing.
std::string why_unrouted(const CheckpointLayer& layer) {
  constexpr std::string_view kNone = "routing=none: ";
  for (const std::string& fact : layer.inferred) {
    if (fact.starts_with(kNone)) {
      return ": " + fact.substr(kNone.size());
    }
  }
  return {};
}

/// The library serves an id outside the table with nobody; in a file it is a mistake, and its zero
/// row would look like a result. Other dtypes and ranks are refused by route itself.
Status check_token_ids(const TensorView& token_ids, std::int64_t num_rows) {
  const bool wide = token_ids.dtype == DType::kI64;
  if (token_ids.rank != 1 || (!wide && token_ids.dtype != DType::kI32)) {
    return {};
  }
  for (std::int64_t token = 0; token < token_ids.shape[0]; ++token) {
    const std::int64_t at = token * token_ids.strides[0];
    const std::int64_t id = wide ? static_cast<const std::int64_t*>(token_ids.data)[at]
                                 : static_cast<const std::int32_t*>(token_ids.data)[at];
    if (id < 0 || id >= num_rows) {
      return invalid_argument(
          fmt::format("token_ids[{}] is {}, expected 0 to {}: the layer's hash table has {} rows",
                      token,
                      id,
                      num_rows - 1,
                      num_rows));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<float>> widen_vector(const TensorView& view) {
  if (view.data == nullptr) {
    return std::vector<float>{};
  }
  const bool floating =
      view.dtype == DType::kF32 || view.dtype == DType::kBf16 || view.dtype == DType::kF16;
  if (view.rank != 1 || !floating) {
    return invalid_argument(fmt::format("expected a vector of f32, bf16 or f16, got rank {} of {}",
                                        view.rank,
                                        dtype_name(view.dtype)));
  }
  const auto* bytes = static_cast<const std::byte*>(view.data);
  const std::int64_t stride_bytes = view.strides[0] * dtype_bits(view.dtype) / 8;
  std::vector<float> values(static_cast<std::size_t>(view.shape[0]));
  for (std::int64_t i = 0; i < view.shape[0]; ++i) {
    values[static_cast<std::size_t>(i)] = widen(bytes + i * stride_bytes, view.dtype);
  }
  return values;
}

Result<RoutedCall> route_with_checkpoint(const CheckpointLayer& layer,
                                         const TensorView& x,
                                         const RouterInput& input) {
  if (!layer.routing) {
    return invalid_argument(fmt::format(
        "layer {}: the checkpoint does not say how its router selects{}; give topk_ids and "
        "topk_weights",
        layer.layer,
        why_unrouted(layer)));
  }
  const Routing& routing = *layer.routing;
  if (routing.hash_table && input.token_ids.rank == 0) {
    return invalid_argument(
        fmt::format("layer {} selects experts by token id: the input needs token_ids [{}], or "
                    "topk_ids and topk_weights",
                    layer.layer,
                    x.shape[0]));
  }
  if (routing.hash_table) {
    MOEKIT_RETURN_IF_ERROR(check_token_ids(input.token_ids, layer.router.hash_table.shape[0]));
  }
  RoutedCall call;
  call.router_logits = input.logits;
  if (input.logits.rank == 0) {
    MOEKIT_ASSIGN_OR_RETURN(call.logits, own_router_logits(layer, x));
    call.router_logits = matrix_view(static_cast<const void*>(call.logits.data()),
                                     DType::kF32,
                                     x.shape[0],
                                     layer.router.weight.shape[0]);
  }
  if (routing.correction_bias) {
    MOEKIT_ASSIGN_OR_RETURN(call.correction_bias, widen_vector(layer.router.correction_bias));
  }
  if (routing.expert_scale) {
    MOEKIT_ASSIGN_OR_RETURN(call.expert_scale, widen_vector(layer.router.expert_scale));
  }
  if (routing.hash_table) {
    call.hash_table = {static_cast<const std::int32_t*>(layer.router.hash_table.data),
                       layer.router.hash_table.shape[0],
                       input.token_ids};
  }
  const std::int64_t num_tokens = x.shape[0];
  const auto num_routes = static_cast<std::size_t>(num_tokens * routing.top_k);
  call.ids = std::vector<std::int32_t>(num_routes);
  call.weights = std::vector<float>(num_routes);
  RouteArguments arguments;
  arguments.logits = call.router_logits;
  arguments.correction_bias = call.correction_bias.empty() ? nullptr : call.correction_bias.data();
  arguments.expert_scale = call.expert_scale.empty() ? nullptr : call.expert_scale.data();
  arguments.hash_table = call.hash_table;
  arguments.topk_ids = matrix_view(call.ids.data(), DType::kI32, num_tokens, routing.top_k);
  arguments.topk_weights = matrix_view(call.weights.data(), DType::kF32, num_tokens, routing.top_k);
  MOEKIT_RETURN_IF_ERROR(route(routing, arguments));
  return call;
}

void set_router_arguments(const RoutedCall& routed, RunArguments& arguments) {
  arguments.router_logits = routed.router_logits;
  arguments.correction_bias =
      routed.correction_bias.empty() ? nullptr : routed.correction_bias.data();
  arguments.router_expert_scale =
      routed.expert_scale.empty() ? nullptr : routed.expert_scale.data();
  arguments.router_hash_table = routed.hash_table;
}

Result<Runtime> create_runtime(const LayerOptions& options) {
  RuntimeOptions runtime;
  runtime.num_threads = options.threads.value_or(0);
  if (options.device && options.device->rfind("cuda:", 0) == 0) {
    // resolve_device has read it before.
    runtime.cuda_device = std::atoi(options.device->c_str() + 5);
  }
  return Runtime::create(runtime);
}

Result<LayerSetup> set_up_layer(Console& console,
                                const Plan& plan,
                                const ExpertsSource& source,
                                const LayerOptions& options) {
  PrepareOptions prepare_options;
  prepare_options.num_threads = options.threads.value_or(0);
  prepare_options.progress = [&console](const PrepareProgress& progress) {
    console.progress("packing experts", progress.experts_done, progress.num_experts);
    return true;
  };
  MOEKIT_ASSIGN_OR_RETURN(PackedExperts experts, prepare(plan, source, prepare_options));
  console.clear_progress();
  MOEKIT_ASSIGN_OR_RETURN(Runtime runtime, create_runtime(options));
  if (plan->device.arch != Arch::kCpu) {
    MOEKIT_ASSIGN_OR_RETURN(experts, upload(runtime, experts));
  }
  MOEKIT_ASSIGN_OR_RETURN(AlignedBuffer workspace, AlignedBuffer::allocate(plan.workspace_bytes()));
  return LayerSetup{plan, std::move(experts), std::move(runtime), std::move(workspace)};
}

}  // namespace moekit::cli
