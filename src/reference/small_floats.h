// SPDX-License-Identifier: Apache-2.0
#pragma once

// The small floats of the oracle: tables of value by code, written from the published definitions
// (OCP Microscaling Formats v1.0 and OCP 8-bit Floating Point v1.0), and rounding in double. Shares
// nothing with device/numerics, so that a shared mistake cannot cancel out.

#include <array>
#include <cstddef>
#include <cstdint>

#include "moekit/dtype.h"

namespace moekit::reference {

[[nodiscard]] constexpr std::size_t index_of(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

/// 2^exponent by repeated doubling or halving; exact over double's whole range.
[[nodiscard]] constexpr double power_of_two(int exponent) {
  double value = 1.0;
  for (int i = 0; i < exponent; ++i) {
    value *= 2.0;
  }
  for (int i = 0; i > exponent; --i) {
    value *= 0.5;
  }
  return value;
}

inline constexpr double kEpsilon = power_of_two(-24);    // unit roundoff of f32
inline constexpr double kSmallest = power_of_two(-126);  // below this f32 may flush
inline constexpr double kNotANumber = __builtin_nan("");

/// OCP MX v1.0, table 5 (E2M1): sign, then the eight magnitudes.
inline constexpr std::array<double, 16> kE2m1Values{
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};

/// OCP OFP8 v1.0, E4M3: bias 7, S.1111.111 is NaN, no infinities.
[[nodiscard]] constexpr std::array<double, 256> make_e4m3_values() {
  std::array<double, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    const double sign = code >= 128 ? -1.0 : 1.0;
    double value = 0.0;
    if (exponent == 15 && mantissa == 7) {
      value = kNotANumber;
    } else if (exponent == 0) {
      value = sign * mantissa * power_of_two(-9);
    } else {
      value = sign * (8 + mantissa) * power_of_two(exponent - 10);
    }
    values[static_cast<std::size_t>(code)] = value;
  }
  return values;
}

inline constexpr std::array<double, 256> kE4m3Values = make_e4m3_values();

/// OCP MX v1.0, 5.4.1 (E8M0): 2^(code - 127); 255 is NaN.
[[nodiscard]] constexpr std::array<double, 256> make_e8m0_values() {
  std::array<double, 256> values{};
  for (int code = 0; code < 255; ++code) {
    values[static_cast<std::size_t>(code)] = power_of_two(code - 127);
  }
  values[255] = kNotANumber;
  return values;
}

inline constexpr std::array<double, 256> kE8m0Values = make_e8m0_values();

/// A binary float by its parameters: `precision` significant bits, smallest quantum (the spacing of
/// its subnormals) 2^min_quantum, largest finite value.
struct FloatShape {
  int precision;
  int min_quantum;
  double largest;
};

inline constexpr FloatShape kBf16Shape{8, -133, 255.0 * power_of_two(120)};
inline constexpr FloatShape kF16Shape{11, -24, 65504.0};
inline constexpr FloatShape kF32Shape{24, -149, 16777215.0 * power_of_two(104)};

/// The shape of an io dtype: bf16, f16 or f32.
[[nodiscard]] const FloatShape& float_shape(DType dtype) noexcept;

/// Round to nearest, ties to even, with subnormals; beyond the largest finite value to infinity as
/// IEEE 754 says. NaN and infinities stay.
[[nodiscard]] double round_to(const FloatShape& shape, double value) noexcept;

/// The value of a bf16 or f16 code, or of any io dtype at `index`.
[[nodiscard]] double bf16_value(std::uint16_t code) noexcept;
[[nodiscard]] double f16_value(std::uint16_t code) noexcept;
[[nodiscard]] double load_value(const void* base, DType dtype, std::int64_t index) noexcept;

}  // namespace moekit::reference
