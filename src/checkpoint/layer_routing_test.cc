// SPDX-License-Identifier: Apache-2.0
// Routers with tensors of their own: DeepSeek-V4's tables and correction bias, Gemma-4's scale per
// expert, and their GGUF names. Layers composed in memory.
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/checkpoint.h"

#include "checkpoint/composed_files_test.h"
#include "checkpoint/composed_gguf_test.h"
#include "checkpoint/state.h"

namespace moekit::checkpoint {
namespace {

using Tensors = std::vector<ComposedTensor>;

/// A file of zeros with its configuration, open.
struct Composed {
  Composed(const Tensors& tensors, const std::string& config) : file(compose_zeros(tensors)) {
    const Status status = add_tensors({.name = "f", .bytes = as_bytes(file)}, nullptr, state);
    EXPECT_TRUE(status.ok()) << status.to_string();
    find_modules(state);
    Result<ModelConfig> read = read_model_config(config, std::nullopt);
    EXPECT_TRUE(read.has_value()) << read.status().to_string();
    adopt_config(std::move(*read), state);
  }

  /// Writes `value` over element `index` of a tensor.
  template <typename T>
  void set(const std::string& name, std::size_t index, T value) {
    const auto* at = static_cast<const char*>(state.tensors.at(name).view.data);
    std::memcpy(file.data() + (at - file.data()) + index * sizeof value, &value, sizeof value);
  }

  [[nodiscard]] Result<CheckpointLayer> layer(std::int64_t id = 1) const {
    return read_layer(state, id);
  }

  std::string file;
  Checkpoint::State state;
};

/// DeepSeek-V4's own names: 4 experts, H 16, I 8.
Tensors deepseek_v4() {
  Tensors tensors{{"layers.1.ffn.gate.weight", "BF16", {4, 16}}};
  for (int expert = 0; expert < 4; ++expert) {
    const std::string base = "layers.1.ffn.experts." + std::to_string(expert) + ".";
    tensors.push_back({base + "w1.weight", "BF16", {8, 16}});
    tensors.push_back({base + "w3.weight", "BF16", {8, 16}});
    tensors.push_back({base + "w2.weight", "BF16", {16, 8}});
  }
  return tensors;
}

constexpr const char* kDeepseekV4 =
    R"({"model_type":"deepseek_v4","scoring_func":"sqrtsoftplus","topk_method":"noaux_tc",
        "num_experts_per_tok":2,"routed_scaling_factor":2.5,"num_hash_layers":3})";
constexpr const char* kDeepseekV4Unhashed =
    R"({"model_type":"deepseek_v4","scoring_func":"sqrtsoftplus","topk_method":"noaux_tc",
        "num_experts_per_tok":2,"routed_scaling_factor":2.5,"num_hash_layers":1})";
const std::string kTable = "layers.1.ffn.gate.tid2eid";

void expect_refused(const Composed& composed, const std::string& words) {
  const Result<CheckpointLayer> layer = composed.layer();
  EXPECT_EQ(layer.status().code(), StatusCode::kInvalidArgument) << layer.status().to_string();
  EXPECT_NE(layer.status().message().find(words), std::string_view::npos)
      << words << "\n  not in: " << layer.status().message();
}

/// A table of {7, 2} ids: 0 and 1 for each token id.
template <typename T>
void fill_table(Composed& composed) {
  for (std::size_t row = 0; row < 7; ++row) {
    composed.set<T>(kTable, 2 * row + 1, 1);
  }
}

/// The layer is read, has no routing, and says why.
void expect_unrouted(const Composed& composed, const std::string& words) {
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_FALSE(layer->routing.has_value());
  EXPECT_NE(layer->inferred.back().find("routing=none: "), std::string::npos);
  EXPECT_NE(layer->inferred.back().find(words), std::string::npos)
      << words << "\n  not in: " << layer->inferred.back();
}

