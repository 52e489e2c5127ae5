// SPDX-License-Identifier: Apache-2.0
// Layers composed in memory: every naming scheme, and every way a layer can contradict itself.
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/checkpoint.h"

#include "checkpoint/composed_files_test.h"
#include "checkpoint/state.h"

namespace moekit::checkpoint {
namespace {

using Tensors = std::vector<ComposedTensor>;

/// A file of zeros with its configuration, open.
struct Composed {
  explicit Composed(const Tensors& tensors,
                    const std::string& config = "",
                    const std::optional<std::string>& hf_quant_config = std::nullopt)
      : file(compose_zeros(tensors)) {
    Status status = add_tensors({.name = "f", .bytes = as_bytes(file)}, nullptr, state);
    EXPECT_TRUE(status.ok()) << status.to_string();
    find_modules(state);
    if (!config.empty()) {
      Result<ModelConfig> read = read_model_config(config, hf_quant_config);
      EXPECT_TRUE(read.has_value()) << read.status().to_string();
      adopt_config(std::move(*read), state);
    }
  }

  [[nodiscard]] Result<CheckpointLayer> layer(std::int64_t id = 1) const {
    return read_layer(state, id);
  }

  std::string file;
  Checkpoint::State state;
};

const std::string kModule = "model.layers.1.mlp.";

/// bf16 experts, H 16, I 8.
Tensors plain(int num_experts, const std::string& module = kModule) {
  Tensors tensors;
  for (int expert = 0; expert < num_experts; ++expert) {
    const std::string base = module + "experts." + std::to_string(expert) + ".";
    tensors.push_back({base + "gate_proj.weight", "BF16", {8, 16}});
    tensors.push_back({base + "up_proj.weight", "BF16", {8, 16}});
    tensors.push_back({base + "down_proj.weight", "BF16", {16, 8}});
  }
  return tensors;
}

/// The same in a packed format: codes, scales and perhaps a global per projection.
Tensors packed(const std::string& codes,
               const std::string& scales_dtype,
               std::int64_t group,
               const std::string& global) {
  Tensors tensors;
  for (const ComposedTensor& linear : plain(2)) {
    const std::string base = linear.name.substr(0, linear.name.rfind('.') + 1);
    const std::int64_t rows = linear.shape[0];
    const std::int64_t cols = linear.shape[1];
    tensors.push_back({base + codes, "U8", {rows, cols / 2}});
    tensors.push_back({base + "weight_scale", scales_dtype, {rows, (cols + group - 1) / group}});
    if (!global.empty()) {
      tensors.push_back({base + global, "F32", {}});
    }
  }
  return tensors;
}

ComposedTensor* find(Tensors& tensors, const std::string& ending) {
  for (ComposedTensor& tensor : tensors) {
    if (tensor.name.ends_with(ending)) {
      return &tensor;
    }
  }
  ADD_FAILURE() << "no tensor " << ending;
  return nullptr;
}

void remove_tensor(Tensors& tensors, const std::string& ending) {
  const std::size_t before = tensors.size();
  std::erase_if(tensors, [&](const ComposedTensor& t) { return t.name.ends_with(ending); });
  EXPECT_LT(tensors.size(), before) << ending;
}

void expect_refused(const Composed& composed, StatusCode code, const std::string& words) {
  const Result<CheckpointLayer> layer = composed.layer();
  EXPECT_EQ(layer.status().code(), code) << layer.status().to_string();
  EXPECT_NE(layer.status().message().find(words), std::string_view::npos)
      << words << "\n  not in: " << layer.status().message();
}

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr StatusCode kUnsupported = StatusCode::kUnsupported;

TEST(Layer, a_bare_file_is_read_with_assumptions) {
  const Composed composed(plain(2));
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_EQ(layer->prefix, kModule + "experts.");
  EXPECT_EQ(layer->problem.top_k, 0);
  EXPECT_EQ(layer->problem.activation.kind, ActivationKind::kSilu);
  EXPECT_FALSE(layer->routing.has_value());
  EXPECT_EQ(layer->router.weight.data, nullptr);
}

TEST(Layer, packed_schemes_by_name) {
  const Composed nvfp4(packed("weight", "F8_E4M3", 16, "weight_scale_2"));
  const Result<CheckpointLayer> modelopt = nvfp4.layer();
  ASSERT_TRUE(modelopt.has_value()) << modelopt.status().to_string();
  EXPECT_EQ(modelopt->scheme, "modelopt_nvfp4");
  EXPECT_EQ(modelopt->source.experts[1].up.global_scale, 0.0F);  // legal: a dormant expert
  for (const std::string dtype : {"U8", "F8_E8M0"}) {
    const Composed composed(packed("weight_packed", dtype, 32, ""));  // the views point into it
    const Result<CheckpointLayer> mxfp4 = composed.layer();
    ASSERT_TRUE(mxfp4.has_value()) << mxfp4.status().to_string();
    EXPECT_EQ(mxfp4->scheme, "compressed_tensors_mxfp4");
    EXPECT_EQ(mxfp4->problem.recipe, Recipe::kW4a16Mxfp4);
    EXPECT_EQ(mxfp4->source.experts[1].down.cols, 8);
    EXPECT_EQ(num_scale_cols(mxfp4->source.experts[1].down), 1);
    EXPECT_TRUE(validate_weights(mxfp4->source.experts[1].down).ok());
  }
}

TEST(Layer, a_reciprocal_global_of_zero_is_refused) {
  expect_refused(Composed(packed("weight_packed", "F8_E4M3", 16, "weight_global_scale")),
                 kInvalid,
                 "up_proj.weight_global_scale' is 0, and its reciprocal");
}

TEST(Layer, packed_tensors_that_do_not_fit) {
  const Tensors good = packed("weight", "F8_E4M3", 16, "weight_scale_2");
  Tensors tensors = good;
  find(tensors, "1.up_proj.weight_scale")->shape = {8, 2};
  expect_refused(Composed(tensors), kInvalid, "has shape [8, 2], expected [8, 1]");
  tensors = good;
  find(tensors, "1.down_proj.weight_scale_2")->shape = {2};
  expect_refused(Composed(tensors), kInvalid, "is f32 [2], expected one f32");
  tensors = good;
  find(tensors, "1.down_proj.weight_scale_2")->dtype = "BF16";
  expect_refused(Composed(tensors), kInvalid, "is bf16 [], expected one f32");
  tensors = good;
  remove_tensor(tensors, "1.down_proj.weight_scale_2");
  expect_refused(Composed(tensors),
                 kInvalid,
                 "missing tensor '" + kModule + "experts.1.down_proj.weight_scale_2'");
  tensors = good;
  remove_tensor(tensors, "1.gate_proj.weight_scale");
  expect_refused(Composed(tensors), kInvalid, "gate_proj.weight_scale'");
  tensors = good;
  find(tensors, "1.gate_proj.weight_scale")->dtype = "F8_E5M2";
  expect_refused(Composed(tensors), kInvalid, "has dtype e5m2, expected e4m3");
}

TEST(Layer, dtypes_that_moekit_does_not_read_are_named) {
  const auto with = [](Tensors tensors, const std::string& ending, const std::string& dtype) {
    find(tensors, ending)->dtype = dtype;
    return tensors;
  };
  expect_refused(Composed(with(plain(2), "0.up_proj.weight", "F64")),
                 kUnsupported,
                 "0.up_proj.weight' has dtype F64");
  const Tensors nvfp4 = packed("weight", "F8_E4M3", 16, "weight_scale_2");
  expect_refused(Composed(with(nvfp4, "1.up_proj.weight", "BOOL")),
                 kUnsupported,
                 "1.up_proj.weight' has dtype BOOL");
  expect_refused(Composed(with(nvfp4, "1.up_proj.weight_scale_2", "F64")),
                 kInvalid,
                 "1.up_proj.weight_scale_2' has dtype F64, which moekit does not read");
  Tensors routed = plain(2);
  routed.push_back({kModule + "gate.weight", "F64", {2, 16}});
  expect_refused(Composed(routed), kInvalid, "gate.weight' has dtype F64, expected f32");
  routed.back() = {kModule + "experts.0.up_proj.bias", "F64", {8}};
  expect_refused(Composed(routed), kInvalid, "up_proj.bias' has dtype F64, expected bf16");
  const Composed listed({{kModule + "experts.gate_up_proj", "F64", {2, 16, 24}},
                         {kModule + "experts.down_proj", "BF16", {2, 24, 8}}});
  const NamedTensor& tensor = listed.state.tensors.at(kModule + "experts.gate_up_proj");
  EXPECT_EQ(tensor.foreign_dtype, "F64");
  EXPECT_NE(tensor.view.dtype, DType::kU8);
  EXPECT_EQ(tensor.view.data, nullptr);
  EXPECT_EQ(tensor.bytes, 2 * 16 * 24 * 8);
}

TEST(Layer, mixed_formats_are_refused) {
  Tensors tensors = packed("weight", "F8_E4M3", 16, "weight_scale_2");
  ComposedTensor* down = find(tensors, "1.down_proj.weight");
  down->dtype = "BF16";
  down->shape = {16, 8};
  expect_refused(
      Composed(tensors), kInvalid, "mixed formats: '" + kModule + "experts.1.down_proj.' is bf16");
}

TEST(Layer, quantisations_without_a_format_name_the_nearest) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"weight_scale_inv", "fp8_block128"}, {"qweight", "int4"}, {"trellis", "exl3"}};
  for (const auto& [suffix, what] : cases) {
    Tensors tensors = plain(1);
    find(tensors, "up_proj.weight")->dtype = "F8_E5M2";
    tensors.push_back({kModule + "experts.0.up_proj." + suffix, "F32", {1, 1}});
    const Composed composed(tensors);
    expect_refused(composed, kUnsupported, what);
    expect_refused(composed, kUnsupported, "nearest supported");
  }
  Tensors half = plain(1);
  find(half, "up_proj.weight")->dtype = "F16";
  expect_refused(Composed(half), kUnsupported, "has dtype f16");
}

