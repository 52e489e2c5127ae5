// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where everything of one layer lies inside a PackedExperts buffer. A function of problem shape and
// device class only; prepare, bind and the kernels all read this one table.

#include <cstddef>
#include <cstdint>
#include <string>

#include "moekit/device.h"
#include "moekit/problem.h"
#include "moekit/status.h"

#include "formats/packing.h"

namespace moekit::plan {

/// Per-expert units of equal size.
struct PackedRegion {
  std::int64_t offset = 0;
  std::int64_t expert_stride_bytes = 0;
  formats::PackingShape shape{};
};

struct PackedLayout {
  std::string id;  // `cpu.panel16.nvfp4.h2048.i768.gated`
  const formats::Packing* packing = nullptr;
  std::int64_t num_experts = 0;
  PackedRegion
      gate_up{};  // gate and up panels alternate; `up` alone where the activation has no gate
  PackedRegion down{};
  std::int64_t globals_offset = 0;     // f32 [num_experts, 4]: gate, up, down, 0
  std::int64_t gate_bias_offset = -1;  // f32 [num_experts, intermediate]; -1: no such bias
  std::int64_t up_bias_offset = -1;    // f32 [num_experts, intermediate]
  std::int64_t down_bias_offset = -1;  // f32 [num_experts, hidden]
  std::int64_t input_scales_offset =
      -1;  // f32 [num_experts, 2]: of x, of the intermediate; NaN: none
  std::int64_t total_bytes = 0;
};

/// Errors  kUnsupported  no packing of the recipe's format for the device's class
[[nodiscard]] Result<PackedLayout> packed_layout(const Problem& problem,
                                                 const DeviceDescriptor& device);

/// Typed access for kernels.
struct PackedView {
  const PackedLayout* layout = nullptr;
  const std::byte* base = nullptr;

  [[nodiscard]] const std::byte* gate_up(std::int64_t expert) const noexcept {
    return base + layout->gate_up.offset + expert * layout->gate_up.expert_stride_bytes;
  }

  [[nodiscard]] const std::byte* down(std::int64_t expert) const noexcept {
    return base + layout->down.offset + expert * layout->down.expert_stride_bytes;
  }

  /// gate, up, down, 0
  [[nodiscard]] const float* globals(std::int64_t expert) const noexcept {
    return reinterpret_cast<const float*>(base + layout->globals_offset) + expert * 4;
  }

  /// Of x and of the intermediate, NaN where the checkpoint has none; null where the format's
  /// recipes never ask.
  [[nodiscard]] const float* input_scales(std::int64_t expert) const noexcept {
    return layout->input_scales_offset < 0
               ? nullptr
               : reinterpret_cast<const float*>(base + layout->input_scales_offset) + expert * 2;
  }

  /// The first expert without input scales; -1: every expert has them, or there is none.
  [[nodiscard]] std::int64_t first_without_input_scales() const noexcept;

  /// Null where the layer has no such bias.
  [[nodiscard]] const float* gate_bias(std::int64_t expert) const noexcept {
    return bias(layout->gate_bias_offset, expert * layout->gate_up.shape.rows);
  }

  [[nodiscard]] const float* up_bias(std::int64_t expert) const noexcept {
    return bias(layout->up_bias_offset, expert * layout->gate_up.shape.rows);
  }

  [[nodiscard]] const float* down_bias(std::int64_t expert) const noexcept {
    return bias(layout->down_bias_offset, expert * layout->down.shape.rows);
  }

 private:
  [[nodiscard]] const float* bias(std::int64_t offset, std::int64_t first_elem) const noexcept {
    return offset < 0 ? nullptr : reinterpret_cast<const float*>(base + offset) + first_elem;
  }
};

}  // namespace moekit::plan
