// SPDX-License-Identifier: Apache-2.0
#include "formats/exact_range.h"

#include <array>

#include <gtest/gtest.h>

namespace moekit::formats {
namespace {

class ExactRange : public testing::Test {
 protected:
  ExactRange() {
    matrix.format = Format::kMxfp4;
    matrix.rows = 2;
    matrix.cols = 64;
    matrix.codes = codes.data();
    matrix.row_stride_bytes = 32;
    matrix.scales = scales.data();
    matrix.scale_row_stride_bytes = 2;
    codes.fill(0x11);
  }

  Status check(ArchClass arch = ArchClass::kSm90) {
    return check_exact_range(*packing_for(Format::kMxfp4, arch), matrix);
  }

  std::array<std::uint8_t, 64> codes{};
  std::array<std::uint8_t, 4> scales{127, 127, 127, 127};
  WeightMatrix matrix{};
};

TEST_F(ExactRange, HundredTwentySixBinadesPassAndOneMoreIsRefusedWithItsPlace) {
  scales = {127, 127, 200, 74};
  EXPECT_TRUE(check().ok());
  scales[3] = 73;
  const Status status = check();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "row 1 group 1 has the block scale 2^-54 and the row's largest is 2^73, packed as "
            "tile16x64 a row holds 126 binades exactly");
  EXPECT_TRUE(check(ArchClass::kCpu).ok());
}

TEST_F(ExactRange, ZeroCodesZeroGlobalsAndSmallRowsAreNoMatter) {
  scales = {128, 0, 254, 0};
  std::fill(codes.begin() + 48, codes.end(), std::uint8_t{0x80});  // +0 and -0
  EXPECT_TRUE(check().ok());
  codes[63] = 0x01;
  EXPECT_FALSE(check().ok());
  matrix.global_scale = 0.0F;
  EXPECT_TRUE(check().ok());
}

}  // namespace
}  // namespace moekit::formats