TEST(Layer, llama4_is_transposed_gate_first_and_weighted_on_its_input) {
  const std::string module = "language_model.model.layers.1.feed_forward.";
  const Tensors tensors{{module + "experts.gate_up_proj", "BF16", {4, 16, 16}},
                        {module + "experts.down_proj", "BF16", {4, 8, 16}},
                        {module + "router.weight", "BF16", {4, 16}}};
  const std::string text = R"("num_local_experts":4,"num_experts_per_tok":1,"hidden_act":"silu")";
  const Composed composed(tensors, R"({"text_config":{"model_type":"llama4_text",)" + text + "}}");
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_TRUE(layer->problem.router_weight_on_input);
  EXPECT_EQ(layer->problem.row_order, RowOrder::kGateUp);
  EXPECT_EQ(layer->problem.hidden_size, 16);
  EXPECT_EQ(layer->problem.intermediate_size, 8);
  ASSERT_TRUE(layer->routing.has_value());
  EXPECT_EQ(layer->routing->scoring, Scoring::kSigmoid);
  EXPECT_FALSE(layer->routing->renormalize);
  const ExpertWeights& first = layer->source.experts.front();
  EXPECT_EQ(first.gate.col_stride_elems, 16);
  EXPECT_EQ(static_cast<const std::byte*>(first.up.codes) -
                static_cast<const std::byte*>(first.gate.codes),
            16);
}

