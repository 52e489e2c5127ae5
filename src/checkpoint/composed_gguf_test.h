// SPDX-License-Identifier: Apache-2.0
#pragma once

// GGUF files composed in memory, well-formed and otherwise. For tests and fuzz targets of this
// layer only.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf.h"

namespace moekit::checkpoint {

/// Appends little-endian values and texts with their lengths.
class GgufText {
 public:
  template <typename T>
  GgufText& add(T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    text_.append(bytes, sizeof value);
    return *this;
  }

  GgufText& add_text(std::string_view text) {
    add(static_cast<std::uint64_t>(text.size()));
    text_ += text;
    return *this;
  }

  GgufText& add_raw(std::string_view bytes) {
    text_ += bytes;
    return *this;
  }

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

struct ComposedGgufTensor {
  std::string name;
  std::uint32_t type;
  std::vector<std::uint64_t> ne;  // fastest axis first
  std::uint64_t offset;
};

/// A whole file: header, `values` (already encoded), tensors, padding to 32, `num_bytes` zeros.
inline std::string compose_gguf(const std::vector<ComposedGgufTensor>& tensors,
                                std::size_t num_bytes,
                                std::uint64_t num_values = 0,
                                std::string_view values = {}) {
  GgufText file;
  file.add_raw("GGUF").add(std::uint32_t{3});
  file.add(static_cast<std::uint64_t>(tensors.size())).add(num_values).add_raw(values);
  for (const ComposedGgufTensor& tensor : tensors) {
    file.add_text(tensor.name).add(static_cast<std::uint32_t>(tensor.ne.size()));
    for (const std::uint64_t extent : tensor.ne) {
      file.add(extent);
    }
    file.add(tensor.type).add(tensor.offset);
  }
  std::string text = file.text();
  text.append((32 - text.size() % 32) % 32, '\0');
  text.append(num_bytes, '\0');
  return text;
}

/// One metadata entry: a text or a u32.
inline std::string gguf_text_value(std::string_view key, std::string_view value) {
  return GgufText().add_text(key).add(std::uint32_t{8}).add_text(value).text();
}

inline std::string gguf_u32_value(std::string_view key, std::uint32_t value) {
  return GgufText().add_text(key).add(std::uint32_t{4}).add(value).text();
}

inline std::string gguf_f32_array(std::string_view key, const std::vector<float>& values) {
  GgufText text;
  text.add_text(key).add(std::uint32_t{9}).add(std::uint32_t{6});
  text.add(static_cast<std::uint64_t>(values.size()));
  for (const float value : values) {
    text.add(value);
  }
  return text.text();
}

/// A layer of `num_experts` experts of one type, H and I given, all bytes zero.
struct ComposedGgufLayer {
  std::uint32_t type = 39;
  std::uint64_t hidden = 64;
  std::uint64_t intermediate = 64;
  std::uint64_t num_experts = 2;
  bool fused = false;
  std::string architecture = "qwen3moe";
  std::vector<float> clamps{};  // ARCHITECTURE.swiglu_clamp_exp, left out where empty
};

inline std::string compose_gguf_layer(const ComposedGgufLayer& layer) {
  std::vector<ComposedGgufTensor> tensors;
  std::uint64_t end = 0;
  const auto add = [&](const std::string& name, std::uint64_t cols, std::uint64_t rows) {
    std::uint64_t row_bytes = 0;
    for (const GgufType& type : kGgufTypes) {
      if (type.id == layer.type) {
        row_bytes = cols / static_cast<std::uint64_t>(type.block_elems) *
                    static_cast<std::uint64_t>(type.block_bytes);
      }
    }
    tensors.push_back({name, layer.type, {cols, rows, layer.num_experts}, end});
    end += (row_bytes * rows * layer.num_experts + 31) / 32 * 32;
  };
  if (layer.fused) {
    add("blk.0.ffn_gate_up_exps.weight", layer.hidden, 2 * layer.intermediate);
  } else {
    add("blk.0.ffn_gate_exps.weight", layer.hidden, layer.intermediate);
    add("blk.0.ffn_up_exps.weight", layer.hidden, layer.intermediate);
  }
  add("blk.0.ffn_down_exps.weight", layer.intermediate, layer.hidden);
  tensors.push_back({"blk.0.ffn_gate_inp.weight", 0, {layer.hidden, layer.num_experts}, end});
  end += 4 * layer.hidden * layer.num_experts;
  std::string values = gguf_text_value("general.architecture", layer.architecture) +
                       gguf_u32_value(layer.architecture + ".expert_used_count", 1);
  if (!layer.clamps.empty()) {
    values += gguf_f32_array(layer.architecture + ".swiglu_clamp_exp", layer.clamps);
  }
  return compose_gguf(tensors, end, layer.clamps.empty() ? 2 : 3, values);
}

}  // namespace moekit::checkpoint
