// SPDX-License-Identifier: Apache-2.0
#pragma once

// Block scales by dtype: what each of the 256 bytes stands for and whether it is legal. Tables are
// built from the codecs at compile time, so one row of kFormats is all a format adds.

#include <array>
#include <cstdint>

#include "moekit/dtype.h"

#include "device/numerics/e2m1.h"
#include "device/numerics/e4m3.h"
#include "device/numerics/e8m0.h"

namespace moekit::formats {

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

}  // namespace moekit::formats
