// SPDX-License-Identifier: Apache-2.0
// quantize_checkpoint on real BF16 folders: what it writes reads back as what it encoded, an
// interrupted call goes on, and nothing that is not its own is overwritten.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/checkpoint.h"

#include "checkpoint/real_folders_test.h"

namespace moekit {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string folder;
  std::int64_t layer;
  Format format;
  QuantizedNaming naming;
  std::string scheme;
};

std::vector<float> values_of(const WeightMatrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const auto at = static_cast<std::size_t>(row * matrix.cols);
    EXPECT_TRUE(decode_row(matrix,
                           row,
                           std::span(values).subspan(at, static_cast<std::size_t>(matrix.cols)))
                    .ok());
  }
  return values;
}

/// The quantised matrix holds exactly the codes and scales of encode_weights.
void expect_encoded(const WeightMatrix& source, const WeightMatrix& made, QuantizedNaming naming) {
  ASSERT_EQ(source.rows, made.rows);
  ASSERT_EQ(source.cols, made.cols);
  ASSERT_TRUE(validate_weights(made).ok()) << validate_weights(made).to_string();
  WeightMatrix again = made;
  std::vector<std::byte> codes(
      static_cast<std::size_t>(made.rows * code_row_bytes(made.format, made.cols)));
  std::vector<std::byte> scales(static_cast<std::size_t>(made.rows * num_scale_cols(made)));
  EncodedWeights encoded{.codes = codes, .scales = scales};
  ASSERT_TRUE(encode_weights(made.format, values_of(source), made.rows, encoded).ok());
  again.codes = codes.data();
  again.scales = scales.data();
  EXPECT_EQ(values_of(again), values_of(made));
  if (naming == QuantizedNaming::kCompressedTensors && made.format == Format::kNvfp4) {
    const float stored = encoded.global_scale == 0.0F ? 1.0F : 1.0F / encoded.global_scale;
    EXPECT_EQ(made.global_scale, 1.0F / stored);
  } else {
    EXPECT_EQ(made.global_scale, encoded.global_scale);
  }
}

class Quantize : public testing::TestWithParam<Case> {};

std::string scratch_folder() {
  const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
  std::string name = info->name();
  std::replace(name.begin(), name.end(), '/', '_');
  std::string folder = testing::TempDir() + "moekit_" + std::to_string(::getpid()) + "_" + name;
  fs::create_directories(folder);
  return folder;
}

/// Gone at the end of the scope.
class Scratch {
 public:
  Scratch() : folder_(scratch_folder()) {}

