// SPDX-License-Identifier: Apache-2.0

// The body for any processor: plain loops over the 16 rows, which compilers vectorise with the
// baseline instruction set.

#include "device/numerics/e2m1.h"
#include "device/numerics/e8m0.h"
#include "panels/body_loops.h"

namespace moekit::panels {

namespace {

struct Portable {
  using Operand = float;

  struct Sums {
    float row[kPanelRows];
  };

  using Scale = Sums;
  static constexpr int kParts = 1;
  static constexpr int kMaxTokens = 4;

  static Sums zero() { return {}; }

  // Decoded weights are kept per column so that the tokens of a tile share the decode.
  template <int kTokens>
  static void add_column(const float* weight, const float* x, i64 x_stride, Sums* sums) {
    for (int t = 0; t < kTokens; ++t) {
      const float value = x[t * x_stride];
      for (i64 row = 0; row < kPanelRows; ++row) {
        sums[t].row[row] += weight[row] * value;
      }
    }
  }

  template <int kTokens>
  static void add_codes(
      const std::byte* line, i64 /*part*/, const float* x, i64 x_stride, Sums* sums) {
    std::uint32_t words[kPanelRows];
    std::memcpy(words, line, sizeof(words));
    for (i64 col = 0; col < kPanel16StepCols; ++col) {
      // Even columns in the low half, odd columns in the high half (device/layout/panel16.h).
      const std::uint32_t shift = static_cast<std::uint32_t>((col % 2) * 16 + (col / 2) * 4);
      float weight[kPanelRows];
      for (i64 row = 0; row < kPanelRows; ++row) {
        weight[row] = device::e2m1_to_f32((words[row] >> shift) & 0xFU);
      }
      add_column<kTokens>(weight, x + col, x_stride, sums);
    }
  }

  template <int kTokens>
  static void add_bf16(
      const std::byte* lines, i64 /*part*/, const float* x, i64 x_stride, Sums* sums) {
    for (i64 pair = 0; pair < 4; ++pair) {
      std::uint32_t words[kPanelRows];
      std::memcpy(words, lines + pair * kPanel16LineBytes, sizeof(words));
      float even[kPanelRows];
      float odd[kPanelRows];
      for (i64 row = 0; row < kPanelRows; ++row) {
        even[row] = device::float_of(words[row] << 16);
        odd[row] = device::float_of(words[row] & 0xFFFF0000U);
      }
      add_column<kTokens>(even, x + pair * 2, x_stride, sums);
      add_column<kTokens>(odd, x + pair * 2 + 1, x_stride, sums);
    }
  }

  template <Panel16Element kElement>
  static Scale scale(const std::byte* bytes, i64 /*part*/) {
    Scale out;
    for (i64 row = 0; row < kPanelRows; ++row) {
      const auto code = static_cast<std::uint32_t>(bytes[row]);
      out.row[row] = kElement == Panel16Element::kNvfp4 ? device::e5m3_to_f32(code)
                                                        : device::e8m0_to_f32(code);
    }
    return out;
  }

  static Sums multiply_add(const Sums& sums, const Scale& scale, const Sums& total) {
    Sums out;
    for (i64 row = 0; row < kPanelRows; ++row) {
      out.row[row] = total.row[row] + sums.row[row] * scale.row[row];
    }
    return out;
  }

  static void store_codes(const Sums& sums, i64 /*part*/, float* out) {
    std::memcpy(out, sums.row, sizeof(sums.row));
  }

  static void store_bf16(const Sums& sums, i64 part, float* out) { store_codes(sums, part, out); }
};

}  // namespace

constinit const Body kPortableBody = make_body<Portable>(Isa::kPortable);

}  // namespace moekit::panels
