// SPDX-License-Identifier: Apache-2.0
// What each verb reports: JSON field names as specified, and text a person can read.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "moekit/checkpoint.h"
#include "moekit/plan.h"
#include "moekit/recipe.h"

#include "tests/cli/cli_fixture.h"

namespace moekit::test {
namespace {

using Json = nlohmann::json;

void expect_fields(const Json& json, const std::vector<std::string>& names) {
  ASSERT_TRUE(json.is_object()) << json.dump();
  for (const std::string& name : names) {
    EXPECT_TRUE(json.contains(name)) << name << " is missing in " << json.dump().substr(0, 400);
  }
}

TEST(CliDevices, ListsTheCpuFirst) {
  const CliResult result = run_cli({"devices", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json devices = result.json().at("devices");
  ASSERT_GE(devices.size(), 1U);
  EXPECT_EQ(devices[0].at("device"), "cpu");
  expect_fields(devices[0],
                {"name", "arch", "isa", "num_threads", "l1d_bytes", "l2_per_core_bytes"});
  EXPECT_GE(devices[0].at("num_threads").get<int>(), 1);
  EXPECT_NE(run_cli({"devices"}).out.find("cpu"), std::string::npos);
}

TEST(CliInspect, SaysWhatWasInferredAndIgnored) {
  const CliResult result = run_cli({"inspect", folder("deepseek_v3_bf16"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = result.json();
  expect_fields(json,
                {"path",
                 "model_type",
                 "quantization",
                 "num_tensors",
                 "num_files",
                 "total_bytes",
                 "moe_layers",
                 "ignored_fields",
                 "layers"});
  EXPECT_GT(json.at("ignored_fields").size(), 0U);
  ASSERT_EQ(json.at("layers").size(), 1U);
  const Json& layer = json.at("layers")[0];
  expect_fields(layer, {"layer", "scheme", "prefix", "problem", "routing", "router", "inferred"});
  EXPECT_EQ(layer.at("problem").at("hidden_size"), 88);
  EXPECT_EQ(layer.at("problem").at("intermediate_size"), 40);
  EXPECT_EQ(layer.at("problem").at("num_experts"), 8);
  EXPECT_EQ(layer.at("problem").at("recipe"), "w16a16");
  EXPECT_EQ(layer.at("routing").at("scoring"), "sigmoid");
  EXPECT_EQ(layer.at("routing").at("num_groups"), 4);
  EXPECT_EQ(layer.at("routing").at("top_groups"), 2);
  EXPECT_GT(layer.at("inferred").size(), 3U);
  const CliResult text = run_cli({"inspect", folder("deepseek_v3_bf16")});
  EXPECT_NE(text.out.find("inferred"), std::string::npos);
  EXPECT_NE(text.out.find("from"), std::string::npos) << "each fact names its source";
}

TEST(CliInspect, NamesFromFilesReachNoTerminalAndFillNoScreen) {
  const std::filesystem::path copy = scratch_folder() / "hostile_names";
  std::filesystem::copy(folder("qwen3_moe_bf16"), copy);
  Json config = Json::parse(read_file(copy / "config.json"));
  config["model_type"] = "red\x1b[31m" + std::string(5000, 'x');
  write_file(copy / "config.json", config.dump());
  const CliResult text = run_cli({"inspect", copy.string()});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.out.find('\x1b'), std::string::npos);
  EXPECT_NE(text.out.find("xxx... ("), std::string::npos) << text.out;
  const CliResult json = run_cli({"inspect", copy.string(), "--json"});
  EXPECT_NE(json.json().at("model_type").get<std::string>().find("red\x1b[31mxxx"),
            std::string::npos)
      << "JSON escapes and keeps all";
}

TEST(CliInspect, NamesAFolderWithoutTheSlashesAtItsEnd) {
  const CliResult result = run_cli({"inspect", folder("deepseek_v3_bf16") + "//", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.json().at("path"), folder("deepseek_v3_bf16"));
  const CliResult empty = run_cli({"inspect", scratch_folder().string() + "/"});
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_EQ(empty.err.find("//"), std::string::npos) << empty.err;
  EXPECT_EQ(empty.err.find("/ "), std::string::npos) << empty.err;
}

TEST(CliPlan, JsonHasTheSpecifiedFields) {
  const CliResult result = run_cli(with_shape("plan", {"--tokens", "33", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = result.json();
  expect_fields(json,
                {"schema",
                 "problem",
                 "device",
                 "layout_id",
                 "family",
                 "steps",
                 "ladder",
                 "workspace_bytes",
                 "workspace",
                 "deterministic",
                 "concurrency",
                 "aux_stream_overlap",
                 "refused",
                 "prepare"});
  EXPECT_EQ(json.at("schema"), kPlanSchema);
  EXPECT_EQ(json.at("deterministic"), true);
  ASSERT_GE(json.at("steps").size(), 1U);
  expect_fields(json.at("steps")[0], {"family", "kernel", "grid", "smem_bytes", "status"});
  ASSERT_GE(json.at("ladder").size(), 1U);
  expect_fields(json.at("ladder")[0],
                {"m_min", "m_max", "family", "steps", "deterministic", "concurrency"});
  EXPECT_EQ(json.at("ladder").back().at("m_max"), 33);
  ASSERT_GE(json.at("workspace").size(), 1U);
  expect_fields(json.at("workspace")[0], {"name", "offset", "bytes"});
  expect_fields(json.at("concurrency"), {"launches", "grid_barrier", "cooperative", "atomics"});
  expect_fields(json.at("aux_stream_overlap"), {"verdict", "reason"});
  expect_fields(json.at("prepare"), {"policy", "peak_extra_bytes", "packed_bytes"});
}

TEST(CliPlan, JsonIsThePlanItself) {
  const CliResult result =
      run_cli(with_shape("plan", {"--tokens", "33", "--device", "cpu:portable", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Result<Plan> read = Plan::from_json(result.out);
  ASSERT_TRUE(read) << read.status().to_string();
  Problem problem;
  problem.num_tokens = 33;
  problem.num_experts = 8;
  problem.top_k = 2;
  problem.hidden_size = 128;
  problem.intermediate_size = 64;
  problem.recipe = Recipe::kW4a16Nvfp4;
  const Result<Plan> made = make_plan(problem, *device_from_name("cpu:portable"));
  ASSERT_TRUE(made) << made.status().to_string();
  EXPECT_EQ(*read, *made);
}

TEST(CliPlan, OptionsReachTheProblem) {
  const CliResult result = run_cli(with_shape("plan",
                                              {"--tokens",
                                               "8",
                                               "--recipe",
                                               "w4a16_mxfp4",
                                               "--activation",
                                               "swiglu_oai",
                                               "--limit",
                                               "6.5",
                                               "--alpha",
                                               "1.5",
                                               "--beta",
                                               "0.5",
                                               "--row-order",
                                               "interleaved",
                                               "--bias",
                                               "--routed-scaling",
                                               "2.5",
                                               "--router-weight-on-input",
                                               "--io-dtype",
                                               "f32",
                                               "--batch-invariant",
                                               "--max-workspace",
                                               "1000000",
                                               "--threads",
                                               "3",
                                               "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = result.json();
  const Json& problem = json.at("problem");
  EXPECT_EQ(problem.at("recipe"), "w4a16_mxfp4");
  EXPECT_EQ(problem.at("activation").at("kind"), "swiglu_oai");
  EXPECT_EQ(problem.at("activation").at("limit"), 6.5);
  EXPECT_EQ(problem.at("activation").at("alpha"), 1.5);
  EXPECT_EQ(problem.at("activation").at("beta"), 0.5);
  EXPECT_EQ(problem.at("row_order"), "interleaved");
  EXPECT_EQ(problem.at("gate_up_bias"), true);
  EXPECT_EQ(problem.at("down_bias"), true);
  EXPECT_EQ(problem.at("routed_scaling"), 2.5);
  EXPECT_EQ(problem.at("router_weight_on_input"), true);
  EXPECT_EQ(problem.at("io_dtype"), "f32");
  EXPECT_EQ(problem.at("batch_invariant"), true);
  EXPECT_EQ(problem.at("max_workspace_bytes"), 1000000);
  EXPECT_EQ(json.at("device").at("num_threads"), 3);
}

TEST(CliPlan, PinsChooseTheFamily) {
  for (const std::string family : {"direct", "grouped"}) {
    const CliResult result =
        run_cli(with_shape("plan", {"--tokens", "16", "--pin", "family=" + family, "--json"}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.json().at("family"), family);
  }
}

TEST(CliPlan, TextNamesStepsWorkspaceAndRefusals) {
  const CliResult result = run_cli(with_shape("plan", {"--tokens", "1"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* word : {"problem", "device", "ladder", "workspace"}) {
    EXPECT_NE(result.out.find(word), std::string::npos) << word;
  }
}

TEST(CliPlan, PresetsAreTheShapesOfPublicModels) {
  struct Shape {
    const char* preset;
    int experts, top_k, hidden, intermediate;
    const char* recipe;
  };

  const std::vector<Shape> shapes{{"glm52_tp8", 256, 8, 6144, 256, "w4a16_nvfp4"},
                                  {"glm52_ep8", 32, 8, 6144, 2048, "w4a16_nvfp4"},
                                  {"deepseek_v3_tp8", 256, 8, 7168, 256, "w4a16_nvfp4"},
                                  {"qwen3_30b", 128, 8, 2048, 768, "w4a16_nvfp4"},
                                  {"gpt_oss_120b", 128, 4, 2880, 2880, "w4a16_mxfp4"},
                                  {"mixtral_8x7b", 8, 2, 4096, 14336, "w4a16_nvfp4"},
                                  {"cpu_qwen3_30b", 128, 8, 2048, 768, "w4a16_mxfp4"},
                                  {"cpu_glm52_tp8", 256, 8, 6144, 256, "w4a16_mxfp4"},
                                  {"cpu_gpt_oss_20b", 32, 4, 2880, 2880, "w4a16_mxfp4"},
                                  {"cpu_mixtral_tp4", 8, 2, 4096, 3584, "w4a16_mxfp4"}};
  for (const Shape& shape : shapes) {
    const CliResult result = run_cli({"plan", "--preset", shape.preset, "--tokens", "1", "--json"});
    ASSERT_EQ(result.exit_code, 0) << shape.preset << result.err;
    const Json problem = result.json().at("problem");
    EXPECT_EQ(problem.at("num_experts"), shape.experts) << shape.preset;
    EXPECT_EQ(problem.at("top_k"), shape.top_k) << shape.preset;
    EXPECT_EQ(problem.at("hidden_size"), shape.hidden) << shape.preset;
    EXPECT_EQ(problem.at("intermediate_size"), shape.intermediate) << shape.preset;
    EXPECT_EQ(problem.at("recipe"), shape.recipe) << shape.preset;
  }
}

TEST(CliPlan, ShardsPlanTheRanksPart) {
  const CliResult whole = run_cli(with_shape("plan", {"--tokens", "8", "--json"}));
  const CliResult part = run_cli(
      with_shape("plan", {"--tokens", "8", "--tp", "1/3", "--ep", "1/4", "--bias", "--json"}));
  ASSERT_EQ(part.exit_code, 0) << part.err;
  const Json problem = part.json().at("problem");
  EXPECT_EQ(problem.at("intermediate_size"), 24);  // columns 16..40 of 64
  EXPECT_EQ(problem.at("num_experts"), 2);
  EXPECT_EQ(problem.at("router_experts"), 8);
  EXPECT_EQ(problem.at("out_dtype"), "f32");
  EXPECT_EQ(problem.at("gate_up_bias"), true);
  EXPECT_EQ(problem.at("down_bias"), false);
  EXPECT_LT(part.json().at("prepare").at("packed_bytes").get<std::int64_t>(),
            whole.json().at("prepare").at("packed_bytes").get<std::int64_t>());
  EXPECT_EQ(run_cli(with_shape("plan", {"--tokens", "8", "--tp", "0/9"})).exit_code, 3);
  EXPECT_EQ(run_cli(with_shape("plan", {"--tokens", "8", "--tp", "3"})).exit_code, 2);
  EXPECT_EQ(run_cli(with_shape("plan", {"--tokens", "8", "--ep", "2/2"})).exit_code, 2);
}

TEST(CliPlan, MatrixHasEveryCellAndEveryRefusalAReason) {
  const CliResult result = run_cli({"plan", "--matrix", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json cells = result.json().at("matrix");
  EXPECT_EQ(cells.size(), kRecipes.size() * 11U * 5U);  // recipes, devices, activations
  int served = 0;
  for (const Json& cell : cells) {
    if (cell.at("status").is_null()) {
      EXPECT_NE(cell.at("reason"), "") << cell.dump();
    } else {
      ++served;
    }
    const std::string recipe = cell.at("recipe");
    const bool on_cpu = cell.at("device").get<std::string>().rfind("cpu", 0) == 0;
    // Every device has a plan for 4-bit weights with 16-bit activations; a CPU for bf16 too.
    if (recipe == "w4a16_nvfp4" || recipe == "w4a16_mxfp4" || (on_cpu && recipe == "w16a16")) {
      EXPECT_FALSE(cell.at("status").is_null()) << cell.dump();
    }
  }
  EXPECT_GE(served, (2 * 10 + 3) * 5);
  const CliResult text = run_cli({"plan", "--matrix"});
  EXPECT_EQ(text.out.rfind("| recipe |", 0), 0U) << text.out;
}

TEST(CliPlan, MatrixIsOfTheDevicePinsAndBudgetThatAreGiven) {
  const CliResult one = run_cli({"plan", "--matrix", "--device", "sm_120a:num_sms=94", "--json"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const Json answer = one.json();
  EXPECT_EQ(answer.at("matrix").size(), kRecipes.size() * 5U);
  EXPECT_EQ(answer.at("shape").at("num_tokens"), 1024);
  for (const Json& cell : answer.at("matrix")) {
    EXPECT_EQ(cell.at("device"), "sm_120a:num_sms=94");
  }
  // What no column can honour is refused in every cell with its reason.
  for (const std::vector<std::string>& extra :
       {std::vector<std::string>{"--pin", "family=direct"}, {"--max-workspace", "64"}}) {
    std::vector<std::string> line{"plan", "--matrix", "--device", "cpu:avx2", "--json"};
    line.insert(line.end(), extra.begin(), extra.end());
    const CliResult result = run_cli(line);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    int refused = 0;
    const Json cells = result.json().at("matrix");
    for (const Json& cell : cells) {
      refused += cell.at("status").is_null() ? 1 : 0;
    }
    const bool bounded = extra.front() == "--max-workspace";
    EXPECT_EQ(refused, bounded ? static_cast<int>(kRecipes.size()) * 5 : 0) << extra.front();
  }
  // Kernels that serve few tokens are not hidden by those that are to be written for many.
  const CliResult hopper = run_cli({"plan", "--matrix", "--device", "sm_90a"});
  EXPECT_NE(hopper.out.find(" to M 64, planned beyond |"), std::string::npos) << hopper.out;
  EXPECT_NE(hopper.out.find("* sm_90a: no packed layout of bf16 (recipe w16a16) for it, which"),
            std::string::npos)
      << hopper.out;
  const CliResult text = run_cli({"plan", "--matrix", "--tokens", "8"});
  EXPECT_NE(text.out.find("Of E 128, top-8, H 2048, I 768 for M up to 8"), std::string::npos);
  EXPECT_EQ(run_cli({"plan", "--matrix", "--tokens", "99999999999"}).exit_code, 2);
  EXPECT_EQ(run_cli({"plan", "--matrix", "--tp", "0/2"}).exit_code, 2);
}

TEST(CliPlan, NumbersOutOfRangeAndOptionsWithoutMeaningAreRefused) {
  for (const char* option : {"--tokens", "--max-workspace"}) {
    const CliResult result =
        run_cli(with_shape("plan", {"--tokens", "8", option, "99999999999999999999"}));
    EXPECT_EQ(result.exit_code, 2) << option;
    if (std::string(option) == "--max-workspace") {
      EXPECT_NE(result.err.find("99999999999999999999 is above 9223372036854775807"),
                std::string::npos)
          << result.err;
    }
  }
  const CliResult threads =
      run_cli(with_shape("plan", {"--tokens", "8", "--device", "sm_90a", "--threads", "2"}));
  EXPECT_EQ(threads.exit_code, 2);
  EXPECT_NE(threads.err.find("threads are of the CPU backend"), std::string::npos) << threads.err;
  const CliResult absent = run_cli({"plan", "--checkpoint", "/nope", "--tokens", "1"});
  EXPECT_NE(absent.exit_code, 0);
  EXPECT_EQ(absent.err.find("//nope"), std::string::npos) << absent.err;
  EXPECT_NE(absent.err.find("/nope"), std::string::npos) << absent.err;
}

TEST(CliPlan, TextNamesWhatJsonHas) {
  const CliResult result = run_cli(with_shape("plan",
                                              {"--tokens",
                                               "8",
                                               "--activation",
                                               "swiglu_oai",
                                               "--alpha",
                                               "1.5",
                                               "--beta",
                                               "0.5",
                                               "--batch-invariant",
                                               "--max-workspace",
                                               "1000000"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* word :
       {" alpha=1.5", " beta=0.5", " batch_invariant", " max_workspace_bytes=1000000"}) {
    EXPECT_NE(result.out.find(word), std::string::npos) << word << "\n" << result.out;
  }
}

TEST(CliVerify, JsonCountsChecksAndReportsBounds) {
  const CliResult result =
      run_cli(with_shape("verify", {"--tokens", "1,9", "--seed", "3", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const Json json = result.json();
  expect_fields(json, {"schema", "passed", "failed", "seconds", "results"});
  EXPECT_EQ(json.at("passed"), 2);
  EXPECT_EQ(json.at("failed"), 0);
  ASSERT_EQ(json.at("results").size(), 2U);
  const Json& report = json.at("results")[1].at("report");
  expect_fields(report,
                {"passed",
                 "tokens_checked",
                 "intermediates_checked",
                 "intermediates_differing",
                 "outputs_checked",
                 "outputs_out_of_bound",
                 "max_abs_error",
                 "rms_error",
                 "max_bound_fraction",
                 "cosine",
                 "first_failure"});
  EXPECT_EQ(report.at("tokens_checked"), 9);
  EXPECT_EQ(report.at("outputs_checked"), 9 * 128);
  EXPECT_EQ(report.at("outputs_out_of_bound"), 0);
}

TEST(CliVerify, SaysHowManyTokensOfHowManyWereChecked) {
  const std::vector<std::string> arguments = with_shape("verify", {"--tokens", "100"});
  const CliResult text = run_cli(arguments);
  ASSERT_EQ(text.exit_code, 0) << text.out << text.err;
  EXPECT_NE(text.out.find("64 of 100 tokens checked"), std::string::npos) << text.out;
  const CliResult json = run_cli(with_shape("verify", {"--tokens", "100", "--json"}));
  const Json report = json.json().at("results").at(0).at("report");
  EXPECT_EQ(report.at("tokens_checked"), 64);
  EXPECT_EQ(report.at("tokens"), 100);
}

TEST(CliRun, SaysWhatWasInferredHowItRoutedAndWhatWasChecked) {
  const std::string checkpoint = folder("deepseek_v3_bf16");
  const Json layer = run_cli({"inspect", checkpoint, "--json"}).json().at("layers").at(0);
  std::vector<std::string> arguments{"run",
                                     "--checkpoint",
                                     checkpoint,
                                     "--layer",
                                     std::to_string(layer.at("layer").get<int>()),
                                     "--input",
                                     checkpoint + "/input.safetensors",
                                     "--output",
                                     (scratch_folder() / "facts.safetensors").string(),
                                     "--check"};
  const CliResult text = run_cli(arguments);
  ASSERT_EQ(text.exit_code, 0) << text.out << text.err;
  ASSERT_GT(layer.at("inferred").size(), 3U);
  for (const Json& fact : layer.at("inferred")) {
    EXPECT_NE(text.out.find(fact.get<std::string>()), std::string::npos) << fact;
  }
  EXPECT_NE(text.out.find("groups 2 of 4, renormalize="), std::string::npos) << text.out;
  arguments.emplace_back("--json");
  const CliResult result = run_cli(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = result.json();
  EXPECT_EQ(json.at("inferred"), layer.at("inferred"));
  EXPECT_EQ(json.at("routing"), layer.at("routing"));
  EXPECT_EQ(json.at("check").at("tokens"), json.at("tokens"));
  EXPECT_NE(
      text.out.find(" of " + std::to_string(json.at("tokens").get<int>()) + " tokens checked"),
      std::string::npos);
}

TEST(CliRun, SaysWhyTokensWereNotCheckedAndWhatTheOthersHad) {
  constexpr std::int64_t kTokens = 4;
  constexpr std::int64_t kHidden = 72;
  std::vector<float> x(kTokens * kHidden, 0.5F);
  x[kHidden] = NAN;
  std::fill_n(x.begin() + 2 * kHidden, kHidden, 1e38F);
  const std::vector<std::int32_t> ids{0, 1, 2, 3, -1, -1, 0, 1};  // token 2 is nobody's
  const std::vector<float> weights(ids.size(), 0.5F);
  const std::string input = (scratch_folder() / "rows_in.safetensors").string();
  const auto write = [&](const std::vector<std::int32_t>& routes) {
    const Status written = write_safetensors(
        input,
        {{"hidden_states",
          matrix_view(static_cast<const void*>(x.data()), DType::kF32, kTokens, kHidden)},
         {"topk_ids",
          matrix_view(static_cast<const void*>(routes.data()), DType::kI32, kTokens, 2)},
         {"topk_weights",
          matrix_view(static_cast<const void*>(weights.data()), DType::kF32, kTokens, 2)}});
    ASSERT_TRUE(written.ok()) << written.to_string();
  };
  const std::string output = (scratch_folder() / "rows_out.safetensors").string();
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"run",
                                       "--checkpoint",
                                       folder("qwen3_moe_bf16"),
                                       "--layer",
                                       "1",
                                       "--input",
                                       input,
                                       "--output",
                                       output,
                                       "--check"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_cli(arguments);
  };
  write(ids);
  const CliResult rows = run({});
  EXPECT_EQ(rows.exit_code, 0) << rows.out << rows.err;
  for (const char* words : {"4 of 4 tokens checked",
                            "rows       2 tokens: 1 with a non-finite x, whose rows must be NaN, 1 "
                            "without an active route"}) {
    EXPECT_NE(rows.out.find(words), std::string::npos) << words << " not in " << rows.out;
  }
  EXPECT_EQ(rows.out.find("unchecked"), std::string::npos) << rows.out;
  write({0, 1, 2, 3, 4, 5, 0, 1});
  const CliResult some = run({});
  EXPECT_EQ(some.exit_code, 0) << some.out << some.err;
  EXPECT_NE(some.out.find(
                "unchecked  1 token: 1 with weights that are not finite or sums that may leave"),
            std::string::npos)
      << some.out;
  const Json check = run({"--json"}).json().at("check");
  EXPECT_EQ(check.at("tokens_checked"), 3);
  EXPECT_EQ(check.at("tokens_out_of_range"), 1);
  EXPECT_EQ(check.at("tokens_not_finite"), 1);
  EXPECT_EQ(check.at("tokens_inactive"), 0);
  std::fill(x.begin(), x.end(), 1e38F);
  write({0, 1, 2, 3, 4, 5, 0, 1});
  const CliResult none = run({});
  EXPECT_EQ(none.exit_code, 1) << "nothing was checked: " << none.out << none.err;
  EXPECT_NE(none.out.find("none of 4 tokens could be checked: 4 whose"), std::string::npos);
}

TEST(CliVerify, ChecksTheWeightsOfACheckpoint) {
  const CliResult result = run_cli({"verify",
                                    "--checkpoint",
                                    folder("modelopt_nvfp4_qwen3_moe"),
                                    "--layer",
                                    "1",
                                    "--tokens",
                                    "1,5",
                                    "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.json().at("passed"), 2);
}

TEST(CliBench, EveryRecipeIsTimedAndItsBytesCounted) {
  struct Case {
    const char* recipe;
    std::int64_t matrix_bytes;  // codes, then scales
  };

  constexpr std::int64_t kElems = std::int64_t{128} * 64;
  for (const Case& c : {Case{"w16a16", kElems * 2},
                        Case{"w4a16_nvfp4", kElems / 2 + kElems / 16},
                        Case{"w4a16_mxfp4", kElems / 2 + kElems / 32},
                        Case{"w4a4_nvfp4", kElems / 2 + kElems / 16},
                        Case{"w4a8_nvfp4", kElems / 2 + kElems / 16},
                        Case{"w4a8_mxfp4", kElems / 2 + kElems / 32},
                        Case{"w8a8_fp8_block128", kElems + 4},
                        Case{"w4a16_int4", 0}}) {
    const CliResult result = run_cli(with_shape(
        "bench", {"--tokens", "1", "--seconds", "0.02", "--recipe", c.recipe, "--json"}));
    ASSERT_EQ(result.exit_code, 0) << c.recipe << result.out << result.err;
    const Json row = result.json();
    EXPECT_EQ(row.at("check").at("passed"), true) << c.recipe;
    // int4 has a bf16 scale per 128 columns or the rest of them: 64 rows of one, 128 rows of one.
    const std::int64_t expert =
        c.matrix_bytes != 0 ? 3 * c.matrix_bytes : 3 * 128 * 64 / 2 + 2 * (64 * 2) + 128 * 2;
    EXPECT_EQ(row.at("active_weight_bytes"), 2 * expert) << c.recipe;
  }
}

/// A peak of an instruction that multiplies more than a dot product does, where the processor has
/// it.
void expect_peak(const Json& row, const char* name, bool wanted) {
  ASSERT_EQ(row.at(name).is_null(), !wanted) << name;
  if (wanted) {
    const double peak = row.at(name).at("median").get<double>();
    EXPECT_GT(peak, row.at("probe_gflops").at("median").get<double>()) << name;
    EXPECT_LT(peak, 2.0 * 2.0 * 16384.0) << name;
  }
}

TEST(CliBench, RowsSayWhatWasMeasuredAndWhere) {
  const CliResult result = run_cli(
      with_shape("bench", {"--tokens", "1,4", "--seconds", "0.05", "--threads", "2", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  std::istringstream lines(result.out);
  std::vector<Json> rows;
  for (std::string line; std::getline(lines, line);) {
    rows.push_back(Json::parse(line, nullptr, false));
    ASSERT_FALSE(rows.back().is_discarded()) << line;
  }
  ASSERT_EQ(rows.size(), 2U);
  for (const Json& row : rows) {
    expect_fields(row,
                  {"subject",
                   "case",
                   "tokens",
                   "recipe",
                   "device",
                   "threads",
                   "version",
                   "commit",
                   "dirty",
                   "command",
                   "plan",
                   "weight_copies",
                   "turns",
                   "time_us",
                   "active_weight_bytes",
                   "gbps",
                   "probe_gbps",
                   "fraction_of_probe",
                   "gflops",
                   "probe_gflops",
                   "fraction_of_dot_peak",
                   "probe_fma_gflops",
                   "probe_tile_gflops",
                   "fraction_of_tile_peak",
                   "probe_int8_gops",
                   "doubts",
                   "relative_l2",
                   "check",
                   "samples_us"});
    expect_fields(row.at("time_us"), {"median", "p10", "p90"});
    EXPECT_GE(row.at("samples_us").size(), 10U);
    EXPECT_GT(row.at("time_us").at("median").get<double>(), 0.0);
    EXPECT_GT(row.at("probe_gbps").at("median").get<double>(), 0.0);
    // No core so far adds fewer than one product or more than 2^9 of them in a nanosecond.
    EXPECT_GT(row.at("probe_gflops").at("median").get<double>(), 1.0);
    EXPECT_LT(row.at("probe_gflops").at("median").get<double>(), 2.0 * 2.0 * 512.0);
    const std::string isa = row.at("device").at("isa").get<std::string>();
    expect_peak(row, "probe_tile_gflops", isa == "amx");
    expect_peak(row, "probe_int8_gops", isa == "amx" || isa == "avx512");
    EXPECT_EQ(row.at("fraction_of_tile_peak").is_null(), isa != "amx");
    EXPECT_EQ(row.at("check").at("passed"), true);
    EXPECT_GT(row.at("relative_l2").get<double>(), 0.0);  // a bf16 output rounds something
    EXPECT_LE(row.at("relative_l2").get<double>(), 5e-3);
    EXPECT_EQ(row.at("threads"), 2);
    // A few kilobytes a call: as many routings as there may be, not the eight that stay in a cache.
    EXPECT_EQ(row.at("routings"), 512);
    EXPECT_NE(row.at("command").get<std::string>().find("--seconds 0.05"), std::string::npos);
  }
  // Two distinct experts of 3 * 128 * 64 codes at half a byte and a scale byte per 16.
  EXPECT_EQ(rows[0].at("active_weight_bytes"), 2 * (3 * 128 * 64 / 2 + 3 * 128 * 64 / 16));
}

// Medians of probes that a neighbour disturbs would make fractions that cannot be.
TEST(CliBench, DisturbedProbesAreSaid) {
  const std::vector<std::string> shape = {"--tokens", "1,8", "--seconds", "0.02"};
  std::vector<std::string> with_json = shape;
  with_json.emplace_back("--json");
  const CliResult result = run_cli(with_shape("bench", with_json), {}, MOEKIT_CLI_DISTURBED);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  std::istringstream lines(result.out);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(Json::parse(line).at("doubts"), Json::array()) << "steady probes";
  ASSERT_TRUE(std::getline(lines, line));
  const Json doubts = Json::parse(line).at("doubts");
  ASSERT_GE(doubts.size(), 4U) << doubts;  // both kinds of peak that every processor has, and both
                                           // fractions
  for (const char* said : {"probe_gflops: p90 2.5e-06 is more than 2 times p10 1e-06",
                           "probe_fma_gflops: p90 2.5e-06 is more than 2 times p10 1e-06",
                           " of a linear read, more than 1.15 cannot be",
                           " of the highest peak, more than 1.15 cannot be"}) {
    EXPECT_NE(doubts.dump().find(said), std::string::npos) << said << doubts;
    EXPECT_NE(result.err.find(said), std::string::npos) << said << result.err;
  }
  EXPECT_EQ(doubts.dump().find("probe_gbps:"), std::string::npos) << "slow and steady: " << doubts;
  EXPECT_EQ(result.err.find("moekit: warning: M 8 on "), 0U) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), std::ssize(doubts));

  const CliResult text = run_cli(with_shape("bench", shape), {}, MOEKIT_CLI_DISTURBED);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  const std::size_t mark = text.out.find("calls, fractions in doubt\n");
  ASSERT_NE(mark, std::string::npos) << text.out;
  EXPECT_LT(text.out.find("M     8"), mark) << text.out;
  EXPECT_EQ(text.out.find("in doubt", mark + 20), std::string::npos) << text.out;
}

// Far more threads than cores: those that have not run yet must not be taken for quick ones.
TEST(CliBench, PeaksOfManyThreadsAreThoseOfTheCores) {
  const CliResult result = run_cli(
      with_shape("bench", {"--tokens", "1", "--seconds", "0.02", "--threads", "256", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const Json row = result.json();
  const double cores = std::thread::hardware_concurrency();
  EXPECT_LT(row.at("probe_gflops").at("p90").get<double>(), cores * 1024.0);
  EXPECT_LT(row.at("probe_gbps").at("p90").get<double>(), cores * 1024.0);
}

TEST(CliBench, InstructionSetsOfOptionAndDeviceContradict) {
  const CliResult result =
      run_cli(with_shape("bench", {"--isa", "portable", "--device", "cpu:portable"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--isa portable with --device cpu:portable"), std::string::npos)
      << result.err;
}

// One run, one row for each instruction set, as many calls of each.
TEST(CliBench, InstructionSetsTakeTurns) {
  const CliResult result = run_cli(with_shape(
      "bench", {"--tokens", "2", "--seconds", "0.02", "--isa", "portable,portable", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  std::istringstream lines(result.out);
  std::vector<std::size_t> calls;
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line, nullptr, false);
    ASSERT_FALSE(row.is_discarded()) << line;
    EXPECT_EQ(row.at("turns"), Json({"portable", "portable"}));
    EXPECT_EQ(row.at("device").at("isa"), "portable");
    EXPECT_EQ(row.at("check").at("passed"), true);
    calls.push_back(row.at("samples_us").size());
  }
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0], calls[1]);
}

TEST(CliBench, TimesWhenTheStandardInputAsks) {
  const std::filesystem::path requests = scratch_folder() / "turns.txt";
  const auto bench = [&requests](const std::string& lines) {
    write_file(requests, lines);
    std::string redirect = "<";
    redirect += requests.string();
    return run_cli(
        with_shape("bench", {"--tokens", "1,4", "--threads", "2", "--on-request", "--json"}),
        redirect);
  };
  const CliResult good = bench("go 4 3\ngo 4 2\n");
  ASSERT_EQ(good.exit_code, 0) << good.out << good.err;
  std::istringstream lines(good.out);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(line, "ready");
  for (const int num_calls : {3, 2}) {
    ASSERT_TRUE(std::getline(lines, line));
    std::istringstream words(line);
    std::string word;
    ASSERT_TRUE(words >> word);
    EXPECT_EQ(word, "us");
    std::vector<double> times;
    for (double us = 0.0; words >> us;) {
      times.push_back(us);
    }
    EXPECT_EQ(times.size(), static_cast<std::size_t>(num_calls)) << line;
    EXPECT_GT(*std::min_element(times.begin(), times.end()), 0.0) << line;
  }
  // A row of the token count that was asked for, and none of the other.
  ASSERT_TRUE(std::getline(lines, line));
  const Json row = Json::parse(line, nullptr, false);
  ASSERT_FALSE(row.is_discarded()) << line;
  EXPECT_EQ(row.at("tokens"), 4);
  EXPECT_EQ(row.at("samples_us").size(), 5U);
  EXPECT_FALSE(std::getline(lines, line)) << line;

  for (const char* bad :
       {"go 2 1\n", "go 1\n", "go 1 0\n", "go 1 1001\n", "go 1 1 1\n", "stop\n"}) {
    const CliResult result = bench(bad);
    EXPECT_EQ(result.exit_code, 2) << bad << result.out;
    EXPECT_NE(result.err.find("--on-request: "), std::string::npos) << bad << result.err;
  }
}

}  // namespace
}  // namespace moekit::test