/// Step-3.5 layer 1: one tensor per projection over three experts, H 16, I 8.
Tensors step_experts() {
  const std::string module = "model.layers.1.moe.";
  return {{module + "gate_proj.weight", "BF16", {3, 8, 16}},
          {module + "up_proj.weight", "BF16", {3, 8, 16}},
          {module + "down_proj.weight", "BF16", {3, 16, 8}},
          {module + "gate.weight", "F32", {3, 16}},
          {module + "router_bias", "F32", {3}},
          {"model.layers.0.mlp.up_proj.weight", "BF16", {8, 16}},
          {"model.layers.1.share_expert.up_proj.weight", "BF16", {8, 16}}};
}

std::string step_config(const std::string& limits) {
  return R"({"model_type":"step3p5","moe_num_experts":3,"moe_top_k":2,"hidden_act":"silu",)"
         R"("moe_router_activation":"sigmoid","norm_expert_weight":true,)"
         R"("moe_router_scaling_factor":3.0,"swiglu_limits":)" +
         limits + "}";
}

TEST(Layer, step_names_one_stacked_tensor_per_projection) {
  const Composed composed(step_experts(), step_config("[0.0, null, 7.0]"));
  EXPECT_EQ(composed.state.summary.moe_layers, (std::vector<std::int64_t>{1}));
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_EQ(layer->problem.num_experts, 3);
  EXPECT_EQ(layer->problem.hidden_size, 16);
  EXPECT_EQ(layer->problem.intermediate_size, 8);
  EXPECT_EQ(layer->prefix, "model.layers.1.moe.");
  ASSERT_TRUE(layer->routing.has_value());
  EXPECT_EQ(layer->routing->scoring, Scoring::kSigmoid);
  EXPECT_TRUE(layer->routing->renormalize);
  EXPECT_TRUE(layer->routing->correction_bias);
  EXPECT_EQ(layer->routing->scale, 3.0F);
  const NamedTensor& gate = composed.state.tensors.at("model.layers.1.moe.gate_proj.weight");
  EXPECT_EQ(layer->source.experts[2].gate.codes,
            static_cast<const std::byte*>(gate.view.data) + std::ptrdiff_t{2} * 2 * 8 * 16);
}

TEST(Layer, step_tensors_that_do_not_fit) {
  Tensors tensors = step_experts();
  find(tensors, "moe.gate_proj.weight")->shape = {3, 8, 24};
  expect_refused(Composed(tensors, step_config("[]")), kInvalid, "'model.layers.1.moe.gate_proj");
  tensors = step_experts();
  find(tensors, "moe.up_proj.weight")->dtype = "F8_E4M3";
  expect_refused(Composed(tensors, step_config("[]")), kUnsupported, "has dtype e4m3");
  tensors = step_experts();
  remove_tensor(tensors, "moe.gate_proj.weight");
  expect_refused(Composed(tensors, step_config("[]")), kInvalid, "missing tensor");
}

