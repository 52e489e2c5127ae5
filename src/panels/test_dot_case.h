// SPDX-License-Identifier: Apache-2.0
#pragma once

// Test equipment: panels of random weights and activations for one dot call of a body.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "device/numerics/bf16.h"
#include "device/numerics/e2m1.h"
#include "device/numerics/e4m3.h"
#include "device/numerics/e8m0.h"
#include "panels/body.h"

namespace moekit::panels {

using device::Panel16Element;
using device::Panel16Shape;
using std::int64_t;

inline constexpr int64_t kNumPanels = 2;

/// Two panels of random weights, written through the index maps, and rows of activations.
class DotCase {
 public:
  DotCase(const Panel16Shape& shape,
          int64_t num_tokens,
          std::uint32_t least_e8m0 = 120,
          int x_exponent = 0)
      : shape_(shape), tokens_(num_tokens), least_e8m0_(least_e8m0) {
    panels_.resize(static_cast<std::size_t>(kNumPanels * device::panel16_panel_bytes(shape)));
    values_.resize(static_cast<std::size_t>(kNumPanels * kPanelRows * shape.cols));
    for (int64_t row = 0; row < kNumPanels * kPanelRows; ++row) {
      fill_row(row);
    }
    x_.resize(static_cast<std::size_t>(num_tokens * shape.cols));
    for (float& value : x_) {
      const auto unit = static_cast<float>(draw(4001)) / 2000.0F - 1.0F;
      value = device::bf16_round(std::ldexp(unit, static_cast<int>(draw(6)) - 3 + x_exponent));
    }
  }

  /// Every fifth column gets zero weights and operands 2^binades times larger.
  void raise_columns(int binades) {
    for (int64_t col = 0; col < shape_.cols; col += 5) {
      for (int64_t row = 0; row < kNumPanels * kPanelRows; ++row) {
        const device::Panel16Nibble at =
            device::panel16_code_position(shape_, row % kPanelRows, col);
        panels_[static_cast<std::size_t>(row / kPanelRows * device::panel16_panel_bytes(shape_) +
                                         at.byte)] &=
            static_cast<std::byte>(0xF0U >> static_cast<unsigned>(at.shift));
        values_[static_cast<std::size_t>(row * shape_.cols + col)] = 0.0;
      }
      for (int64_t token = 0; token < tokens_; ++token) {
        float& value = x_[static_cast<std::size_t>(token * shape_.cols + col)];
        value = std::ldexp(token % 2 == 0 ? 1.5F : value, binades);
      }
    }
  }

  /// Another E8M0 scale for one group of one panel's rows.
  void set_scales(int64_t panel, int64_t group, std::uint32_t code) {
    for (int64_t in_panel = 0; in_panel < kPanelRows; ++in_panel) {
      std::byte& at = panels_[static_cast<std::size_t>(
          panel * device::panel16_panel_bytes(shape_) +
          device::panel16_scale_position(shape_, in_panel, group))];
      const int shift = static_cast<int>(code) - std::to_integer<int>(at);
      at = static_cast<std::byte>(code);
      const int64_t group_cols = device::panel16_group_cols(shape_);
      for (int64_t col = 0; col < shape_.cols; ++col) {
        double& value =
            values_[static_cast<std::size_t>((panel * kPanelRows + in_panel) * shape_.cols + col)];
        value =
            (shape_.group_offset + col) / group_cols == group ? std::ldexp(value, shift) : value;
      }
    }
  }

  /// Other activations: any finite bf16, subnormals and huge ones included.
  void make_wild(std::uint32_t seed) {
    std::mt19937 random(seed);
    for (float& value : x_) {
      const auto bits = static_cast<std::uint16_t>(random());
      value = device::bf16_to_f32((bits & 0x7F80U) == 0x7F80U ? std::uint16_t{0} : bits);
    }
  }

  /// [kNumPanels, count, 16] sums of tokens [first, first + count), one call.
  std::vector<float> dot(const Body& body, int64_t first, int64_t count) const {
    return dot_panels(body, first, count, panels_, kNumPanels);
  }

