// SPDX-License-Identifier: Apache-2.0

// Bad weights of the formats with wide scales and of the recipes that quantise activations: each
// is refused by name, place and value, and the layer runs again once the fault is gone.

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "tests/edges/layer_under_test.h"

namespace moekit::tests {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The scale of block or row `row` and `group`, in the matrix's own dtype, truncated to it.
void set_scale(WeightMatrix& matrix, std::int64_t row, std::int64_t group, float value) {
  const DType dtype = matrix.scale_dtype.value_or(*format_info(matrix.format).scale);
  auto* const at = static_cast<std::byte*>(const_cast<void*>(matrix.scales)) +
                   row * matrix.scale_row_stride_bytes + group * (dtype_bits(dtype) / 8);
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  ASSERT_EQ(dtype, DType::kBf16);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  const auto upper = static_cast<std::uint16_t>(bits >> 16U);
  std::memcpy(at, &upper, sizeof upper);
}

void set_byte(const void* memory, std::int64_t at, int value) {
  static_cast<std::byte*>(const_cast<void*>(memory))[at] = static_cast<std::byte>(value);
}

struct BadWeights {
  const char* name;
  const char* line;  // of the layer, without tokens
  /// Spoils expert 1.
  std::function<void(ExpertWeights&)> spoil;
  std::vector<std::string> words;
};

constexpr const char* kFp8 = "recipe=w8a8_fp8_block128 h=264 i=136";
constexpr const char* kInt4 = "recipe=w4a16_int4 h=264 i=136 group_size=64";
constexpr const char* kW4a4 = "recipe=w4a4_nvfp4 h=64 i=32";
constexpr const char* kMxfp4 = "recipe=w4a8_mxfp4 h=64 i=32";
constexpr const char* kNvfp4 = "recipe=w4a8_nvfp4 h=64 i=32";

const BadWeights kBadWeights[] = {
    {"fp8 NaN scale",
     kFp8,
     [](ExpertWeights& e) { set_scale(e.down, 1, 1, kNan); },
     {"expert 1", "down", "row 128", "group 1", "NaN"}},
    {"fp8 negative scale",
     kFp8,
     [](ExpertWeights& e) { set_scale(e.gate, 1, 2, -0.5F); },
     {"expert 1", "gate", "-0.5", "row 128", "group 2", "negative"}},
    {"fp8 infinite scale",
     kFp8,
     [](ExpertWeights& e) { set_scale(e.up, 0, 0, HUGE_VALF); },
     {"expert 1", "up", "row 0", "group 0", "exceeds f32"}},
    {"fp8 scale whose products overflow",
     kFp8,
     [](ExpertWeights& e) { set_scale(e.up, 0, 1, 1e37F); },
     {"expert 1", "up", "row 0", "group 1", "exceeds f32"}},
    {"fp8 NaN element",
     kFp8,
     [](ExpertWeights& e) { set_byte(e.up.codes, 5 * e.up.row_stride_bytes + 263, 0x7F); },
     {"expert 1", "up", "127", "row 5", "column 263", "NaN"}},
    {"fp8 negative NaN element",
     kFp8,
     [](ExpertWeights& e) { set_byte(e.down.codes, 200 * e.down.row_stride_bytes, 0xFF); },
     {"expert 1", "down", "255", "row 200", "column 0", "NaN"}},
    {"fp8 scales of another dtype",
     kFp8,
     [](ExpertWeights& e) { e.down.scale_dtype = DType::kE8m0; },
     {"expert 1", "down", "e8m0", "f32, bf16 or f16"}},
    {"fp8 without scales",
     kFp8,
     [](ExpertWeights& e) { e.gate.scales = nullptr; },
     {"expert 1", "gate", "scales pointer is null"}},
    {"fp8 scale rows overlap",
     kFp8,
     [](ExpertWeights& e) { e.gate.scale_row_stride_bytes = 8; },
     {"expert 1", "gate", "scale_row_stride_bytes 8", "expected at least 12"}},
    {"fp8 block of other rows",
     kFp8,
     [](ExpertWeights& e) { e.up.group_row_offset = 64; },
     {"expert 1", "up", "64", "gate_up_row_offset"}},
    {"fp8 group of other columns",
     kFp8,
     [](ExpertWeights& e) { e.down.group_offset = 8; },
     {"expert 1", "down", "8", "down_group_offset"}},
    {"fp8 zero points",
     kFp8,
     [](ExpertWeights& e) {
       e.up.zero_points = static_cast<const std::uint8_t*>(e.up.codes);
       e.up.zero_point_row_stride = 8;
     },
     {"expert 1", "up", "zero points given, format fp8_block128 has none"}},
    {"fp8 among int4",
     kInt4,
     [](ExpertWeights& e) { e.down.format = Format::kFp8Block128; },
     {"expert 1", "down is fp8_block128", "w4a16_int4", "int4"}},
    {"int4 NaN scale",
     kInt4,
     [](ExpertWeights& e) { set_scale(e.gate, 7, 3, kNan); },
     {"expert 1", "gate", "row 7", "group 3", "NaN"}},
    {"int4 negative scale",
     kInt4,
     [](ExpertWeights& e) { set_scale(e.down, 263, 2, -0.25F); },
     {"expert 1", "down", "-0.25", "row 263", "group 2", "negative"}},
    {"int4 infinite scale",
     kInt4,
     [](ExpertWeights& e) { set_scale(e.up, 0, 4, HUGE_VALF); },
     {"expert 1", "up", "row 0", "group 4", "exceeds f32"}},
    {"int4 groups of another size",
     kInt4,
     [](ExpertWeights& e) { e.up.group_size = 32; },
     {"expert 1", "up", "groups of 32", "64", "weight_group_size"}},
    {"int4 groups of no size",
     kInt4,
     [](ExpertWeights& e) { e.up.group_size = 48; },
     {"expert 1", "up", "48"}},
    {"int4 zero points without a stride",
     kInt4,
     [](ExpertWeights& e) {
       e.up.zero_points = static_cast<const std::uint8_t*>(e.up.codes);
       e.up.zero_point_row_stride = 4;
     },
     {"expert 1", "up", "zero_point_row_stride 4", "expected at least 5"}},
    {"int4 zero point",
     kInt4,
     [](ExpertWeights& e) {
       static const std::vector<std::uint8_t> zeros = [] {
         std::vector<std::uint8_t> all(792, 8);  // 264 rows of 3 groups
         all[302] = 17;                          // row 100, group 2
         return all;
       }();
       e.down.zero_points = zeros.data();
       e.down.zero_point_row_stride = 3;
     },
     {"expert 1", "down", "zero point 17", "row 100", "group 2", "0..16"}},
    {"int4 rows overlap",
     kInt4,
     [](ExpertWeights& e) { e.down.row_stride_bytes = 64; },
     {"expert 1", "down", "row_stride_bytes 64", "expected at least 68"}},
    {"int4 without codes",
     kInt4,
     [](ExpertWeights& e) { e.up.codes = nullptr; },
     {"expert 1", "up", "codes pointer is null"}},
    {"int4 negative global",
     kInt4,
     [](ExpertWeights& e) { e.up.global_scale = -2.0F; },
     {"expert 1", "up", "global scale -2"}},
    {"w4a4 without the gate's input scale",
     kW4a4,
     [](ExpertWeights& e) { e.gate.input_scale.reset(); },
     {"expert 1", "gate has no input scale", "w4a4_nvfp4", "nearest: w4a16_nvfp4"}},
    {"w4a4 without the down projection's input scale",
     kW4a4,
     [](ExpertWeights& e) { e.down.input_scale.reset(); },
     {"expert 1", "down has no input scale", "nearest: w4a16_nvfp4"}},
    {"w4a4 NaN input scale",
     kW4a4,
     [](ExpertWeights& e) { e.up.input_scale = kNan; },
     {"expert 1", "up", "input scale nan"}},
    {"w4a4 negative input scale",
     kW4a4,
     [](ExpertWeights& e) { e.down.input_scale = -0.5F; },
     {"expert 1", "down", "input scale -0.5"}},
    {"w4a4 infinite input scale",
     kW4a4,
     [](ExpertWeights& e) { e.gate.input_scale = HUGE_VALF; },
     {"expert 1", "gate", "input scale inf"}},
    {"w4a8 E8M0 NaN",
     kMxfp4,
     [](ExpertWeights& e) { set_byte(e.up.scales, 3 * e.up.scale_row_stride_bytes + 1, 255); },
     {"expert 1", "up", "255", "row 3", "group 1", "NaN"}},
    {"w4a8 E4M3 NaN",
     kNvfp4,
     [](ExpertWeights& e) { set_byte(e.up.scales, 2 * e.up.scale_row_stride_bytes + 3, 0x7F); },
     {"expert 1", "up", "127", "row 2", "group 3", "NaN"}},
    {"w4a8 negative E4M3",
     kNvfp4,
     [](ExpertWeights& e) { set_byte(e.down.scales, e.down.scale_row_stride_bytes + 1, 0x81); },
     {"expert 1", "down", "129", "row 1", "group 1", "negative"}},
};

/// A layer whose experts share no memory, so that spoiling one spoils that one alone.
LayerUnderTest three_experts(const char* line) {
  return LayerUnderTest::make(std::string("e=3 k=2 m=3 ") + line);
}

TEST(QuantisedFormats, PrepareNamesExpertProjectionPlaceAndValue) {
  std::size_t refused = 0;
  for (const BadWeights& bad : kBadWeights) {
    SCOPED_TRACE(bad.name);
    LayerUnderTest layer = three_experts(bad.line);
    layer.prepare();
    ExpertsSource source = layer.weights.source;
    bad.spoil(source.experts[1]);
    const Result<PackedExperts> packed = moekit::prepare(*layer.plan, source);
    ASSERT_FALSE(packed.has_value());
    EXPECT_EQ(packed.status().code(), StatusCode::kInvalidArgument);
    for (const std::string& word : bad.words) {
      EXPECT_NE(packed.status().message().find(word), std::string_view::npos)
          << word << " in: " << packed.status().message();
    }
    ++refused;
  }
  EXPECT_EQ(refused, std::size(kBadWeights));
  EXPECT_GE(refused, 31U);
}

TEST(QuantisedFormats, PlansRefuseGroupSizesOfOtherFormats) {
  std::size_t refused = 0;
  for (const RecipeInfo& info : kRecipes) {
    const FormatInfo& format = format_info(info.weights);
    for (const std::int64_t group_size : {-1, 1, 16, 24, 32, 48, 64, 128, 256}) {
      Problem problem =
          parse_verify_case("h=256 i=128 e=4 k=2 m=3 recipe=" + std::string(info.name))->problem;
      problem.weight_group_size = group_size;
      const Result<Plan> plan = make_plan(problem, host_cpu());
      ASSERT_EQ(plan.has_value(), takes_group_size(format, group_size))
          << info.name << " " << group_size << " " << plan.status().to_string();
      if (!plan.has_value()) {
        EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
        EXPECT_NE(plan.status().message().find(std::to_string(group_size)), std::string_view::npos)
            << plan.status().message();
        ++refused;
      }
    }
  }
  // Three sizes of int4, and the own size of nvfp4, mxfp4 and fp8 in each of their recipes.
  EXPECT_EQ(refused, 9 * kRecipes.size() - 9);
}

TEST(QuantisedFormats, FewestAndMostExpertsAndSlots) {
  std::size_t layers = 0;
  for (const RecipeInfo& info : kRecipes) {
    for (const char* const rest :
         {"e=1 k=1 m=1", "e=1 k=1 m=40", "e=1024 k=32 m=9", "e=32 k=32 m=9", "e=7 k=7 m=40"}) {
      LayerUnderTest layer =
          LayerUnderTest::make("h=40 i=24 recipe=" + std::string(info.name) + " " + rest);
      layer.run_verified();
      ++layers;
    }
  }
  EXPECT_EQ(layers, 5 * kRecipes.size());
}

// The smallest f32 and f16 scales are kept: 2^-149 of fp8, 2^-24 of int4.
TEST(QuantisedFormats, SubnormalWideScalesAreNotFlushed) {
  for (const char* const line : {"recipe=w8a8_fp8_block128", "recipe=w4a16_int4"}) {
    LayerUnderTest layer = LayerUnderTest::make(
        std::string("h=128 i=128 e=1 k=1 m=3 io=f32 quirk=subnormal_scales ") + line);
    for (const float value : layer.run_verified()) {
      ASSERT_TRUE(std::isfinite(value));
    }
  }
}

// One token with NaN or infinity in x, at every place of the quantiser's group.
TEST(QuantisedFormats, NonFiniteGroupMakesItsRowNanAndNoOther) {
  std::size_t rows = 0;
  for (const RecipeInfo& info : kRecipes) {
    LayerUnderTest layer =
        LayerUnderTest::make("h=136 i=40 e=4 k=2 m=5 io=f32 recipe=" + std::string(info.name));
    const std::vector<float> expected = layer.run_verified();
    const TensorView& x = layer.tensors.arguments.x;
    for (const std::int64_t column : {0, 15, 16, 31, 32, 127, 128, 135}) {
      for (const float bad : {kNan, HUGE_VALF, -HUGE_VALF}) {
        float* const at = static_cast<float*>(const_cast<void*>(x.data)) + x.strides[0] + column;
        const float kept = *at;
        *at = bad;
        const std::vector<float> out = layer.run_verified();
        *at = kept;
        for (std::int64_t t = 0; t < 5; ++t) {
          const std::vector<float> row = row_of(out, t, 136);
          if (t != 1) {
            ASSERT_TRUE(same_bits(row, row_of(expected, t, 136))) << info.name << " " << t;
            continue;
          }
          for (const float value : row) {
            ASSERT_TRUE(std::isnan(value)) << info.name << " column " << column << " " << bad;
          }
          ++rows;
        }
      }
    }
    EXPECT_TRUE(same_bits(expected, layer.run_verified())) << info.name;
  }
  EXPECT_EQ(rows, 24 * kRecipes.size());
}

// A cache so small that the rows of one tile are interleaved a few at a time: each row's scales
// belong behind those of the rows before it, not of those of its own round.
TEST(QuantisedFormats, ScalesReachTheirRowOfATileInSeveralRounds) {
  std::size_t layers = 0;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (isa > host_cpu().isa) {
      continue;
    }
    // Three and two groups of scales a row.
    LayerUnderTest layer =
        LayerUnderTest::make("recipe=w8a8_fp8_block128 h=264 i=136 e=2 k=2 m=20 io=f32");
    layer.device = *device_from_name("cpu:" + std::string(isa_name(isa)));
    layer.device.num_threads = 2;
    // Of 264 columns 4 bytes each with the scales, half of this is eight rows: two at a time.
    layer.device.l2_per_core_bytes = std::int64_t{2} * 8 * 1152;
    const std::vector<float> cramped = layer.run_verified();
    layer.device.l2_per_core_bytes = 1 << 20;
    layer.prepare();
    EXPECT_TRUE(same_bits(cramped, layer.run_verified())) << isa_name(isa);
    ++layers;
  }
  EXPECT_GE(layers, 1U);
}

