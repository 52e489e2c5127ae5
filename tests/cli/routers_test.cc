// SPDX-License-Identifier: Apache-2.0
// `moekit run` and `verify` on layers whose routers have tensors of their own: DeepSeek-V4's table
// by token id and its correction bias, Gemma-4's scale per expert, Llama-4's weight on the input.
// Ids and weights are compared with the rules evaluated here in f64, the output by --check.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "moekit/moekit.h"

#include "tests/cli/cli_fixture.h"

namespace moekit::test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kExperts = 6;
constexpr std::int64_t kHidden = 40;
constexpr std::int64_t kInner = 24;
constexpr std::int64_t kTokens = 5;
constexpr std::int64_t kVocabulary = 11;
constexpr double kScale = 1.5;

/// Small values of both signs that bf16 holds: multiples of 1/32 in [-1, 1].
std::vector<std::uint16_t> bf16_values(std::int64_t count, std::uint32_t seed) {
  std::vector<std::uint16_t> bits;
  for (std::int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525U + 1013904223U;
    const float value = (static_cast<float>(seed >> 26U) - 32.0F) / 32.0F;
    bits.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U));
  }
  return bits;
}

TensorView view(const void* elements, DType dtype, const std::vector<std::int64_t>& shape) {
  TensorView view{.data = elements, .dtype = dtype, .rank = static_cast<int>(shape.size())};
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    view.shape[i] = shape[i];
    view.strides[i] = stride;
    stride *= shape[i];
  }
  return view;
}

/// Tensors with their memory, written as one file.
class FileOf {
 public:
  void bf16(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) {
      count *= extent;
    }
    halves_.push_back(bf16_values(count, static_cast<std::uint32_t>(halves_.size()) * 77U + 1U));
    tensors_.push_back({name, view(halves_.back().data(), DType::kBf16, shape)});
  }

  void add(const std::string& name,
           const void* elements,
           DType dtype,
           const std::vector<std::int64_t>& shape) {
    tensors_.push_back({name, view(elements, dtype, shape)});
  }

  void write(const fs::path& path) const {
    const Status status = write_safetensors(path.string(), tensors_);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

 private:
  std::vector<std::vector<std::uint16_t>> halves_{};
  std::vector<TensorToWrite> tensors_{};
};

/// A folder of its own with a configuration.
fs::path folder_of(const std::string& name, const std::string& config) {
  fs::path folder = scratch_folder() / name;
  fs::create_directories(folder);
  write_file(folder / "config.json", config);
  return folder;
}

std::array<float, kTokens * kExperts> logits() {
  std::array<float, kTokens * kExperts> values{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((i * 37 + 11) % 61) / 8.0F - 3.5F;  // all distinct in a token
  }
  return values;
}

struct Routes {
  std::vector<std::int32_t> ids{};
  std::vector<float> weights{};
};

Routes read_routes(const fs::path& path, std::int64_t top_k) {
  const Result<Checkpoint> file = Checkpoint::open(path.string());
  EXPECT_TRUE(file) << file.status().to_string();
  Routes routes;
  const auto* ids = static_cast<const std::int32_t*>(file->find("topk_ids")->view.data);
  const auto* weights = static_cast<const float*>(file->find("topk_weights")->view.data);
  routes.ids.assign(ids, ids + kTokens * top_k);
  routes.weights.assign(weights, weights + kTokens * top_k);
  return routes;
}

CliResult run_layer(const fs::path& folder, const fs::path& input, const fs::path& output) {
  return run_cli({"run",
                  "--checkpoint",
                  folder.string(),
                  "--layer",
                  "1",
                  "--input",
                  input.string(),
                  "--output",
                  output.string(),
                  "--check",
                  "--json"});
}

void expect_checked(const CliResult& result) {
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const nlohmann::json check = result.json().at("check");
  EXPECT_EQ(check.at("passed"), true) << check;
  EXPECT_EQ(check.at("tokens_checked"), kTokens);
  EXPECT_EQ(check.at("outputs_checked"), kTokens * kHidden);
}

