// SPDX-License-Identifier: Apache-2.0
#include "reference/activation.h"

#include <algorithm>
#include <cmath>

#include "reference/small_floats.h"

namespace moekit::reference {
namespace {

constexpr double kGeluCubic = 0.044715;                   // Hendrycks and Gimpel 2016, tanh form
constexpr double kTwoRootTwoOverPi = 1.5957691216057307;  // 2 * sqrt(2 / pi)

double sigmoid(double x) {
  return x < 0.0 ? std::exp(x) / (1.0 + std::exp(x)) : 1.0 / (1.0 + std::exp(-x));
}

// Written so that NaN is returned: a comparison with NaN is false.
double min_above(double value, double high) {
  return value > high ? high : value;
}

double clamp(double value, double bound) {
  return value > bound ? bound : (value < -bound ? -bound : value);
}

// The gate factor F(g) of a = F(g) * U(u), its first derivative, a bound on its second, and the
// relative error an f32 evaluation makes in units of kEpsilon.
struct GateFactor {
  double value = 0.0;
  double derivative = 0.0;
  double curvature = 0.0;
  double evaluation_error = 0.0;
};

// An ulp is 2 epsilon. sigmoid_f32 and tanh_f32 are stated within 3 and 4 ulp, GPU intrinsics
// within 2; 24 epsilon covers one of each plus the products, and a rounded argument z moves
// sigmoid(z) by |z| (1 - sigmoid(z)) epsilon, relatively, for each rounding in it.
constexpr double kEvaluation = 24.0;

GateFactor gate_factor(const ResolvedActivation& activation, double g) {
  switch (activation.kind) {
    case ActivationKind::kSilu: {
      const double s = sigmoid(g);
      return {g * s, s + g * s * (1.0 - s), 0.5, kEvaluation};
    }
    case ActivationKind::kSwigluOai: {
      const double z = activation.alpha * g;
      const double s = sigmoid(z);
      return {g * s,
              s + z * s * (1.0 - s),
              0.5 * std::fabs(activation.alpha),
              kEvaluation + std::fabs(z) * (1.0 - s)};
    }
    case ActivationKind::kSitu: {
      const double b = activation.gate_scale;
      const double t = std::tanh(g / b);
      const double s = sigmoid(g);
      // |F''| <= |2/b t sech^2 s| + 2 |sech^2 s'| + b |t s''| <= 2/b + 1/2 + b/10.
      return {b * t * s,
              (1.0 - t * t) * s + b * t * s * (1.0 - s),
              2.0 / b + 0.5 + 0.1 * b,
              kEvaluation};
    }
    case ActivationKind::kGeluTanh: {
      const double z = kTwoRootTwoOverPi * (g + kGeluCubic * g * g * g);
      const double slope = kTwoRootTwoOverPi * (1.0 + 3.0 * kGeluCubic * g * g);
      const double s = sigmoid(z);
      const double bend = z < -700.0 ? 0.0 : g * s * (1.0 - s) * slope;
      // Six roundings stand in z: the constants, g^3 and the sum.
      return {z < -700.0 ? 0.0 : g * s,
              s + bend,
              1.5,
              kEvaluation + 6.0 * std::min(std::fabs(z), 800.0) * (1.0 - s)};
    }
    case ActivationKind::kRelu2:
      break;
  }
  return {};
}

double up_factor(const ResolvedActivation& activation, double u) {
  switch (activation.kind) {
    case ActivationKind::kSwigluOai:
      return u + activation.beta;
    case ActivationKind::kSitu:
      return activation.up_scale * std::tanh(u / activation.up_scale);
    default:
      return u;
  }
}

}  // namespace

ResolvedActivation resolve(const Activation& activation) noexcept {
  ResolvedActivation resolved;
  resolved.kind = activation.kind;
  switch (activation.kind) {
    case ActivationKind::kSilu:
      if (activation.limit) {
        resolved.limit = static_cast<double>(*activation.limit);
      }
      break;
    case ActivationKind::kSwigluOai:
      // The parameters are f32 values: 1.702F is what an implementation is given.
      resolved.limit = static_cast<double>(activation.limit.value_or(7.0F));
      resolved.alpha = static_cast<double>(activation.alpha.value_or(1.702F));
      resolved.beta = static_cast<double>(activation.beta.value_or(1.0F));
      break;
    case ActivationKind::kSitu:
      resolved.gate_scale = static_cast<double>(activation.gate_scale.value_or(4.0F));
      resolved.up_scale = static_cast<double>(activation.up_scale.value_or(25.0F));
      break;
    case ActivationKind::kGeluTanh:
    case ActivationKind::kRelu2:
      break;
  }
  return resolved;
}

double activate(const ResolvedActivation& activation, double gate, double up) noexcept {
  if (activation.kind == ActivationKind::kRelu2) {
    const double h = up < 0.0 ? 0.0 : up;
    return h * h;
  }
  const double g = min_above(gate, activation.limit);
  const double u = clamp(up, activation.limit);
  return gate_factor(activation, g).value * up_factor(activation, u);
}

// Let a = F(g) U(u), |dg| <= eg and |du| <= eu. U is 1-Lipschitz for every kind (u, u + beta,
// c tanh(u/c)), clamping is 1-Lipschitz, and by Taylor |F(g + dg) - F(g)| <= |F'| eg + C eg^2 / 2
// with C >= sup|F''|. So
//   |da| <= (|F'| eg + C eg^2 / 2) (|U| + eu) + |F| eu
// to which the f32 evaluation adds (its relative error) * |a| and, where sigmoid or a product
// underflows, 2^-126 of the other factors. Beyond the limit by more than eg the clamped argument is
// exact, so its error is 0. relu2: |(h + e)^2 - h^2| <= 2 |h| e + e^2.
double activation_error(const ResolvedActivation& activation,
                        double gate,
                        double up,
                        double gate_error,
                        double up_error) noexcept {
  if (activation.kind == ActivationKind::kRelu2) {
    if (up < -up_error) {
      return 0.0;
    }
    const double h = std::max(up, 0.0);
    return up_error * (2.0 * h + up_error) + 4.0 * kEpsilon * h * h + kSmallest;
  }
  const double limit = activation.limit;
  const double eg = gate > limit + gate_error ? 0.0 : gate_error;
  const double eu = std::fabs(up) > limit + up_error ? 0.0 : up_error;
  const double g = min_above(gate, limit);
  const GateFactor factor = gate_factor(activation, g);
  const double other = std::fabs(up_factor(activation, clamp(up, limit)));
  const double magnitude = std::fabs(factor.value);
  const double moved = std::fabs(factor.derivative) * eg + 0.5 * factor.curvature * eg * eg;
  return moved * (other + eu) + magnitude * eu +
         factor.evaluation_error * kEpsilon * magnitude * (other + eu) +
         2.0 * kSmallest * (1.0 + std::fabs(g)) * (1.0 + other);
}

}  // namespace moekit::reference
