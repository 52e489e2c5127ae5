// SPDX-License-Identifier: Apache-2.0
// Every stored order with its variants and refusals, composed in memory; real files of each order
// are compared with their producers in producer_values_test.cc.
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/composed_files_test.h"
#include "checkpoint/state.h"

namespace moekit::checkpoint {
namespace {

using Tensors = std::vector<ComposedTensor>;

/// The tensors of one linear layer [rows, cols], by their suffixes.
using Linear = Tensors (*)(std::int64_t rows, std::int64_t cols);

constexpr std::int64_t kHidden = 256;
constexpr std::int64_t kInner = 128;
const std::string kModule = "model.layers.0.mlp.experts.";

Tensors layer_of(Linear linear) {
  Tensors tensors;
  for (int expert = 0; expert < 2; ++expert) {
    for (const char* projection : {"gate_proj.", "up_proj.", "down_proj."}) {
      const bool down = projection[0] == 'd';
      for (ComposedTensor tensor : linear(down ? kHidden : kInner, down ? kInner : kHidden)) {
        tensor.name = kModule + std::to_string(expert) + "." + projection + tensor.name;
        tensors.push_back(std::move(tensor));
      }
    }
  }
  return tensors;
}

/// A composed layer whose bytes can be filled before it is read.
struct Composed {
  explicit Composed(const Tensors& tensors, const std::string& config = "")
      : file(compose_zeros(tensors)) {
    const Status status = add_tensors({.name = "f", .bytes = as_bytes(file)}, nullptr, state);
    EXPECT_TRUE(status.ok()) << status.to_string();
    find_modules(state);
    if (!config.empty()) {
      Result<ModelConfig> read = read_model_config(config, std::nullopt);
      EXPECT_TRUE(read.has_value()) << read.status().to_string();
      adopt_config(std::move(*read), state);
    }
  }

  /// Every tensor whose name ends so is filled with copies of `value`.
  template <typename T>
  void fill(const std::string& ending, T value) {
    int filled = 0;
    for (const auto& [name, tensor] : state.tensors) {
      if (name.ends_with(ending)) {
        auto* at = const_cast<char*>(static_cast<const char*>(tensor.view.data));
        for (std::int64_t i = 0; i < tensor.bytes; i += std::int64_t{sizeof value}) {
          std::memcpy(at + i, &value, sizeof value);
        }
        ++filled;
      }
    }
    EXPECT_GT(filled, 0) << ending;
  }

  /// Sets g_idx[k] = k / group in every tensor of that name.
  void fill_group_index(const std::string& ending, std::int32_t group) {
    for (const auto& [name, tensor] : state.tensors) {
      if (name.ends_with(ending)) {
        auto* at = const_cast<char*>(static_cast<const char*>(tensor.view.data));
        for (std::int32_t k = 0; k < tensor.view.shape[0]; ++k) {
          const std::int32_t index = k / group;
          std::memcpy(at + std::size_t{4} * static_cast<std::size_t>(k), &index, sizeof index);
        }
      }
    }
  }

  [[nodiscard]] Result<CheckpointLayer> layer() const { return read_layer(state, 0); }