  /// [order, count, 16] sums of tokens [0, count), one call of the named panels one behind another.
  std::vector<float> dot_in_order(const Body& body,
                                  int64_t count,
                                  const std::vector<int64_t>& order) const {
    const int64_t bytes = device::panel16_panel_bytes(shape_);
    std::vector<std::byte> panels;
    for (const int64_t panel : order) {
      panels.insert(
          panels.end(), panels_.begin() + panel * bytes, panels_.begin() + (panel + 1) * bytes);
    }
    return dot_panels(body, 0, count, panels, static_cast<int64_t>(order.size()));
  }

  /// What sums of a token are to be multiplied with.
  float factor(const Body& body, int64_t token) const {
    const auto steps = static_cast<std::size_t>(device::panel16_num_steps(shape_) + 8);
    std::vector<std::byte> room(steps * device::kPanel16StepCols * kMostOperandBytes);
    return body
        .load_operand(
            {x_.data() + token * shape_.cols, DType::kF32, shape_.cols}, shape_, room.data())
        .factor;
  }

  /// Σ weight * x in double and Σ |weight * x|.
  std::pair<double, double> expected(int64_t row, int64_t token) const {
    double sum = 0.0;
    double magnitude = 0.0;
    for (int64_t col = 0; col < shape_.cols; ++col) {
      const double term =
          values_[static_cast<std::size_t>(row * shape_.cols + col)] *
          static_cast<double>(x_[static_cast<std::size_t>(token * shape_.cols + col)]);
      sum += term;
      magnitude += std::abs(term);
    }
    return {sum, magnitude};
  }

 private:
  std::vector<float> dot_panels(const Body& body,
                                int64_t first,
                                int64_t count,
                                const std::vector<std::byte>& panels,
                                int64_t num_panels) const {
    // As expert_steps.cc sets a row aside.
    const int64_t cols = device::round_up(shape_.cols, device::kPanel16StepCols) + 8;
    const int64_t row_bytes = device::round_up(cols * body.operand_bytes, int64_t{64});
    // What nobody writes is NaN, as in a workspace that another layer used.
    std::vector<std::byte> rows(static_cast<std::size_t>(row_bytes * count), std::byte{0xFF});
    for (int64_t t = 0; t < count; ++t) {
      const OperandRow row{x_.data() + (first + t) * shape_.cols, DType::kF32, shape_.cols};
      EXPECT_TRUE(body.load_operand(row, shape_, rows.data() + t * row_bytes).finite);
    }
    std::vector<std::byte> operands(rows.size());
    const int64_t pairs = device::panel16_num_steps(shape_) * device::kPanel16StepCols / 2;
    // In batches, as where room is short.
    for (int64_t t = 0; body.interleave != nullptr && t < count; t += 5) {
      const int64_t num_rows = std::min(int64_t{5}, count - t);
      const std::byte* batch[5];
      for (int64_t i = 0; i < num_rows; ++i) {
        batch[i] = rows.data() + (t + i) * row_bytes;
      }
      body.interleave({batch, num_rows, pairs, operands.data(), t, count});
    }
    std::vector<float> sums(static_cast<std::size_t>(num_panels * count * kPanelRows),
                            std::numeric_limits<float>::quiet_NaN());
    DotCall call{panels.data(), num_panels, &shape_, operands.data(), count, sums.data()};
    if (body.interleave == nullptr) {
      call.operand = rows.data();
      call.operand_row_bytes = row_bytes;
    }
    body.dot(call);
    return sums;
  }

  std::uint32_t draw(std::uint32_t count) { return static_cast<std::uint32_t>(random_() % count); }

  void fill_row(int64_t row) {
    std::byte* panel = panels_.data() + row / kPanelRows * device::panel16_panel_bytes(shape_);
    const int64_t in_panel = row % kPanelRows;
    double scale = 1.0;
    double zero = 0.0;
    int64_t scaled_group = -1;
    for (int64_t col = 0; col < shape_.cols; ++col) {
      const int64_t group_cols = device::panel16_group_cols(shape_);
      if (group_cols != 0 && (shape_.group_offset + col) / group_cols != scaled_group) {
        scaled_group = (shape_.group_offset + col) / group_cols;
        std::byte* at = panel + device::panel16_scale_position(shape_, in_panel, scaled_group);
        scale = store_scale(at, &zero);
      }
      values_[static_cast<std::size_t>(row * shape_.cols + col)] =
          (store_element(panel, in_panel, col) - zero) * scale;
    }
  }

