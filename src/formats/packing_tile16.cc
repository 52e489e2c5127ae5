// SPDX-License-Identifier: Apache-2.0
#include "formats/packing_tile16.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "device/layout/fp4_tile.h"

namespace moekit::formats {
namespace {

constexpr std::int64_t kPanelRows = 16;
constexpr std::int64_t kUnitAlignment = 256;

/// Both 32-bit words of a step pair, even word low.
using WordPair = std::uint64_t;

/// kSpread[row >= 8][column % 8][code]: the bits of one code in the word pair of its step pair.
using SpreadTable = std::array<std::array<std::array<WordPair, 16>, 8>, 2>;

constexpr SpreadTable make_spread_table() {
  SpreadTable table{};
  for (std::int32_t high = 0; high < 2; ++high) {
    for (std::int32_t col = 0; col < 8; ++col) {
      for (std::uint32_t code = 0; code < 16; ++code) {
        for (std::int32_t code_bit = 0; code_bit < 4; ++code_bit) {
          const device::Fp4Bit at = device::fp4_code_bit(high * 8, col, code_bit);
          const WordPair bit = (code >> code_bit) & 1U;
          table[static_cast<std::size_t>(high)][static_cast<std::size_t>(col)][code] |=
              bit << (at.word * 32 + at.bit);
        }
      }
    }
  }
  return table;
}

constexpr SpreadTable kSpread = make_spread_table();

const FormatInfo& info_of(Format format) {
  return format_info(format);
}

/// Sizes that pack and unpack share.
struct Geometry {
  explicit Geometry(const PackingShape& shape)
      : group_size(static_cast<std::int32_t>(info_of(shape.format).group_size)),
        tile_bytes(device::fp4_tile_bytes(group_size)),
        k_tiles(device::fp4_k_tiles(shape.cols, shape.group_offset)),
        row_tiles(device::fp4_row_tiles(shape.rows, shape.num_parts)) {}

  std::int32_t group_size;
  std::int64_t tile_bytes;
  std::int64_t k_tiles;
  std::int64_t row_tiles;

  [[nodiscard]] std::int64_t tile_offset(std::int64_t row_tile, std::int64_t k_tile) const {
    return (row_tile * k_tiles + k_tile) * tile_bytes;
  }

  [[nodiscard]] std::int64_t exponents_offset() const { return tile_offset(row_tiles, 0); }
};

/// One row of a part, and where it goes.
struct PackedRow {
  std::int64_t row_tile = 0;
  std::int32_t row = 0;  // 0...15 within the tile
};

PackedRow packed_row(const PackingShape& shape, std::int64_t part, std::int64_t row) {
  if (shape.num_parts == 2) {
    return {row / 8, static_cast<std::int32_t>(row % 8 + 8 * part)};
  }
  return {row / 16, static_cast<std::int32_t>(row % 16)};
}

/// The exponent that an mxfp4 row is divided by: 0 unless a scale exceeds what the operand can
/// hold.
std::int32_t row_exponent(std::span<const std::uint8_t> scales) {
  const std::int32_t largest = *std::max_element(scales.begin(), scales.end());
  return std::max(0, largest - device::kMxfp4LargestScale);
}

std::uint8_t stored_scale(Format format, std::uint8_t scale, std::int32_t exponent) {
  if (format == Format::kMxfp4) {
    // Below 0 the product is under 2^-126 of the row's largest: operands that small flush.
    return static_cast<std::uint8_t>(std::max(0, scale + device::kMxfp4ScaleBias - exponent));
  }
  return scale == 0x80U ? std::uint8_t{0} : scale;  // -0 counts as 0
}

std::uint8_t source_scale(Format format, std::uint8_t stored, std::int32_t exponent) {
  return format == Format::kMxfp4
             ? static_cast<std::uint8_t>(std::max(0, stored - device::kMxfp4ScaleBias + exponent))
             : stored;
}

class RowPacker {
 public:
  RowPacker(const PackingShape& shape, std::byte* unit)
      : shape_(shape), geometry_(shape), unit_(reinterpret_cast<std::uint8_t*>(unit)) {}

