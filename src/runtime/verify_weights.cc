// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "device/numerics/bf16.h"
#include "runtime/verify_buffers.h"

namespace moekit::verify {
namespace {

// Experts whose bytes are generated; a prime, so that no stride over experts meets equal ones.
constexpr std::int64_t kDistinctExperts = 13;
// Layers with more weights than this share bytes, and are not held a second time in fused order.
constexpr std::int64_t kSharedAbove = std::int64_t{1} << 20;
constexpr std::int64_t kFusedBytes = std::int64_t{16} << 20;
// Root mean square of evenly drawn E2M1 codes: sqrt(68.5 / 8).
constexpr float kCodeDeviation = 2.9F;
// Bytes between the rows of strided storage; not a multiple of any vector width.
constexpr std::int64_t kRowGapBytes = 24;

struct MatrixShape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  float deviation = 1.0F;  // wanted of a weight
  std::int64_t row_offset = 0;
  std::int64_t group_offset = 0;
};

bool is_shard(const Problem& problem) {
  return problem.gate_up_row_offset != 0 || problem.down_group_offset != 0;
}

class WeightGenerator {
 public:
  WeightGenerator(const VerifyCase& verify_case, const Quirks& quirks, CaseWeights& weights)
      : problem_(verify_case.problem),
        format_(recipe_info(verify_case.problem.recipe).weights),
        info_(format_info(format_)),
        quirks_(quirks),
        weights_(weights),
        random_(verify_case.seed * 0x2545F4914F6CDD1DU + 1) {}

  Status fill() {
    const std::int64_t volume =
        problem_.num_experts * 3 * problem_.hidden_size * problem_.intermediate_size;
    const std::int64_t distinct = volume > kSharedAbove
                                      ? std::min(problem_.num_experts, kDistinctExperts)
                                      : problem_.num_experts;
    std::vector<ExpertWeights> sets(static_cast<std::size_t>(distinct));
    for (ExpertWeights& set : sets) {
      MOEKIT_ASSIGN_OR_RETURN(set.gate, make_matrix(gate_up_shape()));
      MOEKIT_ASSIGN_OR_RETURN(set.up, make_matrix(gate_up_shape()));
      MOEKIT_ASSIGN_OR_RETURN(set.down, make_matrix(down_shape()));
    }
    for (std::int64_t e = 0; e < problem_.num_experts; ++e) {
      ExpertWeights expert = sets[static_cast<std::size_t>(e % distinct)];
      vary_globals(expert);
      draw_input_scales(expert, e);
      if (quirks_.weights == WeightQuirk::kDormantExpert && e % 2 == 1) {
        make_dormant(expert, e / 2 % 4);
      }
      add_biases(expert);
      if (!activation_is_gated(problem_.activation.kind)) {
        expert.gate = {};
        expert.gate_bias = {};
      }
      weights_.source.experts.push_back(expert);
    }
    return {};
  }

 private:
  [[nodiscard]] MatrixShape gate_up_shape() const {
    // h has a deviation of 1.5: both sides of every activation, some values beyond a limit.
    return {problem_.intermediate_size,
            problem_.hidden_size,
            1.5F / std::sqrt(static_cast<float>(problem_.hidden_size)),
            problem_.gate_up_row_offset};
  }

  [[nodiscard]] MatrixShape down_shape() const {
    return {problem_.hidden_size,
            problem_.intermediate_size,
            1.0F / std::sqrt(static_cast<float>(problem_.intermediate_size)),
            0,
            problem_.down_group_offset};
  }

  std::byte* allocate(std::int64_t bytes) {
    weights_.storage.emplace_back(static_cast<std::size_t>(bytes));
    return weights_.storage.back().data();
  }

