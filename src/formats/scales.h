// SPDX-License-Identifier: Apache-2.0
#pragma once

// Block scales and elements by dtype: what each byte or code stands for and whether it is legal.
// Tables are built from the codecs at compile time, so one row of kFormats is all a format adds.
// Scales of one byte are looked up; wide ones (bf16, f16, f32) are read as they are.

#include <array>
#include <cstdint>
#include <cstring>

#include "moekit/format.h"
#include "moekit/status.h"

#include "device/numerics/bf16.h"
#include "device/numerics/e2m1.h"
#include "device/numerics/e4m3.h"
#include "device/numerics/e8m0.h"

namespace moekit::formats {

/// Errors  kInvalidArgument  a group size that the format does not take
[[nodiscard]] Status check_group_size(const FormatInfo& info, std::int64_t group_size);

inline constexpr float kLargestBf16 = 3.38953139e38F;  // 0x7F7F: (2 - 2^-7) * 2^127
inline constexpr float kLargestE2m1 = 6.0F;

enum class ScaleVerdict : std::uint8_t {
  kLegal,
  kNan,
  kNegative,
  kNeedsProductCheck,  // legal unless scale * element exceeds the largest BF16
};

struct ScaleTable {
  std::array<float, 256> value{};
  std::array<ScaleVerdict, 256> verdict{};
};

constexpr ScaleTable make_scale_table(float (*decode)(device::u32), std::uint32_t negative_zero) {
  ScaleTable table;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const float value = byte == negative_zero ? 0.0F : decode(byte);
    table.value[byte] = value;
    if (device::is_nan(value)) {
      table.verdict[byte] = ScaleVerdict::kNan;
    } else if (value < 0.0F) {
      table.verdict[byte] = ScaleVerdict::kNegative;
    } else if (value > kLargestBf16 / kLargestE2m1) {
      table.verdict[byte] = ScaleVerdict::kNeedsProductCheck;
    }
  }
  return table;
}

constexpr std::uint32_t kNoNegativeZero = 256;

inline constexpr ScaleTable kE4m3Scales = make_scale_table(&device::e4m3_to_f32, 0x80U);
inline constexpr ScaleTable kE8m0Scales = make_scale_table(&device::e8m0_to_f32, kNoNegativeZero);

constexpr const ScaleTable& scale_table(DType dtype) {
  return dtype == DType::kE8m0 ? kE8m0Scales : kE4m3Scales;
}

constexpr std::array<float, 16> make_e2m1_table() {
  std::array<float, 16> table{};
  for (std::uint32_t code = 0; code < 16; ++code) {
    table[code] = device::e2m1_to_f32(code);
  }
  return table;
}

inline constexpr std::array<float, 16> kE2m1Values = make_e2m1_table();

constexpr std::array<float, 16> make_i4_table() {
  std::array<float, 16> table{};
  for (std::uint32_t code = 0; code < 16; ++code) {
    table[code] = static_cast<float>(code);
  }
  return table;
}

/// Unsigned: the zero point is subtracted afterwards.
inline constexpr std::array<float, 16> kI4Values = make_i4_table();
inline constexpr std::uint8_t kMiddleZeroPoint = 8;    // of codes without zero points
inline constexpr std::uint8_t kLargestZeroPoint = 16;  // stored z - 1 = 15

/// Value by 4-bit code.
constexpr const std::array<float, 16>& nibble_values(DType element) {
  return element == DType::kI4 ? kI4Values : kE2m1Values;
}

constexpr bool is_byte_scale(DType dtype) {
  return dtype == DType::kE4m3 || dtype == DType::kE8m0;
}

/// One block scale of `matrix`, whatever its type; `row` counts rows of the matrix.
inline float scale_value(const WeightMatrix& matrix, std::int64_t row, std::int64_t group) {
  const FormatInfo& info = format_info(matrix.format);
  const DType dtype = matrix.scale_dtype.value_or(*info.scale);
  const auto* scales =
      static_cast<const std::uint8_t*>(matrix.scales) +
      (matrix.group_row_offset + row) / info.group_rows * matrix.scale_row_stride_bytes;
  if (is_byte_scale(dtype)) {
    return scale_table(dtype).value[scales[group]];
  }
  if (dtype == DType::kF32) {
    float value = 0.0F;  // memcpy: a checkpoint's tensors need not be aligned
    std::memcpy(&value, scales + group * 4, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, scales + group * 2, sizeof bits);
  return dtype == DType::kBf16 ? device::bf16_to_f32(bits) : device::f16_to_f32(bits);
}

inline std::uint8_t zero_point(const WeightMatrix& matrix, std::int64_t row, std::int64_t group) {
  return matrix.zero_points == nullptr
             ? kMiddleZeroPoint
             : matrix.zero_points[row * matrix.zero_point_row_stride + group];
}

}  // namespace moekit::formats