  void pack(const WeightMatrix& matrix, std::int64_t part, std::int64_t row) const {
    const PackedRow to = packed_row(shape_, part, row);
    const auto* codes =
        static_cast<const std::uint8_t*>(matrix.codes) + row * matrix.row_stride_bytes;
    pack_codes(codes, to);
    const auto* scales =
        static_cast<const std::uint8_t*>(matrix.scales) + row * matrix.scale_row_stride_bytes;
    pack_scales({scales, static_cast<std::size_t>(num_scale_cols(matrix))}, to);
  }

 private:
  [[nodiscard]] std::uint8_t* tile(const PackedRow& to, std::int64_t k_tile) const {
    return unit_ + geometry_.tile_offset(to.row_tile, k_tile);
  }

  /// The destination was zeroed; rows of one tile share words, so bits are added.
  void pack_codes(const std::uint8_t* codes, const PackedRow& to) const {
    const auto& spread = kSpread[to.row >= 8 ? 1 : 0];
    for (std::int64_t col = 0; col < shape_.cols; ++col) {
      const std::int64_t place = shape_.group_offset + col;
      const auto col_in_tile = static_cast<std::int32_t>(place % device::kFp4TileCols);
      const std::uint32_t code = (codes[col >> 1] >> ((col & 1) * 4)) & 0xFU;
      std::uint8_t* at =
          tile(to, place / device::kFp4TileCols) +
          std::int64_t{device::fp4_lane(to.row, col_in_tile)} * device::kFp4LaneCodeBytes +
          (col_in_tile % 16) / 8 * 8;
      WordPair words = 0;
      std::memcpy(&words, at, sizeof(words));
      words |= spread[static_cast<std::size_t>(col_in_tile % 8)][code];
      std::memcpy(at, &words, sizeof(words));
    }
  }

  void pack_scales(std::span<const std::uint8_t> scales, const PackedRow& to) const {
    std::int32_t exponent = 0;
    if (shape_.format == Format::kMxfp4) {
      exponent = row_exponent(scales);
      unit_[geometry_.exponents_offset() + to.row_tile * kPanelRows + to.row] =
          static_cast<std::uint8_t>(exponent);
    }
    const std::int64_t per_tile = device::kFp4TileCols / geometry_.group_size;
    for (std::int64_t group = 0; group < static_cast<std::int64_t>(scales.size()); ++group) {
      const auto col = static_cast<std::int32_t>(group % per_tile * geometry_.group_size);
      tile(to, group / per_tile)[device::fp4_scale_byte(to.row, col, geometry_.group_size)] =
          stored_scale(shape_.format, scales[static_cast<std::size_t>(group)], exponent);
    }
  }

  const PackingShape& shape_;
  Geometry geometry_;
  std::uint8_t* unit_;
};

class RowUnpacker {
 public:
  RowUnpacker(const std::byte* unit, const PackingShape& shape)
      : shape_(shape), geometry_(shape), unit_(reinterpret_cast<const std::uint8_t*>(unit)) {}

  void unpack(const UnpackedPart& part, std::int64_t part_idx, std::int64_t row) const {
    const PackedRow from = packed_row(shape_, part_idx, row);
    unpack_codes(part.codes.data() + row * code_row_bytes(shape_.format, shape_.cols), from);
    const std::int64_t num_groups =
        (shape_.group_offset + shape_.cols + geometry_.group_size - 1) / geometry_.group_size;
    const std::int32_t exponent =
        shape_.format == Format::kMxfp4
            ? unit_[geometry_.exponents_offset() + from.row_tile * kPanelRows + from.row]
            : 0;
    const std::int64_t per_tile = device::kFp4TileCols / geometry_.group_size;
    for (std::int64_t group = 0; group < num_groups; ++group) {
      const auto col = static_cast<std::int32_t>(group % per_tile * geometry_.group_size);
      const std::uint8_t stored =
          tile(from, group / per_tile)[device::fp4_scale_byte(from.row, col, geometry_.group_size)];
      part.scales[static_cast<std::size_t>(row * num_groups + group)] =
          static_cast<std::byte>(source_scale(shape_.format, stored, exponent));
    }
  }