  Result<WeightMatrix> make_matrix(const MatrixShape& shape) {
    WeightMatrix matrix;
    matrix.format = format_;
    matrix.rows = shape.rows;
    matrix.cols = shape.cols;
    const std::int64_t gap = quirks_.views == ViewQuirk::kStrided ? kRowGapBytes : 0;
    matrix.group_size = problem_.weight_group_size;
    matrix.group_row_offset = shape.row_offset;
    matrix.group_offset = shape.group_offset;
    const std::int64_t code_bytes = code_row_bytes(format_, shape.cols);
    const std::int64_t scale_bytes = num_scale_cols(matrix) * scale_elem_bytes(matrix);
    const std::int64_t scale_rows = num_scale_rows(matrix);
    matrix.row_stride_bytes = code_bytes + gap;
    matrix.scale_row_stride_bytes = scale_bytes == 0 ? 0 : scale_bytes + gap;
    const std::size_t values = static_cast<std::size_t>(shape.rows * code_bytes);
    std::vector<std::byte> codes(values);
    std::vector<std::byte> scales(static_cast<std::size_t>(scale_rows * scale_bytes));
    if (encoded()) {
      MOEKIT_RETURN_IF_ERROR(encode(shape, codes, scales, matrix.global_scale));
    } else {
      draw(shape, codes, scales, matrix.global_scale);
      draw_zero_points(matrix);
    }
    if (quirks_.weights == WeightQuirk::kTransposed) {
      transpose(codes, matrix);
      return matrix;
    }
    matrix.codes = spread(codes, shape.rows, code_bytes, gap);
    matrix.scales = scale_bytes == 0 ? nullptr : spread(scales, scale_rows, scale_bytes, gap);
    return matrix;
  }

  [[nodiscard]] bool encoded() const {
    const bool quirk_encodes = quirks_.weights == WeightQuirk::kEncoded ||
                               quirks_.weights == WeightQuirk::kUnequalGlobals ||
                               quirks_.weights == WeightQuirk::kDormantExpert;
    // What a shard holds of its first groups was encoded with the rest of the layer: drawn instead.
    return format_ == Format::kBf16 || (quirk_encodes && !is_shard(problem_));
  }

  Status encode(const MatrixShape& shape,
                std::vector<std::byte>& codes,
                std::vector<std::byte>& scales,
                float& global) {
    std::vector<float> values(static_cast<std::size_t>(shape.rows * shape.cols));
    // Only bf16 comes here with these two: every exponent down to the subnormals.
    const bool wide =
        quirks_.weights == WeightQuirk::kWideScales || quirks_.weights == WeightQuirk::kRawCodes;
    for (float& value : values) {
      value = random_.normal() * shape.deviation;
      value = wide ? std::ldexp(value, -static_cast<int>(random_.below(135))) : value;
    }
    if (quirks_.weights == WeightQuirk::kZeroScales) {
      for (std::size_t i = 0; i < values.size(); i += 3) {
        values[i] = i % 2 == 0 ? 0.0F : -0.0F;
      }
    }
    EncodedWeights encoding{codes, scales, 1.0F, problem_.weight_group_size};
    MOEKIT_RETURN_IF_ERROR(encode_weights(format_, values, shape.rows, encoding));
    global = encoding.global_scale;
    return {};
  }

  // Codes and scales straight from the generator, of the quirk's kind.
  void draw(const MatrixShape& shape,
            std::vector<std::byte>& codes,
            std::vector<std::byte>& scales,
            float& global) {
    for (std::byte& code : codes) {
      code = static_cast<std::byte>(random_.next());
      if (info_.element == DType::kE4m3 && (code & std::byte{0x7F}) == std::byte{0x7F}) {
        code = std::byte{0x7E};
      }
    }
    if (info_.scale == DType::kF32 || info_.scale == DType::kBf16) {
      draw_wide_scales(shape, scales);
      return;
    }
    const float step = shape.deviation / kCodeDeviation;
    const int exponent = 127 + static_cast<int>(std::floor(std::log2(step)));
    for (std::byte& scale : scales) {
      scale = format_ == Format::kNvfp4 ? draw_e4m3() : draw_e8m0(exponent);
    }
    if (quirks_.weights == WeightQuirk::kZeroScales) {
      blank_groups(shape, codes, scales);
    }
    if (format_ == Format::kNvfp4) {
      global = step / typical_e4m3();
    }
  }

