// SPDX-License-Identifier: Apache-2.0
#pragma once

// safetensors files composed in memory, well-formed and otherwise. For tests and fuzz targets of
// this layer only.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"

namespace moekit::checkpoint {

/// Length prefix, header as given, then `num_bytes` zeros.
inline std::string compose_file(std::string_view header, std::size_t num_bytes) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    file[i] = static_cast<char>((static_cast<std::uint64_t>(header.size()) >> (8 * i)) & 0xFFU);
  }
  file += header;
  file.append(num_bytes, '\0');
  return file;
}

struct ComposedTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

/// A well-formed file of zeros; the header is padded to 8 bytes.
inline std::string compose_zeros(const std::vector<ComposedTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::int64_t end = 0;
  for (const ComposedTensor& tensor : tensors) {
    std::int64_t bits = 0;
    for (const ContainerDType& row : kContainerDTypes) {
      bits = row.name == tensor.dtype ? row.bits : bits;
    }
    for (const std::int64_t extent : tensor.shape) {
      bits *= extent;
    }
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {end, end + bits / 8}}};
    end += bits / 8;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return compose_file(text, static_cast<std::size_t>(end));
}

inline std::span<const std::byte> as_bytes(std::string_view file) {
  return std::as_bytes(std::span(file.data(), file.size()));
}

}  // namespace moekit::checkpoint
