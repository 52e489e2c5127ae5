// SPDX-License-Identifier: Apache-2.0

// Flush-to-zero, denormals-are-zero and another rounding, which some host programs set for their
// threads, change no bit of what the library computes in the caller's thread.

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/moekit.h"

#include "base/float_environment.h"
#include "runtime/test_layer.h"

namespace moekit {
namespace {

#if defined(__x86_64__)

constexpr unsigned kFlushing = 0x8040U;  // flush-to-zero, denormals-are-zero
constexpr unsigned kRoundTowardZero = 0x6000U;

template <typename Call>
auto with_modes(unsigned modes, const Call& call) {
  const unsigned found = _mm_getcsr();
  _mm_setcsr(found | modes);
  auto result = call();
  EXPECT_EQ(_mm_getcsr() & 0xFFC0U, (found | modes) & 0xFFC0U) << "the caller's modes are back";
  _mm_setcsr(found);
  return result;
}

/// The same with every combination of modes; how many values each time had.
template <typename Call>
std::size_t expect_no_change(const char* what, const Call& call) {
  const auto expected = call();
  for (const unsigned modes : {kFlushing, kRoundTowardZero, kFlushing | kRoundTowardZero}) {
    EXPECT_EQ(with_modes(modes, call), expected) << what << " with modes " << modes;
  }
  return expected.size();
}

TEST(FloatModes, OfTheCallerChangeNoCodeScaleOrRoute) {
  std::size_t values = 0;
  // A global of about 4e-40, below the smallest normal number.
  std::vector<float> small(std::size_t{4} * 64);
  for (std::size_t i = 0; i < small.size(); ++i) {
    small[i] = 1e-36F * static_cast<float>(static_cast<int>(i * 37 % 201) - 100) / 100.0F;
  }
  for (const Format format : {Format::kNvfp4, Format::kMxfp4, Format::kBf16}) {
    values += expect_no_change("encode_weights", [&] {
      std::vector<std::byte> bytes(4 * 64 * 2 + 4 * 4);
      EncodedWeights encoded{
          std::span(bytes).first(static_cast<std::size_t>(4 * code_row_bytes(format, 64))),
          std::span(bytes).last(format == Format::kBf16    ? 0
                                : format == Format::kNvfp4 ? 16
                                                           : 8),
          1.0F};
      EXPECT_TRUE(encode_weights(format, small, 4, encoded).ok());
      std::vector<std::uint32_t> result{std::bit_cast<std::uint32_t>(encoded.global_scale)};
      for (const std::byte byte : bytes) {
        result.push_back(static_cast<std::uint32_t>(byte));
      }
      return result;
    });
  }
  const std::vector<float> logits{
      0.0F, -86.0F, -3.0F, -87.2F};  // exp(-87.2) is the last normal one
  values += expect_no_change("route", [&] {
    Routing routing{.scoring = Scoring::kSoftmax, .num_experts = 4, .top_k = 4};
    std::vector<std::int32_t> ids(4);
    std::vector<float> weights(4);
    RouteArguments arguments;
    arguments.logits = matrix_view(logits.data(), DType::kF32, 1, 4);
    arguments.topk_ids = matrix_view(ids.data(), DType::kI32, 1, 4);
    arguments.topk_weights = matrix_view(weights.data(), DType::kF32, 1, 4);
    EXPECT_TRUE(route(routing, arguments).ok());
    EXPECT_GT(weights[3], 0.0F);
    return weights;
  });
  EXPECT_GE(values, 700U);
}

TEST(FloatModes, OfTheCallerChangeNoBitOfALayer) {
  std::size_t values = 0;
  Problem problem;
  problem.num_tokens = 2;
  problem.num_experts = 4;
  problem.top_k = 2;
  problem.hidden_size = 48;
  problem.intermediate_size = 40;
  problem.io_dtype = DType::kF32;
  problem.gate_up_bias = true;
  problem.down_bias = true;
  for (const Recipe recipe : {Recipe::kW4a16Nvfp4, Recipe::kW4a8Mxfp4, Recipe::kW16a16}) {
    problem.recipe = recipe;
    TestLayer layer(problem);
    const std::vector<std::uint16_t> bias(48, 0x0003);  // subnormal in f16
    for (ExpertWeights& expert : layer.source.experts) {
      expert.gate_bias = {bias.data(), DType::kF16, 40, 1};
      expert.up_bias = expert.gate_bias;
      expert.down_bias = {bias.data(), DType::kF16, 48, 1};
    }
    const std::vector<float> x(std::size_t{2} * 48, 3e-39F);
    const std::vector<std::int32_t> ids{0, 1, 2, 3};
    const std::vector<float> weights{1e-39F, 0.5F, 0.25F, 1.0F};
    values += expect_no_change("a layer", [&] {
      const Plan plan = *make_plan(problem, host_cpu());
      const PackedExperts experts = *prepare(plan, layer.source);
      const Runtime runtime = *Runtime::create({2, {}});
      const AlignedBytes workspace(plan.workspace_bytes());
      std::vector<float> out(std::size_t{2} * 48);
      RunArguments arguments;
      arguments.x = matrix_view(x.data(), DType::kF32, 2, 48);
      arguments.topk_ids = matrix_view(ids.data(), DType::kI32, 2, 2);
      arguments.topk_weights = matrix_view(weights.data(), DType::kF32, 2, 2);
      arguments.out = matrix_view(out.data(), DType::kF32, 2, 48);
      EXPECT_TRUE(
          run(runtime, *moekit::bind(runtime, plan, experts, workspace.span(), arguments)).ok());
      const VerifyReport report = *verify_call(plan, layer.source, arguments, workspace.span());
      EXPECT_TRUE(report.passed) << report.first_failure;
      std::vector<double> result(out.begin(), out.end());
      result.push_back(report.max_abs_error);
      result.push_back(static_cast<double>(report.outputs_checked));
      return result;
    });
  }
  EXPECT_GE(values, 250U);
}

#endif

}  // namespace
}  // namespace moekit