TEST(Layer, step_clamps_behind_the_activation_are_refused_with_their_value) {
  expect_refused(Composed(step_experts(), step_config("[0, 7.0]")),
                 kUnsupported,
                 "swiglu_limits clamps layer 1 at 7 behind the activation");
  const Result<ModelConfig> text = read_model_config(step_config(R"(["7"])"), std::nullopt);
  EXPECT_EQ(text.status().code(), kInvalid);
  EXPECT_NE(text.status().message().find("swiglu_limits"), std::string_view::npos);
}

TEST(Layer, quantisations_that_contradict_packed_experts) {
  const Composed nvfp4(packed("weight", "F8_E4M3", 16, "weight_scale_2"));
  ASSERT_TRUE(nvfp4.layer().has_value());
  const std::string tensors_say = "are nvfp4 with groups of 16 in the tensors (modelopt_nvfp4), ";
  const std::vector<std::pair<std::string, std::string>> refused{
      {R"("quant_algo":"FP8")", "'FP8' in "},
      {R"("quant_algo":"NVFP4","group_size":32)", "group size 32 in "},
      {R"("quant_algo":"W4A16_AWQ")", "'W4A16_AWQ' in "},
      {R"("quant_method":"awq")", "'awq' in "},
      {R"("quant_method":"mxfp4")", "'mxfp4' in "},
      {R"("format":"float-quantized")", "'float-quantized' in "},
      {R"("quant_algo":"FP8","ignore":["lm_head","model.layers.1.mlp.shared_experts*"])", "'FP8'"},
      {R"("quant_algo":"FP8","ignore":["model.layers.10*","re:.*shared_experts.*"])", "'FP8'"},
      {R"("config_groups":{"group_0":{"weights":{"group_size":128}}})", "group size 128 in "},
  };
  const std::vector<std::string> accepted{
      R"("quant_algo":"NVFP4","group_size":16)",
      R"("quant_algo":"W4A16_NVFP4","group_size":null)",
      R"("quant_algo":"MIXED_PRECISION")",
      R"("quant_method":"fp8","modules_to_not_convert":["mlp.experts"])",
      R"("quant_algo":"FP8","exclude_modules":["model.layers.1*"])",
      R"("quant_algo":"FP8","ignore":["re:.*mlp.experts.*"])",
      R"("quant_algo":"FP8","quantized_layers":{"model.layers.1.mlp":{"quant_algo":"NVFP4"}})",
      R"("config_groups":{"a":{"weights":{"group_size":128}},"b":{"weights":{"group_size":16}}})",
  };
  const Tensors tensors = packed("weight", "F8_E4M3", 16, "weight_scale_2");
  const auto config_json = [](const std::string& fields) {
    return R"({"quantization_config":{)" + fields + "}}";
  };
  const auto hf_quant_config = [](const std::string& fields) {
    return R"({"producer":{"name":"modelopt"},"quantization":{)" + fields + "}}";
  };
  for (const auto& [fields, words] : refused) {
    const Composed by_config(tensors, config_json(fields));
    expect_refused(by_config, kInvalid, tensors_say);
    expect_refused(by_config, kInvalid, words);
    const Composed by_own_file(tensors, "{}", hf_quant_config(fields));
    expect_refused(by_own_file, kInvalid, tensors_say);
    expect_refused(by_own_file, kInvalid, "in hf_quant_config.json quantization.");
  }
  for (const std::string& fields : accepted) {
    EXPECT_TRUE(Composed(tensors, config_json(fields)).layer().has_value()) << fields;
    EXPECT_TRUE(Composed(tensors, "{}", hf_quant_config(fields)).layer().has_value()) << fields;
  }
}

