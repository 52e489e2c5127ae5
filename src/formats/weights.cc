// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
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
using formats::ScaleTable;
using formats::ScaleVerdict;

const std::uint8_t* row_of(const void* start, std::int64_t row, std::int64_t stride_bytes) {
  return static_cast<const std::uint8_t*>(start) + row * stride_bytes;
}

std::uint32_t code_at(const std::uint8_t* codes, std::int64_t col) {
  return (static_cast<std::uint32_t>(codes[col >> 1]) >> ((col & 1) * 4)) & 0xFU;
}

/// True when the last byte of row rows - 1 still has a 64-bit offset.
bool offsets_fit(std::int64_t rows, std::int64_t stride_bytes, std::int64_t row_bytes) {
  std::int64_t last = 0;
  return !__builtin_mul_overflow(rows - 1, stride_bytes, &last) &&
         !__builtin_add_overflow(last, row_bytes, &last);
}

Status check_extents(const WeightMatrix& matrix, const FormatInfo& info) {
  if (matrix.rows < 1) {
    return invalid_argument(cat("rows ", matrix.rows, ", expected at least 1"));
  }
  // 2^48 elements per row is far beyond any address space; it keeps every product below in range.
  if (matrix.cols < 1 || matrix.cols > (std::int64_t{1} << 48) ||
      matrix.cols % kExtentMultiple != 0) {
    return invalid_argument(cat("cols ",
                                matrix.cols,
                                ", expected a positive multiple of ",
                                kExtentMultiple,
                                " (format ",
                                info.name,
                                ")"));
  }
  const std::int64_t group_size = scale_group_size(matrix);
  MOEKIT_RETURN_IF_ERROR(formats::check_group_size(info, matrix.group_size));
  if (matrix.group_row_offset < 0 || matrix.group_row_offset >= info.group_rows) {
    return invalid_argument(cat("group_row_offset ",
                                matrix.group_row_offset,
                                ", expected 0 <= group_row_offset < ",
                                info.group_rows,
                                " (format ",
                                info.name,
                                ")"));
  }
  const std::int64_t first_group = group_size == 0 ? 1 : group_size;
  if (matrix.group_offset < 0 || matrix.group_offset >= first_group) {
    return invalid_argument(cat("group_offset ",
                                matrix.group_offset,
                                ", expected 0 <= group_offset < ",
                                first_group,
                                " (format ",
                                info.name,
                                ")"));
  }
  return {};
}

Status check_codes_storage(const WeightMatrix& matrix, const FormatInfo& info) {
  if (matrix.codes == nullptr) {
    return invalid_argument("codes pointer is null");
  }
  if (matrix.col_stride_elems == 1) {
    const std::int64_t row_bytes = code_row_bytes(matrix.format, matrix.cols);
    if (matrix.row_stride_bytes < row_bytes) {
      return invalid_argument(cat("row_stride_bytes ",
                                  matrix.row_stride_bytes,
                                  ", expected at least ",
                                  row_bytes,
                                  " for ",
                                  matrix.cols,
                                  " columns of ",
                                  info.name));
    }
    if (!offsets_fit(matrix.rows, matrix.row_stride_bytes, row_bytes)) {
      return invalid_argument(cat("rows ",
                                  matrix.rows,
                                  " * row_stride_bytes ",
                                  matrix.row_stride_bytes,
                                  " exceeds 64 bits"));
    }
    return {};
  }
  if (matrix.format != Format::kBf16) {
    return invalid_argument(cat("col_stride_elems ",
                                matrix.col_stride_elems,
                                ", expected 1 (only bf16 may be transposed, format ",
                                info.name,
                                ")"));
  }
  std::int64_t col_bytes = 0;
  std::int64_t span = 0;
  if (matrix.col_stride_elems < 1 || matrix.row_stride_bytes < 2 ||
      __builtin_mul_overflow(matrix.col_stride_elems, std::int64_t{2}, &col_bytes) ||
      __builtin_mul_overflow(col_bytes, matrix.cols, &span) ||
      !offsets_fit(matrix.rows, matrix.row_stride_bytes, span)) {
    return invalid_argument(cat("strides row_stride_bytes ",
                                matrix.row_stride_bytes,
                                ", col_stride_elems ",
                                matrix.col_stride_elems,
                                " are not positive or exceed 64 bits"));
  }
  return {};
}

