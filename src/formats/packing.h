// SPDX-License-Identifier: Apache-2.0
#pragma once

// Packed layouts: how the bytes of a weight matrix are rearranged for a class of devices. A packing
// is one row of packings(); layout ids, prepare, unpack and the planner's byte counts all come from
// it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "moekit/format.h"
#include "moekit/status.h"

namespace moekit::formats {

enum class ArchClass : std::uint8_t { kCpu, kSm90 };

/// One packed unit: `num_parts` matrices of equal shape whose row panels alternate (gate and up),
/// or one.
struct PackingShape {
  Format format = Format::kBf16;
  std::int64_t rows = 0;  // of each part, unpadded
  std::int64_t cols = 0;
  int num_parts = 1;
  std::int64_t group_offset = 0;
  std::int64_t group_size = 0;  // of a format that has several; 0: its own
  std::int64_t row_offset = 0;  // of the first row within its block of scales
};

/// Where unpack writes one part: rows without gaps, codes and scales as WeightMatrix has them, with
/// one exception: scales wider than a byte come out as f32 (int4's bf16 and f16 scales too).
struct UnpackedPart {
  std::span<std::byte> codes;
  std::span<std::byte> scales;
  std::span<std::byte> zero_points{};  // int4: one byte a scale; empty: dropped
};

struct Packing {
  std::string_view name;  // enters the layout id
  ArchClass arch_class;
  bool (*supports)(Format format);
  /// Bytes of one packed unit, a multiple of 256.
  std::int64_t (*packed_bytes)(const PackingShape& shape);
  /// Rows per panel: the unit in which pack may be split over threads.
  std::int64_t panel_rows;
  /// Packs panels [panel_begin, panel_end) of every part; pads rows and columns with zero codes and
  /// zero (E8M0: smallest) scales. Writes every byte of its panels. `parts` are validated.
  void (*pack)(std::span<const WeightMatrix> parts,
               const PackingShape& shape,
               std::int64_t panel_begin,
               std::int64_t panel_end,
               std::byte* destination);
  /// Inverse of pack over the whole unit; padding is dropped.
  void (*unpack)(const std::byte* source,
                 const PackingShape& shape,
                 std::span<const UnpackedPart> parts);
};

[[nodiscard]] std::span<const Packing> packings() noexcept;

/// The packing that kernels of `arch_class` read `format` in; null where there is none.
[[nodiscard]] const Packing* packing_for(Format format, ArchClass arch_class) noexcept;

}  // namespace moekit::formats
