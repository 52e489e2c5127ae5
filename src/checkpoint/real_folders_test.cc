// SPDX-License-Identifier: Apache-2.0
// Every committed checkpoint that a public tool wrote: the layer is what its configuration says and
// the decoded weights are the producer's own.
#include "checkpoint/real_folders_test.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/checkpoint.h"

namespace moekit {
namespace {

float bf16_value(const void* data, std::int64_t index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(data) + 2 * index, sizeof bits);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

class RealFolder : public testing::TestWithParam<Expected> {
 protected:
  void SetUp() override {
    Result<Checkpoint> opened = Checkpoint::open(kFolder + GetParam().folder);
    ASSERT_TRUE(opened.has_value()) << opened.status().to_string();
    checkpoint_ = std::make_unique<Checkpoint>(*opened);
    Result<CheckpointLayer> layer = checkpoint_->layer(GetParam().layer);
    ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
    layer_ = *layer;
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  CheckpointLayer layer_;
};

std::vector<const WeightMatrix*> matrices(const CheckpointLayer& layer) {
  std::vector<const WeightMatrix*> all;
  for (const ExpertWeights& expert : layer.source.experts) {
    if (activation_is_gated(layer.problem.activation.kind)) {
      all.push_back(&expert.gate);
    }
    all.push_back(&expert.up);
    all.push_back(&expert.down);
  }
  return all;
}

TEST_P(RealFolder, problem_and_routing) {
  const Expected& expected = GetParam();
  const Problem& problem = layer_.problem;
  EXPECT_EQ(layer_.scheme, expected.scheme);
  EXPECT_EQ(problem.recipe, expected.recipe);
  EXPECT_EQ(problem.hidden_size, expected.hidden);
  EXPECT_EQ(problem.intermediate_size, expected.intermediate);
  EXPECT_EQ(problem.num_experts, expected.experts);
  EXPECT_EQ(problem.top_k, expected.top_k);
  EXPECT_EQ(problem.activation.kind, expected.activation);
  EXPECT_EQ(problem.routed_scaling, 1.0F);  // it stands on the router's weights
  ASSERT_TRUE(layer_.routing.has_value());
  EXPECT_EQ(layer_.routing->scoring, expected.scoring);
  EXPECT_EQ(layer_.routing->renormalize, expected.renormalize);
  EXPECT_EQ(layer_.routing->scale, expected.scale);
  EXPECT_EQ(layer_.routing->num_groups, expected.num_groups);
  EXPECT_EQ(layer_.routing->top_groups, expected.top_groups);
  EXPECT_EQ(layer_.routing->top_k, expected.top_k);
  EXPECT_EQ(layer_.routing->correction_bias,
            expected.correction_bias.value_or(expected.scoring == Scoring::kSigmoid));
  EXPECT_EQ(layer_.routing->expert_scale, expected.expert_scale);
  EXPECT_EQ(layer_.routing->hash_table, expected.hash_table);
  EXPECT_EQ(problem.router_weight_on_input, expected.weight_on_input);
  EXPECT_EQ(layer_.router.weight.data != nullptr, expected.plain_router);
  if (expected.plain_router) {
    EXPECT_EQ(layer_.router.weight.shape[0], expected.experts);
    EXPECT_EQ(layer_.router.weight.shape[1], expected.hidden);
  }
  const bool gpt_oss = expected.activation == ActivationKind::kSwigluOai;
  EXPECT_EQ(problem.gate_up_bias, gpt_oss);
  EXPECT_EQ(problem.down_bias, gpt_oss);
  const bool interleaved = gpt_oss && !expected.scheme.starts_with("gguf_");
  EXPECT_EQ(problem.row_order, interleaved ? RowOrder::kInterleaved : RowOrder::kGateUp);
  EXPECT_EQ(layer_.router.bias.data != nullptr, gpt_oss);
  if (expected.limit != 0.0F) {
    EXPECT_EQ(problem.activation.limit, expected.limit);
  }
  if (gpt_oss) {
    EXPECT_EQ(problem.activation.limit, 7.0F);
    EXPECT_EQ(problem.activation.alpha, 1.702F);
    EXPECT_EQ(problem.activation.beta, 1.0F);
  }
  EXPECT_GE(layer_.inferred.size(), 4U);
}

TEST_P(RealFolder, every_matrix_is_valid_and_has_its_shape) {
  const std::vector<const WeightMatrix*> all = matrices(layer_);
  const std::size_t per_expert = layer_.problem.activation.kind == ActivationKind::kRelu2 ? 2 : 3;
  EXPECT_EQ(all.size(), per_expert * static_cast<std::size_t>(GetParam().experts));
  for (const WeightMatrix* matrix : all) {
    EXPECT_EQ(matrix->rows * matrix->cols, GetParam().hidden * GetParam().intermediate);
    const Status status = validate_weights(*matrix);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
}

/// The tensors of the tool's own dequantisation, by the matrix they belong to.
const WeightMatrix* find_matrix(const CheckpointLayer& layer, const std::string& name) {
  const ExpertWeights& expert = layer.source.experts[1];
  if (name.find("gate_proj") != std::string::npos) {
    return &expert.gate;
  }
  return name.find("up_proj") != std::string::npos ? &expert.up : &expert.down;
}

std::vector<float> row_of(const WeightMatrix& matrix, std::int64_t row) {
  std::vector<float> out(static_cast<std::size_t>(matrix.cols));
  EXPECT_TRUE(decode_row(matrix, row, out).ok());
  return out;
}

/// The producer's own arithmetic: fl32(code * fl32(scale (*|/) stored global)). Codes and scales
/// are decoded apart, by giving the other the value 1, so equality is exact.
int compare_with_producer(const WeightMatrix& matrix, const TensorView& expected, float divisor) {
  const std::vector<std::uint8_t> ones(static_cast<std::size_t>(matrix.row_stride_bytes), 0x22);
  const std::vector<std::uint8_t> unit_scales(static_cast<std::size_t>(num_scale_cols(matrix)),
                                              0x38);
  WeightMatrix codes_only = matrix;
  codes_only.scales = unit_scales.data();
  codes_only.rows = 1;
  WeightMatrix scales_only = matrix;
  scales_only.codes = ones.data();
  scales_only.rows = 1;
  int compared = 0;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    codes_only.codes =
        static_cast<const std::uint8_t*>(matrix.codes) + row * matrix.row_stride_bytes;
    scales_only.scales =
        static_cast<const std::uint8_t*>(matrix.scales) + row * matrix.scale_row_stride_bytes;
    const std::vector<float> codes = row_of(codes_only, 0);
    const std::vector<float> scales = row_of(scales_only, 0);
    const std::vector<float> both = row_of(matrix, row);
    const auto* want = static_cast<const float*>(expected.data) + row * matrix.cols;
    for (std::size_t k = 0; k < codes.size(); ++k) {
      const float scale = divisor != 0.0F ? scales[k] / divisor : scales[k] * matrix.global_scale;
      EXPECT_EQ(codes[k] * scale, want[k]) << row << " " << k;
      EXPECT_EQ(codes[k] * scales[k], both[k]);
      // And the value a kernel uses is within the producer's own two roundings.
      const double value = static_cast<double>(both[k]) * static_cast<double>(matrix.global_scale);
      EXPECT_LE(std::fabs(value - static_cast<double>(want[k])), std::fabs(value) * 0x1p-22);
      ++compared;
    }
  }
  return compared;
}

class ProducerWeights : public RealFolder {};

TEST_P(ProducerWeights, decoded_weights_are_the_producers_own) {
  const std::string path = kFolder + GetParam().folder + "/expected.safetensors";
  const Result<Checkpoint> expected = Checkpoint::open(path);
  ASSERT_TRUE(expected.has_value()) << expected.status().to_string();
  int compared = 0;
  int tensors = 0;
  for (const auto& [name, tensor] : expected->tensors()) {
    if (!name.starts_with("dequant.")) {
      continue;
    }
    const WeightMatrix* matrix = find_matrix(layer_, name);
    ASSERT_EQ(tensor.view.shape[0], matrix->rows);
    ASSERT_EQ(tensor.view.shape[1], matrix->cols);
    float divisor = 0.0F;
    if (GetParam().scheme == "compressed_tensors_nvfp4") {
      std::string stored = name.substr(std::string("dequant.").size());
      stored.replace(stored.rfind("weight"), 6, "weight_global_scale");
      const NamedTensor* global = checkpoint_->find(stored);
      ASSERT_NE(global, nullptr) << stored;
      std::memcpy(&divisor, global->view.data, sizeof divisor);
    }
    compared += compare_with_producer(*matrix, tensor.view, divisor);
    ++tensors;
  }
  EXPECT_GE(tensors, 2);
  EXPECT_EQ(compared, tensors * GetParam().hidden * GetParam().intermediate);
}

std::string folder_name(const testing::TestParamInfo<Expected>& info) {
  return info.param.folder;
}

INSTANTIATE_TEST_SUITE_P(Committed, RealFolder, testing::ValuesIn(kExpected), folder_name);

/// Folders with NVFP4 experts and the tool's own dequantisation, which of an expert that ModelOpt
/// wrote with NaN scales is NaN and was left out.
std::vector<Expected> with_dequantisation() {
  std::vector<Expected> chosen;
  for (const Expected& expected : kExpected) {
    if (expected.recipe == Recipe::kW4a16Nvfp4 && !expected.scheme.starts_with("gguf_") &&
        std::filesystem::exists(kFolder + expected.folder + "/expected.safetensors")) {
      chosen.push_back(expected);
    }
  }
  return chosen;
}

INSTANTIATE_TEST_SUITE_P(Committed,
                         ProducerWeights,
                         testing::ValuesIn(with_dequantisation()),
                         folder_name);

/// Folders with the forward pass of the tool's own router.
std::vector<Expected> with_forward() {
  std::vector<Expected> chosen;
  for (const Expected& expected : kExpected) {
    if (std::filesystem::exists(kFolder + expected.folder + "/expected.safetensors")) {
      chosen.push_back(expected);
    }
  }
  return chosen;
}

class InferredRouting : public RealFolder {};

/// A vector of the router as f32; some of the files hold it as BF16.
std::vector<float> widened(const TensorView& bias) {
  std::vector<float> values;
  for (std::int64_t i = 0; bias.data != nullptr && i < bias.shape[0]; ++i) {
    values.push_back(bias.dtype == DType::kF32 ? static_cast<const float*>(bias.data)[i]
                                               : bf16_value(bias.data, i));
  }
  return values;
}

TEST_P(InferredRouting, selects_what_the_model_selects) {
  const Result<Checkpoint> expected =
      Checkpoint::open(kFolder + GetParam().folder + "/expected.safetensors");
  ASSERT_TRUE(expected.has_value());
  const TensorView& logits = expected->find("router_logits")->view;
  const auto* ids = static_cast<const std::int64_t*>(expected->find("topk_ids")->view.data);
  const auto* weights = static_cast<const float*>(expected->find("topk_weights")->view.data);
  const std::int64_t tokens = logits.shape[0];
  const std::int64_t top_k = GetParam().top_k;
  std::vector<std::int32_t> got_ids(static_cast<std::size_t>(tokens * top_k));
  std::vector<float> got_weights(got_ids.size());
  ASSERT_TRUE(layer_.routing.has_value());
  const std::vector<float> bias = widened(layer_.router.correction_bias);
  const std::vector<float> expert_scale = widened(layer_.router.expert_scale);
  RouteArguments arguments{
      .logits = logits,
      .correction_bias = bias.empty() ? nullptr : bias.data(),
      .expert_scale = expert_scale.empty() ? nullptr : expert_scale.data(),
      .topk_ids = matrix_view(got_ids.data(), DType::kI32, tokens, top_k),
      .topk_weights = matrix_view(got_weights.data(), DType::kF32, tokens, top_k)};
  if (layer_.routing->hash_table) {
    const TensorView& table = layer_.router.hash_table;
    arguments.hash_table = {.expert_ids = static_cast<const std::int32_t*>(table.data),
                            .num_rows = table.shape[0],
                            .token_ids = expected->find("token_ids")->view};
  }
  const Status status = route(*layer_.routing, arguments);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_GE(tokens, 9);
  for (std::int64_t token = 0; token < tokens; ++token) {
    // DeepSeek's router does not sort, so compare as a map.
    std::map<std::int64_t, float> want;
    std::map<std::int64_t, float> got;
    for (std::int64_t slot = 0; slot < top_k; ++slot) {
      const auto i = static_cast<std::size_t>(token * top_k + slot);
      want[ids[i]] = weights[i];
      got[got_ids[i]] = got_weights[i];
    }
    ASSERT_EQ(want.size(), static_cast<std::size_t>(top_k));
    for (const auto& [id, weight] : want) {
      ASSERT_TRUE(got.contains(id)) << token << " " << id;
      // A softmax and a division in f32: a few units of 2^-24 on each side.
      EXPECT_NEAR(got[id], weight, weight * 0x1p-20F);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Committed,
                         InferredRouting,
                         testing::ValuesIn(with_forward()),
                         folder_name);

TEST(RealFolders, tables_above_are_not_empty) {
  EXPECT_EQ(with_dequantisation().size(), 8U);
  EXPECT_GE(with_forward().size(), 18U);
}

TEST(RealFolders, no_committed_folder_is_forgotten) {
  std::set<std::string> known;
  for (const Expected& expected : kExpected) {
    known.insert(expected.folder);
  }
  std::size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    EXPECT_TRUE(known.contains(entry.path().filename().string())) << entry.path();
    ++folders;
  }
  EXPECT_EQ(folders, known.size());
}

TEST(RealFolders, gpt_oss_mxfp4_decodes_to_what_transformers_unpacks) {
  const Result<Checkpoint> opened = Checkpoint::open(kFolder + "gpt_oss_mxfp4");
  ASSERT_TRUE(opened.has_value()) << opened.status().to_string();
  const Result<CheckpointLayer> layer = opened->layer(0);
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  const Result<Checkpoint> expected =
      Checkpoint::open(kFolder + "gpt_oss_mxfp4/expected.safetensors");
  ASSERT_TRUE(expected.has_value());
  const NamedTensor* gate_up = expected->find("dequant.model.layers.0.mlp.experts.gate_up_proj.1");
  const NamedTensor* down = expected->find("dequant.model.layers.0.mlp.experts.down_proj.1");
  ASSERT_NE(gate_up, nullptr);
  ASSERT_NE(down, nullptr);
  const ExpertWeights& expert = layer->source.experts[1];
  int compared = 0;
  for (std::int64_t row = 0; row < 160; ++row) {
    const std::vector<float> gate = row_of(expert.gate, row);
    const std::vector<float> up = row_of(expert.up, row);
    for (std::int64_t k = 0; k < 96; ++k) {  // stored [K, N], N = g0 u0 g1 u1 ...
      const auto i = static_cast<std::size_t>(k);
      ASSERT_EQ(gate[i], bf16_value(gate_up->view.data, k * 320 + 2 * row));
      ASSERT_EQ(up[i], bf16_value(gate_up->view.data, k * 320 + 2 * row + 1));
      ++compared;
    }
  }
  for (std::int64_t row = 0; row < 96; ++row) {
    const std::vector<float> values = row_of(expert.down, row);
    for (std::int64_t k = 0; k < 160; ++k) {
      ASSERT_EQ(values[static_cast<std::size_t>(k)], bf16_value(down->view.data, k * 96 + row));
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2 * 96 * 160);
}

TEST(RealFolders, gpt_oss_bf16_views_are_the_transposed_interleaved_tensors) {
  const Result<Checkpoint> opened = Checkpoint::open(kFolder + "gpt_oss_bf16");
  ASSERT_TRUE(opened.has_value());
  const Result<CheckpointLayer> layer = opened->layer(0);
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  const NamedTensor* gate_up = opened->find("model.layers.0.mlp.experts.gate_up_proj");
  const NamedTensor* down = opened->find("model.layers.0.mlp.experts.down_proj");
  const NamedTensor* bias = opened->find("model.layers.0.mlp.experts.gate_up_proj_bias");
  const ExpertWeights& expert = layer->source.experts[3];  // begins at rows 3 * 88, 3 * 112, 3 * 56
  for (std::int64_t row = 0; row < 56; ++row) {
    const std::vector<float> up = row_of(expert.up, row);
    for (std::int64_t k = 0; k < 88; ++k) {
      ASSERT_EQ(up[static_cast<std::size_t>(k)],
                bf16_value(gate_up->view.data, (264 + k) * 112 + 2 * row + 1));
    }
    ASSERT_EQ(expert.up_bias.stride, 2);
    ASSERT_EQ(bf16_value(expert.up_bias.data, 2 * row),
              bf16_value(bias->view.data, 336 + 2 * row + 1));
  }
  for (std::int64_t row = 0; row < 88; ++row) {
    const std::vector<float> values = row_of(expert.down, row);
    for (std::int64_t k = 0; k < 56; ++k) {
      ASSERT_EQ(values[static_cast<std::size_t>(k)],
                bf16_value(down->view.data, (168 + k) * 88 + row));
    }
  }
}

TEST(RealFolders, experts_of_one_layer_lie_in_different_shards) {
  const Result<Checkpoint> opened = Checkpoint::open(kFolder + "mixtral_bf16_sharded/");
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->summary().num_files, 3);
  EXPECT_EQ(opened->summary().moe_layers, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(opened->find("model.layers.0.block_sparse_moe.experts.0.w1.weight")->file,
            "model-00001-of-00003.safetensors");
  EXPECT_EQ(opened->find("model.layers.0.block_sparse_moe.experts.0.w3.weight")->file,
            "model-00002-of-00003.safetensors");
  const Result<CheckpointLayer> layer = opened->layer(0);
  ASSERT_TRUE(layer.has_value());
  const NamedTensor* w3 = opened->find("model.layers.0.block_sparse_moe.experts.2.w3.weight");
  EXPECT_EQ(layer->source.experts[2].up.codes, w3->view.data);
}

TEST(RealFolders, summary_names_model_quantisation_and_ignored_fields) {
  const Result<Checkpoint> opened = Checkpoint::open(kFolder + "modelopt_nvfp4_qwen3_moe");
  ASSERT_TRUE(opened.has_value());
  const CheckpointSummary& summary = opened->summary();
  EXPECT_EQ(summary.model_type, "qwen3_moe, Qwen3MoeForCausalLM");
  EXPECT_EQ(summary.quantization, "modelopt NVFP4");
  const auto ignored = [&](const std::string& name) {
    return std::find(summary.ignored_fields.begin(), summary.ignored_fields.end(), name) !=
           summary.ignored_fields.end();
  };
  EXPECT_TRUE(ignored("config.json rope_parameters"));
  EXPECT_TRUE(ignored("hf_quant_config.json quantization.kv_cache_quant_algo"));
  EXPECT_FALSE(ignored("hf_quant_config.json quantization.exclude_modules"));
  EXPECT_FALSE(ignored("config.json num_experts_per_tok"));
}

TEST(RealFolders, a_dense_layer_is_refused_with_the_list_of_moe_layers) {
  const Result<Checkpoint> opened = Checkpoint::open(kFolder + "qwen3_moe_bf16");
  ASSERT_TRUE(opened.has_value());
  const Result<CheckpointLayer> layer = opened->layer(0);
  EXPECT_EQ(layer.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(layer.status().message(), "no MoE layer 0; MoE layers: 1");
}

TEST(RealFolders, input_scales_where_the_checkpoint_has_them) {
  const auto count = [](const std::string& folder) {
    const Result<Checkpoint> opened = Checkpoint::open(kFolder + folder);
    EXPECT_TRUE(opened.has_value());
    const Result<CheckpointLayer> layer = opened->layer(1);
    EXPECT_TRUE(layer.has_value());
    return layer->input_scales_gate.size() + layer->input_scales_up.size() +
           layer->input_scales_down.size();
  };
  EXPECT_EQ(count("modelopt_nvfp4_qwen3_moe"), 18U);
  EXPECT_EQ(count("compressed_nvfp4_qwen3_moe"), 18U);
  EXPECT_EQ(count("modelopt_nvfp4_nemotron_h"), 12U);
  EXPECT_EQ(count("compressed_nvfp4a16_mixtral"), 0U);
  EXPECT_EQ(count("modelopt_w4a16_nvfp4_glm4_moe"), 0U);
}

}  // namespace
}  // namespace moekit
