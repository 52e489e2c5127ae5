// SPDX-License-Identifier: Apache-2.0
#include "reference/weights.h"

#include <cstring>

#include "reference/small_floats.h"

namespace moekit::reference {
namespace {

const unsigned char* byte_row(const void* base, std::int64_t row, std::int64_t stride_bytes) {
  return static_cast<const unsigned char*>(base) + row * stride_bytes;
}

// The value of one stored scale: a byte by table, else a float of its type.
double scale_at(const WeightMatrix& matrix, std::int64_t row, std::int64_t group) {
  const FormatInfo& info = format_info(matrix.format);
  const unsigned char* scales = byte_row(matrix.scales,
                                         (matrix.group_row_offset + row) / info.group_rows,
                                         matrix.scale_row_stride_bytes);
  const DType dtype = matrix.scale_dtype.value_or(*info.scale);
  switch (dtype) {
    case DType::kE4m3:
      return kE4m3Values[scales[group]];
    case DType::kE8m0:
      return kE8m0Values[scales[group]];
    default:
      return load_value(scales, dtype, group);
  }
}

double zero_point_at(const WeightMatrix& matrix, std::int64_t row, std::int64_t group) {
  return matrix.zero_points == nullptr
             ? 8.0
             : static_cast<double>(matrix.zero_points[row * matrix.zero_point_row_stride + group]);
}

// Codes along K, of 4 bits low nibble first; one scale per group of the whole (unsharded) row.
void decode_scaled_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  const FormatInfo& info = format_info(matrix.format);
  const std::int64_t group_size = matrix.group_size != 0 ? matrix.group_size : info.group_size;
  const unsigned char* codes = byte_row(matrix.codes, row, matrix.row_stride_bytes);
  std::int64_t k = 0;
  while (k < matrix.cols) {
    const std::int64_t group = (matrix.group_offset + k) / group_size;
    const std::int64_t group_end = (group + 1) * group_size - matrix.group_offset;
    const std::int64_t end = group_end < matrix.cols ? group_end : matrix.cols;
    const double scale = scale_at(matrix, row, group);
    for (; k < end; ++k) {
      if (info.element == DType::kE4m3) {
        out[k] = kE4m3Values[codes[k]] * scale;
        continue;
      }
      const unsigned code = (codes[k / 2] >> (k % 2 == 0 ? 0 : 4)) & 15U;
      out[k] = info.element == DType::kE2m1 ? kE2m1Values[code] * scale
                                            : (code - zero_point_at(matrix, row, group)) * scale;
    }
  }
}

void decode_bf16_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  const unsigned char* elements = byte_row(matrix.codes, row, matrix.row_stride_bytes);
  for (std::int64_t k = 0; k < matrix.cols; ++k) {
    std::uint16_t code = 0;
    std::memcpy(&code, elements + k * matrix.col_stride_elems * 2, sizeof code);
    // A bf16 is the upper half of the f32 of the same value (IEEE 754 interchange formats of equal
    // exponent width); small_floats_test checks this against bf16_value for all codes.
    const std::uint32_t bits = static_cast<std::uint32_t>(code) << 16;
    float value = 0.0F;
    std::memcpy(&value, &bits, sizeof bits);
    out[k] = static_cast<double>(value);
  }
}

}  // namespace

void decode_weight_row(const WeightMatrix& matrix, std::int64_t row, double* out) noexcept {
  if (format_info(matrix.format).scale.has_value()) {
    decode_scaled_row(matrix, row, out);
  } else {
    decode_bf16_row(matrix, row, out);
  }
}

double bias_value(const BiasView& bias, std::int64_t index) noexcept {
  return bias.data == nullptr ? 0.0 : load_value(bias.data, bias.dtype, index * bias.stride);
}

}  // namespace moekit::reference
