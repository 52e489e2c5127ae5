// SPDX-License-Identifier: Apache-2.0
#include "moekit/dtype.h"

#include <gtest/gtest.h>

namespace moekit {
namespace {

TEST(DType, names_round_trip) {
  int count = 0;
  for (int i = 0; i <= static_cast<int>(DType::kI64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    EXPECT_GT(dtype_bits(dtype), 0);
    ++count;
  }
  EXPECT_EQ(count, 12);
  EXPECT_EQ(dtype_name(DType::kBf16), "bf16");
  EXPECT_EQ(dtype_bits(DType::kE2m1), 4);
  EXPECT_EQ(dtype_from_name("fp32"), std::nullopt);
}

TEST(DType, matrix_view_is_row_major) {
  float values[6] = {};
  const MutableTensorView view = matrix_view(values, DType::kF32, 2, 3);
  EXPECT_EQ(view.rank, 2);
  EXPECT_EQ(view.shape[1], 3);
  EXPECT_EQ(view.strides[0], 3);
  EXPECT_EQ(view.strides[1], 1);
  EXPECT_EQ(view.data, values);
}

}  // namespace
}  // namespace moekit
