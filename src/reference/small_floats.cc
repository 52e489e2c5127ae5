// SPDX-License-Identifier: Apache-2.0
#include "reference/small_floats.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace moekit::reference {
namespace {

// Sign, exponent and mantissa fields to a value, by the IEEE 754 interchange definition.
double interchange_value(std::uint32_t code, int exponent_bits, int mantissa_bits) {
  const std::uint32_t mantissa = code & ((1U << mantissa_bits) - 1U);
  const std::uint32_t exponent = (code >> mantissa_bits) & ((1U << exponent_bits) - 1U);
  const bool negative = ((code >> (mantissa_bits + exponent_bits)) & 1U) != 0;
  const std::uint32_t all_ones = (1U << exponent_bits) - 1U;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value = 0.0;
  if (exponent == all_ones) {
    value = mantissa == 0 ? HUGE_VAL : kNotANumber;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(static_cast<double>(mantissa + (1U << mantissa_bits)),
                       static_cast<int>(exponent) - bias - mantissa_bits);
  }
  return negative ? -value : value;
}

}  // namespace

const FloatShape& float_shape(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBf16:
      return kBf16Shape;
    case DType::kF16:
      return kF16Shape;
    default:
      return kF32Shape;
  }
}

double round_to(const FloatShape& shape, double value) noexcept {
  if (value == 0.0 || !std::isfinite(value)) {
    return value;
  }
  int quantum = std::ilogb(value) - (shape.precision - 1);
  quantum = quantum < shape.min_quantum ? shape.min_quantum : quantum;
  // nearbyint follows the rounding mode, which is to nearest, ties to even, unless a program
  // changes it; scaling by powers of two is exact here.
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -quantum)), quantum);
  return std::fabs(rounded) > shape.largest ? std::copysign(HUGE_VAL, value) : rounded;
}

double bf16_value(std::uint16_t code) noexcept {
  return interchange_value(code, 8, 7);
}

double f16_value(std::uint16_t code) noexcept {
  return interchange_value(code, 5, 10);
}

double load_value(const void* base, DType dtype, std::int64_t index) noexcept {
  const auto* bytes = static_cast<const unsigned char*>(base);
  if (dtype == DType::kF32) {
    float value = 0.0F;
    std::memcpy(&value, bytes + index * 4, sizeof value);
    return static_cast<double>(value);
  }
  std::uint16_t code = 0;
  std::memcpy(&code, bytes + index * 2, sizeof code);
  return dtype == DType::kBf16 ? bf16_value(code) : f16_value(code);
}

}  // namespace moekit::reference