  std::string file;
  Checkpoint::State state;
};

void expect_refused(const Composed& composed, StatusCode code, std::string_view words) {
  const Status status = composed.layer().status();
  EXPECT_EQ(status.code(), code) << status.to_string();
  EXPECT_NE(status.message().find(words), std::string_view::npos) << status.to_string();
}

float first_value(const CheckpointLayer& layer) {
  const WeightMatrix& up = layer.source.experts[1].up;
  std::vector<float> row(static_cast<std::size_t>(up.cols));
  EXPECT_TRUE(validate_weights(up).ok()) << validate_weights(up).to_string();
  EXPECT_TRUE(decode_row(up, up.rows - 1, row).ok());
  return row.back();
}

Tensors awq(std::int64_t rows, std::int64_t cols) {
  return {{"qweight", "I32", {cols, rows / 8}},
          {"qzeros", "I32", {cols / 32, rows / 8}},
          {"scales", "F16", {cols / 32, rows}}};
}

Tensors gptq(std::int64_t rows, std::int64_t cols) {
  return {{"qweight", "I32", {cols / 8, rows}},
          {"qzeros", "I32", {cols / 64, rows / 8}},
          {"scales", "F16", {cols / 64, rows}},
          {"g_idx", "I32", {cols}}};
}

Tensors pack_quantized(std::int64_t rows, std::int64_t cols) {
  return {{"weight_packed", "I32", {rows, cols / 8}},
          {"weight_scale", "BF16", {rows, cols / 128}},
          {"weight_zero_point", "I32", {rows / 8, cols / 128}}};
}

constexpr std::uint16_t kHalfOne = 0x3C00;
constexpr std::uint16_t kBf16One = 0x3F80;

TEST(StoredOrders, awq_subtracts_its_zero_points) {
  Composed composed(layer_of(awq));
  composed.fill("qweight", 0xDDDDDDDDU);  // 13
  composed.fill("qzeros", 0x33333333U);   // 3
  composed.fill("scales", kHalfOne);
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_EQ(layer->scheme, "awq");
  EXPECT_EQ(layer->problem.recipe, Recipe::kW4a16Int4);
  EXPECT_EQ(layer->source.experts[0].up.group_size, 32);
  EXPECT_EQ(first_value(*layer), 10.0F);
}

TEST(StoredOrders, gptq_adds_one_to_zero_points_but_for_version_2) {
  for (const bool whole : {false, true}) {
    Composed composed(
        layer_of(gptq),
        whole ? R"({"quantization_config":{"bits":4,"checkpoint_format":"gptq_v2"}})" : "");
    composed.fill("qweight", 0xFFFFFFFFU);
    composed.fill("qzeros", 0x77777777U);
    composed.fill("scales", kHalfOne);
    composed.fill_group_index("g_idx", 64);
    const Result<CheckpointLayer> layer = composed.layer();
    ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
    EXPECT_EQ(layer->scheme, "gptq");
    EXPECT_EQ(first_value(*layer), whole ? 8.0F : 7.0F);
  }
}

// AutoRound's symmetric exports hold negative scales; (q - z) * s must come out as stored.
TEST(StoredOrders, negative_int4_scales_are_turned_round_exactly) {
  struct Stored {
    Linear linear;
    const char* codes;
    const char* zeros;
    const char* scales;
    std::uint16_t minus_two;
  };

  for (const Stored& stored :
       {Stored{awq, "qweight", "qzeros", "scales", 0xC000},
        Stored{gptq, "qweight", "qzeros", "scales", 0xC000},
        Stored{pack_quantized, "weight_packed", "weight_zero_point", "weight_scale", 0xC000}}) {
    for (const std::uint32_t code : {0U, 1U, 7U, 8U, 15U}) {
      for (const std::uint32_t zero : {0U, 7U, 8U, 14U, 15U}) {
        Composed composed(layer_of(stored.linear));
        composed.fill(stored.codes, code * 0x11111111U);
        composed.fill(stored.zeros, zero * 0x11111111U);
        composed.fill(stored.scales, stored.minus_two);
        if (stored.linear == gptq) {
          composed.fill_group_index("g_idx", 64);
        }
        const Result<CheckpointLayer> layer = composed.layer();
        ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
        const int subtracted = static_cast<int>(zero) + (stored.linear == gptq ? 1 : 0);
        const float want = -2.0F * static_cast<float>(static_cast<int>(code) - subtracted);
        if (code == 0 && subtracted == 16) {  // 16 below 0 has no turned code
          const Status status = validate_weights(layer->source.experts[1].up);
          EXPECT_NE(status.message().find("row 0, group 0 is negative"), std::string_view::npos)
              << status.to_string();
          continue;
        }
        EXPECT_EQ(first_value(*layer), want) << stored.codes << " " << code << " " << zero;
      }
    }
  }
}

TEST(StoredOrders, only_groups_with_negative_scales_are_turned) {
  Composed composed(layer_of([](std::int64_t rows, std::int64_t cols) {
    return Tensors{{"weight_packed", "I32", {rows, cols / 8}},
                   {"weight_scale", "F32", {rows, cols / 32}}};  // symmetric: no zero points
  }));
  composed.fill("weight_packed", 0xFA753210U);
  composed.fill("weight_scale", 0.5F);
  const std::string name = kModule + "0.up_proj.weight_scale";
  const TensorView& scales = composed.state.tensors.at(name).view;
  auto* const at = const_cast<char*>(static_cast<const char*>(scales.data));
  const std::pair<std::int64_t, float> planted[] = {
      {3 * scales.shape[1] + 5, -0.25F}, {4 * scales.shape[1], -0.0F}, {0, -3.0F}};
  for (const auto& [index, value] : planted) {
    std::memcpy(at + index * 4, &value, sizeof value);
  }
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  const WeightMatrix& up = layer->source.experts[0].up;
  ASSERT_TRUE(validate_weights(up).ok()) << validate_weights(up).to_string();
  const float codes[] = {0, 1, 2, 3, 5, 7, 10, 15};
  std::vector<float> row(static_cast<std::size_t>(up.cols));
  std::size_t compared = 0;
  for (std::int64_t r = 0; r < up.rows; ++r) {
    ASSERT_TRUE(decode_row(up, r, row).ok());
    for (std::size_t k = 0; k < row.size(); ++k) {
      float scale = 0.5F;
      for (const auto& [index, value] : planted) {
        const bool here = index == r * scales.shape[1] + static_cast<std::int64_t>(k) / 32;
        scale = here ? value : scale;
      }
      ASSERT_EQ(row[k], (codes[k % 8] - 8.0F) * scale) << r << " " << k;
      ++compared;
    }
  }
  EXPECT_EQ(compared, static_cast<std::size_t>(kInner * kHidden));
  // A matrix without negative scales is viewed as it lies.
  const WeightMatrix& other = layer->source.experts[1].up;
  EXPECT_EQ(other.codes, composed.state.tensors.at(kModule + "1.up_proj.weight_packed").view.data);
  EXPECT_EQ(other.zero_points, nullptr);
}

TEST(StoredOrders, gptq_with_a_permuting_g_idx_is_refused_by_column) {
  const Composed composed(layer_of(gptq));  // all columns in group 0
  expect_refused(composed, StatusCode::kUnsupported, "puts column 64 into group 0");
}

TEST(StoredOrders, other_bit_widths_are_refused) {
  const Composed composed(layer_of(awq), R"({"quantization_config":{"bits":8}})");
  expect_refused(composed, StatusCode::kUnsupported, "8-bit weights (config.json");
}

TEST(StoredOrders, pack_quantized_offsets_codes_and_zero_points_alike) {
  Composed composed(layer_of(pack_quantized));
  composed.fill("weight_packed", 0xFFFFFFFFU);
  composed.fill("weight_zero_point", 0x99999999U);
  composed.fill("weight_scale", kBf16One);
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_EQ(layer->scheme, "compressed_tensors_int4");
  EXPECT_EQ(first_value(*layer), 6.0F);
}

TEST(StoredOrders, groups_of_another_length_are_refused) {
  const Composed composed(layer_of([](std::int64_t rows, std::int64_t cols) {
    return Tensors{{"weight_packed", "I32", {rows, cols / 8}},
                   {"weight_scale", "BF16", {rows, cols / 16}}};
  }));
  expect_refused(composed, StatusCode::kUnsupported, "nearest supported: groups of 32, 64 or 128");
}

// https://github.com/vllm-project/vllm/pull/51419: E8M0 scales exported as f32.
TEST(StoredOrders, report_c2_20_mxfp4_scales_as_bytes_or_powers_of_two) {
  const auto quark = [](const char* dtype) {
    Tensors tensors;
    for (ComposedTensor& tensor : layer_of([](std::int64_t rows, std::int64_t cols) {
           return Tensors{{"weight", "U8", {rows, cols / 2}},
                          {"weight_scale", "U8", {rows, cols / 32}}};
         })) {
      if (tensor.name.ends_with("scale")) {
        tensor.dtype = dtype;
      }
      tensors.push_back(tensor);
    }
    return tensors;
  };
  Composed bytes(quark("U8"));
  bytes.fill("weight", std::uint8_t{0x22});
  bytes.fill("weight_scale", std::uint8_t{124});
  ASSERT_TRUE(bytes.layer().has_value()) << bytes.layer().status().to_string();
  EXPECT_EQ(bytes.layer()->scheme, "quark_mxfp4");
  EXPECT_EQ(first_value(*bytes.layer()), 0.125F);
  Composed floats(quark("F32"));
  floats.fill("weight", std::uint8_t{0x22});
  floats.fill("weight_scale", 0.125F);
  ASSERT_TRUE(floats.layer().has_value()) << floats.layer().status().to_string();
  EXPECT_EQ(first_value(*floats.layer()), 0.125F);
  floats.fill("weight_scale", 0x1p-127F);
  EXPECT_EQ(first_value(*floats.layer()), 0x1p-127F);
  for (const float bad : {0.0F, -0.5F, 0.3F, HUGE_VALF}) {
    floats.fill("weight_scale", bad);
    expect_refused(floats, StatusCode::kInvalidArgument, "expected powers of two");
  }
}

TEST(StoredOrders, deepseek_v4_experts_in_fp4_under_a_quantisation_section_of_fp8) {
  const Linear fp4 = [](std::int64_t rows, std::int64_t cols) {
    return Tensors{{"weight", "I8", {rows, cols / 2}}, {"scale", "F8_E8M0", {rows, cols / 32}}};
  };
  const std::string claim = R"("quantization_config":{"quant_method":"fp8"}})";
  Composed composed(layer_of(fp4), R"({"expert_dtype":"fp4",)" + claim);
  composed.fill("weight", std::uint8_t{0x77});
  composed.fill(".scale", std::uint8_t{127});
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_EQ(layer->scheme, "deepseek_v4_mxfp4");
  EXPECT_EQ(first_value(*layer), 6.0F);
  const Composed other(layer_of(fp4), R"({"expert_dtype":"fp8",)" + claim);
  expect_refused(other, StatusCode::kInvalidArgument, "'fp8' in config.json expert_dtype");
}

TEST(StoredOrders, fp8_blocks_take_every_scale_type) {
  struct Case {
    const char* suffix;
    const char* dtype;
    const char* scheme;
  };

  for (const Case& c : {Case{"weight_scale_inv", "F32", "fp8_block128"},
                        Case{"weight_scale_inv", "BF16", "fp8_block128"},
                        Case{"scale", "F8_E8M0", "deepseek_v4_fp8"},
                        Case{"weight_scale", "BF16", "compressed_tensors_fp8_block"}}) {
    Tensors tensors = layer_of([](std::int64_t rows, std::int64_t cols) {
      return Tensors{{"weight", "F8_E4M3", {rows, cols}}, {"S", "F32", {rows / 128, cols / 128}}};
    });
    for (ComposedTensor& tensor : tensors) {
      if (tensor.name.ends_with(".S")) {
        tensor.name.replace(tensor.name.size() - 1, 1, c.suffix);
        tensor.dtype = c.dtype;
      }
    }
    Composed composed(tensors);
    composed.fill("weight", std::uint8_t{0x38});
    const std::string dtype = c.dtype;
    if (dtype == "F32") {
      composed.fill(c.suffix, 0.25F);
    } else if (dtype == "BF16") {
      composed.fill(c.suffix, std::uint16_t{0x3E80});
    } else {
      composed.fill(c.suffix, std::uint8_t{125});
    }
    const Result<CheckpointLayer> layer = composed.layer();
    ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
    EXPECT_EQ(layer->scheme, c.scheme);
    EXPECT_EQ(first_value(*layer), 0.25F) << c.suffix;
  }
}

TEST(StoredOrders, fp8_of_another_granularity_is_refused) {
  const Composed composed(layer_of([](std::int64_t rows, std::int64_t cols) {
    return Tensors{{"weight", "F8_E4M3", {rows, cols}}, {"weight_scale", "F32", {rows, 1}}};
  }));
  expect_refused(composed, StatusCode::kUnsupported, "nearest supported: one scale per 128 x 128");
}

}  // namespace
}  // namespace moekit::checkpoint