  ~Scratch() { fs::remove_all(folder_); }

  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

TEST_P(Quantize, reads_back_as_it_was_encoded) {
  const Scratch scratch;
  const std::string out = scratch.path("out");
  const Result<Checkpoint> source = Checkpoint::open(kFolder + GetParam().folder);
  ASSERT_TRUE(source.has_value()) << source.status().to_string();
  int calls = 0;
  const Result<QuantizeReport> report =
      quantize_checkpoint(*source,
                          out,
                          {.format = GetParam().format,
                           .naming = GetParam().naming,
                           .progress = [&](const QuantizeProgress&) { return ++calls > 0; }});
  ASSERT_TRUE(report.has_value()) << report.status().to_string();
  EXPECT_GT(calls, 0);
  EXPECT_GT(report->num_matrices, 0);
  // Four-bit floats: half a step of 2 in a mantissa of 1 bit is at most a quarter of a value.
  EXPECT_GT(report->relative_rms, 0.01);
  EXPECT_LT(report->relative_rms, 0.25);
  EXPECT_GE(report->worst_relative_rms, report->relative_rms);
  const Result<Checkpoint> made = Checkpoint::open(out);
  ASSERT_TRUE(made.has_value()) << made.status().to_string();
  const Result<CheckpointLayer> before = source->layer(GetParam().layer);
  const Result<CheckpointLayer> after = made->layer(GetParam().layer);
  ASSERT_TRUE(before.has_value()) << before.status().to_string();
  ASSERT_TRUE(after.has_value()) << after.status().to_string();
  EXPECT_EQ(after->scheme, GetParam().scheme);
  EXPECT_EQ(after->routing, before->routing);
  EXPECT_EQ(after->problem.activation, before->problem.activation);
  EXPECT_EQ(after->problem.gate_up_bias, before->problem.gate_up_bias);
  ASSERT_EQ(after->source.experts.size(), before->source.experts.size());
  for (std::size_t e = 0; e < before->source.experts.size(); ++e) {
    const ExpertWeights& from = before->source.experts[e];
    const ExpertWeights& to = after->source.experts[e];
    if (from.gate.codes != nullptr) {
      expect_encoded(from.gate, to.gate, GetParam().naming);
    }
    expect_encoded(from.up, to.up, GetParam().naming);
    expect_encoded(from.down, to.down, GetParam().naming);
    EXPECT_EQ(from.up_bias.size, to.up_bias.size);
  }
}

std::vector<Case> cases() {
  using enum QuantizedNaming;
  return {{"qwen3_moe_bf16", 1, Format::kNvfp4, kModelopt, "modelopt_nvfp4"},
          {"qwen3_moe_bf16", 1, Format::kNvfp4, kCompressedTensors, "compressed_tensors_nvfp4"},
          {"qwen3_moe_bf16", 1, Format::kMxfp4, kModelopt, "quark_mxfp4"},
          {"glm4_moe_bf16", 1, Format::kMxfp4, kCompressedTensors, "compressed_tensors_mxfp4"},
          {"mixtral_bf16_sharded", 1, Format::kNvfp4, kModelopt, "modelopt_nvfp4"},
          {"nemotron_h_bf16", 1, Format::kNvfp4, kModelopt, "modelopt_nvfp4"},
          {"gpt_oss_bf16", 0, Format::kMxfp4, kCompressedTensors, "compressed_tensors_mxfp4"}};
}

std::string case_name(const testing::TestParamInfo<Case>& chosen) {
  return chosen.param.folder + "_" + chosen.param.scheme;
}

INSTANTIATE_TEST_SUITE_P(Folders, Quantize, testing::ValuesIn(cases()), case_name);

TEST(QuantizeFolder, an_interrupted_call_goes_on_and_reports_the_same) {
  const Scratch scratch;
  const std::string out = scratch.path("out");
  const Result<Checkpoint> source = Checkpoint::open(kFolder + "mixtral_bf16_sharded");
  ASSERT_TRUE(source.has_value());
  const Result<QuantizeReport> stopped = quantize_checkpoint(
      *source, out, {.progress = [](const QuantizeProgress&) { return false; }});
  EXPECT_EQ(stopped.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(fs::exists(out + "/config.json")) << "an interrupted folder is no checkpoint";
  const Result<QuantizeReport> resumed = quantize_checkpoint(*source, out, {});
  ASSERT_TRUE(resumed.has_value()) << resumed.status().to_string();
  EXPECT_EQ(resumed->files_kept, 1);
  EXPECT_EQ(resumed->files_written, 2);
  const Result<QuantizeReport> whole = quantize_checkpoint(*source, scratch.path("whole"), {});
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->files_kept, 0);
  EXPECT_DOUBLE_EQ(whole->relative_rms, resumed->relative_rms);
  EXPECT_EQ(whole->worst_matrix, resumed->worst_matrix);
}

/// name -> bytes of every file of a folder.
std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.is_regular_file()) {
      continue;
    }
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] =
        std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return files;
}

