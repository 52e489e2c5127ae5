// SPDX-License-Identifier: Apache-2.0
#include "formats/packing_panel16.h"

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "device/numerics/e4m3.h"

namespace moekit::formats {
namespace {

using device::i64;

struct Source {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  WeightMatrix matrix;
};

// Every byte random, scales within what validate_weights lets through.
Source random_source(const PackingShape& shape, std::mt19937& random) {
  Source source;
  const i64 row_bytes = code_row_bytes(shape.format, shape.cols);
  source.codes.resize(static_cast<std::size_t>(shape.rows * row_bytes));
  for (std::uint8_t& byte : source.codes) {
    byte = static_cast<std::uint8_t>(random());
  }
  source.matrix = {.format = shape.format,
                   .rows = shape.rows,
                   .cols = shape.cols,
                   .codes = source.codes.data(),
                   .row_stride_bytes = row_bytes,
                   .group_offset = shape.group_offset};
  const i64 group = format_info(shape.format).group_size;
  if (group != 0) {
    const i64 groups = (shape.group_offset + shape.cols + group - 1) / group;
    source.scales.resize(static_cast<std::size_t>(shape.rows * groups));
    const unsigned largest = shape.format == Format::kNvfp4 ? 0x7EU : 254U;
    for (std::uint8_t& scale : source.scales) {
      scale = static_cast<std::uint8_t>(random() % (largest + 1U));
    }
    source.matrix.scales = source.scales.data();
    source.matrix.scale_row_stride_bytes = groups;
  }
  return source;
}

std::vector<PackingShape> shapes() {
  std::vector<PackingShape> out;
  for (const Format format : {Format::kBf16, Format::kNvfp4, Format::kMxfp4}) {
    for (const i64 cols : {8, 16, 24, 40, 64, 72, 112, 128, 136, 176, 232, 256, 312, 352}) {
      for (const i64 rows : {1, 8, 15, 16, 17, 40}) {
        out.push_back({format, rows, cols, rows % 2 == 0 ? 2 : 1, 0});
      }
      const i64 group = format_info(format).group_size;
      for (i64 offset = 1; offset < group; offset += offset == 1 ? 2 : 5) {
        out.push_back({format, 17, cols, 2, offset});
      }
      if (group != 0) {
        out.push_back({format, 17, cols, 1, 8});
      }
      if (group > 16) {
        out.push_back({format, 17, cols, 1, 24});
      }
    }
  }
  return out;
}

std::vector<std::byte> pack_whole(const PackingShape& shape,
                                  std::span<const WeightMatrix> parts,
                                  std::byte poison) {
  std::vector<std::byte> packed(static_cast<std::size_t>(kPanel16Packing.packed_bytes(shape)),
                                poison);
  const i64 panels = device::panel16_num_panels(panel16_shape(shape));
  // Backwards and one by one: pack may be split over threads in any order.
  for (i64 panel = panels - 1; panel >= 0; --panel) {
    kPanel16Packing.pack(parts, shape, panel, panel + 1, packed.data());
  }
  return packed;
}

TEST(Panel16, UnpackOfPackIsIdentityAndEveryByteIsWritten) {
  std::mt19937 random(7);
  int checked = 0;
  for (const PackingShape& shape : shapes()) {
    std::vector<Source> sources;
    std::vector<WeightMatrix> parts;
    for (int part = 0; part < shape.num_parts; ++part) {
      sources.push_back(random_source(shape, random));
    }
    for (const Source& source : sources) {
      parts.push_back(source.matrix);
    }
    const auto packed = pack_whole(shape, parts, std::byte{0xA5});
    ASSERT_EQ(packed, pack_whole(shape, parts, std::byte{0x5A}));
    ASSERT_EQ(packed.size() % 256, 0U);
    std::vector<Source> out = sources;
    std::vector<UnpackedPart> targets;
    for (Source& target : out) {
      std::fill(target.codes.begin(), target.codes.end(), std::uint8_t{0});
      std::fill(target.scales.begin(), target.scales.end(), std::uint8_t{0});
      targets.push_back({std::as_writable_bytes(std::span(target.codes)),
                         std::as_writable_bytes(std::span(target.scales))});
    }
    kPanel16Packing.unpack(packed.data(), shape, targets);
    for (std::size_t part = 0; part < out.size(); ++part) {
      ASSERT_EQ(out[part].codes, sources[part].codes)
          << "rows " << shape.rows << " cols " << shape.cols << " offset " << shape.group_offset;
      ASSERT_EQ(out[part].scales, sources[part].scales);
    }
    ++checked;
  }
  EXPECT_GE(checked, 300);
}

TEST(Panel16, PositionsNeverCollide) {
  int checked = 0;
  for (const PackingShape& packing_shape : shapes()) {
    const device::Panel16Shape shape = panel16_shape(packing_shape);
    const i64 panel_bytes = device::panel16_panel_bytes(shape);
    std::set<i64> taken;  // in nibbles
    const auto take = [&](i64 nibble) {
      ASSERT_GE(nibble, 0);
      ASSERT_LT(nibble, panel_bytes * 2);
      ASSERT_TRUE(taken.insert(nibble).second);
    };
    for (i64 row = 0; row < device::kPanel16Rows; ++row) {
      for (i64 col = 0; col < shape.cols; ++col) {
        if (shape.element == device::Panel16Element::kBf16) {
          for (i64 nibble = 0; nibble < 4; ++nibble) {
            take(device::panel16_bf16_position(row, col) * 2 + nibble);
          }
        } else {
          const device::Panel16Nibble at = device::panel16_code_position(shape, row, col);
          take(at.byte * 2 + at.shift / 4);
        }
      }
      const i64 group = device::panel16_group_cols(shape);
      for (i64 g = 0; group != 0 && g * group < shape.group_offset + shape.cols; ++g) {
        const i64 byte = device::panel16_scale_position(shape, row, g);
        take(byte * 2);
        take(byte * 2 + 1);
      }
    }
    ++checked;
  }
  EXPECT_GE(checked, 300);
}

TEST(Panel16, CodesStandWhereTheMapSays) {
  std::mt19937 random(11);
  for (const i64 offset : {0, 3, 8, 24}) {
    const PackingShape shape{Format::kMxfp4, 20, 72, 1, offset};
    const Source source = random_source(shape, random);
    const auto packed = pack_whole(shape, std::span(&source.matrix, 1), std::byte{0xFF});
    const device::Panel16Shape map = panel16_shape(shape);
    for (i64 row = 0; row < shape.rows; ++row) {
      const std::byte* panel = packed.data() + device::panel16_panel_offset(map, row / 16, 0);
      for (i64 col = 0; col < shape.cols; ++col) {
        const device::Panel16Nibble at = device::panel16_code_position(map, row % 16, col);
        const unsigned have = (static_cast<unsigned>(panel[at.byte]) >> at.shift) & 0xFU;
        const unsigned byte = source.codes[static_cast<std::size_t>(row * 36 + col / 2)];
        ASSERT_EQ(have, (byte >> (col % 2 * 4)) & 0xFU);
      }
    }
  }
}

TEST(Panel16, PaddingRowsAndColumnsAreZero) {
  std::mt19937 random(13);
  const PackingShape shape{Format::kNvfp4, 17, 24, 1, 11};
  const Source source = random_source(shape, random);
  auto packed = pack_whole(shape, std::span(&source.matrix, 1), std::byte{0xFF});
  const device::Panel16Shape map = panel16_shape(shape);
  for (i64 row = 0; row < shape.rows; ++row) {  // erase what belongs to the matrix
    std::byte* panel = packed.data() + device::panel16_panel_offset(map, row / 16, 0);
    for (i64 col = 0; col < shape.cols; ++col) {
      const device::Panel16Nibble at = device::panel16_code_position(map, row % 16, col);
      panel[at.byte] &= at.shift == 0 ? std::byte{0xF0} : std::byte{0x0F};
    }
    for (i64 group = 0; group * 16 < shape.group_offset + shape.cols; ++group) {
      panel[device::panel16_scale_position(map, row % 16, group)] = std::byte{0};
    }
  }
  EXPECT_TRUE(
      std::all_of(packed.begin(), packed.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Panel16, TransposedBf16StoragePacksTheSame) {
  const i64 rows = 20;
  const i64 cols = 24;
  std::vector<std::uint16_t> plain(static_cast<std::size_t>(rows * cols));
  std::vector<std::uint16_t> transposed(plain.size());
  for (i64 row = 0; row < rows; ++row) {
    for (i64 col = 0; col < cols; ++col) {
      const auto value = static_cast<std::uint16_t>(row * 256 + col);
      plain[static_cast<std::size_t>(row * cols + col)] = value;
      transposed[static_cast<std::size_t>(col * rows + row)] = value;
    }
  }
  const PackingShape shape{Format::kBf16, rows, cols, 1, 0};
  const WeightMatrix straight{
      .rows = rows, .cols = cols, .codes = plain.data(), .row_stride_bytes = cols * 2};
  const WeightMatrix turned{.rows = rows,
                            .cols = cols,
                            .codes = transposed.data(),
                            .row_stride_bytes = 2,
                            .col_stride_elems = rows};
  EXPECT_EQ(pack_whole(shape, std::span(&straight, 1), std::byte{1}),
            pack_whole(shape, std::span(&turned, 1), std::byte{2}));
}

TEST(Panel16, E5m3HoldsEveryLegalE4m3Exactly) {
  for (unsigned code = 0; code <= 0x7EU; ++code) {
    const unsigned stored = device::e5m3_from_e4m3(code);
    EXPECT_EQ(device::e5m3_to_f32(stored), device::e4m3_to_f32(code)) << code;
    EXPECT_EQ(device::e4m3_from_e5m3(stored), code);
  }
  EXPECT_EQ(device::e5m3_from_e4m3(0x80U), 0U);
}

TEST(Panel16, StreamBytesAreCodesAndOneScaleLinePerBlock) {
  // Qwen3-30B-A3B gate_up: 2048 columns of nvfp4, 32 blocks of 576 bytes.
  EXPECT_EQ(device::panel16_panel_bytes(panel16_shape({Format::kNvfp4, 768, 2048, 2, 0})),
            32 * 576);
  EXPECT_EQ(device::panel16_panel_bytes(panel16_shape({Format::kMxfp4, 768, 2048, 2, 0})),
            16 * 1088);
  EXPECT_EQ(device::panel16_panel_bytes(panel16_shape({Format::kBf16, 768, 2048, 2, 0})),
            16 * 2048 * 2);
  ASSERT_NE(packing_for(Format::kNvfp4, ArchClass::kCpu), nullptr);
  EXPECT_EQ(packing_for(Format::kNvfp4, ArchClass::kCpu)->name, "panel16");
  EXPECT_GE(packings().size(), 1U);
}

TEST(Panel16, OffsetsBeyondTwoGigabytesDoNotWrap) {
  const device::Panel16Shape shape = panel16_shape({Format::kBf16, 1 << 20, 16384, 2, 0});
  EXPECT_EQ(device::panel16_panel_offset(shape, 65535, 1), (65535LL * 2 + 1) * 16 * 16384 * 2);
  EXPECT_EQ(device::panel16_unit_bytes(shape), (1LL << 20) * 2 * 16384 * 2);
}

}  // namespace
}  // namespace moekit::formats
