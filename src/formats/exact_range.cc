// SPDX-License-Identifier: Apache-2.0
#include "formats/exact_range.h"

#include <algorithm>
#include <span>

#include "base/text.h"
#include "device/layout/fp4_tile.h"

namespace moekit::formats {
namespace {

// 0.5 * 2^(scale - 127 - e) is the smallest operand; below 2^-126 it is no normal BF16.
constexpr int kExactBinades = 126;

bool has_nonzero_code(const std::uint8_t* codes, std::int64_t begin, std::int64_t end) {
  for (std::int64_t col = begin; col < end; ++col) {
    if (((codes[col >> 1] >> ((col & 1) * 4)) & 7U) != 0U) {
      return true;
    }
  }
  return false;
}

}  // namespace

Status check_exact_range(const Packing& packing, const WeightMatrix& matrix) {
  if (packing.arch_class != ArchClass::kSm90 || matrix.format != Format::kMxfp4 ||
      matrix.global_scale == 0.0F) {
    return {};
  }
  constexpr std::int64_t kGroup = 32;
  const std::int64_t groups = num_scale_cols(matrix);
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const auto* scales =
        static_cast<const std::uint8_t*>(matrix.scales) + row * matrix.scale_row_stride_bytes;
    const int largest = *std::max_element(scales, scales + groups);
    if (largest <= device::kMxfp4LargestScale) {
      continue;  // the operands are the weights
    }
    const auto* codes =
        static_cast<const std::uint8_t*>(matrix.codes) + row * matrix.row_stride_bytes;
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t begin = std::max<std::int64_t>(0, group * kGroup - matrix.group_offset);
      const std::int64_t end = std::min(matrix.cols, (group + 1) * kGroup - matrix.group_offset);
      if (scales[group] < largest - kExactBinades && has_nonzero_code(codes, begin, end)) {
        return unsupported(base::cat("row ",
                                     row,
                                     " group ",
                                     group,
                                     " has the block scale 2^",
                                     static_cast<int>(scales[group]) - 127,
                                     " and the row's largest is 2^",
                                     largest - 127,
                                     ", packed as ",
                                     packing.name,
                                     " a row holds ",
                                     kExactBinades,
                                     " binades exactly"));
      }
    }
  }
  return {};
}

}  // namespace moekit::formats