  // Returns its value; an int4 also gets a zero point.
  double store_scale(std::byte* at, double* zero) {
    switch (shape_.element) {
      case Panel16Element::kNvfp4: {
        const std::uint32_t code = draw(0x78);
        *at = static_cast<std::byte>(device::e5m3_from_e4m3(code));
        return static_cast<double>(device::e4m3_to_f32(code));
      }
      case Panel16Element::kMxfp4: {
        const std::uint32_t code = least_e8m0_ + draw(12);
        *at = static_cast<std::byte>(code);
        return static_cast<double>(device::e8m0_to_f32(code));
      }
      default: {
        const float scale = device::bf16_round(0.01F + static_cast<float>(draw(100)) / 50.0F);
        const std::uint32_t point = shape_.element == Panel16Element::kInt4 ? draw(17) : 0U;
        const std::uint32_t word = device::panel16_int4_word(scale, point);
        std::memcpy(at, &word, sizeof(word));
        *zero = static_cast<double>(point);
        return static_cast<double>(scale);
      }
    }
  }

  double store_element(std::byte* panel, int64_t row, int64_t col) {
    switch (shape_.element) {
      case Panel16Element::kBf16: {
        const auto unit = static_cast<float>(draw(2001)) / 1000.0F - 1.0F;
        const std::uint16_t bits = device::bf16_from_f32(unit);
        std::memcpy(panel + device::panel16_bf16_position(row, col), &bits, sizeof(bits));
        return static_cast<double>(device::bf16_to_f32(bits));
      }
      case Panel16Element::kE4m3: {
        std::uint32_t code = draw(256);
        code = (code & 0x7FU) == 0x7FU ? 0x08U : code;
        panel[device::panel16_e4m3_position(shape_, row, col)] = static_cast<std::byte>(code);
        return static_cast<double>(device::e4m3_to_f32(code));
      }
      default: {
        const std::uint32_t code = draw(16);
        const device::Panel16Nibble at = device::panel16_code_position(shape_, row, col);
        panel[at.byte] |= static_cast<std::byte>(code << static_cast<unsigned>(at.shift));
        return shape_.element == Panel16Element::kInt4
                   ? static_cast<double>(code)
                   : static_cast<double>(device::e2m1_to_f32(code));
      }
    }
  }

  Panel16Shape shape_;
  int64_t tokens_;
  std::uint32_t least_e8m0_;
  std::mt19937 random_{7};
  std::vector<std::byte> panels_;
  std::vector<double> values_;
  std::vector<float> x_;
};

// Whole blocks, short last blocks and groups, shards that begin inside a block, a group or a step.
inline constexpr Panel16Shape kShapes[] = {
    {Panel16Element::kBf16, kPanelRows* kNumPanels, 136, 1, 0, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 64, 1, 0, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 232, 1, 0, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 200, 1, 8, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 88, 1, 4, 0},
    {Panel16Element::kNvfp4, kPanelRows* kNumPanels, 16, 1, 8, 0},
    {Panel16Element::kMxfp4, kPanelRows* kNumPanels, 512, 1, 0, 0},
    {Panel16Element::kMxfp4, kPanelRows* kNumPanels, 360, 1, 0, 0},
    {Panel16Element::kMxfp4, kPanelRows* kNumPanels, 360, 1, 16, 0},
    {Panel16Element::kMxfp4, kPanelRows* kNumPanels, 32, 1, 8, 0},
    {Panel16Element::kInt4, kPanelRows* kNumPanels, 256, 1, 0, 32},
    {Panel16Element::kInt4, kPanelRows* kNumPanels, 400, 1, 0, 128},
    {Panel16Element::kInt4, kPanelRows* kNumPanels, 136, 1, 8, 32},
    {Panel16Element::kE4m3, kPanelRows* kNumPanels, 256, 1, 0, 128},
    {Panel16Element::kE4m3, kPanelRows* kNumPanels, 200, 1, 72, 128},
};

}  // namespace moekit::panels
