// SPDX-License-Identifier: Apache-2.0
#include "tests/edges/layer_under_test.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "device/numerics/bf16.h"

namespace moekit::tests {

const Runtime& shared_runtime() {
  static const Runtime runtime = Runtime::create({2, {}}).value();
  return runtime;
}

LayerUnderTest LayerUnderTest::make(std::string_view line) {
  LayerUnderTest layer;
  Result<VerifyCase> verify_case = parse_verify_case(line);
  EXPECT_TRUE(verify_case.has_value()) << verify_case.status().to_string();
  layer.verify_case = std::move(verify_case).value();
  const verify::Quirks quirks = verify::quirks_from_name(layer.verify_case.quirk).value();
  Result<verify::CaseWeights> weights = verify::make_weights(layer.verify_case, quirks);
  EXPECT_TRUE(weights.has_value()) << weights.status().to_string();
  layer.weights = std::move(weights).value();
  layer.tensors = verify::make_tensors(layer.verify_case, quirks);
  return layer;
}

void LayerUnderTest::set_ids(std::vector<std::int32_t> new_ids, std::vector<float> new_weights) {
  ids = std::move(new_ids);
  ASSERT_EQ(static_cast<std::int64_t>(ids.size()), verify_case.num_tokens * top_k());
  tensors.arguments.topk_ids = matrix_view(
      static_cast<const void*>(ids.data()), DType::kI32, verify_case.num_tokens, top_k());
  if (!new_weights.empty()) {
    router_weights = std::move(new_weights);
    ASSERT_EQ(router_weights.size(), ids.size());
    tensors.arguments.topk_weights = matrix_view(static_cast<const void*>(router_weights.data()),
                                                 DType::kF32,
                                                 verify_case.num_tokens,
                                                 top_k());
  }
}

void LayerUnderTest::prepare() {
  Result<Plan> made = make_plan(problem(), device, verify_case.overrides);
  ASSERT_TRUE(made.has_value()) << made.status().to_string();
  plan.emplace(std::move(made).value());
  // One thread: a region of the pool per expert costs more than packing these layers.
  PrepareOptions options;
  options.num_threads = 1;
  Result<PackedExperts> experts = moekit::prepare(*plan, weights.prepared, options);
  ASSERT_TRUE(experts.has_value()) << experts.status().to_string();
  packed = std::move(experts).value();
  workspace = verify::GuardedBuffer(plan->workspace_bytes());
}

std::vector<float> LayerUnderTest::run(const Runtime& runtime) {
  if (!plan.has_value()) {
    prepare();
  }
  std::fill(workspace.bytes().begin(), workspace.bytes().end(), std::byte{0xFF});
  std::fill(tensors.out.bytes().begin(), tensors.out.bytes().end(), std::byte{0xFF});
  Result<Binding> binding =
      moekit::bind(runtime, *plan, packed, workspace.bytes(), tensors.arguments);
  EXPECT_TRUE(binding.has_value()) << binding.status().to_string();
  if (!binding.has_value()) {
    return {};
  }
  EXPECT_TRUE(moekit::run(runtime, *binding).ok());
  EXPECT_TRUE(workspace.intact());
  EXPECT_TRUE(tensors.intact());
  std::vector<float> out;
  const MutableTensorView& view = tensors.arguments.out;
  for (std::int64_t token = 0; token < verify_case.num_tokens; ++token) {
    for (std::int64_t n = 0; n < verify_case.problem.hidden_size; ++n) {
      const std::int64_t at = token * view.strides[0] + n;
      if (view.dtype == DType::kF32) {
        out.push_back(static_cast<const float*>(view.data)[at]);
      } else {
        const std::uint16_t code = static_cast<const std::uint16_t*>(view.data)[at];
        out.push_back(view.dtype == DType::kBf16 ? device::bf16_to_f32(code)
                                                 : device::f16_to_f32(code));
      }
    }
  }
  return out;
}

VerifyReport LayerUnderTest::verify() const {
  Result<VerifyReport> report =
      verify_call(*plan, weights.source, tensors.arguments, workspace.bytes());
  EXPECT_TRUE(report.has_value()) << report.status().to_string();
  return report.has_value() ? std::move(report).value() : VerifyReport{};
}

std::vector<float> LayerUnderTest::run_verified() {
  std::vector<float> out = run();
  const VerifyReport report = verify();
  EXPECT_TRUE(report.passed) << *verify_case_line(verify_case) << ": " << report.first_failure;
  EXPECT_GT(report.outputs_checked, 0) << *verify_case_line(verify_case);
  return out;
}

std::vector<float> row_of(const std::vector<float>& out, std::int64_t token, std::int64_t hidden) {
  return {out.begin() + token * hidden, out.begin() + (token + 1) * hidden};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
           return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y) ||
                  (std::isnan(x) && std::isnan(y));
         });
}

}  // namespace moekit::tests
