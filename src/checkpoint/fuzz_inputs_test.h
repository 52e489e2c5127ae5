// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the fuzz targets of this layer read: files of every naming scheme, written from the tables
// of schemes.h, so that a new row is fuzzed without another line. For fuzz targets and the test of
// their seeds only.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/composed_files_test.h"
#include "checkpoint/schemes.h"
#include "checkpoint/state.h"

namespace moekit::checkpoint {

/// A file of zeros in one naming scheme.
struct FuzzFile {
  std::string scheme;
  std::string bytes;
};

inline std::string stored_dtype(DType dtype) {
  for (const ContainerDType& row : kContainerDTypes) {
    if (row.dtype == dtype) {
      return std::string(row.name);
    }
  }
  return "";
}

constexpr std::int64_t kFuzzExtent = 64;  // H and I: a whole number of every group but 128

inline std::vector<ComposedTensor> int4_tensors(StoredOrder order, const std::string& base) {
  constexpr std::int64_t kN = kFuzzExtent;
  constexpr std::int64_t kGroups = kN / 32;
  if (order == StoredOrder::kPackQuantized) {
    return {{base + "weight_packed", "I32", {kN, kN / 8}},
            {base + "weight_scale", "BF16", {kN, kGroups}},
            {base + "weight_zero_point", "I32", {kN / 8, kGroups}}};
  }
  const bool awq = order == StoredOrder::kAwq;
  std::vector<ComposedTensor> tensors{
      {base + "qweight",
       "I32",
       awq ? std::vector<std::int64_t>{kN, kN / 8} : std::vector<std::int64_t>{kN / 8, kN}},
      {base + "qzeros", "I32", {kGroups, kN / 8}},
      {base + "scales", "F16", {kGroups, kN}}};
  if (!awq) {
    tensors.push_back({base + "g_idx", "I32", {kN}});
  }
  return tensors;
}

/// One linear layer [64, 64] in a scheme.
inline std::vector<ComposedTensor> linear_tensors(const LinearScheme& scheme,
                                                  const std::string& base) {
  constexpr std::int64_t kN = kFuzzExtent;
  if (scheme.format == Format::kInt4) {
    return int4_tensors(scheme.order, base);
  }
  const auto name = [&](std::string_view suffix) { return base + std::string(suffix); };
  const bool packed = scheme.format == Format::kNvfp4 || scheme.format == Format::kMxfp4;
  std::vector<ComposedTensor> tensors{
      {name(scheme.codes), stored_dtype(scheme.codes_dtype), {kN, packed ? kN / 2 : kN}}};
  if (scheme.order == StoredOrder::kFp8Blocks) {
    tensors.push_back({name(scheme.scales), "F32", {1, 1}});
  } else if (!scheme.scales.empty()) {
    tensors.push_back({name(scheme.scales),
                       stored_dtype(*scheme.scales_dtype),
                       {kN, kN / format_info(scheme.format).group_size}});
  }
  for (const std::string_view scalar : {scheme.global, scheme.input_scale}) {
    if (!scalar.empty()) {
      tensors.push_back({name(scalar), "F32", {}});
    }
  }
  return tensors;
}

/// What must not be zero for a layer to be read: reciprocal globals and GPTQ's column groups.
inline std::string with_values(std::string file) {
  const Result<SafetensorsContent> content = parse_safetensors(as_bytes(file));
  for (const TensorEntry& entry : content->tensors) {
    char* at = file.data() + (reinterpret_cast<const char*>(entry.bytes.data()) - file.data());
    if (entry.dtype->name == "F32" && entry.shape.empty()) {
      constexpr float kOne = 1.0F;
      std::memcpy(at, &kOne, sizeof kOne);
    }
    for (std::int64_t k = 0; entry.name.ends_with("g_idx") && k < kFuzzExtent; ++k) {
      const auto group = static_cast<std::int32_t>(k / 32);
      std::memcpy(at + 4 * k, &group, sizeof group);
    }
  }
  return file;
}

inline FuzzFile linear_file(const LinearScheme& scheme) {
  const std::string module = "model.layers.1.mlp.";
  std::vector<ComposedTensor> tensors{{module + "gate.weight", "BF16", {1, kFuzzExtent}},
                                      {module + "gate.tid2eid", "I64", {5, 1}}};
  const ProjectionNames& names = kProjectionNames[0];
  for (const std::string_view projection : {names.gate, names.up, names.down}) {
    const std::string base = module + "experts.0." + std::string(projection) + ".";
    for (ComposedTensor& tensor : linear_tensors(scheme, base)) {
      tensors.push_back(std::move(tensor));
    }
  }
  return {std::string(scheme.name), with_values(compose_zeros(tensors))};
}

inline FuzzFile stacked_file(const StackedScheme& scheme) {
  constexpr std::int64_t kN = kFuzzExtent;
  const std::string module = "model.layers.1." + std::string(scheme.module);
  const auto name = [&](std::string_view suffix) { return module + std::string(suffix); };
  std::vector<ComposedTensor> tensors{{name("router.weight"), "BF16", {1, kN}},
                                      {name("router.per_expert_scale"), "BF16", {1}}};
  if (scheme.format == Format::kMxfp4) {
    tensors.push_back({name(scheme.gate_up_codes), "U8", {1, 2 * kN, kN / 32, 16}});
    tensors.push_back({name(scheme.gate_up_scales), "U8", {1, 2 * kN, kN / 32}});
    tensors.push_back({name(scheme.down_codes), "U8", {1, kN, kN / 32, 16}});
    tensors.push_back({name(scheme.down_scales), "U8", {1, kN, kN / 32}});
  } else {
    const bool apart = !scheme.gate_codes.empty();
    const std::int64_t rows = apart ? kN : 2 * kN;
    using Shape = std::vector<std::int64_t>;
    tensors.push_back({name(scheme.gate_up_codes),
                       "BF16",
                       scheme.transposed ? Shape{1, kN, rows} : Shape{1, rows, kN}});
    tensors.push_back({name(scheme.down_codes), "BF16", {1, kN, kN}});
    if (apart) {
      tensors.push_back({name(scheme.gate_codes), "BF16", {1, kN, kN}});
    }
  }
  if (scheme.bias_required) {
    tensors.push_back({name(scheme.gate_up_bias), "BF16", {1, 2 * kN}});
    tensors.push_back({name(scheme.down_bias), "BF16", {1, kN}});
  }
  return {std::string(scheme.name), compose_zeros(tensors)};
}

/// One file for each naming scheme.
inline const std::vector<FuzzFile>& scheme_files() {
  static const std::vector<FuzzFile> files = [] {
    std::vector<FuzzFile> made;
    for (const LinearScheme& scheme : kLinearSchemes) {
      made.push_back(linear_file(scheme));
    }
    for (const StackedScheme& scheme : kStackedSchemes) {
      made.push_back(stacked_file(scheme));
    }
    return made;
  }();
  return files;
}

/// Even first byte: the rest is a whole file. Odd: two bytes of size, then the header's text alone,
/// so that mutations need not keep the length prefix right.
inline std::string fuzzed_file(std::string_view input) {
  const std::string_view rest = input.substr(1);
  if (static_cast<unsigned char>(input[0]) % 2 == 0 || rest.size() < 2) {
    return std::string(rest);
  }
  const auto low = static_cast<unsigned char>(rest[0]);
  const auto high = static_cast<unsigned char>(rest[1]);
  return compose_file(rest.substr(2), std::size_t{low} | std::size_t{high} << 8);
}

/// Up to three texts apart by 0x1E: config.json, hf_quant_config.json, the index. An empty one
/// counts as an absent file.
struct FuzzTexts {
  std::optional<std::string> config{};
  std::optional<std::string> hf_quant_config{};
  std::optional<std::string> index{};
};

inline FuzzTexts fuzzed_texts(std::string_view input) {
  constexpr char kSeparator = '\x1E';
  FuzzTexts texts;
  for (std::optional<std::string>* text : {&texts.config, &texts.hf_quant_config, &texts.index}) {
    const std::size_t end = input.find(kSeparator);
    if (const std::string_view part = input.substr(0, end); !part.empty()) {
      *text = std::string(part);
    }
    input = end == std::string_view::npos ? std::string_view() : input.substr(end + 1);
  }
  return texts;
}

}  // namespace moekit::checkpoint