  // f32 for blocks of E4M3, bf16 for int4.
  void draw_wide_scales(const MatrixShape& shape, std::vector<std::byte>& scales) {
    const bool is_f32 = info_.scale == DType::kF32;
    // Root mean square of evenly drawn codes: E4M3 125, four-bit integers about 7.
    const float step = shape.deviation / (is_f32 ? 125.0F : 7.0F);
    const std::size_t bytes = is_f32 ? 4 : 2;
    for (std::size_t at = 0; at < scales.size(); at += bytes) {
      float scale = draw_wide_scale(step);
      if (quirks_.weights == WeightQuirk::kZeroScales && at / bytes % 3 == 0) {
        scale = at / bytes % 2 == 0 ? 0.0F : -0.0F;
      }
      const std::uint16_t half = device::bf16_from_f32(scale);
      if (is_f32) {
        std::memcpy(scales.data() + at, &scale, sizeof scale);
      } else {
        std::memcpy(scales.data() + at, &half, sizeof half);
      }
    }
  }

  float draw_wide_scale(float step) {
    const float scale = step * (0.25F + random_.uniform());
    switch (quirks_.weights) {
      case WeightQuirk::kSubnormalScales:
        return random_.below(4) == 0 ? std::ldexp(scale, -124) : scale;
      case WeightQuirk::kWideScales:
        return std::ldexp(scale, -static_cast<int>(random_.below(120)));
      default:
        return scale;
    }
  }

  // Every legal zero point, in rows of their own stride; half of the matrices have none.
  void draw_zero_points(WeightMatrix& matrix) {
    if (info_.element != DType::kI4 || random_.below(2) == 0) {
      return;
    }
    const std::int64_t cols = num_scale_cols(matrix);
    matrix.zero_point_row_stride = cols + (quirks_.views == ViewQuirk::kStrided ? kRowGapBytes : 0);
    const std::int64_t bytes = matrix.rows * matrix.zero_point_row_stride;
    std::byte* out = allocate(bytes);
    for (std::int64_t i = 0; i < bytes; ++i) {
      const bool inside = i % matrix.zero_point_row_stride < cols;
      out[i] = static_cast<std::byte>(inside ? random_.below(17) : 0xEE);
    }
    matrix.zero_points = reinterpret_cast<const std::uint8_t*>(out);
  }

  // About what calibration finds for x of deviation 1 and intermediates of a few units; gate and up
  // differ. With zero scales every fifth expert's are 0.
  void draw_input_scales(ExpertWeights& expert, std::int64_t expert_idx) {
    if (!quantizer_info(recipe_info(problem_.recipe).quantizer).needs_input_scale) {
      return;
    }
    const bool zero = quirks_.weights == WeightQuirk::kZeroScales && expert_idx % 5 == 1;
    for (WeightMatrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
      const float scale = 0.0015F * std::pow(10.0F, (random_.uniform() - 0.5F) * 0.8F);
      matrix->input_scale = zero ? 0.0F : scale * (matrix == &expert.down ? 3.0F : 1.0F);
    }
  }

  std::byte draw_e4m3() {
    switch (quirks_.weights) {
      case WeightQuirk::kSubnormalScales:
        return static_cast<std::byte>(1 + random_.below(random_.below(4) == 0 ? 16 : 7));
      case WeightQuirk::kWideScales:
        return static_cast<std::byte>(random_.below(0x7F));
      default:
        return static_cast<std::byte>(0x28 + random_.below(0x20));  // 2^-2 ... 3.75
    }
  }

  // The root mean square of what draw_e4m3 draws, to a factor of two.
  [[nodiscard]] float typical_e4m3() const {
    switch (quirks_.weights) {
      case WeightQuirk::kSubnormalScales:
        return 0x1p-7F;
      case WeightQuirk::kWideScales:
        return 128.0F;
      default:
        return 2.0F;
    }
  }

