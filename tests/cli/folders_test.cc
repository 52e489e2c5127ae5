// SPDX-License-Identifier: Apache-2.0
// `moekit run` on every real folder of testdata/checkpoints: the result meets the oracle's bound
// (--check), the routing is the producer's, and the output lies within a derived bound of the
// producer's own float64 output.
//
// The producer does not round the intermediate; moekit rounds it once to bf16, and the output once
// to bf16, at most 2^-8 relative each (eight significant bits; testdata/README.md):
//   |out - expected| <= 2^-8 * sum |p a w2| + 2^-8 * |expected| + 2^-16 * sum |p a w2|
// where the last term covers f32 accumulation in both products and the router's f32 weights.
// FP8 checkpoints run with activations in E4M3, the producer's output without: an rms bound there.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "moekit/moekit.h"

#include "reference/layer.h"
#include "tests/cli/cli_fixture.h"

namespace moekit::test {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> folders() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(source_folder() / "testdata/checkpoints")) {
    if (entry.is_directory()) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// `Expected values belong to layer **N**` of PROVENANCE.md.
std::string layer_of(const fs::path& folder) {
  constexpr std::string_view kBefore = "layer **";
  const std::string text = read_file(folder / "PROVENANCE.md");
  const std::size_t at = text.find(kBefore);
  if (at == std::string::npos) {
    return "";
  }
  const std::size_t begin = at + kBefore.size();
  return text.substr(begin, text.find_first_not_of("0123456789", begin) - begin);
}

float bf16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

/// Elements of a tensor as f64, whatever its dtype.
std::vector<double> values_of(const Checkpoint& file, const char* name) {
  const NamedTensor* tensor = file.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) {
    return {};
  }
  const int width = dtype_bits(tensor->view.dtype) / 8;
  const auto* bytes = static_cast<const std::byte*>(tensor->view.data);
  std::vector<double> values(static_cast<std::size_t>(tensor->bytes / width));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::byte* element = bytes + i * static_cast<std::size_t>(width);
    const auto load = [element](auto value) {
      std::memcpy(&value, element, sizeof value);
      return value;
    };
    switch (tensor->view.dtype) {
      case DType::kBf16:
        values[i] = bf16_value(load(std::uint16_t{}));
        break;
      case DType::kF32:
        values[i] = load(float{});
        break;
      case DType::kI32:
        values[i] = load(std::int32_t{});
        break;
      case DType::kI64:
        values[i] = static_cast<double>(load(std::int64_t{}));
        break;
      default:
        ADD_FAILURE() << name << " has dtype " << dtype_name(tensor->view.dtype);
    }
  }
  return values;
}

/// id -> router weight of one token: routers differ in the order of their slots.
std::map<std::int64_t, double> routes_of(const std::vector<double>& ids,
                                         const std::vector<double>& weights,
                                         std::size_t token,
                                         std::size_t top_k) {
  std::map<std::int64_t, double> routes;
  for (std::size_t slot = token * top_k; slot < (token + 1) * top_k; ++slot) {
    routes[static_cast<std::int64_t>(ids[slot])] = weights[slot];
  }
  return routes;
}

void expect_same_routing(const Checkpoint& out, const Checkpoint& expected) {
  const std::vector<double> ids = values_of(out, "topk_ids");
  const std::vector<double> weights = values_of(out, "topk_weights");
  const std::vector<double> want_ids = values_of(expected, "topk_ids");
  const std::vector<double> want_weights = values_of(expected, "topk_weights");
  ASSERT_EQ(ids.size(), want_ids.size());
  const auto top_k = static_cast<std::size_t>(expected.find("topk_ids")->view.shape[1]);
  for (std::size_t token = 0; token * top_k < ids.size(); ++token) {
    const auto have = routes_of(ids, weights, token, top_k);
    const auto want = routes_of(want_ids, want_weights, token, top_k);
    ASSERT_EQ(have.size(), want.size());
    for (const auto& [id, weight] : want) {
      ASSERT_TRUE(have.contains(id)) << "token " << token << " expert " << id;
      // Both sides work in f32: a few roundings of the logit (|logit| <= 8) and of the division.
      EXPECT_NEAR(have.at(id), weight, 0x1p-18 * weight) << "token " << token << " expert " << id;
    }
  }
}

