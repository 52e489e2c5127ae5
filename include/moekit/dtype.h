// SPDX-License-Identifier: Apache-2.0
#pragma once

// Element types and the tensor views that cross the public border. A view owns nothing.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#pragma GCC visibility push(default)

namespace moekit {

enum class DType : std::uint8_t {
  kF32,
  kBf16,
  kF16,
  kE4m3,
  kE5m2,
  kE2m1,
  kE8m0,
  kI4,
  kI8,
  kU8,
  kI32,
  kI64
};

/// Width of one element in bits (4 for kE2m1 and kI4).
[[nodiscard]] int dtype_bits(DType dtype) noexcept;

/// `bf16`, `f32`, `e4m3`, …
[[nodiscard]] std::string_view dtype_name(DType dtype) noexcept;
[[nodiscard]] std::optional<DType> dtype_from_name(std::string_view name) noexcept;

/// Up to four dimensions, strides in elements. `data` may be a host or a device pointer; the call
/// that takes the view says which.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> strides{};
};

struct MutableTensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> strides{};
};

/// Row-major views without gaps.
[[nodiscard]] TensorView matrix_view(const void* data,
                                     DType dtype,
                                     std::int64_t rows,
                                     std::int64_t cols) noexcept;
[[nodiscard]] MutableTensorView matrix_view(void* data,
                                            DType dtype,
                                            std::int64_t rows,
                                            std::int64_t cols) noexcept;

}  // namespace moekit

#pragma GCC visibility pop
