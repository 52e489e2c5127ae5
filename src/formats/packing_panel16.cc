// SPDX-License-Identifier: Apache-2.0
#include "formats/packing_panel16.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "formats/scales.h"

namespace moekit::formats {

namespace {

using device::i64;
using device::kPanel16Rows;
using device::kPanel16StepCols;
using device::Panel16Element;
using device::Panel16Shape;

// The stored element of a format, by its encodings: whatever row of kFormats has them is packed.
std::optional<Panel16Element> element_of(const FormatInfo& info) {
  switch (info.element) {
    case DType::kBf16:
      return Panel16Element::kBf16;
    case DType::kE2m1:
      return info.scale == DType::kE4m3   ? std::optional(Panel16Element::kNvfp4)
             : info.scale == DType::kE8m0 ? std::optional(Panel16Element::kMxfp4)
                                          : std::nullopt;
    case DType::kE4m3:
      return Panel16Element::kE4m3;
    case DType::kI4:
      return Panel16Element::kInt4;
    default:
      return std::nullopt;
  }
}

bool supports(Format format) {
  return element_of(format_info(format)).has_value();
}

std::uint8_t stored_scale(Panel16Element element, std::uint8_t scale) {
  return element == Panel16Element::kNvfp4
             ? static_cast<std::uint8_t>(device::e5m3_from_e4m3(scale))
             : scale;
}

std::uint8_t source_scale(Panel16Element element, std::uint8_t scale) {
  return element == Panel16Element::kNvfp4
             ? static_cast<std::uint8_t>(device::e4m3_from_e5m3(scale))
             : scale;
}

std::int64_t num_groups(const Panel16Shape& shape) {
  const i64 group = device::panel16_group_cols(shape);
  return group == 0 ? 0 : device::ceil_div(shape.group_offset + shape.cols, group);
}

// Eight consecutive codes as stored by a checkpoint (nibble i = column i) to a row's word of one
// step: even columns to the low half, odd columns to the high half.
std::uint32_t split_pairs(std::uint32_t codes) {
  const auto gather_even = [](std::uint32_t word) {
    word &= 0x0F0F0F0FU;
    word = (word | (word >> 4)) & 0x00FF00FFU;
    return (word | (word >> 8)) & 0x0000FFFFU;
  };
  return gather_even(codes) | (gather_even(codes >> 4) << 16);
}

std::uint32_t join_pairs(std::uint32_t word) {
  const auto spread_even = [](std::uint32_t half) {
    half = (half | (half << 8)) & 0x00FF00FFU;
    return (half | (half << 4)) & 0x0F0F0F0FU;
  };
  return spread_even(word & 0xFFFFU) | (spread_even(word >> 16) << 4);
}

// The row's 8 codes of one step, zero where the columns lie outside the matrix.
std::uint32_t load_codes(const std::uint8_t* row, i64 first_col, i64 cols) {
  std::uint32_t codes = 0;
  if (first_col >= 0 && first_col + kPanel16StepCols <= cols && first_col % 2 == 0) {
    std::memcpy(&codes, row + first_col / 2, sizeof(codes));
    return codes;
  }
  for (i64 i = 0; i < kPanel16StepCols; ++i) {
    const i64 col = first_col + i;
    if (col >= 0 && col < cols) {
      const std::uint32_t code = (row[col / 2] >> ((col % 2) * 4)) & 0xFU;
      codes |= code << (4 * i);
    }
  }
  return codes;
}

void store_codes(std::uint8_t* row, i64 first_col, i64 cols, std::uint32_t codes) {
  for (i64 i = 0; i < kPanel16StepCols; ++i) {
    const i64 col = first_col + i;
    if (col >= 0 && col < cols) {
      const std::uint32_t code = (codes >> (4 * i)) & 0xFU;
      std::uint8_t& byte = row[col / 2];
      byte = static_cast<std::uint8_t>(col % 2 == 0 ? (byte & 0xF0U) | code
                                                    : (byte & 0x0FU) | (code << 4));
    }
  }
}

void pack_bf16_panel(const WeightMatrix& part, i64 first_row, std::byte* panel) {
  const auto* codes = static_cast<const std::byte*>(part.codes);
  for (i64 row = 0; row < kPanel16Rows; ++row) {
    const bool inside = first_row + row < part.rows;
    const std::byte* source = codes + (first_row + row) * part.row_stride_bytes;
    for (i64 col = 0; col < part.cols; ++col) {
      std::uint16_t value = 0;
      if (inside) {
        std::memcpy(&value, source + col * part.col_stride_elems * 2, sizeof(value));
      }
      std::memcpy(panel + device::panel16_bf16_position(row, col), &value, sizeof(value));
    }
  }
}

struct ScaleAt {
  i64 row;  // of the matrix
  i64 group;
};

void store_scale(const WeightMatrix& part,
                 const Panel16Shape& shape,
                 const ScaleAt& at,
                 std::byte* panel) {
  std::byte* target =
      panel + device::panel16_scale_position(shape, at.row % kPanel16Rows, at.group);
  if (!device::panel16_has_wide_scales(shape.element)) {
    const auto* scales =
        static_cast<const std::uint8_t*>(part.scales) + at.row * part.scale_row_stride_bytes;
    *target = static_cast<std::byte>(stored_scale(shape.element, scales[at.group]));
    return;
  }
  const float scale = scale_value(part, at.row, at.group);
  const std::uint32_t word =
      shape.element == Panel16Element::kInt4
          ? device::panel16_int4_word(scale, zero_point(part, at.row, at.group))
          : device::bits_of(scale);
  std::memcpy(target, &word, sizeof(word));
}

void pack_e4m3_elements(const WeightMatrix& part,
                        const Panel16Shape& shape,
                        i64 first_row,
                        std::byte* panel) {
  const i64 rows = std::min(kPanel16Rows, part.rows - first_row);
  for (i64 row = 0; row < rows; ++row) {
    const auto* source =
        static_cast<const std::byte*>(part.codes) + (first_row + row) * part.row_stride_bytes;
    for (i64 col = 0; col < part.cols; ++col) {
      panel[device::panel16_e4m3_position(shape, row, col)] = source[col];
    }
  }
}

void pack_code_panel(const WeightMatrix& part,
                     const Panel16Shape& shape,
                     i64 first_row,
                     std::byte* panel) {
  const i64 rows = std::min(kPanel16Rows, part.rows - first_row);
  const i64 first_step = device::panel16_first_step(shape);
  const i64 num_steps = device::panel16_num_steps(shape);
  const i64 groups = num_groups(shape);
  // Scale lines are sparse where the last block is short: zero first, then fill.
  std::memset(panel, 0, static_cast<std::size_t>(device::panel16_panel_bytes(shape)));
  for (i64 row = 0; row < rows; ++row) {
    for (i64 group = 0; group < groups; ++group) {
      store_scale(part, shape, {first_row + row, group}, panel);
    }
  }
  if (shape.element == Panel16Element::kE4m3) {
    pack_e4m3_elements(part, shape, first_row, panel);
    return;
  }
  for (i64 step = first_step; step < first_step + num_steps; ++step) {
    std::byte* line = panel + device::panel16_code_line(shape, step);
    for (i64 row = 0; row < rows; ++row) {
      const auto* source =
          static_cast<const std::uint8_t*>(part.codes) + (first_row + row) * part.row_stride_bytes;
      const std::uint32_t word =
          split_pairs(load_codes(source, step * kPanel16StepCols - shape.group_offset, shape.cols));
      std::memcpy(line + row * 4, &word, sizeof(word));
    }
  }
}

void pack(std::span<const WeightMatrix> parts,
          const PackingShape& shape,
          std::int64_t panel_begin,
          std::int64_t panel_end,
          std::byte* destination) {
  const Panel16Shape map = panel16_shape(shape);
  for (i64 panel = panel_begin; panel < panel_end; ++panel) {
    for (i64 part = 0; part < map.num_parts; ++part) {
      const WeightMatrix& matrix = parts[static_cast<std::size_t>(part)];
      std::byte* target = destination + device::panel16_panel_offset(map, panel, part);
      if (map.element == Panel16Element::kBf16) {
        pack_bf16_panel(matrix, panel * kPanel16Rows, target);
      } else {
        pack_code_panel(matrix, map, panel * kPanel16Rows, target);
      }
    }
  }
  if (panel_end == device::panel16_num_panels(map)) {
    const i64 used = device::panel16_panel_offset(map, panel_end, 0);
    std::memset(
        destination + used, 0, static_cast<std::size_t>(device::panel16_unit_bytes(map) - used));
  }
}

void unpack_bf16_row(const std::byte* panel, i64 row, i64 cols, std::byte* out) {
  for (i64 col = 0; col < cols; ++col) {
    std::memcpy(out + col * 2, panel + device::panel16_bf16_position(row, col), 2);
  }
}

// Where one row's scales (as the format stores them) and zero points go.
struct UnpackedScales {
  std::uint8_t* scales;
  std::uint8_t* zero_points;  // null: dropped
};

void unpack_scale_row(const std::byte* panel,
                      const Panel16Shape& shape,
                      i64 row,
                      const UnpackedScales& out) {
  const i64 groups = num_groups(shape);
  for (i64 group = 0; group < groups; ++group) {
    const std::byte* stored = panel + device::panel16_scale_position(shape, row, group);
    if (!device::panel16_has_wide_scales(shape.element)) {
      out.scales[group] = source_scale(shape.element, static_cast<std::uint8_t>(*stored));
      continue;
    }
    std::uint32_t word = 0;
    std::memcpy(&word, stored, sizeof(word));
    if (shape.element == Panel16Element::kE4m3) {
      std::memcpy(out.scales + group * 4, &word, sizeof(word));
      continue;
    }
    const float scale = device::panel16_int4_scale(word);
    std::memcpy(out.scales + group * 4, &scale, sizeof(scale));
    if (out.zero_points != nullptr) {
      out.zero_points[group] = static_cast<std::uint8_t>(device::panel16_int4_zero_point(word));
    }
  }
}

void unpack_code_row(const std::byte* panel,
                     const Panel16Shape& shape,
                     i64 row,
                     std::uint8_t* codes) {
  if (shape.element == Panel16Element::kE4m3) {
    for (i64 col = 0; col < shape.cols; ++col) {
      codes[col] = static_cast<std::uint8_t>(panel[device::panel16_e4m3_position(shape, row, col)]);
    }
    return;
  }
  const i64 first_step = device::panel16_first_step(shape);
  for (i64 step = first_step; step < first_step + device::panel16_num_steps(shape); ++step) {
    std::uint32_t word = 0;
    std::memcpy(&word, panel + device::panel16_code_line(shape, step) + row * 4, sizeof(word));
    store_codes(codes, step * kPanel16StepCols - shape.group_offset, shape.cols, join_pairs(word));
  }
}

void unpack(const std::byte* source,
            const PackingShape& shape,
            std::span<const UnpackedPart> parts) {
  const Panel16Shape map = panel16_shape(shape);
  const i64 row_bytes = code_row_bytes(shape.format, shape.cols);
  const i64 groups = num_groups(map);
  const i64 group_rows = format_info(shape.format).group_rows;
  const i64 scale_row_bytes = groups * (device::panel16_has_wide_scales(map.element) ? 4 : 1);
  for (i64 part = 0; part < map.num_parts; ++part) {
    const UnpackedPart& out = parts[static_cast<std::size_t>(part)];
    for (i64 row = 0; row < shape.rows; ++row) {
      const std::byte* panel = source + device::panel16_panel_offset(map, row / kPanel16Rows, part);
      const i64 in_panel = row % kPanel16Rows;
      std::byte* codes = out.codes.data() + row * row_bytes;
      if (map.element == Panel16Element::kBf16) {
        unpack_bf16_row(panel, in_panel, shape.cols, codes);
      } else {
        // Rows of one block of scales write the same bytes.
        const i64 scale_row = (shape.row_offset + row) / group_rows;
        unpack_scale_row(
            panel,
            map,
            in_panel,
            {reinterpret_cast<std::uint8_t*>(out.scales.data()) + scale_row * scale_row_bytes,
             out.zero_points.empty()
                 ? nullptr
                 : reinterpret_cast<std::uint8_t*>(out.zero_points.data()) + row * groups});
        unpack_code_row(panel, map, in_panel, reinterpret_cast<std::uint8_t*>(codes));
      }
    }
  }
}

std::int64_t packed_bytes(const PackingShape& shape) {
  return device::panel16_unit_bytes(panel16_shape(shape));
}

}  // namespace

const Packing kPanel16Packing{.name = "panel16",
                              .arch_class = ArchClass::kCpu,
                              .supports = supports,
                              .packed_bytes = packed_bytes,
                              .panel_rows = device::kPanel16Rows,
                              .pack = pack,
                              .unpack = unpack};

Panel16Shape panel16_shape(const PackingShape& shape) noexcept {
  const FormatInfo& info = format_info(shape.format);
  const Panel16Element element = element_of(info).value_or(Panel16Element::kBf16);
  return {element,
          shape.rows,
          shape.cols,
          shape.num_parts,
          element == Panel16Element::kBf16 ? 0 : shape.group_offset,
          shape.group_size != 0 ? shape.group_size : info.group_size};
}

}  // namespace moekit::formats