TEST(Layer, missing_and_misshapen_tensors_are_named) {
  Tensors tensors = plain(3);
  remove_tensor(tensors, "experts.2.up_proj.weight");
  expect_refused(
      Composed(tensors), kInvalid, "missing tensor '" + kModule + "experts.2.up_proj.weight'");
  tensors = plain(3);
  remove_tensor(tensors, "experts.1.gate_proj.weight");
  expect_refused(
      Composed(tensors), kInvalid, "missing tensor '" + kModule + "experts.1.gate_proj.weight'");
  tensors = plain(3);
  std::erase_if(tensors, [](const ComposedTensor& t) {
    return t.name.find(".1.") != std::string::npos &&
           t.name.find("experts.1.") != std::string::npos;
  });
  expect_refused(
      Composed(tensors), kInvalid, "has 2 experts with ids 0 to 2, expected 2 with ids from 0");
  tensors = plain(2);
  find(tensors, "1.down_proj.weight")->shape = {16, 16};
  expect_refused(Composed(tensors), kInvalid, "is [16, 16], expected [16, 8]");
  tensors = plain(2);
  find(tensors, "0.up_proj.weight")->shape = {8, 4, 4};
  expect_refused(Composed(tensors), kInvalid, "has shape [8, 4, 4], expected a matrix");
  tensors = plain(1);
  for (ComposedTensor& tensor : tensors) {
    tensor.name.replace(tensor.name.find("_proj"), 5, "_wing");
  }
  expect_refused(Composed(tensors), kInvalid, "neither up_proj and down_proj nor w1, w2 and w3");
  Tensors biased = plain(2);
  biased.push_back({kModule + "experts.0.up_proj.bias", "BF16", {8}});
  biased.push_back({kModule + "experts.0.gate_proj.bias", "BF16", {8}});
  expect_refused(
      Composed(biased), kInvalid, "missing tensor '" + kModule + "experts.0.down_proj.bias'");
  biased.push_back({kModule + "experts.0.down_proj.bias", "BF16", {16}});
  expect_refused(
      Composed(biased), kInvalid, "missing tensor '" + kModule + "experts.1.up_proj.bias'");
  biased.back().shape = {9};
  expect_refused(Composed(biased), kInvalid, "has shape [9], expected [16]");
  biased = plain(2);
  biased.push_back({kModule + "experts.0.down_proj.bias", "BF16", {16}});
  expect_refused(
      Composed(biased), kInvalid, "missing tensor '" + kModule + "experts.0.up_proj.bias'");
  biased.back().name = kModule + "experts.1.down_proj.bias";
  expect_refused(Composed(biased),
                 kInvalid,
                 "'" + kModule + "experts.1.down_proj.bias' is a bias, while the layer's first");
}

TEST(Layer, linear_biases_are_views) {
  Tensors tensors = plain(1);
  tensors.push_back({kModule + "experts.0.up_proj.bias", "BF16", {8}});
  tensors.push_back({kModule + "experts.0.gate_proj.bias", "F32", {8}});
  tensors.push_back({kModule + "experts.0.down_proj.bias", "F16", {16}});
  const Composed composed(tensors);
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_TRUE(layer->problem.gate_up_bias);
  EXPECT_TRUE(layer->problem.down_bias);
  EXPECT_EQ(layer->source.experts[0].down_bias.dtype, DType::kF16);
  EXPECT_EQ(layer->source.experts[0].down_bias.size, 16);
}

struct Contradiction {
  std::string config;
  StatusCode code;
  std::string words;
};

TEST(Layer, configurations_that_do_not_fit_the_tensors) {
  const std::vector<Contradiction> cases{
      {R"({"hidden_size":24})", kInvalid, "hidden size 16 in the tensors, 24 in config.json"},
      {R"({"moe_intermediate_size":16})", kInvalid, "intermediate size 8 in the tensors, 16"},
      {R"({"num_experts":5})", kInvalid, "expected 5 (config.json num_experts)"},
      {R"({"num_experts_per_tok":5})", kInvalid, "top_k 5 (config.json num_experts_per_tok)"},
      {R"({"num_experts_per_tok":0})", kInvalid, "top_k 0"},
      {R"({"hidden_act":"gelu"})", kUnsupported, "activation 'gelu'"},
      {R"({"hidden_act":"relu2"})", kInvalid, "has no gate, but"},
      {R"({"num_experts_per_tok":2,"n_group":3,"topk_group":1})", kInvalid, "n_group 3"},
      {R"({"num_experts_per_tok":2,"n_group":2,"topk_group":3})", kInvalid, "topk_group 3"},
      {R"({"num_experts_per_tok":3,"n_group":2,"topk_group":1})",
       kInvalid,
       "exceeds the 2 experts"},
  };
  Tensors tensors = plain(4);
  tensors.push_back({kModule + "gate.weight", "BF16", {4, 16}});
  for (const Contradiction& item : cases) {
    expect_refused(Composed(tensors, item.config), item.code, item.words);
  }
  tensors.back().shape = {5, 16};
  expect_refused(Composed(tensors), kInvalid, "has shape [5, 16], expected [4, 16]");
  tensors.back() = {kModule + "gate.weight", "U8", {4, 16}};
  expect_refused(Composed(tensors), kInvalid, "has dtype u8, expected f32, bf16 or f16");
}