/// verify makes its own inputs; every token count must pass.
void expect_verified(const fs::path& folder) {
  const CliResult result =
      run_cli({"verify", "--checkpoint", folder.string(), "--layer", "1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.json().at("failed"), 0);
  EXPECT_EQ(result.json().at("passed"), 5);
}

double sqrt_softplus(float logit) {
  return std::sqrt(std::log1p(std::exp(static_cast<double>(logit))));
}

/// Weights of `ids` must be `scores` over their sum, scaled.
void expect_renormalised(const Routes& routes,
                         std::int64_t top_k,
                         const std::array<float, kTokens * kExperts>& values) {
  for (std::int64_t token = 0; token < kTokens; ++token) {
    double sum = 0.0;
    const auto score = [&](std::int64_t slot) {
      const auto id =
          static_cast<std::size_t>(routes.ids[static_cast<std::size_t>(token * top_k + slot)]);
      return sqrt_softplus(values[static_cast<std::size_t>(token * kExperts) + id]);
    };
    for (std::int64_t slot = 0; slot < top_k; ++slot) {
      sum += score(slot);
    }
    for (std::int64_t slot = 0; slot < top_k; ++slot) {
      const double want = kScale * score(slot) / sum;
      EXPECT_NEAR(
          routes.weights[static_cast<std::size_t>(token * top_k + slot)], want, 0x1p-20 * want)
          << "token " << token << " slot " << slot;
    }
  }
}

/// DeepSeek-V4's own names with bf16 experts; the table or the bias is the caller's.
void add_deepseek_v4(FileOf& file) {
  for (std::int64_t expert = 0; expert < kExperts; ++expert) {
    const std::string base = "layers.1.ffn.experts." + std::to_string(expert) + ".";
    file.bf16(base + "w1.weight", {kInner, kHidden});
    file.bf16(base + "w3.weight", {kInner, kHidden});
    file.bf16(base + "w2.weight", {kHidden, kInner});
  }
  file.bf16("layers.1.ffn.gate.weight", {kExperts, kHidden});
}

constexpr const char* kDeepseekV4 =
    R"({"model_type":"deepseek_v4","hidden_act":"silu","swiglu_limit":10.0,
        "scoring_func":"sqrtsoftplus","topk_method":"noaux_tc","num_experts_per_tok":2,
        "routed_scaling_factor":1.5,"norm_topk_prob":true,"num_hash_layers":3})";

/// FOLDER/in.safetensors: hidden states, and logits that choose their experts.
void write_input_with_logits(const fs::path& folder) {
  const std::array<float, kTokens* kExperts> values = logits();
  FileOf given;
  given.bf16("hidden_states", {kTokens, kHidden});
  given.add("router_logits", values.data(), DType::kF32, {kTokens, kExperts});
  given.write(folder / "in.safetensors");
}

TEST(CliRouters, DeepseekV4SelectsByTokenIdInItsFirstLayers) {
  const fs::path folder = folder_of("deepseek_v4_hash", kDeepseekV4);
  std::vector<std::int64_t> table;  // i64, as transformers writes it
  for (std::int64_t i = 0; i < kVocabulary * 2; ++i) {
    table.push_back((i * 5 + i / 2) % kExperts);
  }
  FileOf weights;
  add_deepseek_v4(weights);
  weights.add("layers.1.ffn.gate.tid2eid", table.data(), DType::kI64, {kVocabulary, 2});
  weights.write(folder / "model.safetensors");

  const std::array<float, kTokens* kExperts> values = logits();
  const std::array<std::int64_t, kTokens> token_ids{3, 0, 10, 7, 3};
  FileOf given;
  given.bf16("hidden_states", {kTokens, kHidden});
  given.add("router_logits", values.data(), DType::kF32, {kTokens, kExperts});
  given.add("token_ids", token_ids.data(), DType::kI64, {kTokens});
  given.write(folder / "in.safetensors");
  expect_checked(run_layer(folder, folder / "in.safetensors", folder / "out.safetensors"));
  const Routes routes = read_routes(folder / "out.safetensors", 2);
  for (std::size_t i = 0; i < routes.ids.size(); ++i) {
    EXPECT_EQ(routes.ids[i], table[static_cast<std::size_t>(token_ids[i / 2]) * 2 + i % 2]) << i;
  }
  expect_renormalised(routes, 2, values);

  // The checkpoint's own weights give the logits; i32 ids.
  const std::array<std::int32_t, kTokens> narrow_ids{3, 0, 10, 7, 3};
  FileOf own;
  own.bf16("hidden_states", {kTokens, kHidden});
  own.add("token_ids", narrow_ids.data(), DType::kI32, {kTokens});
  own.write(folder / "own.safetensors");
  expect_checked(run_layer(folder, folder / "own.safetensors", folder / "own_out.safetensors"));
  EXPECT_EQ(read_routes(folder / "own_out.safetensors", 2).ids, routes.ids);
  expect_verified(folder);

  const CliResult inspected = run_cli({"inspect", folder.string(), "--layer", "1", "--json"});
  EXPECT_EQ(inspected.json().at("layers")[0].at("router").at("hash_table_rows"), kVocabulary);
  EXPECT_EQ(inspected.json().at("layers")[0].at("routing").at("hash_table"), true);
}