  std::byte draw_e8m0(int exponent) {
    switch (quirks_.weights) {
      case WeightQuirk::kSubnormalScales:
        return static_cast<std::byte>(random_.below(4) == 0 ? random_.below(10) : exponent);
      case WeightQuirk::kWideScales:
        return static_cast<std::byte>(std::max<std::int64_t>(0, exponent + 1 - random_.below(120)));
      default:
        return static_cast<std::byte>(exponent + 1 - random_.below(4));
    }
  }

  // Every third group is 0: by its scale, written as 0 and as -0, or by its codes.
  void blank_groups(const MatrixShape& shape,
                    std::vector<std::byte>& codes,
                    std::vector<std::byte>& scales) {
    const std::int64_t group_bytes = info_.group_size / 2;
    const std::int64_t code_bytes = code_row_bytes(format_, shape.cols);
    const std::int64_t scale_cols = static_cast<std::int64_t>(scales.size()) / shape.rows;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(scales.size()); i += 3) {
      if (format_ == Format::kNvfp4) {
        scales[static_cast<std::size_t>(i)] = i % 2 == 0 ? std::byte{0x00} : std::byte{0x80};
        continue;
      }
      scales[static_cast<std::size_t>(i)] = std::byte{0};
      const std::int64_t begin = i % scale_cols * group_bytes;
      const std::int64_t end = std::min(begin + group_bytes, code_bytes);
      std::fill(codes.begin() + i / scale_cols * code_bytes + begin,
                codes.begin() + i / scale_cols * code_bytes + end,
                std::byte{0x80});
    }
  }

  // Rows `gap` bytes apart, the gap filled with what would decode to large values.
  const void* spread(const std::vector<std::byte>& rows,
                     std::int64_t num_rows,
                     std::int64_t row_bytes,
                     std::int64_t gap) {
    std::byte* out = allocate(num_rows * (row_bytes + gap));
    for (std::int64_t r = 0; r < num_rows; ++r) {
      std::byte* row = out + r * (row_bytes + gap);
      std::memcpy(row, rows.data() + r * row_bytes, static_cast<std::size_t>(row_bytes));
      std::fill_n(row + row_bytes, gap, std::byte{0x7E});
    }
    return out;
  }

  void transpose(const std::vector<std::byte>& codes, WeightMatrix& matrix) {
    std::byte* out = allocate(static_cast<std::int64_t>(codes.size()));
    for (std::int64_t r = 0; r < matrix.rows; ++r) {
      for (std::int64_t c = 0; c < matrix.cols; ++c) {
        std::memcpy(out + (c * matrix.rows + r) * 2, codes.data() + (r * matrix.cols + c) * 2, 2);
      }
    }
    matrix.codes = out;
    matrix.row_stride_bytes = 2;
    matrix.col_stride_elems = matrix.rows;
  }

  void vary_globals(ExpertWeights& expert) {
    const bool unequal = quirks_.weights == WeightQuirk::kUnequalGlobals;
    if (format_ == Format::kBf16 || (!info_.has_global_scale && !unequal)) {
      return;
    }
    for (WeightMatrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
      const float exponent = (random_.uniform() - 0.5F) * (unequal ? 2.0F : 0.4F);
      matrix->global_scale *= std::pow(10.0F, exponent);
    }
  }

  // `which`: gate, up or down alone, or all three.
  void make_dormant(ExpertWeights& expert, std::int64_t which) {
    WeightMatrix* const matrices[] = {&expert.gate, &expert.up, &expert.down};
    for (std::int64_t m = 0; m < 3; ++m) {
      if (which == 3 || which == m) {
        blank(*matrices[m]);
      }
    }
  }

  // A global of 0 over NaN scales, as producers write it, or zero elements.
  void blank(WeightMatrix& matrix) {
    if (format_ == Format::kBf16) {
      matrix.codes = allocate(matrix.rows * matrix.row_stride_bytes);
      return;
    }
    matrix.global_scale = 0.0F;
    std::byte* scales = allocate(matrix.rows * matrix.scale_row_stride_bytes);
    std::fill_n(scales,
                matrix.rows * matrix.scale_row_stride_bytes,
                info_.scale == DType::kE4m3 ? std::byte{0x7F} : std::byte{0xFF});
    matrix.scales = scales;
  }

