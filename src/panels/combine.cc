// SPDX-License-Identifier: Apache-2.0
#include "panels/combine.h"

#include <algorithm>
#include <span>

#include "device/numerics/bf16.h"

namespace moekit::panels {

namespace {

using plan::CpuCall;

// Rows summed at a time: the accumulator stays in L1 whatever the block is.
constexpr std::int64_t kChunkRows = 256;

struct TokenSlots {
  std::int64_t count = 0;
  std::int64_t routes[kMaxTopK] = {};
  float weights[kMaxTopK] = {};
};

// Asks for the sums that are combined after those of `token`: one token's are too short a stream
// for the hardware to follow. Inlined early: g++ 12 drops calls of functions that only ask for
// memory.
[[gnu::always_inline]] inline void prefetch_next(const CpuCall& call,
                                                 const RouteSums& sums,
                                                 std::int64_t token,
                                                 std::int64_t first_row) {
  if (token + 1 == call.num_tokens) {
    return;
  }
  constexpr std::int64_t kLineRows = 16;
  const std::int64_t top_k = call.plan->problem.top_k;
  const std::int64_t count = std::min(kChunkRows, sums.row_end - first_row);
  for (std::int64_t slot = 0; slot < top_k; ++slot) {
    const float* rows =
        sums.sums + ((token + 1) * top_k + slot) * sums.stride + first_row - sums.row_begin;
    for (std::int64_t row = 0; row < count; row += kLineRows) {
      __builtin_prefetch(rows + row, 0, 2);
    }
  }
}

// Active routes of a token in the order in which they are summed.
TokenSlots ordered_slots(const Problem& problem, const Routes& routes, std::int64_t token) {
  TokenSlots slots;
  for (std::int64_t slot = 0; slot < routes.top_k; ++slot) {
    const std::int64_t route = token * routes.top_k + slot;
    const std::int32_t expert = routes.experts[route];
    if (expert < 0) {
      continue;
    }
    std::int64_t at = slots.count++;
    if (problem.combine_order == CombineOrder::kExpert) {
      for (; at > 0 && routes.experts[slots.routes[at - 1]] > expert; --at) {
        slots.routes[at] = slots.routes[at - 1];
      }
    }
    slots.routes[at] = route;
  }
  for (std::int64_t i = 0; i < slots.count; ++i) {
    slots.weights[i] = problem.router_weight_on_input ? 1.0F : routes.weight(slots.routes[i]);
  }
  return slots;
}

float load_element(const void* row, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kBf16:
      return device::bf16_to_f32(static_cast<const std::uint16_t*>(row)[index]);
    case DType::kF16:
      return device::f16_to_f32(static_cast<const std::uint16_t*>(row)[index]);
    default:
      return static_cast<const float*>(row)[index];
  }
}

void store_rows(const Body& body,
                const MutableTensorView& out_view,
                std::byte* row,
                std::int64_t first,
                std::span<const float> sums) {
  const auto count = static_cast<std::int64_t>(sums.size());
  switch (out_view.dtype) {
    case DType::kBf16:
      body.round_to_bf16(sums.data(), count, reinterpret_cast<std::uint16_t*>(row) + first);
      break;
    case DType::kF16: {
      auto* out = reinterpret_cast<std::uint16_t*>(row) + first;
      for (std::int64_t i = 0; i < count; ++i) {
        out[i] = device::f16_from_f32(sums[static_cast<std::size_t>(i)]);
      }
      break;
    }
    default:
      std::copy_n(sums.data(), count, reinterpret_cast<float*>(row) + first);
  }
}

template <typename View>
auto* token_row(const View& view, std::int64_t token) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>,
                                  const std::byte,
                                  std::byte>;
  return static_cast<Byte*>(view.data) + token * view.strides[0] * dtype_bits(view.dtype) / 8;
}

void combine_chunk(const CpuCall& call,
                   const Body& body,
                   const TokenSlots& slots,
                   const RouteSums& sums,
                   std::int64_t token,
                   const std::int64_t first_row) {
  const Problem& problem = call.plan->problem;
  const std::int64_t count = std::min(kChunkRows, sums.row_end - first_row);
  float total[kChunkRows];
  const float* routes[kMaxTopK];
  for (std::int64_t slot = 0; slot < slots.count; ++slot) {
    routes[slot] = sums.sums + slots.routes[slot] * sums.stride + first_row - sums.row_begin;
  }
  body.weighted_sum(
      {routes, slots.weights, slots.count, device::round_up(count, kPanelRows), total});
  if (problem.routed_scaling_place == ScalingPlace::kSum && slots.count > 0) {
    for (std::int64_t i = 0; i < count; ++i) {
      total[i] *= problem.routed_scaling;
    }
  }
  if (problem.shared != SharedInput::kNone) {
    const TensorView& shared = call.arguments->shared;
    for (std::int64_t i = 0; i < count; ++i) {
      total[i] += load_element(token_row(shared, token), shared.dtype, first_row + i);
    }
  }
  const MutableTensorView& out = call.arguments->out;
  store_rows(body,
             out,
             token_row(out, token),
             first_row,
             std::span(total).first(static_cast<std::size_t>(count)));
}

}  // namespace

void combine_rows(const CpuCall& call,
                  const Body& body,
                  const Routes& routes,
                  const RouteSums& sums) noexcept {
  for (std::int64_t token = 0; token < call.num_tokens; ++token) {
    const TokenSlots slots = ordered_slots(call.plan->problem, routes, token);
    for (std::int64_t row = sums.row_begin; row < sums.row_end; row += kChunkRows) {
      prefetch_next(call, sums, token, row);
      combine_chunk(call, body, slots, sums, call.token_begin + token, row);
    }
  }
}

}  // namespace moekit::panels
