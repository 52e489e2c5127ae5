// SPDX-License-Identifier: Apache-2.0
#include "reference/activation.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace moekit::reference {
namespace {

constexpr ActivationKind kKinds[] = {ActivationKind::kSilu,
                                     ActivationKind::kSwigluOai,
                                     ActivationKind::kSitu,
                                     ActivationKind::kGeluTanh,
                                     ActivationKind::kRelu2};

ResolvedActivation of(ActivationKind kind) {
  Activation activation;
  activation.kind = kind;
  return resolve(activation);
}

TEST(Activation, PublishedValues) {
  // silu(1) = 0.7310585786..., gelu_tanh(1) = 0.8411919906... (PyTorch documentation's formulas
  // evaluated by hand with 12 digits).
  EXPECT_NEAR(activate(of(ActivationKind::kSilu), 1.0, 2.0), 2.0 * 0.731058578630, 1e-11);
  EXPECT_NEAR(activate(of(ActivationKind::kGeluTanh), 1.0, -1.0), -0.841191990608, 1e-11);
  EXPECT_EQ(activate(of(ActivationKind::kRelu2), 99.0, -3.0), 0.0);
  EXPECT_EQ(activate(of(ActivationKind::kRelu2), -99.0, 3.0), 9.0);
  // gpt-oss: g sigma(1.702 g)(u + 1) at g = 0 is 0, at large g it is g (u + 1).
  EXPECT_EQ(activate(of(ActivationKind::kSwigluOai), 0.0, 5.0), 0.0);
  EXPECT_NEAR(activate(of(ActivationKind::kSwigluOai), 7.0, 2.0), 21.0, 2e-4);
  // situ saturates at b and c.
  EXPECT_NEAR(activate(of(ActivationKind::kSitu), 1e4, 1e4), 100.0, 1e-9);
}

TEST(Activation, GateClampIsOneSidedUpClampIsNot) {
  Activation activation;
  activation.limit = 2.0F;
  const ResolvedActivation silu = resolve(activation);
  EXPECT_EQ(activate(silu, 50.0, 1.0), activate(silu, 2.0, 1.0));
  EXPECT_NE(activate(silu, -3.0, 1.0), activate(silu, -2.0, 1.0));
  EXPECT_EQ(activate(silu, 1.0, 9.0), activate(silu, 1.0, 2.0));
  EXPECT_EQ(activate(silu, 1.0, -9.0), activate(silu, 1.0, -2.0));
}

TEST(Activation, NanPropagates) {
  const double nan = std::nan("");
  for (const ActivationKind kind : kKinds) {
    EXPECT_TRUE(std::isnan(activate(of(kind), nan, nan))) << activation_name(kind);
    EXPECT_TRUE(std::isnan(activate(of(kind), 1.0, nan))) << activation_name(kind);
  }
}

// The bound holds for every perturbation up to the stated errors.
TEST(Activation, ErrorBoundCoversPerturbedArguments) {
  std::mt19937 engine(5);
  std::normal_distribution<double> argument(0.0, 4.0);
  std::uniform_real_distribution<double> exponent(-24.0, 1.0);
  std::uniform_real_distribution<double> unit(-1.0, 1.0);
  for (const ActivationKind kind : kKinds) {
    const ResolvedActivation activation = of(kind);
    double tightest = 0.0;
    for (int i = 0; i < 50000; ++i) {
      const double g = argument(engine);
      const double u = argument(engine);
      const double eg = std::exp2(exponent(engine));
      const double eu = std::exp2(exponent(engine));
      const double bound = activation_error(activation, g, u, eg, eu);
      const double moved = activate(activation, g + eg * unit(engine), u + eu * unit(engine)) -
                           activate(activation, g, u);
      ASSERT_LE(std::fabs(moved), bound)
          << activation_name(kind) << " g " << g << " u " << u << " eg " << eg << " eu " << eu;
      tightest = std::max(tightest, std::fabs(moved) / bound);
    }
    EXPECT_GT(tightest, 0.5) << activation_name(kind);  // and is not idle
  }
}

// The bound with exact arguments covers an ordinary f32 evaluation, far into the tails.
TEST(Activation, ErrorBoundCoversEvaluationInF32) {
  std::mt19937 engine(6);
  std::normal_distribution<float> argument(0.0F, 20.0F);
  for (int i = 0; i < 100000; ++i) {
    const float g = argument(engine);
    const float u = argument(engine);
    const float silu = g / (1.0F + std::exp(-g)) * u;
    const float gc = std::fmin(g, 7.0F);
    const float uc = std::fmax(std::fmin(u, 7.0F), -7.0F);
    const float oai = gc / (1.0F + std::exp(-1.702F * gc)) * (uc + 1.0F);
    const float values[] = {silu, oai};
    const ActivationKind kinds[] = {ActivationKind::kSilu, ActivationKind::kSwigluOai};
    for (int k = 0; k < 2; ++k) {
      const double exact = activate(of(kinds[k]), static_cast<double>(g), static_cast<double>(u));
      const double bound =
          activation_error(of(kinds[k]), static_cast<double>(g), static_cast<double>(u), 0.0, 0.0);
      ASSERT_LE(std::fabs(static_cast<double>(values[k]) - exact), bound) << g << " " << u;
    }
  }
}

}  // namespace
}  // namespace moekit::reference