 private:
  [[nodiscard]] const std::uint8_t* tile(const PackedRow& from, std::int64_t k_tile) const {
    return unit_ + geometry_.tile_offset(from.row_tile, k_tile);
  }

  [[nodiscard]] std::uint32_t code_at(const PackedRow& from, std::int64_t place) const {
    const auto col = static_cast<std::int32_t>(place % device::kFp4TileCols);
    const std::uint8_t* lane =
        tile(from, place / device::kFp4TileCols) +
        std::int64_t{device::fp4_lane(from.row, col)} * device::kFp4LaneCodeBytes;
    std::uint32_t code = 0;
    for (std::int32_t code_bit = 0; code_bit < 4; ++code_bit) {
      const device::Fp4Bit at = device::fp4_code_bit(from.row, col, code_bit);
      const std::uint32_t byte = lane[at.word * 4 + at.bit / 8];
      code |= ((byte >> (at.bit % 8)) & 1U) << code_bit;
    }
    return code;
  }

  void unpack_codes(std::byte* codes, const PackedRow& from) const {
    for (std::int64_t col = 0; col < shape_.cols; col += 2) {
      const std::uint32_t even = code_at(from, shape_.group_offset + col);
      const std::uint32_t odd = code_at(from, shape_.group_offset + col + 1);
      codes[col / 2] = static_cast<std::byte>(even | odd << 4);
    }
  }

  const PackingShape& shape_;
  Geometry geometry_;
  const std::uint8_t* unit_;
};

bool supports(Format format) {
  return format == Format::kNvfp4 || format == Format::kMxfp4;
}

std::int64_t packed_bytes(const PackingShape& shape) {
  const std::int64_t bytes =
      device::fp4_unit_bytes(shape.rows,
                             shape.cols,
                             shape.group_offset,
                             shape.num_parts,
                             static_cast<std::int32_t>(info_of(shape.format).group_size));
  return device::round_up(bytes, kUnitAlignment);
}

void pack(std::span<const WeightMatrix> parts,
          const PackingShape& shape,
          std::int64_t panel_begin,
          std::int64_t panel_end,
          std::byte* destination) {
  const Geometry geometry(shape);
  const std::int64_t tiles_per_panel = shape.num_parts;
  const std::int64_t tile_begin = std::min(panel_begin * tiles_per_panel, geometry.row_tiles);
  const std::int64_t tile_end = std::min(panel_end * tiles_per_panel, geometry.row_tiles);
  const std::int64_t begin = geometry.tile_offset(tile_begin, 0);
  std::memset(
      destination + begin, 0, static_cast<std::size_t>(geometry.tile_offset(tile_end, 0) - begin));
  if (shape.format == Format::kMxfp4) {
    std::memset(destination + geometry.exponents_offset() + tile_begin * kPanelRows,
                0,
                static_cast<std::size_t>((tile_end - tile_begin) * kPanelRows));
  }
  if (tile_end == geometry.row_tiles) {
    const std::int64_t used =
        geometry.exponents_offset() +
        (shape.format == Format::kMxfp4 ? geometry.row_tiles * kPanelRows : 0);
    std::memset(destination + used, 0, static_cast<std::size_t>(packed_bytes(shape) - used));
  }
  const RowPacker packer(shape, destination);
  const std::int64_t row_end = std::min(panel_end * kPanelRows, shape.rows);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (std::int64_t row = panel_begin * kPanelRows; row < row_end; ++row) {
      packer.pack(parts[part], static_cast<std::int64_t>(part), row);
    }
  }
}

void unpack(const std::byte* source,
            const PackingShape& shape,
            std::span<const UnpackedPart> parts) {
  const RowUnpacker unpacker(source, shape);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      unpacker.unpack(parts[part], static_cast<std::int64_t>(part), row);
    }
  }
}

}  // namespace

const Packing kTile16Packing{.name = "tile16x64",
                             .arch_class = ArchClass::kSm90,
                             .supports = &supports,
                             .packed_bytes = &packed_bytes,
                             .panel_rows = kPanelRows,
                             .pack = &pack,
                             .unpack = &unpack};

}  // namespace moekit::formats