  void add_biases(ExpertWeights& expert) {
    if (problem_.gate_up_bias) {
      expert.gate_bias = make_bias(problem_.intermediate_size);
      expert.up_bias = make_bias(problem_.intermediate_size);
    }
    if (problem_.down_bias) {
      expert.down_bias = make_bias(problem_.hidden_size);
    }
  }

  BiasView make_bias(std::int64_t size) {
    BiasView bias;
    bias.size = size;
    bias.dtype = quirks_.biases == BiasQuirk::kF32
                     ? DType::kF32
                     : (quirks_.biases == BiasQuirk::kBf16 ? DType::kBf16 : DType::kF16);
    bias.stride = quirks_.biases == BiasQuirk::kF16Strided ? 3 : 1;
    const std::int64_t width = dtype_bits(bias.dtype) / 8;
    std::byte* out = allocate(size * bias.stride * width);
    std::fill_n(out, size * bias.stride * width, std::byte{0x7B});
    for (std::int64_t i = 0; i < size; ++i) {
      const float value = random_.normal() * 0.5F;
      const std::uint16_t half =
          bias.dtype == DType::kBf16 ? device::bf16_from_f32(value) : device::f16_from_f32(value);
      if (bias.dtype == DType::kF32) {
        std::memcpy(out + i * 4, &value, 4);
      } else {
        std::memcpy(out + i * bias.stride * 2, &half, 2);
      }
    }
    bias.data = out;
    return bias;
  }

  const Problem& problem_;
  Format format_;
  const FormatInfo& info_;
  const Quirks& quirks_;
  CaseWeights& weights_;
  Random random_;
};

// The row of a fused gate_up tensor that holds row `row` of gate or up.
std::int64_t fused_row(const Problem& problem, bool is_gate, std::int64_t row) {
  if (!activation_is_gated(problem.activation.kind)) {
    return row;
  }
  switch (problem.row_order) {
    case RowOrder::kInterleaved:
      return 2 * row + (is_gate ? 0 : 1);
    case RowOrder::kUpGate:
      return is_gate ? problem.intermediate_size + row : row;
    case RowOrder::kGateUp:
      break;
  }
  return is_gate ? row : problem.intermediate_size + row;
}

// Copies of the experts' rows in an engine's fused order.
class Fuser {
 public:
  Fuser(const Problem& problem, CaseWeights& weights) : problem_(problem), weights_(weights) {}