TEST(LayerRouting, deepseek_v4_names_its_correction_bias_gate_bias) {
  Tensors tensors = deepseek_v4();
  tensors.push_back({"layers.1.ffn.gate.bias", "F32", {4}});
  const Composed composed(tensors, kDeepseekV4Unhashed);
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_EQ(layer->router.bias.data, nullptr);
  EXPECT_NE(layer->router.correction_bias.data, nullptr);
  ASSERT_TRUE(layer->routing.has_value()) << layer->inferred.back();
  EXPECT_EQ(layer->routing->scoring, Scoring::kSqrtSoftplus);
  EXPECT_TRUE(layer->routing->correction_bias);
  EXPECT_TRUE(layer->routing->renormalize);  // its configuration's default
  EXPECT_FALSE(layer->routing->hash_table);
  EXPECT_EQ(layer->routing->scale, 2.5F);
  EXPECT_EQ(layer->routing->num_groups, 1);
}

TEST(LayerRouting, a_table_by_token_id_selects_where_the_layer_has_one) {
  for (const std::string dtype : {"I32", "I64"}) {
    Tensors tensors = deepseek_v4();
    tensors.push_back({kTable, dtype, {7, 2}});
    Composed composed(tensors, kDeepseekV4);
    if (dtype == "I64") {
      fill_table<std::int64_t>(composed);
      composed.set<std::int64_t>(kTable, 13, 3);
    } else {
      fill_table<std::int32_t>(composed);
      composed.set<std::int32_t>(kTable, 13, 3);
    }
    const Result<CheckpointLayer> layer = composed.layer();
    ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
    ASSERT_TRUE(layer->routing.has_value()) << layer->inferred.back();
    EXPECT_TRUE(layer->routing->hash_table);
    EXPECT_FALSE(layer->routing->correction_bias);  // noaux_tc is of the other layers
    EXPECT_EQ(layer->routing->scoring, Scoring::kSqrtSoftplus);
    const TensorView& table = layer->router.hash_table;
    EXPECT_EQ(table.dtype, DType::kI32);
    EXPECT_EQ(table.shape[0], 7);
    EXPECT_EQ(table.shape[1], 2);
    EXPECT_EQ(static_cast<const std::int32_t*>(table.data)[12], 0);
    EXPECT_EQ(static_cast<const std::int32_t*>(table.data)[13], 3);
    EXPECT_NE(layer->inferred.back().find("hash_table=true"), std::string::npos);
  }
}

TEST(LayerRouting, tables_that_do_not_fit_are_refused) {
  Tensors tensors = deepseek_v4();
  tensors.push_back({kTable, "F32", {7, 2}});
  expect_refused(Composed(tensors, kDeepseekV4), "has dtype f32, expected i32 or i64");
  tensors.back() = {kTable, "I32", {7, 3}};
  expect_refused(Composed(tensors, kDeepseekV4),
                 "has shape [7, 3], expected [vocabulary, top_k = 2]");
  tensors.back() = {kTable, "I32", {14}};
  expect_refused(Composed(tensors, kDeepseekV4), "has shape [14], expected [vocabulary");
  tensors.back() = {kTable, "I64", {7, 2}};
  Composed beyond(tensors, kDeepseekV4);
  expect_refused(beyond, "names expert 0 twice for token id 0");
  fill_table<std::int64_t>(beyond);
  beyond.set<std::int64_t>(kTable, 12, 1);
  expect_refused(beyond, "names expert 1 twice for token id 6");
  beyond.set<std::int64_t>(kTable, 12, 0);
  beyond.set<std::int64_t>(kTable, 9, 4);
  expect_refused(beyond, "names expert 4 for token id 4, expected 0 to 3");
  beyond.set<std::int64_t>(kTable, 9, (std::int64_t{1} << 32) + 1);  // checked before narrowing
  expect_refused(beyond, "names expert 4294967297 for token id 4");
  beyond.set<std::int64_t>(kTable, 9, -1);
  expect_refused(beyond, "names expert -1 for token id 4");
  Composed unhashed(tensors, kDeepseekV4Unhashed);
  fill_table<std::int64_t>(unhashed);
  expect_refused(unhashed, "selects by token id, but config.json num_hash_layers is 1: only");
  tensors.push_back({"layers.1.ffn.gate.bias", "F32", {4}});
  Composed both(tensors, kDeepseekV4);
  fill_table<std::int64_t>(both);
  expect_refused(both, "has a correction bias too");
}

