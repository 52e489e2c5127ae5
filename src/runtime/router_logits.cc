// SPDX-License-Identifier: Apache-2.0
#include "moekit/routing.h"

#include "base/text.h"
#include "device/numerics/bf16.h"

namespace moekit {
namespace {

using base::cat;

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16;
}

float load(const TensorView& view, std::int64_t row, std::int64_t col) {
  const std::int64_t at = row * view.strides[0] + col * view.strides[1];
  switch (view.dtype) {
    case DType::kBf16:
      return device::bf16_to_f32(static_cast<const std::uint16_t*>(view.data)[at]);
    case DType::kF16:
      return device::f16_to_f32(static_cast<const std::uint16_t*>(view.data)[at]);
    default:
      return static_cast<const float*>(view.data)[at];
  }
}

}  // namespace

Status router_logits(const TensorView& x,
                     const TensorView& weight,
                     const float* bias,
                     const MutableTensorView& logits) noexcept {
  if (!is_float(x.dtype) || !is_float(weight.dtype) || logits.dtype != DType::kF32) {
    return invalid_argument(cat("router_logits: x ",
                                dtype_name(x.dtype),
                                ", weight ",
                                dtype_name(weight.dtype),
                                ", logits ",
                                dtype_name(logits.dtype),
                                "; expected bf16, f16 or f32 operands and f32 logits"));
  }
  if (x.rank != 2 || weight.rank != 2 || logits.rank != 2 || x.shape[1] != weight.shape[1] ||
      logits.shape[0] != x.shape[0] || logits.shape[1] != weight.shape[0]) {
    return invalid_argument(cat("router_logits: x [",
                                x.shape[0],
                                ", ",
                                x.shape[1],
                                "], weight [",
                                weight.shape[0],
                                ", ",
                                weight.shape[1],
                                "], logits [",
                                logits.shape[0],
                                ", ",
                                logits.shape[1],
                                "] do not fit"));
  }
  auto* out = static_cast<float*>(logits.data);
  for (std::int64_t token = 0; token < x.shape[0]; ++token) {
    for (std::int64_t expert = 0; expert < weight.shape[0]; ++expert) {
      double sum = bias == nullptr ? 0.0 : static_cast<double>(bias[expert]);
      for (std::int64_t k = 0; k < x.shape[1]; ++k) {
        // The product of two widened operands is rounded to f32 nowhere: f64 holds it exactly.
        sum +=
            static_cast<double>(load(x, token, k)) * static_cast<double>(load(weight, expert, k));
      }
      out[token * logits.strides[0] + expert * logits.strides[1]] = static_cast<float>(sum);
    }
  }
  return {};
}

}  // namespace moekit
