// SPDX-License-Identifier: Apache-2.0
#include "reference/quantize.h"

#include <algorithm>
#include <cmath>

#include "reference/small_floats.h"

namespace moekit::reference {
namespace {

constexpr FloatShape kE2m1Shape{2, -1, 6.0};
constexpr FloatShape kE4m3Shape{4, -9, 448.0};

double f32(double value) {
  return round_to(kF32Shape, value);
}

double saturated(const FloatShape& shape, double value) {
  return round_to(shape, std::clamp(value, -shape.largest, shape.largest));
}

double largest_magnitude(std::span<const double> group) {
  double amax = 0.0;
  for (const double value : group) {
    if (!std::isfinite(value)) {
      return kNotANumber;
    }
    amax = std::max(amax, std::fabs(value));
  }
  return amax;
}

// s = E4M3(min(amax / (6 gi), 448)), d = s * gi, value = E2M1(x / d) * s.
void quantize_q4(double amax, double global, std::span<const double> group, std::span<double> out) {
  const double wanted = amax == 0.0 ? 0.0 : std::min(f32(amax / f32(6.0 * global)), 448.0);
  const double scale = round_to(kE4m3Shape, wanted);
  const double divisor = f32(scale * global);
  for (std::size_t i = 0; i < group.size(); ++i) {
    out[i] = divisor == 0.0 ? 0.0 : saturated(kE2m1Shape, f32(group[i] / divisor)) * scale;
  }
}

// The exponent of amax / 448, rounded up to a power of two within 2^-126 ... 2^127.
void quantize_q8(double amax, std::span<const double> group, std::span<double> out) {
  if (amax == 0.0) {
    std::fill(out.begin(), out.end(), 0.0);
    return;
  }
  const double wanted = f32(amax / 448.0);
  double scale = power_of_two(-126);
  while (scale < wanted) {
    scale *= 2.0;
  }
  for (std::size_t i = 0; i < group.size(); ++i) {
    // Beyond bf16's range the operand is an infinity, which the caller's range check sees.
    out[i] = round_to(kBf16Shape, saturated(kE4m3Shape, f32(group[i] / scale)) * scale);
  }
}

void quantize_q8b(double amax, std::span<const double> group, std::span<double> out) {
  const double scale = f32(amax / 448.0);
  for (std::size_t i = 0; i < group.size(); ++i) {
    out[i] = scale == 0.0 ? 0.0 : saturated(kE4m3Shape, f32(group[i] / scale)) * scale;
  }
}

}  // namespace

void quantize_row(Quantizer quantizer,
                  double global,
                  std::span<const double> row,
                  std::span<double> out) {
  const std::size_t group_size = quantizer == Quantizer::kQ4   ? 16
                                 : quantizer == Quantizer::kQ8 ? 32
                                                               : 128;
  for (std::size_t first = 0; first < row.size(); first += group_size) {
    const std::size_t size = std::min(group_size, row.size() - first);
    const std::span<const double> group = row.subspan(first, size);
    const std::span<double> target = out.subspan(first, size);
    const double amax = quantizer == Quantizer::kNone ? 0.0 : largest_magnitude(group);
    if (std::isnan(amax)) {
      std::fill(target.begin(), target.end(), kNotANumber);
      continue;
    }
    switch (quantizer) {
      case Quantizer::kNone:
        std::copy(group.begin(), group.end(), target.begin());
        break;
      case Quantizer::kQ4:
        quantize_q4(amax, global, group, target);
        break;
      case Quantizer::kQ8:
        quantize_q8(amax, group, target);
        break;
      case Quantizer::kQ8b:
        quantize_q8b(amax, group, target);
        break;
    }
  }
}

}  // namespace moekit::reference
