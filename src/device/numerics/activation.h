// SPDX-License-Identifier: Apache-2.0
#pragma once

// The five activations as one run-time function of (gate, up): an epilogue selects by `kind`, so
// that activation, limit, alpha and beta are data and not kernel variants. Formulas: spec
// section 3.

#include "device/numerics/elementary.h"

namespace moekit::device {

enum class ActivationKind : i32 { kSilu = 0, kSwigluOai = 1, kSitu = 2, kGeluTanh = 3, kRelu2 = 4 };

// What the kernel receives. `limit` is +infinity where none is set; alpha and beta serve
// swiglu_oai, gate_scale (b) and up_scale (c) serve situ.
struct ActivationParams {
  ActivationKind kind;
  float limit;
  float alpha;
  float beta;
  float gate_scale;
  float up_scale;
};

inline namespace MOEKIT_ISA {

// min and clamp that let NaN through: a comparison with NaN is false, so the value itself is kept.
constexpr float clamp_above(float value, float high) {
  return value > high ? high : value;
}

constexpr float clamp_both(float value, float bound) {
  value = value > bound ? bound : value;
  return value < -bound ? -bound : value;
}

/// a = activation(gate, up) in f32; `up` is ignored by relu2. NaN in either operand propagates.
constexpr float activate(const ActivationParams& params, float gate, float up) {
  switch (params.kind) {
    case ActivationKind::kSilu: {
      const float g = clamp_above(gate, params.limit);
      return g * sigmoid_f32(g) * clamp_both(up, params.limit);
    }
    case ActivationKind::kSwigluOai: {
      const float g = clamp_above(gate, params.limit);
      return g * sigmoid_f32(params.alpha * g) * (clamp_both(up, params.limit) + params.beta);
    }
    case ActivationKind::kSitu: {
      const float g = params.gate_scale * tanh_f32(gate / params.gate_scale) * sigmoid_f32(gate);
      return g * (params.up_scale * tanh_f32(up / params.up_scale));
    }
    case ActivationKind::kGeluTanh: {
      // gelu_tanh(g) = g * (1 + tanh(z)) / 2 = g * sigmoid(2z), z = sqrt(2/pi) * (g + 0.044715
      // g^3); the sigmoid form keeps full relative precision for negative g. Where z overflows to
      // -infinity the product is -0, and for g = -infinity it would be NaN: the limit of gelu there
      // is 0.
      const float z2 = 1.59576912F * (gate + 0.044715F * (gate * gate * gate));
      const float g = gate * sigmoid_f32(z2);
      return (bits_of(gate) == 0xFF800000U ? 0.0F : g) * up;
    }
    case ActivationKind::kRelu2: {
      const float g = gate < 0.0F ? 0.0F : gate;
      return g * g;
    }
  }
  return kQuietNan;
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