  Result<ExpertsSource> fuse() {
    const ExpertWeights& first = weights_.source.experts.front();
    const std::int64_t gate_up_rows = problem_.num_experts * num_gate_up_rows(problem_);
    const std::int64_t down_rows = problem_.num_experts * problem_.hidden_size;
    FusedExperts fused;
    fused.format = first.up.format;
    std::byte* gate_up = allocate(gate_up_rows * code_bytes(first.up));
    std::byte* gate_up_scales = allocate(gate_up_rows * scale_row_bytes(first.up));
    std::byte* down = allocate(down_rows * code_bytes(first.down));
    std::byte* down_scales = allocate(down_rows * scale_row_bytes(first.down));
    const Rows gate_up_to{gate_up, gate_up_scales, zero_points(first.up, gate_up_rows)};
    const Rows down_to{down, down_scales, zero_points(first.down, down_rows)};
    fused.gate_up_bias = make_bias(first.up_bias, gate_up_rows);
    fused.down_bias = make_bias(first.down_bias, down_rows);
    for (std::int64_t e = 0; e < problem_.num_experts; ++e) {
      const ExpertWeights& expert = weights_.source.experts[static_cast<std::size_t>(e)];
      const std::int64_t base = e * num_gate_up_rows(problem_);
      for (std::int64_t r = 0; r < problem_.intermediate_size; ++r) {
        const std::int64_t up_row = base + fused_row(problem_, false, r);
        copy_row(expert.up, r, gate_up_to, up_row);
        copy_bias(expert.up_bias, r, fused.gate_up_bias, up_row);
        if (activation_is_gated(problem_.activation.kind)) {
          const std::int64_t gate_row = base + fused_row(problem_, true, r);
          copy_row(expert.gate, r, gate_up_to, gate_row);
          copy_bias(expert.gate_bias, r, fused.gate_up_bias, gate_row);
        }
      }
      for (std::int64_t r = 0; r < problem_.hidden_size; ++r) {
        copy_row(expert.down, r, down_to, e * problem_.hidden_size + r);
        copy_bias(expert.down_bias, r, fused.down_bias, e * problem_.hidden_size + r);
      }
      copy_blocks(expert, e, gate_up_to, down_to);
      gate_inputs_.push_back(expert.gate.input_scale.value_or(0.0F));
      up_inputs_.push_back(expert.up.input_scale.value_or(0.0F));
      down_inputs_.push_back(expert.down.input_scale.value_or(0.0F));
      gate_globals_.push_back(expert.gate.global_scale);
      up_globals_.push_back(expert.up.global_scale);
      down_globals_.push_back(expert.down.global_scale);
    }
    fused.gate_up_codes = gate_up;
    fused.down_codes = down;
    fused.group_size = first.up.group_size;
    fused.scale_dtype = first.up.scale_dtype;
    fused.gate_up_zero_points = reinterpret_cast<const std::uint8_t*>(gate_up_to.zero_points);
    fused.down_zero_points = reinterpret_cast<const std::uint8_t*>(down_to.zero_points);
    if (first.up.input_scale.has_value()) {
      fused.gate_input_scales = gate_inputs_;
      fused.up_input_scales = up_inputs_;
      fused.down_input_scales = down_inputs_;
    }
    if (format_info(fused.format).scale.has_value()) {
      fused.gate_up_scales = gate_up_scales;
      fused.down_scales = down_scales;
      fused.gate_globals = gate_globals_;
      fused.up_globals = up_globals_;
      fused.down_globals = down_globals_;
    }
    return split_fused(problem_, fused);
  }

 private:
  // Where the rows of one fused tensor go.
  struct Rows {
    std::byte* codes;
    std::byte* scales;
    std::byte* zero_points;  // null: the format has none
  };

  static std::int64_t scale_row_bytes(const WeightMatrix& matrix) {
    return num_scale_cols(matrix) * scale_elem_bytes(matrix);
  }

  std::byte* zero_points(const WeightMatrix& matrix, std::int64_t rows) {
    return format_info(matrix.format).element == DType::kI4
               ? allocate(rows * num_scale_cols(matrix))
               : nullptr;
  }

  // Scales of blocks of rows stand per projection, in the order of the rows.
  void copy_blocks(const ExpertWeights& expert,
                   std::int64_t expert_idx,
                   const Rows& gate_up,
                   const Rows& down) {
    if (format_info(expert.up.format).group_rows == 1) {
      return;
    }
    const bool gated = activation_is_gated(problem_.activation.kind);
    const std::int64_t blocks = num_scale_rows(expert.up);
    const std::int64_t parts = gated ? 2 : 1;
    const bool up_first = !gated || problem_.row_order == RowOrder::kUpGate;
    const std::int64_t base = expert_idx * parts * blocks;
    copy_scale_rows(expert.up, gate_up.scales, base + (up_first ? 0 : blocks));
    if (gated) {
      copy_scale_rows(expert.gate, gate_up.scales, base + (up_first ? blocks : 0));
    }
    copy_scale_rows(expert.down, down.scales, expert_idx * num_scale_rows(expert.down));
  }

  static void copy_scale_rows(const WeightMatrix& matrix, std::byte* scales, std::int64_t to) {
    for (std::int64_t row = 0; row < num_scale_rows(matrix); ++row) {
      copy_scale_row(matrix, row, scales, to + row);
    }
  }

  static void copy_scale_row(const WeightMatrix& matrix,
                             std::int64_t row,
                             std::byte* scales,
                             std::int64_t to) {
    const std::int64_t bytes = scale_row_bytes(matrix);
    if (bytes != 0) {
      std::memcpy(
          scales + to * bytes,
          static_cast<const std::byte*>(matrix.scales) + row * matrix.scale_row_stride_bytes,
          static_cast<std::size_t>(bytes));
    }
  }