TEST(CliRouters, TokenIdsThatAreMissingOrDoNotFitAreNamed) {
  const fs::path folder = folder_of("deepseek_v4_bad", kDeepseekV4);
  std::vector<std::int32_t> table(kVocabulary * 2, 1);
  for (std::size_t row = 0; row < kVocabulary; ++row) {
    table[2 * row] = 0;
  }
  FileOf weights;
  add_deepseek_v4(weights);
  weights.add("layers.1.ffn.gate.tid2eid", table.data(), DType::kI32, {kVocabulary, 2});
  weights.write(folder / "model.safetensors");
  const auto expect_refused = [&](const FileOf& input, const std::string& words) {
    input.write(folder / "in.safetensors");
    const CliResult result =
        run_layer(folder, folder / "in.safetensors", folder / "out.safetensors");
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
    EXPECT_FALSE(fs::exists(folder / "out.safetensors"));
  };
  FileOf none;
  none.bf16("hidden_states", {kTokens, kHidden});
  expect_refused(none, "selects experts by token id: the input needs token_ids [5]");
  const std::array<std::int32_t, kTokens> ids{};
  FileOf few = none;
  few.add("token_ids", ids.data(), DType::kI32, {kTokens - 1});
  expect_refused(few, "and 4 elements, expected i32 or i64 [5]");
  FileOf matrix = none;
  matrix.add("token_ids", ids.data(), DType::kI32, {1, kTokens});
  expect_refused(matrix, "token_ids has rank 2, expected 1");
  FileOf floats = none;
  const std::array<float, kTokens> wrong{};
  floats.add("token_ids", wrong.data(), DType::kF32, {kTokens});
  expect_refused(floats, "token_ids have dtype f32");
  // An id that the table has no row for would come back as a row of zeros.
  std::array<std::int32_t, kTokens> beyond{0, 1, 2, kVocabulary, 4};
  FileOf outside = none;
  outside.add("token_ids", beyond.data(), DType::kI32, {kTokens});
  expect_refused(outside,
                 "token_ids[3] is 11, expected 0 to 10: the layer's hash table has 11 rows");
  beyond[3] = -1;
  expect_refused(outside, "token_ids[3] is -1, expected 0 to 10");
  const std::array<std::int64_t, kTokens> wide{0, std::int64_t{1} << 32, 2, 3, 4};
  FileOf far = none;
  far.add("token_ids", wide.data(), DType::kI64, {kTokens});
  expect_refused(far, "token_ids[1] is 4294967296, expected 0 to 10");
}

TEST(CliRouters, DeepseekV4SelectsByScoreAndBiasInTheOthers) {
  std::string unhashed = kDeepseekV4;
  unhashed[unhashed.find("layers\":3") + 8] = '1';
  const fs::path folder = folder_of("deepseek_v4_bias", unhashed);
  const std::array<float, kExperts> bias{0.0F, 2.0F, -3.0F, 0.5F, 0.25F, -0.5F};
  FileOf weights;
  add_deepseek_v4(weights);
  weights.add("layers.1.ffn.gate.bias", bias.data(), DType::kF32, {kExperts});
  weights.write(folder / "model.safetensors");
  write_input_with_logits(folder);
  const std::array<float, kTokens* kExperts> values = logits();
  expect_checked(run_layer(folder, folder / "in.safetensors", folder / "out.safetensors"));
  const Routes routes = read_routes(folder / "out.safetensors", 2);
  for (std::size_t token = 0; token < kTokens; ++token) {
    std::vector<std::pair<double, std::int32_t>> order;
    for (std::size_t e = 0; e < kExperts; ++e) {
      order.emplace_back(-(sqrt_softplus(values[token * kExperts + e]) + bias[e]),
                         static_cast<std::int32_t>(e));
    }
    std::sort(order.begin(), order.end());
    EXPECT_EQ(routes.ids[token * 2], order[0].second) << token;
    EXPECT_EQ(routes.ids[token * 2 + 1], order[1].second) << token;
  }
  expect_renormalised(routes, 2, values);
  expect_verified(folder);
}