TEST(LayerRouting, a_router_without_a_tensor_of_its_model_routes_nothing) {
  Tensors tensors = deepseek_v4();
  tensors.push_back({"layers.1.ffn.gate.bias", "F32", {4}});
  expect_unrouted(Composed(tensors, kDeepseekV4),
                  "num_hash_layers is 3, so that this layer selects by token id, but the files "
                  "hold no table");
  tensors.pop_back();
  expect_unrouted(Composed(tensors,
                           R"({"model_type":"deepseek_v4","scoring_func":"sqrtsoftplus",
                               "num_experts_per_tok":2,"num_hash_layers":0})"),
                  "model_type deepseek_v4 needs its correction bias, but the files hold none");
}

TEST(LayerRouting, values_that_are_not_finite_are_named_by_tensor_and_index) {
  struct Bad {
    std::uint32_t f32;
    std::uint16_t bf16;
    std::uint16_t f16;
    std::string text;
  };

  const std::vector<Bad> values{{0x7FC0'0000, 0x7FC1, 0x7E00, " is nan at "},
                                {0xFF80'0001, 0xFF81, 0xFC01, " is nan at "},
                                {0x7F80'0000, 0x7F80, 0x7C00, " is inf at "},
                                {0xFF80'0000, 0xFF80, 0xFC00, " is -inf at "}};
  const std::string weight = "layers.1.ffn.gate.weight";
  const std::string bias = "layers.1.ffn.gate.bias";
  int refused = 0;
  for (const std::string dtype : {"F32", "BF16", "F16"}) {
    for (const Bad& bad : values) {
      Tensors tensors = deepseek_v4();
      tensors.front().dtype = dtype;
      tensors.push_back({bias, dtype, {4}});
      for (const auto& [name, flat, index] : {std::tuple(weight, 37, "[2, 5]"),  // [4, 16]
                                              std::tuple(bias, 3, "[3]")}) {
        Composed composed(tensors, kDeepseekV4Unhashed);
        ASSERT_TRUE(composed.layer().has_value()) << composed.layer().status().to_string();
        const auto at = static_cast<std::size_t>(flat);
        if (dtype == "F32") {
          composed.set(name, at, bad.f32);
        } else {
          composed.set(name, at, dtype == "BF16" ? bad.bf16 : bad.f16);
        }
        expect_refused(composed, name + "'" + bad.text + index);
        ++refused;
      }
    }
  }
  EXPECT_EQ(refused, 24);
}

TEST(LayerRouting, gemma4_scales_experts_and_wants_logits) {
  const std::string module = "model.language_model.layers.1.";
  Tensors tensors{{module + "experts.gate_up_proj", "BF16", {4, 16, 24}},
                  {module + "experts.down_proj", "BF16", {4, 24, 8}},
                  {module + "router.proj.weight", "BF16", {4, 24}},
                  {module + "router.scale", "BF16", {24}},
                  {module + "router.per_expert_scale", "BF16", {4}}};
  const std::string config =
      R"({"text_config":{"model_type":"gemma4_text","top_k_experts":2,"num_experts":4,
          "hidden_activation":"gelu_pytorch_tanh"}})";
  const Composed composed(tensors, config);
  const Result<CheckpointLayer> layer = composed.layer();
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  EXPECT_EQ(layer->problem.activation.kind, ActivationKind::kGeluTanh);
  EXPECT_EQ(layer->router.weight.data, nullptr) << "no product with x gives its logits";
  EXPECT_NE(layer->router.expert_scale.data, nullptr);
  ASSERT_TRUE(layer->routing.has_value()) << layer->inferred.back();
  EXPECT_EQ(layer->routing->scoring, Scoring::kSoftmax);
  EXPECT_TRUE(layer->routing->renormalize);
  EXPECT_TRUE(layer->routing->expert_scale);
  EXPECT_NE(layer->inferred.back().find("router_logits=of the caller"), std::string::npos);
  tensors.back().shape = {5};
  expect_refused(Composed(tensors, config), "has shape [5], expected [4]");
  tensors.back().shape = {4};
  Composed infinite(tensors, config);
  infinite.set<std::uint16_t>(module + "router.per_expert_scale", 2, 0x7F80);
  expect_refused(infinite, "router.per_expert_scale' is inf at [2]");
  tensors.pop_back();
  expect_unrouted(Composed(tensors, config),
                  "gemma4 needs its per_expert_scale, but the files hold none");
}

/// A GGUF layer of two bf16 experts, H 64, I 64, with `more` tensors of `num_bytes` zeros behind.
Result<CheckpointLayer> gguf_layer(const std::string& architecture,
                                   std::vector<ComposedGgufTensor> tensors,
                                   std::string& file,
                                   Checkpoint::State& state) {
  constexpr std::uint64_t kExpertsBytes = 16384;  // two bf16 experts of 64 x 64
  constexpr std::uint32_t kBf16 = 30;
  std::uint64_t end = 0;
  for (ComposedGgufTensor& tensor : tensors) {
    tensor.offset = end;
    end += 4096;
  }
  for (const char* name : {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}) {
    tensors.push_back({std::string("blk.0.") + name + ".weight", kBf16, {64, 64, 2}, end});
    end += kExpertsBytes;
  }
  const std::string values = gguf_text_value("general.architecture", architecture) +
                             gguf_u32_value(architecture + ".expert_used_count", 1) +
                             gguf_f32_array(architecture + ".swiglu_clamp_exp", {10.0F});
  file = compose_gguf(tensors, end, 3, values);
  Status status = add_gguf({.name = "f", .bytes = as_bytes(file)}, state);
  EXPECT_TRUE(status.ok()) << status.to_string();
  find_modules(state);
  return read_layer(state, 0);
}

TEST(LayerRouting, deepseek4_in_gguf) {
  std::string file;
  Checkpoint::State state;
  const Result<CheckpointLayer> layer =
      gguf_layer("deepseek4",
                 {{"blk.0.ffn_gate_inp.weight", 0, {64, 2}, 0},
                  {"blk.0.ffn_gate_tid2eid.weight", 26, {1, 9}, 0}},
                 file,
                 state);
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  ASSERT_TRUE(layer->routing.has_value()) << layer->inferred.back();
  EXPECT_EQ(layer->routing->scoring, Scoring::kSqrtSoftplus);
  EXPECT_TRUE(layer->routing->hash_table);
  EXPECT_EQ(layer->router.hash_table.shape[0], 9);
  EXPECT_EQ(layer->problem.activation.limit, 10.0F) << "the clamp is the one moekit computes";
}

TEST(LayerRouting, gemma4_in_gguf) {
  std::string file;
  Checkpoint::State state;
  const Result<CheckpointLayer> layer = gguf_layer("gemma4",
                                                   {{"blk.0.ffn_gate_inp.weight", 0, {64, 2}, 0},
                                                    {"blk.0.ffn_gate_inp.scale", 0, {64}, 0},
                                                    {"blk.0.ffn_down_exps.scale", 0, {2}, 0}},
                                                   file,
                                                   state);
  EXPECT_EQ(layer.status().code(), StatusCode::kUnsupported) << "a clamp that gemma4 has not";
  state.config.swiglu_limits.clear();
  const Result<CheckpointLayer> unclamped = read_layer(state, 0);
  ASSERT_TRUE(unclamped.has_value()) << unclamped.status().to_string();
  ASSERT_TRUE(unclamped->routing.has_value()) << unclamped->inferred.back();
  EXPECT_EQ(unclamped->router.weight.data, nullptr);
  EXPECT_TRUE(unclamped->routing->expert_scale);
  EXPECT_EQ(unclamped->source.experts[0].down.global_scale, 1.0F) << "applied once, by the router";
  Checkpoint::State unscaled;
  std::string other;
  EXPECT_FALSE(
      gguf_layer("gemma4", {{"blk.0.ffn_gate_inp.weight", 0, {64, 2}, 0}}, other, unscaled));
  unscaled.config.swiglu_limits.clear();
  const Result<CheckpointLayer> unrouted = read_layer(unscaled, 0);
  ASSERT_TRUE(unrouted.has_value()) << unrouted.status().to_string();
  EXPECT_FALSE(unrouted->routing.has_value()) << "no scale per expert, no routing";
}

}  // namespace
}  // namespace moekit::checkpoint