Status check_scale_dtype(const WeightMatrix& matrix, const FormatInfo& info) {
  const DType own = *info.scale;
  const DType given = matrix.scale_dtype.value_or(own);
  const bool wide = given == DType::kBf16 || given == DType::kF16 || given == DType::kF32;
  if (given != own && (formats::is_byte_scale(own) || !wide)) {
    return invalid_argument(cat("scales of ",
                                dtype_name(given),
                                ", expected ",
                                formats::is_byte_scale(own) ? dtype_name(own) : "f32, bf16 or f16",
                                " (format ",
                                info.name,
                                ")"));
  }
  return {};
}

Status check_zero_points(const WeightMatrix& matrix, const FormatInfo& info) {
  if (matrix.zero_points == nullptr) {
    return {};
  }
  const std::int64_t row_bytes = num_scale_cols(matrix);
  if (info.element != DType::kI4) {
    return invalid_argument(cat("zero points given, format ", info.name, " has none"));
  }
  if (matrix.zero_point_row_stride < row_bytes ||
      !offsets_fit(matrix.rows, matrix.zero_point_row_stride, row_bytes)) {
    return invalid_argument(cat("zero_point_row_stride ",
                                matrix.zero_point_row_stride,
                                ", expected at least ",
                                row_bytes,
                                " zero points a row"));
  }
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t group = 0; group < row_bytes; ++group) {
      const std::uint8_t zero = formats::zero_point(matrix, row, group);
      if (zero > formats::kLargestZeroPoint) {
        return invalid_argument(cat("zero point ",
                                    static_cast<std::uint32_t>(zero),
                                    " at row ",
                                    row,
                                    ", group ",
                                    group,
                                    ", expected 0..",
                                    static_cast<std::uint32_t>(formats::kLargestZeroPoint)));
      }
    }
  }
  return {};
}

Status check_scales_storage(const WeightMatrix& matrix, const FormatInfo& info) {
  if (!info.scale.has_value()) {
    return {};
  }
  if (matrix.scales == nullptr) {
    return invalid_argument(cat("scales pointer is null (format ", info.name, ")"));
  }
  MOEKIT_RETURN_IF_ERROR(check_scale_dtype(matrix, info));
  const std::int64_t row_scales = num_scale_cols(matrix);
  const std::int64_t row_bytes = row_scales * scale_elem_bytes(matrix);
  // One row of scales needs no stride.
  const std::int64_t scale_rows = num_scale_rows(matrix);
  const std::int64_t stride = scale_rows == 1 && info.group_rows > 1
                                  ? std::max(matrix.scale_row_stride_bytes, row_bytes)
                                  : matrix.scale_row_stride_bytes;
  if (stride < row_bytes || !offsets_fit(scale_rows, stride, row_bytes)) {
    return invalid_argument(cat("scale_row_stride_bytes ",
                                matrix.scale_row_stride_bytes,
                                ", expected at least ",
                                row_bytes,
                                " for ",
                                row_scales,
                                " scales a row (group_offset ",
                                matrix.group_offset,
                                ", cols ",
                                matrix.cols,
                                ", group_size ",
                                scale_group_size(matrix),
                                ")"));
  }
  return {};
}

Status check_global(const WeightMatrix& matrix, const FormatInfo& info) {
  const float global = matrix.global_scale;
  if (!std::isfinite(global) || global < 0.0F) {
    return invalid_argument(
        cat("global scale ", global, ", expected a finite value that is not negative"));
  }
  if (!info.scale.has_value() && global != 1.0F) {
    return invalid_argument(
        cat("global scale ", global, ", expected 1 (format ", info.name, " has none)"));
  }
  return {};
}

Status check_input_scale(const WeightMatrix& matrix) {
  if (matrix.input_scale.has_value() &&
      (!std::isfinite(*matrix.input_scale) || *matrix.input_scale < 0.0F)) {
    return invalid_argument(
        cat("input scale ", *matrix.input_scale, ", expected a finite value that is not negative"));
  }
  return {};
}