TEST(CliRouters, Gemma4ScalesEachExpertLastOfAll) {
  const fs::path folder =
      folder_of("gemma4",
                R"({"text_config":{"model_type":"gemma4_text","top_k_experts":2,"num_experts":6,
                     "hidden_activation":"gelu_pytorch_tanh"}})");
  const std::string module = "model.language_model.layers.1.";
  const std::array<float, kExperts> scales{1.0F, 0.5F, 2.0F, 0.0F, 3.0F, 0.125F};
  FileOf weights;
  weights.bf16(module + "experts.gate_up_proj", {kExperts, 2 * kInner, kHidden});
  weights.bf16(module + "experts.down_proj", {kExperts, kHidden, kInner});
  weights.bf16(module + "router.proj.weight", {kExperts, kHidden});
  weights.bf16(module + "router.scale", {kHidden});
  weights.add(module + "router.per_expert_scale", scales.data(), DType::kF32, {kExperts});
  weights.write(folder / "model.safetensors");
  FileOf own;
  own.bf16("hidden_states", {kTokens, kHidden});
  own.write(folder / "own.safetensors");
  const CliResult refused =
      run_layer(folder, folder / "own.safetensors", folder / "out.safetensors");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("no router weight that x multiplies"), std::string::npos)
      << refused.err;

  const std::array<float, kTokens* kExperts> values = logits();
  FileOf given = own;
  given.add("router_logits", values.data(), DType::kF32, {kTokens, kExperts});
  given.write(folder / "in.safetensors");
  expect_checked(run_layer(folder, folder / "in.safetensors", folder / "out.safetensors"));
  const Routes routes = read_routes(folder / "out.safetensors", 2);
  for (std::size_t token = 0; token < kTokens; ++token) {
    const auto id = [&](std::size_t slot) {
      return static_cast<std::size_t>(routes.ids[token * 2 + slot]);
    };
    const auto exponential = [&](std::size_t slot) {
      return std::exp(static_cast<double>(values[token * kExperts + id(slot)]));
    };
    for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
      const double want = scales[id(slot)] * exponential(slot) / (exponential(0) + exponential(1));
      EXPECT_NEAR(routes.weights[token * 2 + slot], want, 0x1p-20 * want) << token;
    }
  }
  expect_verified(folder);
}

TEST(CliRouters, WithoutATensorOfItsRouterAModelSaysWhyItDoesNotRoute) {
  const fs::path folder = folder_of("gemma4_unscaled",
                                    R"({"text_config":{"model_type":"gemma4_text",
                                        "top_k_experts":2,"num_experts":6}})");
  const std::string module = "model.language_model.layers.1.";
  FileOf weights;
  weights.bf16(module + "experts.gate_up_proj", {kExperts, 2 * kInner, kHidden});
  weights.bf16(module + "experts.down_proj", {kExperts, kHidden, kInner});
  weights.bf16(module + "router.proj.weight", {kExperts, kHidden});
  weights.write(folder / "model.safetensors");
  write_input_with_logits(folder);
  const CliResult refused =
      run_layer(folder, folder / "in.safetensors", folder / "out.safetensors");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("how its router selects: the router of model_type gemma4 needs its "
                             "per_expert_scale, but the files hold none; give topk_ids"),
            std::string::npos)
      << refused.err;
}

TEST(CliRouters, Llama4WeighsTheInputOfItsOneExpert) {
  const fs::path folder = folder_of(
      "llama4",
      R"({"text_config":{"model_type":"llama4_text","num_local_experts":6,"num_experts_per_tok":1,
          "hidden_act":"silu"}})");
  const std::string module = "language_model.model.layers.1.feed_forward.";
  FileOf weights;
  weights.bf16(module + "experts.gate_up_proj", {kExperts, kHidden, 2 * kInner});
  weights.bf16(module + "experts.down_proj", {kExperts, kInner, kHidden});
  weights.bf16(module + "router.weight", {kExperts, kHidden});
  weights.write(folder / "model.safetensors");
  write_input_with_logits(folder);
  const std::array<float, kTokens* kExperts> values = logits();
  const CliResult result = run_layer(folder, folder / "in.safetensors", folder / "out.safetensors");
  expect_checked(result);
  EXPECT_EQ(result.json().at("plan").at("problem").at("router_weight_on_input"), true);
  const Routes routes = read_routes(folder / "out.safetensors", 1);
  for (std::size_t token = 0; token < kTokens; ++token) {
    const auto* row = values.data() + token * kExperts;
    const auto best = static_cast<std::size_t>(std::max_element(row, row + kExperts) - row);
    EXPECT_EQ(static_cast<std::size_t>(routes.ids[token]), best);
    const double want = 1.0 / (1.0 + std::exp(-static_cast<double>(row[best])));
    EXPECT_NEAR(routes.weights[token], want, 0x1p-20 * want);
  }
  expect_verified(folder);
}

}  // namespace
}  // namespace moekit::test
