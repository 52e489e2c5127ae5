// SPDX-License-Identifier: Apache-2.0
#include "moekit/dtype.h"

namespace moekit {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array kDTypes{
    DTypeRow{DType::kF32, "f32", 32},
    DTypeRow{DType::kBf16, "bf16", 16},
    DTypeRow{DType::kF16, "f16", 16},
    DTypeRow{DType::kE4m3, "e4m3", 8},
    DTypeRow{DType::kE5m2, "e5m2", 8},
    DTypeRow{DType::kE2m1, "e2m1", 4},
    DTypeRow{DType::kE8m0, "e8m0", 8},
    DTypeRow{DType::kI4, "i4", 4},
    DTypeRow{DType::kI8, "i8", 8},
    DTypeRow{DType::kU8, "u8", 8},
    DTypeRow{DType::kI32, "i32", 32},
    DTypeRow{DType::kI64, "i64", 64},
};

constexpr bool rows_follow_the_enum() {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<std::size_t>(kDTypes[i].dtype) != i) {
      return false;
    }
  }
  return true;
}

static_assert(rows_follow_the_enum(), "dtype_bits and dtype_name index by enumerator");

template <typename View, typename Pointer>
View make_matrix_view(Pointer pointer, DType dtype, std::int64_t rows, std::int64_t cols) {
  View view;
  view.data = pointer;
  view.dtype = dtype;
  view.rank = 2;
  view.shape = {rows, cols, 0, 0};
  view.strides = {cols, 1, 0, 0};
  return view;
}

}  // namespace

int dtype_bits(DType dtype) noexcept {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kDTypes.size() ? kDTypes[index].bits : 0;
}

std::string_view dtype_name(DType dtype) noexcept {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kDTypes.size() ? kDTypes[index].name : "unknown";
}

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

TensorView matrix_view(const void* data,
                       DType dtype,
                       std::int64_t rows,
                       std::int64_t cols) noexcept {
  return make_matrix_view<TensorView>(data, dtype, rows, cols);
}

MutableTensorView matrix_view(void* data,
                              DType dtype,
                              std::int64_t rows,
                              std::int64_t cols) noexcept {
  return make_matrix_view<MutableTensorView>(data, dtype, rows, cols);
}

}  // namespace moekit