Checkpoint open_file(const fs::path& path) {
  Result<Checkpoint> file = Checkpoint::open(path.string());
  EXPECT_TRUE(file) << file.status().to_string();
  return *file;
}

/// The layer that a folder's expected values belong to.
struct OpenLayer {
  explicit OpenLayer(const fs::path& folder) : file(open_file(folder)) {
    Result<CheckpointLayer> read = file.layer(std::stoll(layer_of(folder)));
    EXPECT_TRUE(read) << read.status().to_string();
    layer = *read;
  }

  Checkpoint file;  // what the layer's views point into
  CheckpointLayer layer;
};

/// sum |p a w2| per output element, from the oracle.
std::vector<double> term_magnitudes(const CheckpointLayer& layer, const Checkpoint& expected) {
  Problem problem = layer.problem;
  const TensorView x = expected.find("hidden_states")->view;
  problem.num_tokens = x.shape[0];
  RunArguments arguments;
  arguments.x = x;
  arguments.topk_ids = expected.find("topk_ids")->view;
  arguments.topk_weights = expected.find("topk_weights")->view;
  const reference::LayerCall call{problem, layer.source, arguments};
  std::vector<std::int64_t> tokens;
  for (std::int64_t token = 0; token < x.shape[0]; ++token) {
    tokens.push_back(token);
  }
  reference::Batch batch = reference::make_batch(call, tokens);
  reference::evaluate_gate_up(call, batch);
  return reference::evaluate_down(call, batch).magnitude;
}

double rms(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) {
    sum += value * value;
  }
  return std::sqrt(sum / static_cast<double>(values.size()));
}

/// Recipes that quantise activations where the producer's output does not: three roundings to E4M3
/// (x under gate, x under up, the intermediate), each at most 2^-4 of its operand and independent
/// of the others, so their rms adds in quadrature.
void expect_output_near(const Checkpoint& out, const Checkpoint& expected) {
  const std::vector<double> want = values_of(expected, "output");
  std::vector<double> difference = values_of(out, "output");
  ASSERT_EQ(difference.size(), want.size());
  ASSERT_GT(difference.size(), 0U);
  for (std::size_t i = 0; i < difference.size(); ++i) {
    difference[i] -= want[i];
  }
  const double relative = rms(difference) / rms(want);
  EXPECT_LE(relative, 0x1p-4 * std::sqrt(3.0));
  EXPECT_GT(relative, 0x1p-9) << "activations were not quantised";
}

void expect_output_within_bound(const Checkpoint& out,
                                const Checkpoint& expected,
                                const std::vector<double>& magnitudes) {
  const std::vector<double> have = values_of(out, "output");
  const std::vector<double> want = values_of(expected, "output");
  ASSERT_EQ(have.size(), want.size());
  ASSERT_EQ(have.size(), magnitudes.size());
  ASSERT_GT(have.size(), 0U);
  double worst = 0.0;
  for (std::size_t i = 0; i < have.size(); ++i) {
    const double bound = (0x1p-8 + 0x1p-16) * magnitudes[i] + 0x1p-8 * std::abs(want[i]);
    ASSERT_LE(std::abs(have[i] - want[i]), bound) << "element " << i << " expected " << want[i];
    worst = std::max(worst, bound > 0.0 ? std::abs(have[i] - want[i]) / bound : 0.0);
  }
  // A bound that nothing comes near would prove nothing.
  EXPECT_GT(worst, 0.05);
}

void expect_producers_output(const OpenLayer& open,
                             const Checkpoint& out,
                             const Checkpoint& expected) {
  if (open.layer.problem.recipe == Recipe::kW8a8Fp8Block128) {
    expect_output_near(out, expected);
  } else {
    expect_output_within_bound(out, expected, term_magnitudes(open.layer, expected));
  }
}

