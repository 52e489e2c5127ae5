// SPDX-License-Identifier: Apache-2.0
// Every exit code, and what the user reads: one line on stderr, with values, nothing on stdout.

#include <algorithm>
#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cli/cli_fixture.h"

namespace moekit::test {
namespace {

struct ErrorCase {
  std::string name;
  std::vector<std::string> arguments;
  int exit_code;
  std::vector<std::string> words;  // all of them stand in the error line
};

std::string qwen() {
  return folder("qwen3_moe_bf16");
}

std::string qwen_input() {
  return qwen() + "/input.safetensors";
}

std::string scratch(const char* name) {
  return (scratch_folder() / name).string();
}

std::vector<std::string> run_qwen(const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"run", "--checkpoint", qwen(), "--layer", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<ErrorCase> usage_cases() {
  return {
      {"no verb", {}, 2, {"devices", "bench"}},
      {"unknown verb", {"trian"}, 2, {"trian", "run"}},
      {"unknown option", with_shape("plan", {"--tokens", "1", "--color", "red"}), 2, {"--color"}},
      {"unknown option before the verb", {"--color", "red", "devices"}, 2, {"--color", "unknown"}},
      {"an option twice",
       with_shape("plan", {"--tokens", "1", "--layer", "1", "--layer", "2"}),
       2,
       {"--layer", "2"}},
      {"octal tokens", with_shape("plan", {"--tokens", "010"}), 2, {"--tokens", "010"}},
      {"octal workspace",
       with_shape("plan", {"--tokens", "1", "--max-workspace", "0777"}),
       2,
       {"0777"}},
      {"negative seed", with_shape("verify", {"--seed", "-1"}), 2, {"--seed", "-1"}},
      {"tensor parallel rank outside its size",
       with_shape("plan", {"--tokens", "1", "--tp", "2/2"}),
       2,
       {"tp rank 2 of 2"}},
      {"expert parallel without a size",
       with_shape("plan", {"--tokens", "1", "--ep", "0"}),
       2,
       {"--ep 0", "RANK/SIZE"}},
      {"no parts of a layer to run yet",
       with_shape("bench", {"--tokens", "1", "--tp", "0/2"}),
       2,
       {"--tp"}},
      {"value that is no number", with_shape("plan", {"--tokens", "many"}), 2, {"many"}},
      {"value that is no real number",
       with_shape("plan", {"--tokens", "1", "--limit", "seven"}),
       2,
       {"--limit seven: no number"}},
      {"threads beyond an int",
       with_shape("plan", {"--tokens", "1", "--threads", "4294967297"}),
       2,
       {"--threads 4294967297 is above 2147483647"}},
      {"unknown word",
       {"quantize", "x", "--format", "int3", "--output", "y"},
       2,
       {"--format int3: unknown, one of nvfp4, mxfp4"}},
      {"threads out of range",
       {"quantize", "x", "--format", "nvfp4", "--output", "y", "--threads", "0"},
       2,
       {"--threads 0: expected 1 to 1024"}},
      {"plan without tokens", with_shape("plan"), 2, {"--tokens"}},
      {"negative tokens", with_shape("plan", {"--tokens", "-1"}), 2, {"-1"}},
      {"no subject", {"plan", "--tokens", "1"}, 2, {"0 subjects", "--checkpoint", "--preset"}},
      {"two subjects",
       with_shape("plan", {"--tokens", "1", "--preset", "qwen3_30b"}),
       2,
       {"2 subjects"}},
      {"half a shape",
       {"plan", "--tokens", "1", "--experts", "8", "--hidden", "64"},
       2,
       {"--top-k", "--intermediate"}},
      {"unknown preset", {"plan", "--tokens", "1", "--preset", "gpt5"}, 2, {"gpt5", "qwen3_30b"}},
      {"layer without checkpoint",
       with_shape("plan", {"--tokens", "1", "--layer", "3"}),
       2,
       {"--layer 3"}},
  };
}

std::vector<ErrorCase> value_cases() {
  return {
      {"unknown recipe",
       with_shape("plan", {"--tokens", "1", "--recipe", "w2a16"}),
       2,
       {"w2a16", "w4a16_nvfp4"}},
      {"unknown activation",
       with_shape("plan", {"--tokens", "1", "--activation", "relu"}),
       2,
       {"relu", "relu2", "silu"}},
      {"unknown row order",
       with_shape("plan", {"--tokens", "1", "--row-order", "up"}),
       2,
       {"up", "up_gate"}},
      {"io dtype that is no float",
       with_shape("plan", {"--tokens", "1", "--io-dtype", "i32"}),
       2,
       {"i32", "bf16, f16, f32"}},
      {"unknown device", with_shape("plan", {"--tokens", "1", "--device", "sm_12"}), 2, {"sm_12"}},
      {"malformed CUDA index",
       with_shape("plan", {"--tokens", "1", "--device", "cuda:x"}),
       2,
       {"cuda:x"}},
      {"unknown pin",
       with_shape("plan", {"--tokens", "1", "--pin", "speed=9"}),
       2,
       {"speed=9", "route_block_rows"}},
      {"pin without its value",
       with_shape("plan", {"--tokens", "1", "--pin", "family"}),
       2,
       {"family", "direct|grouped"}},
      {"illegal pin value",
       with_shape("plan", {"--tokens", "1", "--pin", "route_block_rows=7"}),
       2,
       {"7", "8", "48"}},
      {"a pin twice",
       with_shape("plan", {"--tokens", "1", "--pin", "family=direct", "--pin", "family=grouped"}),
       2,
       {"family=direct", "family=grouped"}},
      {"zero threads", with_shape("plan", {"--tokens", "1", "--threads", "0"}), 2, {"--threads 0"}},
      {"workspace of nothing",
       with_shape("plan", {"--tokens", "1", "--max-workspace", "0"}),
       2,
       {"--max-workspace 0"}},
      {"parameter of another activation",
       with_shape("plan", {"--tokens", "1", "--activation", "relu2", "--limit", "7"}),
       2,
       {"limit", "relu2"}},
      {"interleaved rows without a gate",
       with_shape("plan", {"--tokens", "1", "--activation", "relu2", "--row-order", "interleaved"}),
       2,
       {"--row-order interleaved", "relu2"}},
      {"rows of up and gate without a gate",
       with_shape("plan", {"--tokens", "1", "--activation", "relu2", "--row-order", "up_gate"}),
       2,
       {"--row-order up_gate", "relu2"}},
      {"hidden size not a multiple of 8",
       {"plan",
        "--tokens",
        "1",
        "--experts",
        "8",
        "--top-k",
        "2",
        "--hidden",
        "100",
        "--intermediate",
        "64"},
       2,
       {"100", "8"}},
  };
}

std::vector<ErrorCase> count_cases() {
  return {
      {"more slots than experts",
       {"plan",
        "--tokens",
        "1",
        "--experts",
        "2",
        "--top-k",
        "3",
        "--hidden",
        "64",
        "--intermediate",
        "64"},
       2,
       {"3", "2"}},
      {"unknown suite", {"verify", "--suite", "medium"}, 2, {"medium", "quick", "full"}},
      {"malformed case", {"verify", "--case", "recipe=nothing"}, 2, {"nothing"}},
      {"case beside a suite", {"verify", "--case", "h=8", "--suite", "quick"}, 2, {"--case"}},
      {"negative token count", with_shape("verify", {"--tokens", "1,-4"}), 2, {"-4"}},
      {"bench of no token", with_shape("bench", {"--tokens", "0"}), 2, {"0"}},
      {"bench of no time", with_shape("bench", {"--seconds", "0"}), 2, {"--seconds 0"}},
      {"bench of an unknown body", with_shape("bench", {"--isa", "avx9"}), 2, {"avx9", "avx2"}},
      {"bench of a body on a gpu",
       with_shape("bench", {"--isa", "avx2", "--device", "sm_90a"}),
       2,
       {"--isa avx2", "CPU backend"}},
      {"bench of two bodies on request",
       with_shape("bench", {"--on-request", "--isa", "avx2,portable"}),
       2,
       {"--on-request", "avx2,portable"}},
      {"bench of a gpu on request",
       with_shape("bench", {"--on-request", "--device", "sm_90a"}),
       2,
       {"--on-request", "CPU backend"}},
  };
}

std::vector<ErrorCase> input_cases() {
  const std::string missing = scratch("missing");
  const std::string truncated = scratch("truncated.safetensors");
  write_file(truncated, read_file(qwen() + "/model.safetensors").substr(0, 1000));
  const std::string empty = scratch("empty.safetensors");
  write_file(empty, "");
  return {
      {"missing checkpoint", {"inspect", missing}, 2, {missing}},
      {"truncated checkpoint", {"inspect", truncated}, 2, {"truncated.safetensors"}},
      {"empty checkpoint", {"inspect", empty}, 2, {"empty.safetensors"}},
      {"no such layer", {"inspect", qwen(), "--layer", "77"}, 2, {"77", "1"}},
      {"plan of a dense layer",
       {"plan", "--checkpoint", qwen(), "--layer", "0", "--tokens", "1"},
       2,
       {"0"}},
      {"run without input", run_qwen({"--output", scratch("o")}), 2, {"--input"}},
      {"run without output", run_qwen({"--input", qwen_input()}), 2, {"--output"}},
      {"missing input", run_qwen({"--input", missing, "--output", scratch("o")}), 2, {missing}},
      {"input without hidden states",
       run_qwen({"--input", qwen() + "/model.safetensors", "--output", scratch("o")}),
       2,
       {"hidden_states"}},
      {"input of another width",
       run_qwen({"--input",
                 folder("mixtral_bf16_sharded") + "/input.safetensors",
                 "--output",
                 scratch("o")}),
       2,
       {"56", "72"}},
      {"io dtype that the input has not",
       run_qwen({"--input", qwen_input(), "--output", scratch("o"), "--io-dtype", "f32"}),
       2,
       {"f32", "bf16"}},
      {"output over the input",
       run_qwen({"--input", qwen_input(), "--output", qwen_input()}),
       2,
       {"same file"}},
      {"output over the checkpoint",
       {"run",
        "--checkpoint",
        qwen() + "/model.safetensors",
        "--layer",
        "1",
        "--input",
        qwen_input(),
        "--output",
        qwen() + "/model.safetensors"},
       2,
       {"same file"}},
  };
}

std::vector<ErrorCase> refused_cases() {
  return {
      {"more experts than are served",
       {"plan",
        "--tokens",
        "1",
        "--experts",
        "2048",
        "--top-k",
        "2",
        "--hidden",
        "64",
        "--intermediate",
        "64"},
       3,
       {"2048", "1024"}},
      {"more slots than are served",
       {"plan",
        "--tokens",
        "1",
        "--experts",
        "64",
        "--top-k",
        "33",
        "--hidden",
        "64",
        "--intermediate",
        "64"},
       3,
       {"33", "32"}},
      {"absent CUDA device",
       with_shape("plan", {"--tokens", "1", "--device", "cuda:99"}),
       3,
       {"cuda:99"}},
  };
}

std::vector<ErrorCase> output_cases() {
  return {
      {"output into a folder that is not there",
       run_qwen({"--input", qwen_input(), "--output", scratch("no/such/folder.safetensors")}),
       4,
       {"no/such"}},
  };
}

/// What verify without a SUBJECT would have to ignore: the suite names its own problems.
std::vector<ErrorCase> verify_word_cases() {
  std::vector<ErrorCase> cases;
  const std::vector<std::vector<std::string>> words{{"--tokens", "4"},
                                                    {"--tokens", "abc"},
                                                    {"--seed", "1"},
                                                    {"--layer", "1"},
                                                    {"--recipe", "w16a16"},
                                                    {"--activation", "silu"},
                                                    {"--limit", "7"},
                                                    {"--alpha", "1"},
                                                    {"--beta", "1"},
                                                    {"--row-order", "gate_up"},
                                                    {"--bias"},
                                                    {"--routed-scaling", "2"},
                                                    {"--router-weight-on-input"},
                                                    {"--io-dtype", "f32"},
                                                    {"--allow-atomics"},
                                                    {"--batch-invariant"},
                                                    {"--max-workspace", "4096"},
                                                    {"--pin", "resident"}};
  for (const std::vector<std::string>& word : words) {
    for (const std::vector<std::string>& start :
         {std::vector<std::string>{"verify"},
          {"verify", "--suite", "quick"},
          {"verify", "--case", "recipe=w16a16 h=64 i=32 e=4 k=2 m=3 seed=5"}}) {
      ErrorCase error_case{word.front(), start, 2, {word.front(), "SUBJECT"}};
      error_case.arguments.insert(error_case.arguments.end(), word.begin(), word.end());
      cases.push_back(error_case);
    }
  }
  cases.push_back({"unknown suite beside a subject",
                   with_shape("verify", {"--suite", "medium"}),
                   2,
                   {"--suite medium", "quick", "full"}});
  cases.push_back({"tokens that are no numbers",
                   with_shape("verify", {"--tokens", "abc"}),
                   2,
                   {"--tokens abc"}});
  return cases;
}

std::vector<std::string> run_in(const std::filesystem::path& checkpoint,
                                const std::filesystem::path& output) {
  return {"run",
          "--checkpoint",
          checkpoint.string(),
          "--layer",
          "1",
          "--input",
          qwen_input(),
          "--output",
          output.string()};
}

/// A copy of the qwen folder with a link of each kind to its weights.
std::filesystem::path linked_checkpoint() {
  namespace fs = std::filesystem;
  fs::path copy = scratch_folder() / "linked";
  fs::create_directories(copy);
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(fs::path(qwen()) / name, copy / name);
  }
  write_file(copy / "hf_quant_config.json", "{}");
  write_file(copy / "tokenizer.json", "{}");
  fs::create_symlink("blob that is gone", copy / "dangling.safetensors");
  fs::create_symlink(copy / "model.safetensors", scratch_folder() / "soft.safetensors");
  fs::create_hard_link(copy / "model.safetensors", scratch_folder() / "hard.safetensors");
  return copy;
}

void expect_one_line(const std::string& text) {
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_EQ(text.rfind("moekit: ", 0), 0U) << text;
  EXPECT_EQ(text.back(), '\n') << text;
}

void check(const std::vector<ErrorCase>& cases, std::size_t at_least) {
  ASSERT_GE(cases.size(), at_least);
  for (const ErrorCase& error_case : cases) {
    SCOPED_TRACE(error_case.name);
    const CliResult result = run_cli(error_case.arguments);
    EXPECT_EQ(result.exit_code, error_case.exit_code) << result.out << result.err;
    EXPECT_EQ(result.out, "");
    expect_one_line(result.err);
    for (const std::string& word : error_case.words) {
      EXPECT_NE(result.err.find(word), std::string::npos) << word << " not in " << result.err;
    }
  }
}

/// An option of a verb and what stands before it so that it is the only mistake.
struct TakesValue {
  std::vector<std::string> start;
  std::string option;
};

std::vector<TakesValue> options_with_values() {
  std::vector<TakesValue> all;
  for (const char* option :
       {"--checkpoint", "--layer",          "--preset",        "--experts",
        "--recipe",     "--activation",     "--limit",         "--alpha",
        "--beta",       "--row-order",      "--io-dtype",      "--tp",
        "--ep",         "--device",         "--max-workspace", "--pin",
        "--threads",    "--routed-scaling", "--tokens",        "--intermediate"}) {
    all.push_back({{"plan"}, option});
  }
  for (const char* option : {"--suite", "--case", "--seed", "--jobs", "--tokens"}) {
    all.push_back({{"verify"}, option});
  }
  for (const char* option : {"--format", "--output", "--naming", "--threads"}) {
    all.push_back({{"quantize", "somewhere"}, option});
  }
  for (const char* option : {"--arch", "--output", "--threads"}) {
    all.push_back({{"kernels", "build"}, option});
  }
  all.push_back({{"run"}, "--input"});
  all.push_back({{"bench"}, "--seconds"});
  return all;
}

TEST(CliExitCodes, EmptyValuesAreShownWithWhatWasExpected) {
  const std::vector<TakesValue> all = options_with_values();
  ASSERT_GE(all.size(), 34U);
  std::vector<ErrorCase> cases;
  for (const auto& [start, option] : all) {
    std::vector<std::string> apart = start;
    apart.insert(apart.end(), {option, ""});
    cases.push_back({option, apart, 2, {option + " '': empty, expected "}});
    std::vector<std::string> joined = start;
    joined.push_back(option + "=");
    cases.push_back({option + "=", joined, 2, {option + " '': empty, expected "}});
  }
  cases.push_back(
      {"positional", {"inspect", ""}, 2, {"checkpoint '': empty, expected CHECKPOINT"}});
  check(cases, 69);
}

TEST(CliExitCodes, LongValuesAreShownShortened) {
  const std::string letters(5000, 'x');
  std::vector<ErrorCase> cases;
  for (const auto& [start, option] : options_with_values()) {
    std::vector<std::string> arguments = start;
    arguments.insert(arguments.end(), {option, letters});
    cases.push_back({option, arguments, 2, {}});
  }
  const std::string spaced = "recipe=w16a16 h=64 i=32 " + letters + " e=4";
  cases.push_back({"one word of a value", {"verify", "--case", spaced}, 2, {"characters)"}});
  cases.push_back(
      {"a part of a value", {"plan", "--pin", "tile=" + letters, "--pin", "tile=b"}, 2, {}});
  cases.push_back({"verb", {letters}, 2, {"xxx... (5000 characters): unknown verb"}});
  cases.push_back({"option before the verb", {"--" + letters}, 2, {"... (5002 characters): unk"}});
  cases.push_back({"unknown option", {"plan", "--" + letters}, 2, {"... (5002 characters)"}});
  cases.push_back(
      {"path", {"inspect", "/" + letters + "/end.gguf"}, 2, {"xx/end.gguf (5010 char"}});
  check(cases, 40);
  int shown = 0;
  for (const ErrorCase& error_case : cases) {
    const std::string error = run_cli(error_case.arguments).err;
    EXPECT_LT(error.size(), 600U) << error_case.name;
    shown += error.find("x... (5000 characters)") != std::string::npos ? 1 : 0;
  }
  EXPECT_GE(shown, 20) << "most messages repeat the value";
}

TEST(CliExitCodes, UsageErrorsEndWith2) {
  check(usage_cases(), 12);
  check(value_cases(), 16);
  check(count_cases(), 7);
}

TEST(CliExitCodes, InvalidInputsEndWith2) {
  check(input_cases(), 12);
}

TEST(CliExitCodes, WordsThatVerifyWouldIgnoreEndWith2) {
  check(verify_word_cases(), 18 * 3 + 2);
}

TEST(CliExitCodes, OutputOverAFileOfTheCheckpointEndsWith2AndChangesNothing) {
  const std::filesystem::path copy = linked_checkpoint();
  const std::string weights = read_file(copy / "model.safetensors");
  std::vector<ErrorCase> cases;
  for (const char* name : {"model.safetensors",
                           "config.json",
                           "hf_quant_config.json",
                           "tokenizer.json",
                           "dangling.safetensors"}) {
    cases.push_back({name, run_in(copy, copy / name), 2, {"--output", "same file", name}});
  }
  for (const char* name : {"soft.safetensors", "hard.safetensors"}) {
    cases.push_back(
        {name, run_in(copy, scratch(name)), 2, {name, (copy / "model.safetensors").string()}});
  }
  for (const char* name : {"config.json", "hf_quant_config.json"}) {
    cases.push_back({"configuration beside a single file",
                     run_in(copy / "model.safetensors", copy / name),
                     2,
                     {"same file", name}});
  }
  check(cases, 9);
  EXPECT_EQ(read_file(copy / "model.safetensors"), weights);
  EXPECT_EQ(read_file(copy / "hf_quant_config.json"), "{}");
  const CliResult beside = run_cli(run_in(copy, copy / "output.safetensors"));
  EXPECT_EQ(beside.exit_code, 0) << "a name that nothing has is free: " << beside.err;
}

TEST(CliExitCodes, OutputThatIsNoRegularFileEndsWith4) {
  const std::string fifo = scratch("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::string link = scratch("null_link");
  std::filesystem::create_symlink("/dev/null", link);
  std::vector<ErrorCase> cases;
  // Never a device itself: a program that gets this wrong, run as root, replaces it.
  for (const std::string& target : {fifo, link, scratch_folder().string()}) {
    cases.push_back({"no regular file",
                     run_qwen({"--input", qwen_input(), "--output", target}),
                     4,
                     {target, "not a regular file"}});
  }
  check(cases, 3);
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
}

TEST(CliExitCodes, FileSizeLimitEndsWith4AndLeavesNoFile) {
  const std::filesystem::path limited = scratch_folder() / "limited";
  std::filesystem::create_directories(limited);
  std::vector<std::string> arguments = run_in(qwen(), limited / "out.safetensors");
  // The output has more than 1296 bytes, the limit is one block of 512 or 1024.
  arguments.insert(arguments.begin(), {"-c", "ulimit -f 1; exec \"$0\" \"$@\"", MOEKIT_CLI});
  const CliResult result = run_cli(arguments, {}, "/bin/sh");
  EXPECT_EQ(result.exit_code, 4) << result.out << result.err;
  expect_one_line(result.err);
  EXPECT_NE(result.err.find("out.safetensors"), std::string::npos) << result.err;
  EXPECT_TRUE(std::filesystem::is_empty(limited));
}

TEST(CliExitCodes, RefusalsEndWith3) {
  check(refused_cases(), 3);
}

TEST(CliExitCodes, UnwritableOutputEndsWith4AndLeavesNoFile) {
  check(output_cases(), 1);
  const std::filesystem::path output_folder = scratch_folder() / "read_only";
  std::filesystem::create_directories(output_folder / "taken.safetensors");
  const CliResult result =
      run_cli(run_qwen({"--input",
                        qwen_input(),
                        "--output",
                        (output_folder / "taken.safetensors").string()}));  // a folder is there
  EXPECT_EQ(result.exit_code, 4) << result.out << result.err;
  expect_one_line(result.err);
  int entries = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(output_folder)) {
    EXPECT_EQ(entry.path().filename(), "taken.safetensors");
    ++entries;
  }
  EXPECT_EQ(entries, 1);
}

TEST(CliExitCodes, FullStandardOutputEndsWith4) {
  const CliResult result = run_cli(with_shape("plan", {"--tokens", "4"}), ">/dev/full");
  EXPECT_EQ(result.exit_code, 4);
  expect_one_line(result.err);
}

TEST(CliExitCodes, SuccessEndsWith0AndStderrStaysEmpty) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"},
                                                    {"--version"},
                                                    {"plan", "--help"},
                                                    {"devices"},
                                                    {"inspect", qwen()},
                                                    with_shape("plan", {"--tokens", "9"})}) {
    const CliResult result = run_cli(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments.front() << result.err;
    EXPECT_NE(result.out, "");
    EXPECT_EQ(result.err, "");
  }
}

