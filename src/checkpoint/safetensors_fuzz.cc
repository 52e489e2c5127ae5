// SPDX-License-Identifier: Apache-2.0
// One safetensors file from hostile bytes: parse it, take every MoE layer it claims to hold, touch
// every byte that the views reach.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "moekit/checkpoint.h"
#include "moekit/format.h"

#include "checkpoint/fuzz_inputs_test.h"
#include "checkpoint/state.h"

namespace {

using moekit::BiasView;
using moekit::Checkpoint;
using moekit::CheckpointLayer;
using moekit::ExpertWeights;
using moekit::WeightMatrix;

volatile float sink = 0.0F;

void touch(const WeightMatrix& matrix) {
  if (!moekit::validate_weights(matrix).ok()) {
    return;
  }
  std::vector<float> row(static_cast<std::size_t>(matrix.cols));
  for (const std::int64_t i : {std::int64_t{0}, matrix.rows - 1}) {
    if (moekit::decode_row(matrix, i, row).ok()) {
      sink = row.back();
    }
  }
}

void touch(const BiasView& bias) {
  if (bias.data == nullptr || bias.size == 0) {
    return;
  }
  const int width = moekit::dtype_bits(bias.dtype) / 8;
  std::uint32_t bits = 0;
  std::memcpy(&bits,
              static_cast<const std::byte*>(bias.data) + (bias.size - 1) * bias.stride * width,
              static_cast<std::size_t>(width));
  sink = static_cast<float>(bits);
}

void touch(const CheckpointLayer& layer) {
  for (const ExpertWeights& expert : layer.source.experts) {
    touch(expert.gate);
    touch(expert.up);
    touch(expert.down);
    touch(expert.gate_bias);
    touch(expert.up_bias);
    touch(expert.down_bias);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string file =
      moekit::checkpoint::fuzzed_file({reinterpret_cast<const char*>(input), size});
  Checkpoint::State state;
  const moekit::Status status = moekit::checkpoint::add_tensors(
      {.name = "fuzz.safetensors", .bytes = moekit::checkpoint::as_bytes(file)}, nullptr, state);
  if (!status.ok()) {
    if (status.message().find('\n') != std::string_view::npos) {
      __builtin_trap();  // an error is one line, whatever the names in the file hold
    }
    return 0;
  }
  moekit::checkpoint::find_modules(state);
  for (const auto& [layer, module] : state.modules) {
    const moekit::Result<CheckpointLayer> read = moekit::checkpoint::read_layer(state, layer);
    if (read.has_value()) {
      touch(*read);
    }
  }
  return 0;
}