/// Runs the layer with --check; `more` goes behind.
CliResult run_folder(const fs::path& folder,
                     const fs::path& input,
                     const fs::path& output,
                     const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments{"run",
                                     "--checkpoint",
                                     folder.string(),
                                     "--layer",
                                     layer_of(folder),
                                     "--input",
                                     input.string(),
                                     "--output",
                                     output.string(),
                                     "--check",
                                     "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_cli(arguments);
}

class RealFolder : public testing::TestWithParam<fs::path> {
 protected:
  [[nodiscard]] static fs::path folder() { return GetParam(); }

  [[nodiscard]] static bool has_expected() { return fs::exists(folder() / "expected.safetensors"); }
};

class FolderWithExpectedValues : public RealFolder {};

TEST_P(RealFolder, OwnRouterMeetsTheOracleAndTheProducer) {
  const fs::path output = scratch_folder() / "own_router.safetensors";
  fs::remove(output);  // of another folder
  const CliResult result = run_folder(folder(), folder() / "input.safetensors", output);
  if (OpenLayer(folder()).layer.router.weight.data == nullptr) {
    // Gemma-4: its router normalises another tensor first, so routes or logits must be given.
    EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
    EXPECT_NE(result.err.find("router"), std::string::npos) << result.err;
    EXPECT_FALSE(fs::exists(output));
    return;
  }
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const nlohmann::json json = result.json();
  EXPECT_EQ(json.at("check").at("passed"), true);
  EXPECT_EQ(json.at("routed_by"), "router of the checkpoint");
  EXPECT_GT(json.at("check").at("outputs_checked").get<int>(), 0);
  const Checkpoint out = open_file(output);
  EXPECT_EQ(out.find("output")->view.dtype, DType::kBf16);
  EXPECT_EQ(out.find("topk_ids")->view.dtype, DType::kI32);
  if (!has_expected()) {
    return;  // the dormant expert of ModelOpt: the producer's own dequantisation is NaN
  }
  const Checkpoint expected = open_file(folder() / "expected.safetensors");
  expect_same_routing(out, expected);
  expect_producers_output(OpenLayer(folder()), out, expected);
}

TEST_P(FolderWithExpectedValues, GivenRoutesMeetTheOracleAndTheProducer) {
  const fs::path output = scratch_folder() / "given_routes.safetensors";
  // expected.safetensors holds hidden_states, router_logits and int64 topk_ids: the ids win.
  const CliResult result = run_folder(folder(), folder() / "expected.safetensors", output);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.json().at("routed_by").get<std::string>().find("topk_ids"), std::string::npos);
  const Checkpoint out = open_file(output);
  EXPECT_EQ(out.find("topk_ids"), nullptr) << "routing was not done here";
  const Checkpoint expected = open_file(folder() / "expected.safetensors");
  expect_producers_output(OpenLayer(folder()), out, expected);
}