TEST(Layer, routing_from_model_type_and_fields) {
  Tensors tensors = plain(4);
  tensors.push_back({kModule + "gate.weight", "BF16", {4, 16}});
  const auto routing = [&](const std::string& fields) {
    const Composed composed(tensors, R"({"num_experts_per_tok":2,)" + fields + "}");
    const Result<CheckpointLayer> layer = composed.layer();
    EXPECT_TRUE(layer.has_value()) << layer.status().to_string();
    return layer->routing;
  };
  EXPECT_FALSE(routing(R"("model_type":"qwen3_moe")")->renormalize);
  EXPECT_TRUE(routing(R"("model_type":"qwen3_moe","norm_topk_prob":true)")->renormalize);
  EXPECT_TRUE(routing(R"("model_type":"mixtral")")->renormalize);
  EXPECT_FALSE(routing(R"("model_type":"deepseek_v2","norm_topk_prob":true)")->renormalize);
  EXPECT_EQ(routing(R"("model_type":"new","scoring_func":"sigmoid")")->scoring, Scoring::kSigmoid);
  EXPECT_EQ(routing(R"("model_type":"new")")->scoring, Scoring::kSoftmax);
  EXPECT_EQ(routing(R"("text_config":{"model_type":"qwen3_5_moe_text"})")->renormalize, true);
  EXPECT_EQ(routing(R"("scoring_func":"sqrtsoftplus")")->scoring, Scoring::kSqrtSoftplus);
  // What moekit does not serve is no routing and a line that says why, never another routing.
  EXPECT_FALSE(routing(R"("scoring_func":"sparsemax")").has_value());
  for (const char* model : {"deepseek_v3", "kimi_k2", "glm4_moe", "minimax_m2", "nemotron_h"}) {
    EXPECT_FALSE(routing(R"("n_group":1,"topk_group":1,"hidden_act":"silu","model_type":")" +
                         std::string(model) + "\"")
                     .has_value())
        << model << " selects by a bias that the files lack";
  }
  // Where the configuration says whether there is one, it decides.
  EXPECT_TRUE(routing(R"("model_type":"minimax_m2","use_routing_bias":false)").has_value());
  EXPECT_FALSE(routing(R"("model_type":"step3p5","use_moe_router_bias":true)").has_value());
  EXPECT_TRUE(routing(R"("model_type":"step3p5")").has_value());
  tensors.push_back({kModule + "e_score_correction_bias", "F32", {4}});
  EXPECT_EQ(routing(R"("model_type":"deepseek_v3","n_group":1,"topk_group":1)")->scale, 2.5F);
  EXPECT_EQ(routing(R"("model_type":"glm4_moe","routed_scaling_factor":3)")->scale, 3.0F);
  EXPECT_EQ(routing(R"("model_type":"minimax_m2")")->scoring, Scoring::kSigmoid);
  EXPECT_TRUE(routing(R"("model_type":"minimax_m2")")->correction_bias);
  EXPECT_EQ(routing(R"("model_type":"new")")->scoring, Scoring::kSigmoid);
}

TEST(Layer, selection_methods) {
  Tensors tensors = plain(4);
  tensors.push_back({kModule + "gate.weight", "BF16", {4, 16}});
  const auto read = [&](const std::string& fields) {
    const Composed composed(tensors, R"({"num_experts_per_tok":2,)" + fields + "}");
    Result<CheckpointLayer> layer = composed.layer();
    EXPECT_TRUE(layer.has_value()) << layer.status().to_string();
    return std::move(*layer);
  };
  const auto expect_none = [&](const std::string& fields, const std::string& words) {
    const CheckpointLayer layer = read(fields);
    EXPECT_FALSE(layer.routing.has_value()) << fields;
    EXPECT_NE(layer.inferred.back().find(words), std::string::npos) << layer.inferred.back();
  };
  const std::string groups = R"("n_group":2,"topk_group":1,)";
  // greedy ignores groups, even such as do not divide the experts; it is DeepSeek-V2's default.
  EXPECT_EQ(read(groups + R"("topk_method":"greedy")").routing->num_groups, 1);
  EXPECT_EQ(read(R"("n_group":3,"topk_group":9,"topk_method":"greedy")").routing->top_groups, 1);
  EXPECT_EQ(read(groups + R"("model_type":"deepseek_v2")").routing->num_groups, 1);
  expect_none(groups + R"("model_type":"deepseek_v2","topk_method":"group_limited_greedy")",
              "groups by maximum");
  EXPECT_TRUE(read(R"("n_group":1,"topk_method":"group_limited_greedy")").routing.has_value());
  expect_none(groups + R"("topk_method":"noaux_tc")",
              "'noaux_tc' of config.json topk_method needs");
  expect_none(R"("topk_method":"bip")", "routing=none: selection 'bip' of config.json topk_method");
  tensors.push_back({kModule + "gate.e_score_correction_bias", "F32", {4}});
  const CheckpointLayer corrected =
      read(groups + R"("scoring_func":"sigmoid","topk_method":"noaux_tc")");
  EXPECT_EQ(corrected.routing->num_groups, 2);
  EXPECT_TRUE(corrected.routing->correction_bias);
  expect_none(R"("topk_method":"greedy")", "has no correction bias, but the files hold one");
}

