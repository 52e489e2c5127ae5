// SPDX-License-Identifier: Apache-2.0

// What weight bytes mean, seen through a whole layer: scales at the edges of their types, zero and
// dormant experts, globals that must not be merged, extents that are multiples of 8 only.

#include <algorithm>
#include <cmath>
#include <deque>

#include <gtest/gtest.h>

#include "tests/edges/layer_under_test.h"

namespace moekit::tests {
namespace {

/// Every recipe whose weights have scales, and so may have globals.
std::vector<std::string> scaled_recipes() {
  std::vector<std::string> names;
  for (const RecipeInfo& info : kRecipes) {
    if (format_info(info.weights).scale.has_value()) {
      names.emplace_back(info.name);
    }
  }
  EXPECT_EQ(names.size(), kRecipes.size() - 1);
  return names;
}

TEST(Formats, GateAndUpGlobalsAreNotMerged) {
  for (const std::string& recipe : scaled_recipes()) {
    LayerUnderTest layer =
        LayerUnderTest::make("h=128 i=64 e=4 k=2 m=9 quirk=unequal_globals recipe=" + recipe);
    double ratio = 1.0;
    for (const ExpertWeights& expert : layer.weights.source.experts) {
      const double r = static_cast<double>(expert.gate.global_scale / expert.up.global_scale);
      ratio = std::max(ratio, std::max(r, 1.0 / r));
    }
    EXPECT_GT(ratio, 3.0);
    layer.run_verified();
    // The check itself tells a merged global from two.
    for (ExpertWeights& expert : layer.weights.source.experts) {
      expert.up.global_scale = expert.gate.global_scale;
    }
    EXPECT_FALSE(layer.verify().passed) << recipe;
  }
}

TEST(Formats, SubnormalE4m3ScalesAreNotFlushed) {
  LayerUnderTest layer =
      LayerUnderTest::make("recipe=w4a16_nvfp4 h=128 i=64 e=4 k=2 m=9 quirk=raw_codes io=f32");
  // Every scale becomes one of 1..7: 2^-9 to 7 * 2^-9.
  const auto shrink = [](WeightMatrix& matrix) {
    auto* scales = static_cast<std::byte*>(const_cast<void*>(matrix.scales));
    for (std::int64_t i = 0; i < matrix.rows * matrix.scale_row_stride_bytes; ++i) {
      scales[i] = static_cast<std::byte>(1 + i % 7);
    }
    matrix.global_scale *= 64.0F;
  };
  for (ExpertWeights& expert : layer.weights.source.experts) {
    shrink(expert.gate);
    shrink(expert.up);
    shrink(expert.down);
  }
  layer.weights.prepared = layer.weights.source;
  const std::vector<float> out = layer.run_verified();
  double norm = 0.0;
  for (const float value : out) {
    norm += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_GT(std::sqrt(norm / static_cast<double>(out.size())), 1e-3);
}

TEST(Formats, ZeroScalesAreZeroAndNegativeZeroToo) {
  for (const RecipeInfo& info : kRecipes) {
    LayerUnderTest layer = LayerUnderTest::make("h=136 i=72 e=4 k=2 m=9 quirk=zero_scales recipe=" +
                                                std::string(info.name));
    layer.run_verified();
  }
  LayerUnderTest layer =
      LayerUnderTest::make("recipe=w4a16_nvfp4 h=128 i=64 e=1 k=1 m=2 quirk=raw_codes");
  for (const std::byte zero : {std::byte{0x00}, std::byte{0x80}}) {
    WeightMatrix& down = layer.weights.source.experts[0].down;
    std::vector<std::byte> scales(static_cast<std::size_t>(down.rows * down.scale_row_stride_bytes),
                                  zero);
    down.scales = scales.data();
    layer.weights.prepared = layer.weights.source;
    layer.prepare();
    for (const float value : layer.run_verified()) {
      EXPECT_EQ(value, 0.0F);
    }
  }
}

TEST(Formats, DormantExpertWithNanScalesIsZero) {
  for (const std::string& recipe : scaled_recipes()) {
    for (const char* const tokens : {"m=1", "m=40"}) {
      LayerUnderTest layer = LayerUnderTest::make(
          "h=64 i=32 e=8 k=2 quirk=dormant_expert recipe=" + recipe + " " + tokens);
      layer.run_verified();
      // Experts 1, 3 and 7 have no gate, no up or nothing at all: silu gives 0 for each.
      const auto count = static_cast<std::size_t>(layer.verify_case.num_tokens);
      std::vector<std::int32_t> ids;
      for (std::size_t t = 0; t < count; ++t) {
        const std::int32_t dormant[] = {1, 3, 7};
        ids.insert(ids.end(), {dormant[t % 3], 7});
      }
      layer.set_ids(ids);
      for (const float value : layer.run_verified()) {
        EXPECT_EQ(value, 0.0F);
      }
    }
  }
}

TEST(Formats, ExtentsThatAreMultiplesOfEightOnly) {
  std::size_t cases = 0;
  for (const RecipeInfo& info : kRecipes) {
    for (const char* const extents : {"h=8 i=8",
                                      "h=24 i=40",
                                      "h=88 i=104",
                                      "h=136 i=232",
                                      "h=344 i=312",
                                      "h=1016 i=8",
                                      "h=8 i=1016"}) {
      for (const char* const rest : {"m=1 activation=silu", "m=17 activation=relu2 bias=both"}) {
        LayerUnderTest layer = LayerUnderTest::make("e=3 k=2 recipe=" + std::string(info.name) +
                                                    " " + extents + " " + rest);
        layer.run_verified();
        ++cases;
      }
    }
  }
  EXPECT_EQ(cases, 14 * kRecipes.size());
}

// All 255 E8M0 bytes in one row of K = 255 * 32: group b has scale 2^(b - 127), and token b meets
// group b alone, with x near the inverse of its scale. The expected values are computed here.
struct EveryByte {
  static constexpr std::int64_t kGroups = 255;
  static constexpr std::int64_t kHidden = kGroups * 32;
  std::vector<std::byte> gate_up_codes = std::vector<std::byte>(8 * kHidden / 2);
  std::vector<std::byte> gate_up_scales = std::vector<std::byte>(8 * kGroups);
  std::vector<std::byte> down_codes = std::vector<std::byte>(kHidden * 4);
  std::vector<std::byte> down_scales = std::vector<std::byte>(kHidden, std::byte{127});
  std::vector<float> x = std::vector<float>(kGroups * kHidden);
  ExpertsSource source{};

  EveryByte() {
    verify::Random random(3);
    for (std::size_t i = 0; i < gate_up_codes.size(); ++i) {
      const auto group = static_cast<std::int64_t>(i) * 2 % kHidden / 32;
      // 2^126 and 2^127 take magnitudes up to 1.5: a larger product would exceed bf16.
      const std::uint64_t mask = group >= 253 ? 0xBB : 0xFF;
      gate_up_codes[i] = static_cast<std::byte>(random.next() & mask);
    }
    for (std::size_t i = 0; i < gate_up_scales.size(); ++i) {
      gate_up_scales[i] = static_cast<std::byte>(i % kGroups);
    }
    for (std::size_t i = 0; i < down_codes.size(); ++i) {
      down_codes[i] = std::byte{0x22};  // 1.0
    }
    for (std::int64_t token = 0; token < kGroups; ++token) {
      // Below 2^119: the sum of 32 products with codes up to 6 is formed before its scale is
      // applied and must stay within f32.
      const int exponent = std::clamp<int>(127 - static_cast<int>(token), -126, 118);
      for (std::int64_t k = token * 32; k < token * 32 + 32; ++k) {
        // The sign of row 0's code: h is then positive in one row at least.
        const auto byte = static_cast<unsigned>(gate_up_codes[static_cast<std::size_t>(k / 2)]);
        const bool negative = (k % 2 == 0 ? byte & 8U : byte & 128U) != 0;
        const float magnitude =
            std::ldexp(1.0F + 0.25F * static_cast<float>(random.below(4)), exponent);
        x[static_cast<std::size_t>(token * kHidden + k)] = negative ? -magnitude : magnitude;
      }
    }
    ExpertWeights expert;
    expert.up = {Format::kMxfp4, 8, kHidden, gate_up_codes.data(), kHidden / 2};
    expert.up.scales = gate_up_scales.data();
    expert.up.scale_row_stride_bytes = kGroups;
    expert.down = {Format::kMxfp4, kHidden, 8, down_codes.data(), 4};
    expert.down.scales = down_scales.data();
    expert.down.scale_row_stride_bytes = 1;
    source.experts.push_back(expert);
  }

  [[nodiscard]] double h(std::int64_t token, std::int64_t row) const {
    static constexpr double kMagnitudes[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
    double sum = 0.0;
    for (std::int64_t k = token * 32; k < token * 32 + 32; ++k) {
      const auto byte =
          static_cast<unsigned>(gate_up_codes[static_cast<std::size_t>(row * kHidden / 2 + k / 2)]);
      const unsigned code = k % 2 == 0 ? byte & 15U : byte >> 4U;
      const double value = (code & 8U) != 0 ? -kMagnitudes[code & 7U] : kMagnitudes[code & 7U];
      sum += value * std::ldexp(1.0, static_cast<int>(token) - 127) *
             static_cast<double>(x[static_cast<std::size_t>(token * kHidden + k)]);
    }
    return sum;
  }
};

TEST(Formats, EveryE8m0ByteFrom0To254) {
  EveryByte every;
  LayerUnderTest layer;
  layer.verify_case =
      parse_verify_case("recipe=w4a16_mxfp4 h=8160 i=8 e=1 k=1 m=255 activation=relu2 io=f32")
          .value();
  layer.tensors = verify::make_tensors(layer.verify_case, {});
  layer.weights.source = every.source;
  layer.weights.prepared = every.source;
  layer.tensors.arguments.x = matrix_view(static_cast<const void*>(every.x.data()),
                                          DType::kF32,
                                          EveryByte::kGroups,
                                          EveryByte::kHidden);
  layer.set_ids(std::vector<std::int32_t>(255, 0), std::vector<float>(255, 1.0F));
  const std::vector<float> out = layer.run_verified();
  for (std::int64_t token = 0; token < EveryByte::kGroups; ++token) {
    double expected = 0.0;
    for (std::int64_t row = 0; row < 8; ++row) {
      const double h = std::max(every.h(token, row), 0.0);
      expected += h * h;
    }
    ASSERT_GT(expected, 0x1p-20) << "byte " << token;
    // One rounding of the intermediate to bf16 and f32 noise.
    ASSERT_NEAR(static_cast<double>(out[static_cast<std::size_t>(token * EveryByte::kHidden)]),
                expected,
                0x1p-8 * expected)
        << "byte " << token;
  }
}

TEST(Formats, E8m0Byte255IsRefusedByPlace) {
  EveryByte every;
  every.gate_up_scales[3 * EveryByte::kGroups + 17] = std::byte{255};
  const Problem problem =
      parse_verify_case("recipe=w4a16_mxfp4 h=8160 i=8 e=1 k=1 m=1 activation=relu2")->problem;
  const Plan plan = make_plan(problem, host_cpu()).value();
  const Result<PackedExperts> packed = moekit::prepare(plan, every.source);
  ASSERT_FALSE(packed.has_value());
  EXPECT_EQ(packed.status().code(), StatusCode::kInvalidArgument);
  const std::string message(packed.status().message());
  for (const char* const part : {"expert 0", "up", "row 3", "group 17", "255"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

// A tensor whose largest magnitude is 0 or 1e-38 is encoded, packed and run without NaN.
TEST(Formats, LargestMagnitudeZeroAndNearTheSmallest) {
  int layers = 0;
  for (const float amax : {0.0F, 1e-38F, 1e-45F}) {
    for (const RecipeInfo& info : kRecipes) {
      LayerUnderTest layer = LayerUnderTest::make(
          std::string("h=64 i=32 e=2 k=1 m=3 bias=both io=f32 recipe=") + std::string(info.name));
      std::deque<std::vector<std::byte>> storage;
      for (ExpertWeights& expert : layer.weights.source.experts) {
        for (WeightMatrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
          std::vector<float> values(static_cast<std::size_t>(matrix->rows * matrix->cols));
          for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = i % 5 == 0 ? amax : (i % 5 == 1 ? -amax : 0.0F);
          }
          auto& codes = storage.emplace_back(static_cast<std::size_t>(
              matrix->rows * code_row_bytes(matrix->format, matrix->cols)));
          auto& scales = storage.emplace_back(static_cast<std::size_t>(
              num_scale_rows(*matrix) * num_scale_cols(*matrix) * scale_elem_bytes(*matrix)));
          EncodedWeights encoded{codes, scales, 1.0F};
          const Status status = encode_weights(matrix->format, values, matrix->rows, encoded);
          ASSERT_TRUE(status.ok()) << status.to_string();
          matrix->codes = codes.data();
          matrix->row_stride_bytes = code_row_bytes(matrix->format, matrix->cols);
          matrix->scales = scales.empty() ? nullptr : scales.data();
          matrix->scale_row_stride_bytes = num_scale_cols(*matrix) * scale_elem_bytes(*matrix);
          matrix->zero_points = nullptr;
          matrix->global_scale = encoded.global_scale;
        }
      }
      layer.weights.prepared = layer.weights.source;
      const std::vector<float> out = layer.run_verified();
      for (const float value : out) {
        ASSERT_TRUE(std::isfinite(value));
      }
      ++layers;
    }
  }
  EXPECT_EQ(layers, static_cast<int>(3 * kRecipes.size()));
}

TEST(Formats, BiasDtypesAndStrides) {
  for (const char* const quirk : {"none", "f32_bias", "f16_strided_bias"}) {
    for (const char* const order : {"gate_up", "up_gate", "interleaved"}) {
      LayerUnderTest layer = LayerUnderTest::make(
          std::string("recipe=w4a16_mxfp4 h=64 i=32 e=4 k=2 m=5 bias=both quirk=") + quirk +
          " row_order=" + order);
      layer.run_verified();
      layer.weights.source.experts[1].up_bias = layer.weights.source.experts[2].up_bias;
      std::vector<std::int32_t> ids(10, 1);
      layer.set_ids(ids);
      layer.run();
      EXPECT_FALSE(layer.verify().passed) << quirk << " " << order;
    }
  }
}

}  // namespace
}  // namespace moekit::tests