/// The call is refused with every word, and the folder is left as it was.
void expect_refused(const Checkpoint& source,
                    const std::string& out,
                    const QuantizeOptions& options,
                    const std::vector<std::string>& words) {
  const std::map<std::string, std::string> before = files_of(out);
  const Status status = quantize_checkpoint(source, out, options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
  for (const std::string& word : words) {
    EXPECT_NE(status.message().find(word), std::string_view::npos)
        << word << "\n  not in: " << status.message();
  }
  EXPECT_TRUE(files_of(out) == before) << "something was written";
}

TEST(QuantizeFolder, a_folder_of_another_conversion_is_refused_as_it_is) {
  const Scratch scratch;
  const Result<Checkpoint> source = Checkpoint::open(kFolder + "mixtral_bf16_sharded");
  ASSERT_TRUE(source.has_value());
  const std::string out = scratch.path("out");
  ASSERT_TRUE(quantize_checkpoint(*source, out, {}).has_value());
  const std::string shard = "'model-00001-of-00003.safetensors'";
  expect_refused(*source,
                 out,
                 {.format = Format::kMxfp4},
                 {out, shard + " is of another source, format or naming", "'config.json' differs"});
  expect_refused(*source,
                 out,
                 {.naming = QuantizedNaming::kCompressedTensors},
                 {shard, "'hf_quant_config.json' is no part of this conversion"});
  const Result<Checkpoint> other = Checkpoint::open(kFolder + "qwen3_moe_bf16");
  ASSERT_TRUE(other.has_value());
  expect_refused(*other,
                 out,
                 {},
                 {shard + " is no part of this conversion",
                  "'model.safetensors.index.json' is no part of this conversion"});
  // The same job finds everything done.
  const std::map<std::string, std::string> whole = files_of(out);
  const Result<QuantizeReport> again = quantize_checkpoint(*source, out, {});
  ASSERT_TRUE(again.has_value()) << again.status().to_string();
  EXPECT_EQ(again->files_kept, 3);
  EXPECT_TRUE(files_of(out) == whole);
}

TEST(QuantizeFolder, what_would_be_lost_or_misread_is_refused_and_the_rest_stays) {
  const Scratch scratch;
  const Result<Checkpoint> source = Checkpoint::open(kFolder + "qwen3_moe_bf16");
  ASSERT_TRUE(source.has_value());
  int refused = 0;
  for (const char* name : {"config.json",
                           "hf_quant_config.json",
                           "generation_config.json",
                           "model.safetensors.index.json",
                           "model-00001-of-00002.safetensors",
                           "experts.gguf"}) {
    const std::string out = scratch.path("out" + std::to_string(refused++));
    fs::create_directories(out);
    std::ofstream(out + "/" + name) << "{}";
    expect_refused(*source, out, {}, {"1 file of something else", name});
  }
  EXPECT_EQ(refused, 6);
  // A link to the source's configuration must not lead a write into the source.
  const std::string linked = scratch.path("linked");
  fs::create_directories(linked);
  fs::create_symlink(kFolder + "qwen3_moe_bf16/config.json", linked + "/config.json");
  expect_refused(*source, linked, {}, {"'config.json' differs"});
  // Files that nobody takes for weights are in nobody's way.
  const std::string notes = scratch.path("notes");
  fs::create_directories(notes + "/logs");
  std::ofstream(notes + "/NOTES.md") << "mine";
  ASSERT_TRUE(quantize_checkpoint(*source, notes, {}).has_value());
  EXPECT_EQ(files_of(notes).at("NOTES.md"), "mine");
}

bool is_whole(const std::string& name) {
  return name.find(".tmp-") == std::string::npos;
}

void wait_for_a_file(const std::string& folder) {
  for (int polls = 0; polls < 100000; ++polls) {
    std::error_code error;  // there is no folder yet
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      if (is_whole(entry.path().filename().string())) {
        return;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// Starts quantising in another process and kills it after `delay`, or where that is 0 once a file
/// stands in `out`; true when it had not finished.
bool kill_while_quantising(const Checkpoint& source,
                           const std::string& out,
                           std::chrono::microseconds delay) {
  const pid_t child = ::fork();
  if (child == 0) {
    const Result<QuantizeReport> report = quantize_checkpoint(source, out, {.num_threads = 1});
    ::_exit(report.has_value() ? 0 : 1);
  }
  EXPECT_GT(child, 0);
  if (delay.count() == 0) {
    wait_for_a_file(out);
  } else {
    std::this_thread::sleep_for(delay);
  }
  ::kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status);
}

TEST(QuantizeFolder, a_killed_process_leaves_whole_files_and_the_next_call_the_same_folder) {
  const Scratch scratch;
  const Result<Checkpoint> source = Checkpoint::open(kFolder + "mixtral_bf16_sharded");
  ASSERT_TRUE(source.has_value());
  ASSERT_TRUE(quantize_checkpoint(*source, scratch.path("whole"), {}).has_value());
  const std::map<std::string, std::string> whole = files_of(scratch.path("whole"));
  int killed = 0;
  int with_files = 0;
  for (int attempt = 0; attempt < 24; ++attempt) {
    const std::string out = scratch.path("out" + std::to_string(attempt));
    // By the clock a busy machine may have no kill between two files: every third waits for one.
    const int delay = attempt % 3 == 0 ? 0 : 500 << (attempt % 8);
    if (!kill_while_quantising(*source, out, std::chrono::microseconds(delay))) {
      continue;
    }
    ++killed;
    fs::create_directories(out);  // killed before it made the folder
    for (const auto& [name, bytes] : files_of(out)) {
      if (is_whole(name)) {
        ASSERT_TRUE(whole.contains(name)) << name;
        ASSERT_TRUE(bytes == whole.at(name)) << name << " is there and not whole";
        ++with_files;
      }
    }
    const Result<QuantizeReport> resumed = quantize_checkpoint(*source, out, {});
    ASSERT_TRUE(resumed.has_value()) << resumed.status().to_string();
    const std::map<std::string, std::string> files = files_of(out);
    ASSERT_TRUE(files == whole) << files.size() << " files, expected " << whole.size()
                                << ", the last " << files.rbegin()->first;
    fs::remove_all(out);
  }
  EXPECT_GE(killed, 8);
  EXPECT_GE(with_files, 1) << "no kill came between two files";
}

TEST(QuantizeFolder, foreign_files_sources_and_formats_are_refused) {
  const Scratch scratch;
  const Result<Checkpoint> source = Checkpoint::open(kFolder + "qwen3_moe_bf16");
  ASSERT_TRUE(source.has_value());
  const std::string out = scratch.path("out");
  fs::create_directories(out);
  std::ofstream(out + "/model.safetensors") << "somebody's file";
  const Status foreign = quantize_checkpoint(*source, out, {}).status();
  EXPECT_EQ(foreign.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(foreign.message().find("was not written by quantize"), std::string::npos);
  const Status own = quantize_checkpoint(*source, kFolder + "qwen3_moe_bf16", {}).status();
  EXPECT_EQ(own.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(own.message().find("source's own folder"), std::string::npos);
  EXPECT_EQ(quantize_checkpoint(*source, out, {.format = Format::kInt4}).status().code(),
            StatusCode::kUnsupported);
  const Result<Checkpoint> packed = Checkpoint::open(kFolder + "modelopt_nvfp4_qwen3_moe");
  ASSERT_TRUE(packed.has_value());
  const Status quantised = quantize_checkpoint(*packed, scratch.path("x"), {}).status();
  EXPECT_EQ(quantised.code(), StatusCode::kUnsupported);
  EXPECT_NE(quantised.message().find("modelopt_nvfp4"), std::string::npos);
}

TEST(QuantizeFolder, a_link_of_the_source_that_leads_nowhere_is_named) {
  const Scratch scratch;
  const std::string from = scratch.path("from");
  fs::copy(kFolder + "qwen3_moe_bf16", from);
  fs::create_symlink("blob that is gone", from + "/tokenizer.json");
  const Result<Checkpoint> source = Checkpoint::open(from);
  ASSERT_TRUE(source.has_value());
  const Status status = quantize_checkpoint(*source, scratch.path("out"), {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
  EXPECT_NE(status.message().find("tokenizer.json is a link that leads nowhere"),
            std::string_view::npos);
  EXPECT_FALSE(fs::exists(scratch.path("out")));
}

TEST(QuantizeFolder, an_unwritable_place_is_an_io_error) {
  const Scratch scratch;
  std::ofstream(scratch.path("file")) << "x";
  const Result<Checkpoint> source = Checkpoint::open(kFolder + "qwen3_moe_bf16");
  ASSERT_TRUE(source.has_value());
  const Status status = quantize_checkpoint(*source, scratch.path("file/out"), {}).status();
  EXPECT_EQ(status.code(), StatusCode::kIo) << status.to_string();
}

}  // namespace
}  // namespace moekit