  static std::int64_t code_bytes(const WeightMatrix& matrix) {
    return code_row_bytes(matrix.format, matrix.cols);
  }

  std::byte* allocate(std::int64_t bytes) {
    weights_.storage.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
    return weights_.storage.back().data();
  }

  BiasView make_bias(const BiasView& like, std::int64_t size) {
    if (like.data == nullptr) {
      return {};
    }
    const std::int64_t width = dtype_bits(like.dtype) / 8;
    return {allocate(size * like.stride * width), like.dtype, size, like.stride};
  }

  static void copy_row(const WeightMatrix& matrix,
                       std::int64_t row,
                       const Rows& out,
                       std::int64_t to) {
    const std::int64_t bytes = code_bytes(matrix);
    std::memcpy(out.codes + to * bytes,
                static_cast<const std::byte*>(matrix.codes) + row * matrix.row_stride_bytes,
                static_cast<std::size_t>(bytes));
    if (format_info(matrix.format).group_rows == 1) {
      copy_scale_row(matrix, row, out.scales, to);
    }
    const std::int64_t cols = num_scale_cols(matrix);
    if (out.zero_points != nullptr) {
      for (std::int64_t group = 0; group < cols; ++group) {
        const std::uint8_t middle = 8;
        out.zero_points[to * cols + group] = static_cast<std::byte>(
            matrix.zero_points == nullptr
                ? middle
                : matrix.zero_points[row * matrix.zero_point_row_stride + group]);
      }
    }
  }

  static void copy_bias(const BiasView& from,
                        std::int64_t index,
                        const BiasView& to,
                        std::int64_t to_index) {
    if (from.data == nullptr) {
      return;
    }
    const std::int64_t width = dtype_bits(from.dtype) / 8;
    // Our own storage of `to` stands behind a const view.
    auto* out = static_cast<std::byte*>(const_cast<void*>(to.data));
    std::memcpy(out + to_index * to.stride * width,
                static_cast<const std::byte*>(from.data) + index * from.stride * width,
                static_cast<std::size_t>(width));
  }

  const Problem& problem_;
  CaseWeights& weights_;
  std::vector<float> gate_globals_;
  std::vector<float> up_globals_;
  std::vector<float> down_globals_;
  std::vector<float> gate_inputs_;
  std::vector<float> up_inputs_;
  std::vector<float> down_inputs_;
};

bool can_be_fused(const Problem& problem, const Quirks& quirks) {
  const FormatInfo& info = format_info(recipe_info(problem.recipe).weights);
  // A fused tensor begins with whole groups, and rows of one scale block stand together.
  if (is_shard(problem) || (info.group_rows > 1 && problem.row_order == RowOrder::kInterleaved)) {
    return false;
  }
  const std::int64_t bytes =
      problem.num_experts * 3 * problem.hidden_size *
      code_row_bytes(recipe_info(problem.recipe).weights, problem.intermediate_size);
  return quirks.weights != WeightQuirk::kTransposed && quirks.views == ViewQuirk::kContiguous &&
         bytes <= kFusedBytes;
}

}  // namespace

std::uint64_t CaseWeights::hash() const noexcept {
  std::uint64_t hash = 0;
  for (const std::vector<std::byte>& bytes : storage) {
    hash = hash_bytes(bytes, hash);
  }
  return hash;
}

Result<CaseWeights> make_weights(const VerifyCase& verify_case, const Quirks& quirks) {
  CaseWeights weights;
  MOEKIT_RETURN_IF_ERROR(WeightGenerator(verify_case, quirks, weights).fill());
  weights.prepared = weights.source;
  if (can_be_fused(verify_case.problem, quirks)) {
    MOEKIT_ASSIGN_OR_RETURN(weights.prepared, Fuser(verify_case.problem, weights).fuse());
  }
  return weights;
}

}  // namespace moekit::verify
