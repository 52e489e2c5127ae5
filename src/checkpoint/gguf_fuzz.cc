// SPDX-License-Identifier: Apache-2.0
// A GGUF file from hostile bytes: the container, its metadata as a configuration, and every layer.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checkpoint/state.h"

namespace {

void require_one_line(const moekit::Status& status) {
  if (status.message().find('\n') != std::string_view::npos) {
    __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(input, size));
  moekit::Checkpoint::State state;
  const moekit::Status status =
      moekit::checkpoint::add_gguf({.name = "f.gguf", .bytes = bytes}, state);
  require_one_line(status);
  if (!status.ok()) {
    return 0;
  }
  moekit::checkpoint::find_modules(state);
  for (const auto& [layer, module] : state.modules) {
    const auto read = moekit::checkpoint::read_layer(state, layer);
    require_one_line(read.status());
    if (read.has_value()) {
      for (const moekit::ExpertWeights& expert : read->source.experts) {
        for (const moekit::WeightMatrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
          require_one_line(moekit::validate_weights(*matrix));  // touches every byte
        }
      }
    }
  }
  return 0;
}
