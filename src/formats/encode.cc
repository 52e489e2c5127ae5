// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "moekit/format.h"

#include "base/border.h"
#include "base/text.h"
#include "device/numerics/bf16.h"
#include "formats/scales.h"

namespace moekit {
namespace {

using base::cat;

float largest_magnitude(std::span<const float> values) {
  float largest = 0.0F;
  for (const float value : values) {
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

/// The scale byte of one group, and by which its elements are divided.
struct GroupScale {
  std::uint8_t byte = 0;
  float divisor = 0.0F;
};

GroupScale e4m3_scale(float amax, float global) {
  GroupScale scale;
  if (global > 0.0F) {
    scale.byte = static_cast<std::uint8_t>(device::e4m3_from_f32(amax / 6.0F / global));
    scale.divisor = device::e4m3_to_f32(scale.byte) * global;
  }
  return scale;
}

GroupScale e8m0_scale(float amax) {
  GroupScale scale;
  if (amax > 0.0F) {
    // floor(log2(6)) = 2 is E2M1's largest exponent.
    const int byte = std::clamp(std::ilogb(amax) - 2 + 127, 0, 254);
    scale.byte = static_cast<std::uint8_t>(byte);
    scale.divisor = device::e8m0_to_f32(scale.byte);
  }
  return scale;
}

void encode_e2m1_group(std::span<const float> values, float divisor, std::byte* codes) {
  for (std::size_t i = 0; i < values.size(); i += 2) {
    std::uint32_t pair = 0;
    if (divisor > 0.0F) {
      pair = device::e2m1_from_f32(values[i] / divisor) |
             device::e2m1_from_f32(values[i + 1] / divisor) << 4;
    }
    codes[i / 2] = static_cast<std::byte>(pair);
  }
}

void encode_e2m1(const FormatInfo& info,
                 std::span<const float> values,
                 std::int64_t cols,
                 EncodedWeights& encoded) {
  const bool has_global = info.has_global_scale;
  encoded.global_scale = has_global ? largest_magnitude(values) / (6.0F * 448.0F) : 1.0F;
  const auto row_elems = static_cast<std::size_t>(cols);
  const auto group_size = static_cast<std::size_t>(info.group_size);
  std::size_t scale_idx = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += row_elems) {
    for (std::size_t col = 0; col < row_elems; col += group_size) {
      const std::span<const float> group =
          values.subspan(begin + col, std::min(group_size, row_elems - col));
      const float amax = largest_magnitude(group);
      const GroupScale scale =
          has_global ? e4m3_scale(amax, encoded.global_scale) : e8m0_scale(amax);
      encoded.scales[scale_idx++] = static_cast<std::byte>(scale.byte);
      encode_e2m1_group(group, scale.divisor, encoded.codes.data() + (begin + col) / 2);
    }
  }
}

// One column block of one row block: rows [begin, end) of [rows, cols].
struct ScaleBlock {
  std::size_t row_begin = 0;
  std::size_t row_end = 0;
  std::size_t col_begin = 0;
  std::size_t col_end = 0;
};

template <typename Visit>
void for_block(const ScaleBlock& block, Visit visit) {
  for (std::size_t row = block.row_begin; row < block.row_end; ++row) {
    for (std::size_t col = block.col_begin; col < block.col_end; ++col) {
      visit(row, col);
    }
  }
}

float largest_magnitude(std::span<const float> values, std::size_t cols, const ScaleBlock& block) {
  float amax = 0.0F;
  for_block(block, [&](std::size_t row, std::size_t col) {
    amax = std::max(amax, std::fabs(values[row * cols + col]));
  });
  return amax;
}

float encode_e4m3_block(std::span<const float> values,
                        std::size_t cols,
                        const ScaleBlock& block,
                        std::byte* codes) {
  const float amax = largest_magnitude(values, cols, block);
  const float scale = amax / device::kE4m3Max;
  for_block(block, [&](std::size_t row, std::size_t col) {
    const std::size_t at = row * cols + col;
    codes[at] =
        static_cast<std::byte>(scale > 0.0F ? device::e4m3_from_f32(values[at] / scale) : 0U);
  });
  return scale;
}

float encode_i4_block(std::span<const float> values,
                      std::size_t cols,
                      const ScaleBlock& block,
                      std::byte* codes) {
  const float amax = largest_magnitude(values, cols, block);
  const float scale = device::bf16_to_f32(device::bf16_from_f32(amax / 7.0F));
  for_block(block, [&](std::size_t row, std::size_t col) {
    const std::size_t at = row * cols + col;
    const float steps = scale > 0.0F ? std::nearbyint(values[at] / scale) : 0.0F;
    const auto code = static_cast<std::uint32_t>(std::clamp(steps, -8.0F, 7.0F) + 8.0F);
    std::byte& byte = codes[at / 2];
    byte = at % 2 == 0 ? static_cast<std::byte>(code) : byte | static_cast<std::byte>(code << 4);
  });
  return scale;
}

void encode_wide_scales(const FormatInfo& info,
                        std::span<const float> values,
                        const WeightMatrix& shape,
                        EncodedWeights& encoded) {
  encoded.global_scale = 1.0F;
  const auto rows = static_cast<std::size_t>(shape.rows);
  const auto cols = static_cast<std::size_t>(shape.cols);
  const auto group_rows = static_cast<std::size_t>(info.group_rows);
  const auto group_cols = static_cast<std::size_t>(scale_group_size(shape));
  std::byte* out = encoded.scales.data();
  for (std::size_t row = 0; row < rows; row += group_rows) {
    for (std::size_t col = 0; col < cols; col += group_cols) {
      const ScaleBlock block{
          row, std::min(rows, row + group_rows), col, std::min(cols, col + group_cols)};
      if (info.element == DType::kE4m3) {
        const float scale = encode_e4m3_block(values, cols, block, encoded.codes.data());
        std::memcpy(out, &scale, sizeof scale);
        out += sizeof scale;
      } else {
        const float scale = encode_i4_block(values, cols, block, encoded.codes.data());
        const std::uint16_t bits = device::bf16_from_f32(scale);
        std::memcpy(out, &bits, sizeof bits);
        out += sizeof bits;
      }
    }
  }
}

Status encode_bf16(std::span<const float> values, EncodedWeights& encoded) {
  encoded.global_scale = 1.0F;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits = device::bf16_from_f32(values[i]);
    if (!device::is_finite(device::bf16_to_f32(bits))) {
      return invalid_argument(
          cat("value ", values[i], " at index ", i, " exceeds the largest bf16"));
    }
    std::memcpy(encoded.codes.data() + 2 * i, &bits, sizeof bits);
  }
  return {};
}

WeightMatrix shape_of(const FormatInfo& info,
                      std::int64_t rows,
                      std::int64_t cols,
                      const EncodedWeights& encoded) {
  return {.format = info.format, .rows = rows, .cols = cols, .group_size = encoded.group_size};
}

Status check_sizes(const FormatInfo& info,
                   std::span<const float> values,
                   std::int64_t rows,
                   const EncodedWeights& encoded) {
  const auto num_values = static_cast<std::int64_t>(values.size());
  if (rows < 1 || num_values == 0 || num_values % rows != 0) {
    return invalid_argument(cat(num_values, " values do not form ", rows, " rows"));
  }
  const std::int64_t cols = num_values / rows;
  if (cols % kExtentMultiple != 0) {
    return invalid_argument(cat("cols ", cols, ", expected a multiple of ", kExtentMultiple));
  }
  MOEKIT_RETURN_IF_ERROR(formats::check_group_size(info, encoded.group_size));
  const std::int64_t code_bytes = rows * code_row_bytes(info.format, cols);
  const WeightMatrix shape = shape_of(info, rows, cols, encoded);
  const std::int64_t scale_bytes =
      num_scale_rows(shape) * num_scale_cols(shape) * scale_elem_bytes(shape);
  if (encoded.codes.size() != static_cast<std::size_t>(code_bytes) ||
      encoded.scales.size() != static_cast<std::size_t>(scale_bytes)) {
    return invalid_argument(cat("codes ",
                                encoded.codes.size(),
                                " B and scales ",
                                encoded.scales.size(),
                                " B, expected ",
                                code_bytes,
                                " B and ",
                                scale_bytes,
                                " B (",
                                info.name,
                                " [",
                                rows,
                                ", ",
                                cols,
                                "])"));
  }
  const auto bad = std::find_if_not(
      values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  if (bad != values.end()) {
    const std::int64_t index = bad - values.begin();
    return invalid_argument(
        cat("value ", *bad, " at row ", index / cols, ", column ", index % cols, " is not finite"));
  }
  return {};
}

}  // namespace

Status encode_weights(Format format,
                      std::span<const float> values,
                      std::int64_t rows,
                      EncodedWeights& encoded) noexcept {
  return base::at_border([&]() -> Status {
    const FormatInfo& info = format_info(format);
    MOEKIT_RETURN_IF_ERROR(check_sizes(info, values, rows, encoded));
    if (info.element == DType::kBf16) {
      return encode_bf16(values, encoded);
    }
    const std::int64_t cols = static_cast<std::int64_t>(values.size()) / rows;
    if (info.element == DType::kE2m1) {
      encode_e2m1(info, values, cols, encoded);
    } else {
      encode_wide_scales(info, values, shape_of(info, rows, cols, encoded), encoded);
    }
    return {};
  });
}

}  // namespace moekit