Status check_structure(const WeightMatrix& matrix) {
  const FormatInfo& info = format_info(matrix.format);
  MOEKIT_RETURN_IF_ERROR(check_extents(matrix, info));
  MOEKIT_RETURN_IF_ERROR(check_codes_storage(matrix, info));
  MOEKIT_RETURN_IF_ERROR(check_scales_storage(matrix, info));
  MOEKIT_RETURN_IF_ERROR(check_input_scale(matrix));
  return check_global(matrix, info);
}

/// Largest magnitude among the codes of one group of one row.
float largest_in_group(const WeightMatrix& matrix, std::int64_t row, std::int64_t group) {
  const std::int64_t group_size = scale_group_size(matrix);
  const std::int64_t begin = std::max<std::int64_t>(0, group * group_size - matrix.group_offset);
  const std::int64_t end = std::min(matrix.cols, (group + 1) * group_size - matrix.group_offset);
  const std::uint8_t* codes = row_of(matrix.codes, row, matrix.row_stride_bytes);
  float largest = 0.0F;
  for (std::int64_t col = begin; col < end; ++col) {
    largest = std::max(largest, formats::kE2m1Values[code_at(codes, col) & 7U]);
  }
  return largest;
}

Status bad_scale(const WeightMatrix& matrix,
                 std::int64_t row,
                 std::int64_t group,
                 std::string_view what) {
  const FormatInfo& info = format_info(matrix.format);
  const std::uint8_t byte = row_of(matrix.scales, row, matrix.scale_row_stride_bytes)[group];
  return invalid_argument(cat("block scale byte ",
                              static_cast<std::uint32_t>(byte),
                              " (",
                              dtype_name(*info.scale),
                              ") at row ",
                              row,
                              ", group ",
                              group,
                              " ",
                              what));
}

Status check_scale(const WeightMatrix& matrix, std::int64_t row, std::int64_t group) {
  const ScaleTable& table = formats::scale_table(*format_info(matrix.format).scale);
  const std::uint8_t byte = row_of(matrix.scales, row, matrix.scale_row_stride_bytes)[group];
  switch (table.verdict[byte]) {
    case ScaleVerdict::kLegal:
      return {};
    case ScaleVerdict::kNan:
      return bad_scale(matrix, row, group, "is NaN");
    case ScaleVerdict::kNegative:
      return bad_scale(matrix, row, group, "is negative");
    case ScaleVerdict::kNeedsProductCheck:
      break;
  }
  const float largest = largest_in_group(matrix, row, group);
  if (largest * table.value[byte] > formats::kLargestBf16) {
    return bad_scale(
        matrix, row, group, cat("times element ", largest, " exceeds the largest bf16"));
  }
  return {};
}

// Elements of E4M3 can be NaN themselves, and are then somewhere in a row of its block.
Status check_e4m3_elements(const WeightMatrix& matrix) {
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const std::uint8_t* codes = row_of(matrix.codes, row, matrix.row_stride_bytes);
    for (std::int64_t col = 0; col < matrix.cols; ++col) {
      if ((codes[col] & 0x7FU) == 0x7FU) {
        return invalid_argument(cat("element byte ",
                                    static_cast<std::uint32_t>(codes[col]),
                                    " (e4m3) at row ",
                                    row,
                                    ", column ",
                                    col,
                                    " is NaN"));
      }
    }
  }
  return {};
}

Status check_wide_scales(const WeightMatrix& matrix, const FormatInfo& info) {
  const std::int64_t num_groups = num_scale_cols(matrix);
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    if (row != 0 && (matrix.group_row_offset + row) % info.group_rows != 0) {
      continue;  // the block of the row above
    }
    for (std::int64_t group = 0; group < num_groups; ++group) {
      const float scale = formats::scale_value(matrix, row, group);
      // Packed layouts keep the zero point in the bits that bf16 and f16 leave clear.
      if (info.element == DType::kI4 && (std::bit_cast<std::uint32_t>(scale) & 0x1FU) != 0) {
        return invalid_argument(
            cat("block scale ", scale, " at row ", row, ", group ", group, " is no bf16 or f16"));
      }
      const float largest = scale * (info.element == DType::kE4m3 ? device::kE4m3Max : 16.0F);
      if (std::isnan(scale) || scale < 0.0F || !std::isfinite(largest)) {
        return invalid_argument(
            cat("block scale ",
                scale,
                " (",
                dtype_name(matrix.scale_dtype.value_or(*info.scale)),
                ") at row ",
                row,
                ", group ",
                group,
                std::isnan(scale) ? " is NaN" : (scale < 0.0F ? " is negative" : " exceeds f32")));
      }
    }
  }
  return info.element == DType::kE4m3 ? check_e4m3_elements(matrix) : Status();
}