// An input scale of 0 quantises everything to 0; a bias survives it.
TEST(QuantisedFormats, InputScaleOfZeroGivesZeros) {
  for (const char* const tokens : {"m=3", "m=40"}) {
    LayerUnderTest layer = LayerUnderTest::make(
        std::string("recipe=w4a4_nvfp4 h=64 i=32 e=4 k=2 io=f32 bias=down ") + tokens);
    for (ExpertsSource* source : {&layer.weights.source, &layer.weights.prepared}) {
      for (ExpertWeights& expert : source->experts) {
        expert.gate.input_scale = 0.0F;
        expert.up.input_scale = 0.0F;
      }
    }
    layer.prepare();
    const std::vector<float> biased = layer.run_verified();
    EXPECT_NE(biased, std::vector<float>(biased.size(), 0.0F));
    // With the down projection's alone the product of FC2 is 0 too: the same bits.
    for (ExpertsSource* source : {&layer.weights.source, &layer.weights.prepared}) {
      for (ExpertWeights& expert : source->experts) {
        expert.gate.input_scale = 0.01F;
        expert.up.input_scale = 0.01F;
        expert.down.input_scale = 0.0F;
      }
    }
    layer.prepare();
    EXPECT_EQ(biased, layer.run_verified());
  }
}

}  // namespace
}  // namespace moekit::tests