TEST_P(FolderWithExpectedValues, GivenLogitsAndF32StatesMeetTheOracleAndTheProducer) {
  const Checkpoint expected = open_file(folder() / "expected.safetensors");
  const TensorView& x = expected.find("hidden_states")->view;
  std::vector<float> wide;
  for (const double value : values_of(expected, "hidden_states")) {
    wide.push_back(static_cast<float>(value));
  }
  const fs::path input = scratch_folder() / "logits_in.safetensors";
  std::vector<TensorToWrite> tensors{
      {"hidden_states",
       matrix_view(static_cast<const void*>(wide.data()), DType::kF32, x.shape[0], x.shape[1])},
      {"router_logits", expected.find("router_logits")->view}};
  if (const NamedTensor* token_ids = expected.find("token_ids"); token_ids != nullptr) {
    tensors.push_back({"token_ids", token_ids->view});
  }
  ASSERT_TRUE(write_safetensors(input.string(), tensors).ok());
  const fs::path output = scratch_folder() / "logits_out.safetensors";
  const CliResult result = run_folder(folder(), input, output, {"--threads", "1"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.json().at("routed_by"), "router_logits of the input");
  const Checkpoint out = open_file(output);
  EXPECT_EQ(out.find("output")->view.dtype, DType::kF32) << "the dtype of the input";
  expect_same_routing(out, expected);
  expect_producers_output(OpenLayer(folder()), out, expected);
}

/// Hidden states with what the layer's routing needs: nothing, token ids, or (where the router does
/// not read the hidden states) routes.
fs::path routed_input(const fs::path& folder, const CheckpointLayer& layer) {
  return folder /
         (layer.router.weight.data == nullptr ? "expected.safetensors" : "input.safetensors");
}

/// The hidden states of `given` as f32 that bf16 does not hold, so that x is rounded once.
void write_f32_states(const Checkpoint& given, const fs::path& input) {
  const TensorView& x = given.find("hidden_states")->view;
  std::vector<float> wide;
  for (const double value : values_of(given, "hidden_states")) {
    wide.push_back(static_cast<float>(value) * 1.001F);
  }
  std::vector<TensorToWrite> tensors{
      {"hidden_states",
       matrix_view(static_cast<const void*>(wide.data()), DType::kF32, x.shape[0], x.shape[1])}};
  for (const char* routing : {"token_ids", "topk_ids", "topk_weights"}) {
    if (const NamedTensor* tensor = given.find(routing); tensor != nullptr) {
      tensors.push_back({routing, tensor->view});
    }
  }
  const Status status = write_safetensors(input.string(), tensors);
  ASSERT_TRUE(status.ok()) << status.to_string();
}

// Real weights and real activations in the recipes that quantise, too: the producer has no output
// for those, the oracle has.
TEST_P(RealFolder, EveryRecipeOfItsFormatMeetsTheOracle) {
  const OpenLayer open(folder());
  const CheckpointLayer& layer = open.layer;
  const fs::path given = routed_input(folder(), layer);
  const fs::path wide = scratch_folder() / "wide_states.safetensors";
  write_f32_states(open_file(given), wide);
  const fs::path output = scratch_folder() / "recipe_out.safetensors";
  int served = 0;
  for (const RecipeInfo& info : kRecipes) {
    if (info.weights != recipe_info(layer.problem.recipe).weights) {
      continue;
    }
    const bool misses_input_scales =
        quantizer_info(info.quantizer).needs_input_scale && layer.input_scales_down.empty();
    for (const fs::path& input : {given, wide}) {
      const CliResult result =
          run_folder(folder(), input, output, {"--recipe", std::string(info.name)});
      if (misses_input_scales) {
        EXPECT_EQ(result.exit_code, 2) << info.name;
        EXPECT_NE(result.err.find("has no input scale"), std::string::npos) << result.err;
        continue;
      }
      ASSERT_EQ(result.exit_code, 0) << info.name << result.out << result.err;
      const nlohmann::json check = result.json().at("check");
      EXPECT_EQ(check.at("passed"), true) << info.name;
      EXPECT_GT(check.at("intermediates_checked").get<int>(), 0) << info.name;
      ++served;
    }
  }
  EXPECT_GE(served, 2);
}

std::string folder_name(const testing::TestParamInfo<fs::path>& info) {
  return info.param.filename().string();
}

std::vector<fs::path> folders_with_expected_values() {
  std::vector<fs::path> found = folders();
  std::erase_if(found, [](const fs::path& p) { return !fs::exists(p / "expected.safetensors"); });
  return found;
}

INSTANTIATE_TEST_SUITE_P(Testdata, RealFolder, testing::ValuesIn(folders()), folder_name);
INSTANTIATE_TEST_SUITE_P(Testdata,
                         FolderWithExpectedValues,
                         testing::ValuesIn(folders_with_expected_values()),
                         folder_name);

TEST(RealFolders, AreAllThere) {
  EXPECT_GE(folders().size(), 31U);
}

}  // namespace
}  // namespace moekit::test