TEST(Layer, activation_parameters) {
  const auto activation = [&](const std::string& config) {
    const Result<CheckpointLayer> layer = Composed(plain(2), config).layer();
    EXPECT_TRUE(layer.has_value()) << layer.status().to_string();
    return layer->problem.activation;
  };
  EXPECT_EQ(activation(R"({"hidden_act":"silu","swiglu_limit":10})").limit, 10.0F);
  EXPECT_EQ(activation(R"({"model_type":"deepseek_v4","swiglu_limit":0})").limit, std::nullopt);
  for (const std::string model : {"qwen3_moe", "deepseek_v4"}) {
    for (const std::string limit : {"0", "-7.0"}) {
      if (model != "deepseek_v4" || limit != "0") {
        expect_refused(
            Composed(plain(2), R"({"model_type":")" + model + R"(","swiglu_limit":)" + limit + "}"),
            kInvalid,
            "config.json swiglu_limit is " + limit.substr(0, 2));
      }
    }
  }
  EXPECT_EQ(activation(R"({"hidden_act":"swish"})").kind, ActivationKind::kSilu);
  EXPECT_EQ(activation(R"({"hidden_act":"situ"})").kind, ActivationKind::kSitu);
}

TEST(Layer, expert_counts_from_1_to_1024) {
  for (const int num_experts : {1, 1024}) {
    const Result<CheckpointLayer> layer = Composed(plain(num_experts)).layer();
    ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
    EXPECT_EQ(layer->problem.num_experts, num_experts);
  }
  expect_refused(Composed(plain(1025)), kUnsupported, "has 1025 experts, at most 1024");
}

TEST(Layer, one_number_must_not_mean_two_modules_and_mtp_heads_are_apart) {
  Tensors tensors = plain(1);
  for (const ComposedTensor& tensor : plain(1, "mtp.layers.1.mlp.")) {
    tensors.push_back(tensor);
  }
  EXPECT_TRUE(Composed(tensors).layer().has_value());
  for (const ComposedTensor& tensor : plain(1, "draft.layers.1.mlp.")) {
    tensors.push_back(tensor);
  }
  expect_refused(Composed(tensors), kInvalid, "several modules claim the layer");
}

Tensors gpt_oss_original() {
  const std::string base = "block.1.mlp.";
  return {{base + "gate.weight", "BF16", {3, 64}},
          {base + "gate.bias", "BF16", {3}},
          {base + "mlp1_weight.blocks", "U8", {3, 16, 2, 16}},
          {base + "mlp1_weight.scales", "U8", {3, 16, 2}},
          {base + "mlp1_bias", "BF16", {3, 16}},
          {base + "mlp2_weight.blocks", "U8", {3, 64, 1, 16}},
          {base + "mlp2_weight.scales", "U8", {3, 64, 1}},
          {base + "mlp2_bias", "BF16", {3, 64}}};
}

TEST(Layer, gpt_oss_under_its_original_names) {
  const Composed composed(gpt_oss_original(), R"({"model_type":"gpt_oss","experts_per_token":2})");
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_EQ(layer->scheme, "gpt_oss_mxfp4");
  EXPECT_EQ(layer->problem.intermediate_size, 8);  // a short last group: 8 of 32
  EXPECT_EQ(layer->source.experts[2].down.cols, 8);
  EXPECT_EQ(layer->source.experts[2].up.row_stride_bytes, 64);
  EXPECT_EQ(layer->routing->scoring, Scoring::kSoftmaxSelected);
  EXPECT_NE(layer->router.bias.data, nullptr);
  EXPECT_TRUE(validate_weights(layer->source.experts[2].down).ok());
}

TEST(Layer, biases_that_are_not_finite_are_named_by_tensor_and_index) {
  // The composed zeros become NaN and infinity in the file that the state views.
  const auto set =
      [](const Composed& composed, const std::string& name, std::ptrdiff_t at, auto value) {
        auto* data =
            static_cast<char*>(const_cast<void*>(composed.state.tensors.at(name).view.data));
        std::memcpy(data + at * std::ptrdiff_t{sizeof value}, &value, sizeof value);
      };
  Tensors tensors = plain(2);
  for (const ComposedTensor& linear : plain(2)) {
    const std::string base = linear.name.substr(0, linear.name.rfind('.') + 1);
    tensors.push_back({base + "bias", "F16", {linear.shape[0]}});
  }
  Composed linear(tensors);
  ASSERT_TRUE(linear.layer().has_value());
  set(linear, kModule + "experts.1.down_proj.bias", 11, std::uint16_t{0x7C00});
  expect_refused(linear, kInvalid, "experts.1.down_proj.bias' is inf at [11], expected finite");
  Composed stacked(gpt_oss_original());
  ASSERT_TRUE(stacked.layer().has_value());
  set(stacked, "block.1.mlp.mlp1_bias", 18, std::uint16_t{0xFFC0});  // [3, 16]
  expect_refused(stacked, kInvalid, "mlp1_bias' is nan at [1, 2], expected finite values");
}