// The program below is the same one, linked so that every comparison with the oracle fails.
TEST(CliExitCodes, FailedChecksEndWith1AndPrintTheLineThatReproducesThem) {
  const std::string line = "recipe=w16a16 h=64 i=32 e=4 k=2 m=3 seed=5";
  const CliResult one = run_cli({"verify", "--case", line}, {}, MOEKIT_CLI_FAILING);
  EXPECT_EQ(one.exit_code, 1) << one.out << one.err;
  EXPECT_NE(one.out.find("injected failure"), std::string::npos) << one.out;

  const CliResult shape =
      run_cli(with_shape("verify", {"--tokens", "3", "--seed", "7"}), {}, MOEKIT_CLI_FAILING);
  EXPECT_EQ(shape.exit_code, 1) << shape.out << shape.err;
  const std::size_t start = shape.out.find("moekit verify --case '");
  ASSERT_NE(start, std::string::npos) << shape.out;
  const std::size_t open = shape.out.find('\'', start);
  const std::size_t close = shape.out.find('\'', open + 1);
  ASSERT_NE(close, std::string::npos);
  const CliResult again =
      run_cli({"verify", "--case", shape.out.substr(open + 1, close - open - 1)});
  EXPECT_EQ(again.exit_code, 0) << again.out << again.err;

  const std::string output = scratch("failing.safetensors");
  const CliResult run = run_cli(
      run_qwen({"--input", qwen_input(), "--output", output, "--check"}), {}, MOEKIT_CLI_FAILING);
  EXPECT_EQ(run.exit_code, 1) << run.out << run.err;

  const CliResult bench = run_cli(with_shape("bench", {"--tokens", "1"}), {}, MOEKIT_CLI_FAILING);
  EXPECT_EQ(bench.exit_code, 1) << bench.out << bench.err;
  EXPECT_NE(bench.out.find("FAILED"), std::string::npos) << "timing must not start: " << bench.out;
}

}  // namespace
}  // namespace moekit::test