Status check_scales(const WeightMatrix& matrix) {
  const FormatInfo& info = format_info(matrix.format);
  // A global of 0 makes every value 0: producers write NaN block scales there (0 / 0, seen from
  // ModelOpt 0.47), and the experts are legal, dormant ones.
  if (!info.scale.has_value() || matrix.global_scale == 0.0F) {
    return {};
  }
  if (!formats::is_byte_scale(*info.scale)) {
    MOEKIT_RETURN_IF_ERROR(check_zero_points(matrix, info));
    return check_wide_scales(matrix, info);
  }
  const ScaleTable& table = formats::scale_table(*info.scale);
  const std::int64_t num_groups = num_scale_cols(matrix);
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const std::uint8_t* scales = row_of(matrix.scales, row, matrix.scale_row_stride_bytes);
    for (std::int64_t group = 0; group < num_groups; ++group) {
      if (table.verdict[scales[group]] != ScaleVerdict::kLegal) {
        MOEKIT_RETURN_IF_ERROR(check_scale(matrix, row, group));
      }
    }
  }
  return {};
}

void decode_bf16_row(const WeightMatrix& matrix, std::int64_t row, std::span<float> out) {
  const std::uint8_t* codes = row_of(matrix.codes, row, matrix.row_stride_bytes);
  const std::int64_t step = 2 * matrix.col_stride_elems;
  for (std::size_t col = 0; col < out.size(); ++col) {
    std::uint16_t bits = 0;  // memcpy: a checkpoint's tensors need not be aligned
    std::memcpy(&bits, codes + static_cast<std::int64_t>(col) * step, sizeof bits);
    out[col] = device::bf16_to_f32(bits);
  }
}

// element * scale; for codes with a zero point (element - zero) * scale.
void decode_scaled_row(const WeightMatrix& matrix, std::int64_t row, std::span<float> out) {
  const FormatInfo& info = format_info(matrix.format);
  const std::uint8_t* codes = row_of(matrix.codes, row, matrix.row_stride_bytes);
  const auto& nibbles = formats::nibble_values(info.element);
  const std::int64_t group_size = scale_group_size(matrix);
  std::int64_t col = 0;
  for (std::int64_t group = 0; col < matrix.cols; ++group) {
    const float scale = formats::scale_value(matrix, row, group);
    const float zero = info.element == DType::kI4
                           ? static_cast<float>(formats::zero_point(matrix, row, group))
                           : 0.0F;
    const std::int64_t end = std::min(matrix.cols, (group + 1) * group_size - matrix.group_offset);
    for (; col < end; ++col) {
      const float element = info.element == DType::kE4m3 ? device::e4m3_to_f32(codes[col])
                                                         : nibbles[code_at(codes, col)] - zero;
      out[static_cast<std::size_t>(col)] = element * scale;
    }
  }
}

}  // namespace

Status validate_weights(const WeightMatrix& matrix) noexcept {
  return base::at_border([&]() -> Status {
    MOEKIT_RETURN_IF_ERROR(check_structure(matrix));
    return check_scales(matrix);
  });
}

Status decode_row(const WeightMatrix& matrix, std::int64_t row, std::span<float> out) noexcept {
  return base::at_border([&]() -> Status {
    MOEKIT_RETURN_IF_ERROR(check_structure(matrix));
    if (row < 0 || row >= matrix.rows) {
      return invalid_argument(cat("row ", row, ", expected 0 <= row < ", matrix.rows));
    }
    if (out.size() != static_cast<std::size_t>(matrix.cols)) {
      return invalid_argument(cat("out has ", out.size(), " elements, expected ", matrix.cols));
    }
    if (format_info(matrix.format).element == DType::kBf16) {
      decode_bf16_row(matrix, row, out);
    } else {
      decode_scaled_row(matrix, row, out);
    }
    return {};
  });
}

}  // namespace moekit
