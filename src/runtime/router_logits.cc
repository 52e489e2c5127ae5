// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "moekit/routing.h"

#include "base/border.h"
#include "base/text.h"
#include "device/numerics/bf16.h"

namespace moekit {
namespace {

using base::cat;

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16;
}

// Widens one row to f64, where products of two such values are exact.
void load_row(const TensorView& view, std::int64_t row, std::vector<double>& out) {
  const std::int64_t step = view.strides[1];
  const std::int64_t first = row * view.strides[0];
  for (std::size_t k = 0; k < out.size(); ++k) {
    const std::int64_t at = first + static_cast<std::int64_t>(k) * step;
    switch (view.dtype) {
      case DType::kBf16:
        out[k] = device::bf16_to_f32(static_cast<const std::uint16_t*>(view.data)[at]);
        break;
      case DType::kF16:
        out[k] = device::f16_to_f32(static_cast<const std::uint16_t*>(view.data)[at]);
        break;
      default:
        out[k] = static_cast<const float*>(view.data)[at];
    }
  }
}

// Four chains hide the latency of the additions; their order is fixed, so the bits are too.
double dot(const std::vector<double>& left, const std::vector<double>& right) {
  double sums[4] = {0.0, 0.0, 0.0, 0.0};
  std::size_t k = 0;
  for (; k + 4 <= left.size(); k += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      sums[lane] += left[k + lane] * right[k + lane];
    }
  }
  for (; k < left.size(); ++k) {
    sums[0] += left[k] * right[k];
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

Status check_router(const TensorView& x,
                    const TensorView& weight,
                    const MutableTensorView& logits) {
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
  return {};
}

}  // namespace

Status router_logits(const TensorView& x,
                     const TensorView& weight,
                     const float* bias,
                     const MutableTensorView& logits) noexcept {
  return base::at_border([&]() -> Status {
    MOEKIT_RETURN_IF_ERROR(check_router(x, weight, logits));
    const std::int64_t tokens = x.shape[0];
    const auto hidden = static_cast<std::size_t>(x.shape[1]);
    std::vector<std::vector<double>> rows(static_cast<std::size_t>(tokens),
                                          std::vector<double>(hidden));
    for (std::int64_t token = 0; token < tokens; ++token) {
      load_row(x, token, rows[static_cast<std::size_t>(token)]);
    }
    std::vector<double> expert_row(hidden);
    auto* out = static_cast<float*>(logits.data);
    for (std::int64_t expert = 0; expert < weight.shape[0]; ++expert) {
      load_row(weight, expert, expert_row);
      const double offset = bias == nullptr ? 0.0 : static_cast<double>(bias[expert]);
      for (std::int64_t token = 0; token < tokens; ++token) {
        out[token * logits.strides[0] + expert * logits.strides[1]] =
            static_cast<float>(offset + dot(rows[static_cast<std::size_t>(token)], expert_row));
      }
    }
    return {};
  });
}

}  // namespace moekit
