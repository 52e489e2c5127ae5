// SPDX-License-Identifier: Apache-2.0
// Folders whose stored order is not moekit's, or whose scales need reading: expert 1 decodes to the
// values that the producer's own code reads back from the file.
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/checkpoint.h"

#include "checkpoint/real_folders_test.h"

namespace moekit {
namespace {

/// Folders whose `dequant.` tensors are [N, K] f32 of one projection; those of safetensors NVFP4
/// are compared bit for bit in real_folders_test.cc, gpt-oss's own are transposed.
std::vector<Expected> chosen_folders() {
  std::vector<Expected> chosen;
  for (const Expected& expected : kExpected) {
    const bool elsewhere = expected.scheme == "bf16" || expected.scheme == "gpt_oss_mxfp4" ||
                           expected.scheme == "modelopt_nvfp4" ||
                           expected.scheme == "compressed_tensors_nvfp4";
    if (!elsewhere) {
      chosen.push_back(expected);
    }
  }
  return chosen;
}

const WeightMatrix* matrix_of(const ExpertWeights& expert, const std::string& name) {
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  if (has("gate_proj") || has("ffn_gate") || has(".w1.")) {
    return &expert.gate;
  }
  return has("up_proj") || has("ffn_up") || has(".w3.") ? &expert.up : &expert.down;
}

class ProducerValues : public testing::TestWithParam<Expected> {};

TEST_P(ProducerValues, expert_1_is_what_the_producer_reads_back) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(kFolder + GetParam().folder);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.status().to_string();
  const Result<CheckpointLayer> layer = checkpoint->layer(GetParam().layer);
  ASSERT_TRUE(layer.has_value()) << layer.status().to_string();
  const Result<Checkpoint> expected =
      Checkpoint::open(kFolder + GetParam().folder + "/expected.safetensors");
  ASSERT_TRUE(expected.has_value()) << expected.status().to_string();
  int tensors = 0;
  for (const auto& [name, tensor] : expected->tensors()) {
    if (!name.starts_with("dequant.")) {
      continue;
    }
    const WeightMatrix& matrix = *matrix_of(layer->source.experts[1], name);
    ASSERT_EQ(tensor.view.dtype, DType::kF32) << name;
    ASSERT_EQ(tensor.view.shape[0], matrix.rows) << name;
    ASSERT_EQ(tensor.view.shape[1], matrix.cols) << name;
    const auto* want = static_cast<const float*>(tensor.view.data);
    std::vector<float> row(static_cast<std::size_t>(matrix.cols));
    int nonzero = 0;
    for (std::int64_t n = 0; n < matrix.rows; ++n) {
      const Status status = decode_row(matrix, n, row);
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (std::int64_t k = 0; k < matrix.cols; ++k) {
        const double value = static_cast<double>(row[static_cast<std::size_t>(k)]) *
                             static_cast<double>(matrix.global_scale);
        const auto producer = static_cast<double>(want[n * matrix.cols + k]);
        // Producers round at most twice in f32.
        ASSERT_LE(std::abs(value - producer), std::abs(value) * 0x1p-22) << name << n << " " << k;
        nonzero += value != 0.0 ? 1 : 0;
      }
    }
    EXPECT_GT(nonzero, matrix.rows * matrix.cols / 2) << name;
    ++tensors;
  }
  EXPECT_EQ(tensors, 3);
}

std::string folder_of(const testing::TestParamInfo<Expected>& chosen) {
  return chosen.param.folder;
}

INSTANTIATE_TEST_SUITE_P(Committed, ProducerValues, testing::ValuesIn(chosen_folders()), folder_of);

TEST(ProducerValues, table_is_not_empty) {
  EXPECT_GE(chosen_folders().size(), 3U);
}

}  // namespace
}  // namespace moekit
