// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/negative_scales.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace moekit::checkpoint {
namespace {

constexpr int kLargestCode = 15;
constexpr int kLargestZero = 16;
constexpr int kMiddle = 8;  // the zero point where none is stored

/// The topmost bits of one little-endian scale.
struct ScaleBits {
  std::byte* bytes;
  std::int64_t size;

  /// Below zero and a number: NaN of either sign is for validation to name.
  [[nodiscard]] bool is_negative() const {
    if (size == 4) {
      float value = 0.0F;
      std::memcpy(&value, bytes, sizeof value);
      return value < 0.0F;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes, sizeof bits);
    return (bits & 0x8000U) != 0 && (bits & 0x7FFFU) != 0;
  }

  void negate() const { bytes[size - 1] ^= std::byte{0x80}; }
};

std::byte* copied(const void* from, std::int64_t bytes, LayerStorage& storage) {
  std::byte* to = storage.take(bytes);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
  return to;
}

/// The columns of one group in one row of codes; groups are of whole bytes.
struct GroupCodes {
  std::uint8_t* first;
  std::uint8_t* last;

  /// c with c - q in 0..15 for every code q and c - zero in 0..16.
  [[nodiscard]] std::optional<int> turning_point(int zero) const {
    int least = kLargestCode;
    int most = 0;
    for (const std::uint8_t* at = first; at != last; ++at) {
      least = std::min({least, *at & kLargestCode, *at >> 4});
      most = std::max({most, *at & kLargestCode, *at >> 4});
    }
    const int from = std::max(most, zero);
    const int to = std::min(kLargestCode + least, kLargestZero + zero);
    return from <= to ? std::optional(std::clamp(kLargestCode, from, to)) : std::nullopt;
  }

  void turn(int about) const {
    for (std::uint8_t* at = first; at != last; ++at) {
      *at = static_cast<std::uint8_t>((about - (*at & kLargestCode)) | ((about - (*at >> 4)) << 4));
    }
  }
};

bool has_negative(const WeightMatrix& matrix) {
  const std::int64_t size = scale_elem_bytes(matrix);
  auto* const scales = static_cast<std::byte*>(const_cast<void*>(matrix.scales));  // only read
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t group = 0; group < num_scale_cols(matrix); ++group) {
      if (ScaleBits{scales + row * matrix.scale_row_stride_bytes + group * size, size}
              .is_negative()) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

void turn_negative_scales(WeightMatrix& matrix, LayerStorage& storage) {
  if (!has_negative(matrix)) {
    return;
  }
  const std::int64_t groups = num_scale_cols(matrix);
  const std::int64_t size = scale_elem_bytes(matrix);
  const std::int64_t group_size = scale_group_size(matrix);
  auto* const codes = reinterpret_cast<std::uint8_t*>(
      copied(matrix.codes, matrix.rows * matrix.row_stride_bytes, storage));
  std::byte* const scales =
      copied(matrix.scales, matrix.rows * matrix.scale_row_stride_bytes, storage);
  auto* const zeros = reinterpret_cast<std::uint8_t*>(storage.take(matrix.rows * groups));
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    std::uint8_t* const row_codes = codes + row * matrix.row_stride_bytes;
    for (std::int64_t group = 0; group < groups; ++group) {
      int zero = matrix.zero_points == nullptr
                     ? kMiddle
                     : matrix.zero_points[row * matrix.zero_point_row_stride + group];
      const ScaleBits scale{scales + row * matrix.scale_row_stride_bytes + group * size, size};
      const GroupCodes in{row_codes + group * group_size / 2,
                          row_codes + std::min(matrix.cols, (group + 1) * group_size) / 2};
      const std::optional<int> about = scale.is_negative() ? in.turning_point(zero) : std::nullopt;
      if (about.has_value()) {
        in.turn(*about);
        zero = *about - zero;
        scale.negate();
      }
      zeros[row * groups + group] = static_cast<std::uint8_t>(zero);
    }
  }
  matrix.codes = codes;
  matrix.scales = scales;
  matrix.zero_points = zeros;
  matrix.zero_point_row_stride = groups;
}

}  // namespace moekit::checkpoint
