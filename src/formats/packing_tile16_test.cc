// SPDX-License-Identifier: Apache-2.0
#include "formats/packing_tile16.h"

#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "device/layout/fp4_tile.h"

namespace moekit::formats {
namespace {

/// A matrix with storage: random codes, legal scales.
struct Matrix {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  WeightMatrix view;
};

std::uint8_t legal_scale(Format format, std::mt19937& random) {
  if (format == Format::kNvfp4) {
    return static_cast<std::uint8_t>(random() % 127);  // 0 ... 126: zero and subnormals too
  }
  return static_cast<std::uint8_t>(random() % 129);  // up to 2^1
}

Matrix random_matrix(const PackingShape& shape, std::uint32_t seed) {
  Matrix matrix;
  WeightMatrix& view = matrix.view;
  view.format = shape.format;
  view.rows = shape.rows;
  view.cols = shape.cols;
  view.group_offset = shape.group_offset;
  view.row_stride_bytes = shape.cols / 2;
  view.scale_row_stride_bytes = num_scale_cols(view);
  std::mt19937 random(seed);
  matrix.codes.resize(static_cast<std::size_t>(shape.rows * view.row_stride_bytes));
  for (std::uint8_t& byte : matrix.codes) {
    byte = static_cast<std::uint8_t>(random());
  }
  matrix.scales.resize(static_cast<std::size_t>(shape.rows * view.scale_row_stride_bytes));
  for (std::uint8_t& byte : matrix.scales) {
    byte = legal_scale(shape.format, random);
  }
  view.codes = matrix.codes.data();
  view.scales = matrix.scales.data();
  return matrix;
}

UnpackedPart part_of(Matrix& matrix) {
  return {std::as_writable_bytes(std::span(matrix.codes)),
          std::as_writable_bytes(std::span(matrix.scales))};
}

std::vector<std::byte> packed_in_two_runs(const PackingShape& shape,
                                          const std::vector<WeightMatrix>& parts) {
  const Packing& packing = kTile16Packing;
  std::vector<std::byte> unit(static_cast<std::size_t>(packing.packed_bytes(shape)),
                              std::byte{0xA5});
  const std::int64_t panels = (shape.rows + packing.panel_rows - 1) / packing.panel_rows;
  packing.pack(parts, shape, panels / 2, panels, unit.data());
  packing.pack(parts, shape, 0, panels / 2, unit.data());
  return unit;
}

void expect_inverse(const PackingShape& shape, std::uint32_t seed) {
  SCOPED_TRACE(testing::Message() << "format " << static_cast<int>(shape.format) << " rows "
                                  << shape.rows << " cols " << shape.cols << " parts "
                                  << shape.num_parts << " offset " << shape.group_offset);
  std::vector<Matrix> sources;
  std::vector<Matrix> read;
  std::vector<WeightMatrix> parts;
  for (int part = 0; part < shape.num_parts; ++part) {
    sources.push_back(random_matrix(shape, seed + static_cast<std::uint32_t>(part)));
    read.push_back(random_matrix(shape, seed + 1000));
  }
  for (const Matrix& source : sources) {
    parts.push_back(source.view);
  }
  const std::vector<std::byte> unit = packed_in_two_runs(shape, parts);
  std::vector<UnpackedPart> targets;
  for (Matrix& matrix : read) {
    targets.push_back(part_of(matrix));
  }
  kTile16Packing.unpack(unit.data(), shape, targets);
  for (std::size_t part = 0; part < sources.size(); ++part) {
    EXPECT_EQ(read[part].codes, sources[part].codes);
    EXPECT_EQ(read[part].scales, sources[part].scales);
  }
}

TEST(PackingTile16, UnpackIsTheInverseForEveryExtentClass) {
  // Multiples of 8 only, of 16, of 64; below one tile; the widths of real shards.
  constexpr std::int64_t kCols[] = {8, 24, 56, 64, 72, 112, 176, 232, 256, 352, 704, 2880};
  constexpr std::int64_t kRows[] = {1, 7, 8, 16, 24, 40, 56, 112};
  int checked = 0;
  for (const Format format : {Format::kNvfp4, Format::kMxfp4}) {
    for (const std::int64_t cols : kCols) {
      for (const std::int64_t rows : kRows) {
        for (const int num_parts : {1, 2}) {
          expect_inverse({format, rows, cols, num_parts, 0}, static_cast<std::uint32_t>(++checked));
        }
      }
    }
  }
  EXPECT_EQ(checked, 2 * 12 * 8 * 2);
}

TEST(PackingTile16, ShardsThatBeginInsideAGroupRoundTrip) {
  int checked = 0;
  for (const Format format : {Format::kNvfp4, Format::kMxfp4}) {
    for (std::int64_t offset = 8; offset < format_info(format).group_size; offset += 8) {
      for (const std::int64_t cols : {8, 56, 120, 352}) {
        expect_inverse({format, 24, cols, 1, offset}, static_cast<std::uint32_t>(++checked));
      }
    }
  }
  EXPECT_EQ(checked, 16);
}

TEST(PackingTile16, RealWidthsRoundTrip) {
  expect_inverse({Format::kNvfp4, 256, 6144, 2, 0}, 1);
  expect_inverse({Format::kNvfp4, 64, 7168, 2, 0}, 2);
  expect_inverse({Format::kNvfp4, 64, 14336, 1, 0}, 3);
  expect_inverse({Format::kMxfp4, 360, 2880, 2, 0}, 4);
  expect_inverse({Format::kMxfp4, 2880, 768, 1, 0}, 5);
}

TEST(PackingTile16, PaddingIsZero) {
  const PackingShape shape{Format::kNvfp4, 8, 72, 1, 0};
  Matrix source = random_matrix(shape, 3);
  for (std::uint8_t& byte : source.codes) {
    byte = 0;
  }
  for (std::uint8_t& byte : source.scales) {
    byte = 0;
  }
  const std::vector<std::byte> unit = packed_in_two_runs(shape, {source.view});
  EXPECT_EQ(unit.size(), 1280U);  // two tiles of 576 bytes, rounded up to 256
  for (const std::byte byte : unit) {
    ASSERT_EQ(byte, std::byte{0});
  }
}

TEST(PackingTile16, NegativeZeroScaleCountsAsZero) {
  const PackingShape shape{Format::kNvfp4, 16, 64, 1, 0};
  Matrix source = random_matrix(shape, 4);
  source.scales[5] = 0x80;
  const std::vector<std::byte> unit = packed_in_two_runs(shape, {source.view});
  Matrix read = random_matrix(shape, 5);
  const std::vector<UnpackedPart> targets{part_of(read)};
  kTile16Packing.unpack(unit.data(), shape, targets);
  EXPECT_EQ(read.scales[5], 0);
}

TEST(PackingTile16, LargeMxfp4ScalesMoveIntoTheRowExponent) {
  const PackingShape shape{Format::kMxfp4, 16, 64, 1, 0};
  Matrix source = random_matrix(shape, 6);
  for (std::size_t at = 0; at < source.scales.size(); ++at) {
    source.scales[at] = at < 2 ? static_cast<std::uint8_t>(252 - at) : std::uint8_t{120};
  }
  const std::vector<std::byte> unit = packed_in_two_runs(shape, {source.view});
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(unit.data());
  EXPECT_EQ(bytes[device::fp4_tile_bytes(32)], 252 - device::kMxfp4LargestScale);
  EXPECT_EQ(bytes[device::fp4_tile_bytes(32) + 1], 0);
  EXPECT_EQ(bytes[device::fp4_scale_byte(0, 0, 32)], 254);
  Matrix read = random_matrix(shape, 7);
  const std::vector<UnpackedPart> targets{part_of(read)};
  kTile16Packing.unpack(unit.data(), shape, targets);
  EXPECT_EQ(read.scales, source.scales);
}

TEST(PackingTile16, OnlyFp4IsSupported) {
  EXPECT_TRUE(kTile16Packing.supports(Format::kNvfp4));
  EXPECT_TRUE(kTile16Packing.supports(Format::kMxfp4));
  EXPECT_FALSE(kTile16Packing.supports(Format::kBf16));
}

}  // namespace
}  // namespace moekit::formats