TEST(Layer, stacked_tensors_that_do_not_fit) {
  Tensors tensors = gpt_oss_original();
  find(tensors, "mlp2_weight.scales")->shape = {3, 64, 2};
  expect_refused(Composed(tensors), kInvalid, "has shape [3, 64, 2], expected [3, 64, 1]");
  tensors = gpt_oss_original();
  find(tensors, "mlp2_weight.blocks")->shape = {3, 64, 16};
  expect_refused(Composed(tensors), kInvalid, "expected [experts, rows, groups, 16] of u8");
  tensors = gpt_oss_original();
  find(tensors, "mlp1_bias")->shape = {3, 8};
  expect_refused(Composed(tensors), kInvalid, "has shape [3, 8], expected [3, 16]");
  tensors = gpt_oss_original();
  remove_tensor(tensors, "mlp2_weight.scales");
  expect_refused(Composed(tensors), kInvalid, "missing tensor 'block.1.mlp.mlp2_weight.scales'");
  tensors = gpt_oss_original();
  find(tensors, "mlp2_weight.blocks")->shape = {2, 64, 1, 16};
  find(tensors, "mlp2_weight.scales")->shape = {2, 64, 1};
  expect_refused(Composed(tensors), kInvalid, "gate_up is [3, 16, 64], down [2, 64, 8]");
  tensors = gpt_oss_original();
  remove_tensor(tensors, "mlp1_bias");
  expect_refused(Composed(tensors), kInvalid, "missing tensor 'block.1.mlp.mlp1_bias'");
  remove_tensor(tensors, "mlp2_bias");
  expect_refused(Composed(tensors), kUnsupported, "no known row order");
}

TEST(Layer, a_bias_on_one_side_of_the_activation_names_the_missing_one) {
  Tensors tensors = gpt_oss_original();
  remove_tensor(tensors, "mlp2_bias");
  expect_refused(Composed(tensors), kInvalid, "missing tensor 'block.1.mlp.mlp2_bias'");
  const std::string base = kModule + "experts.";
  const std::vector<std::pair<ComposedTensor, std::string>> biases{
      {{base + "gate_up_proj_bias", "BF16", {2, 16}}, "down_proj_bias"},
      {{base + "down_proj_bias", "BF16", {2, 24}}, "gate_up_proj_bias"}};
  for (const auto& [bias, missing] : biases) {
    const std::string words = "missing tensor '" + base + missing + "'";
    // Unquantised gpt-oss, then transformers 5's fused form.
    expect_refused(Composed({{base + "gate_up_proj", "BF16", {2, 24, 16}},
                             {base + "down_proj", "BF16", {2, 8, 24}},
                             bias}),
                   kInvalid,
                   words);
    expect_refused(Composed({{base + "gate_up_proj", "BF16", {2, 16, 24}},
                             {base + "down_proj", "BF16", {2, 24, 8}},
                             bias}),
                   kInvalid,
                   words);
  }
}

TEST(Layer, fused_tensors_of_transformers_5) {
  const std::string base = kModule + "experts.";
  const Composed composed(
      {{base + "gate_up_proj", "BF16", {2, 16, 24}}, {base + "down_proj", "BF16", {2, 24, 8}}});
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_EQ(layer->problem.row_order, RowOrder::kGateUp);
  EXPECT_EQ(layer->problem.hidden_size, 24);
  EXPECT_EQ(layer->problem.intermediate_size, 8);
  EXPECT_EQ(layer->problem.activation.kind, ActivationKind::kSilu);
  const ExpertWeights& last = layer->source.experts[1];
  EXPECT_EQ(
      static_cast<const std::byte*>(last.up.codes) - static_cast<const std::byte*>(last.gate.codes),
      8 * 24 * 2);
  // Transposed without biases (Llama 4) has another row order: refused, not guessed.
  expect_refused(Composed({{base + "gate_up_proj", "BF16", {2, 24, 16}},
                           {base + "down_proj", "BF16", {2, 8, 24}}}),
                 kUnsupported,
                 "no known row order");
}

TEST(Layer, experts_behind_a_latent_projection) {
  Tensors tensors = plain(2);
  tensors.push_back({kModule + "gate.weight", "BF16", {2, 40}});
  const Composed composed(tensors,
                          R"({"hidden_size":40,"moe_latent_size":16,"num_experts_per_tok":1})");
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_EQ(layer->problem.hidden_size, 16);
  EXPECT_EQ(layer->router.weight.shape[1], 40);
}

}  // namespace
}  // namespace moekit::checkpoint
