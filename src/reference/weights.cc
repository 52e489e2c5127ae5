// SPDX-License-Identifier: Apache-2.0
#include "reference/weights.h"

#include <cstring>

#include "reference/small_floats.h"

namespace moekit::reference {
namespace {

const unsigned char* byte_row(const void* base, std::int64_t row, std::int64_t stride_bytes) {
  return static_cast<const unsigned char*>(base) + row * stride_bytes;
}

// 4-bit codes along K, low nibble first; one scale byte per group of the whole (unsharded) row.
void decode_fp4_row(const WeightMatrix& matrix,
                    std::int64_t row,
                    const std::array<double, 256>& scale_values,
                    float* out) {
  const std::int64_t group_size = matrix.format == Format::kNvfp4 ? 16 : 32;
  const unsigned char* codes = byte_row(matrix.codes, row, matrix.row_stride_bytes);
  const unsigned char* scales = byte_row(matrix.scales, row, matrix.scale_row_stride_bytes);
  std::int64_t k = 0;
  while (k < matrix.cols) {
    const std::int64_t group = (matrix.group_offset + k) / group_size;
    const std::int64_t group_end = (group + 1) * group_size - matrix.group_offset;
    const std::int64_t end = group_end < matrix.cols ? group_end : matrix.cols;
    const double scale = scale_values[scales[group]];
    for (; k < end; ++k) {
      const unsigned code = (codes[k / 2] >> (k % 2 == 0 ? 0 : 4)) & 15U;
      out[k] = static_cast<float>(kE2m1Values[code] * scale);
    }
  }
}

void decode_bf16_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  const unsigned char* elements = byte_row(matrix.codes, row, matrix.row_stride_bytes);
  for (std::int64_t k = 0; k < matrix.cols; ++k) {
    std::uint16_t code = 0;
    std::memcpy(&code, elements + k * matrix.col_stride_elems * 2, sizeof code);
    // A bf16 is the upper half of the f32 of the same value (IEEE 754 interchange formats of equal
    // exponent width); small_floats_test checks this against bf16_value for all codes.
    const std::uint32_t bits = static_cast<std::uint32_t>(code) << 16;
    std::memcpy(out + k, &bits, sizeof bits);
  }
}

}  // namespace

void decode_weight_row(const WeightMatrix& matrix, std::int64_t row, float* out) noexcept {
  switch (matrix.format) {
    case Format::kNvfp4:
      decode_fp4_row(matrix, row, kE4m3Values, out);
      return;
    case Format::kMxfp4:
      decode_fp4_row(matrix, row, kE8m0Values, out);
      return;
    case Format::kBf16:
      decode_bf16_row(matrix, row, out);
      return;
    case Format::kFp8Block128:
    case Format::kInt4:
      return;
  }
}

double bias_value(const BiasView& bias, std::int64_t index) noexcept {
  return bias.data == nullptr ? 0.0 : load_value(bias.data, bias.dtype, index * bias.stride);
}

}  // namespace moekit::reference
