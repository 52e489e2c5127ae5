// SPDX-License-Identifier: Apache-2.0

// Experts on their way in (an engine's fused tensors) and back out (unpack).

#include "moekit/experts.h"

#include "base/border.h"
#include "base/text.h"
#include "runtime/state.h"

namespace moekit {
namespace {

using base::cat;

// First row and row step of gate and up within a fused gate_up tensor.
struct RowSplit {
  std::int64_t gate_begin;
  std::int64_t up_begin;
  std::int64_t step;
};

RowSplit row_split(const Problem& problem) {
  const std::int64_t inner = problem.intermediate_size;
  if (!activation_is_gated(problem.activation.kind)) {
    return {0, 0, 1};
  }
  switch (problem.row_order) {
    case RowOrder::kUpGate:
      return {inner, 0, 1};
    case RowOrder::kInterleaved:
      return {0, 1, 2};
    case RowOrder::kGateUp:
      break;
  }
  return {0, inner, 1};
}

struct FusedTensor {
  const void* codes;
  const void* scales;
  const std::uint8_t* zero_points;
  std::int64_t rows;  // of one projection
  std::int64_t cols;
};

// Rows of one projection: the first of `parts` equal runs of rows, or every second row.
struct ProjectionRows {
  std::int64_t first_row;
  std::int64_t row_step;
};

WeightMatrix rows_of(const FusedExperts& fused,
                     const FusedTensor& tensor,
                     const ProjectionRows& at) {
  WeightMatrix matrix;
  matrix.format = fused.format;
  matrix.rows = tensor.rows;
  matrix.cols = tensor.cols;
  matrix.group_size = fused.group_size;
  matrix.scale_dtype = fused.scale_dtype;
  const std::int64_t code_bytes = code_row_bytes(fused.format, tensor.cols);
  const std::int64_t groups = num_scale_cols(matrix);
  const std::int64_t scale_bytes = groups * scale_elem_bytes(matrix);
  matrix.codes = static_cast<const std::byte*>(tensor.codes) + at.first_row * code_bytes;
  matrix.row_stride_bytes = code_bytes * at.row_step;
  if (scale_bytes != 0) {
    // Blocks of rows: split_fused has made sure that a projection's rows stand together.
    const std::int64_t first_scale_row = at.first_row / tensor.rows * num_scale_rows(matrix);
    matrix.scales =
        static_cast<const std::byte*>(tensor.scales) +
        (format_info(fused.format).group_rows > 1 ? first_scale_row : at.first_row) * scale_bytes;
    matrix.scale_row_stride_bytes = scale_bytes * at.row_step;
  }
  if (tensor.zero_points != nullptr) {
    matrix.zero_points = tensor.zero_points + at.first_row * groups;
    matrix.zero_point_row_stride = groups * at.row_step;
  }
  return matrix;
}

BiasView bias_of(const BiasView& fused, std::int64_t first, std::int64_t step, std::int64_t size) {
  BiasView bias = fused;
  if (fused.data != nullptr) {
    bias.data = static_cast<const std::byte*>(fused.data) +
                first * fused.stride * dtype_bits(fused.dtype) / 8;
    bias.stride = fused.stride * step;
    bias.size = size;
  }
  return bias;
}

Status check_globals(const FormatInfo& info,
                     std::span<const float> globals,
                     std::string_view name,
                     std::int64_t num_experts) {
  if (globals.empty() && !info.has_global_scale) {
    return {};
  }
  const auto size = static_cast<std::int64_t>(globals.size());
  if (size != num_experts) {
    return invalid_argument(
        cat(name,
            " has ",
            size,
            " values, expected ",
            num_experts,
            ": format ",
            info.name,
            info.has_global_scale ? " needs one per expert" : " takes none or one per expert"));
  }
  return {};
}

Status check_fused(const Problem& problem, const FusedExperts& fused, const FormatInfo& info) {
  if (fused.gate_up_codes == nullptr || fused.down_codes == nullptr) {
    return invalid_argument("fused experts: gate_up_codes and down_codes must not be null");
  }
  if (info.scale.has_value() && (fused.gate_up_scales == nullptr || fused.down_scales == nullptr)) {
    return invalid_argument(cat("fused experts: format ", info.name, " needs block scales"));
  }
  if (info.group_rows > 1 && problem.row_order == RowOrder::kInterleaved &&
      activation_is_gated(problem.activation.kind)) {
    return invalid_argument(cat("fused experts: rows of ",
                                info.name,
                                " share scales in blocks of ",
                                info.group_rows,
                                ", so gate and up cannot be interleaved"));
  }
  const std::int64_t experts = problem.num_experts;
  for (const auto& [name, scales] : {std::pair("gate_input_scales", fused.gate_input_scales),
                                     std::pair("up_input_scales", fused.up_input_scales),
                                     std::pair("down_input_scales", fused.down_input_scales)}) {
    if (!scales.empty() && static_cast<std::int64_t>(scales.size()) != experts) {
      return invalid_argument(
          cat(name, " has ", scales.size(), " values, expected none or ", experts));
    }
  }
  if (activation_is_gated(problem.activation.kind)) {
    MOEKIT_RETURN_IF_ERROR(check_globals(info, fused.gate_globals, "gate_globals", experts));
  }
  MOEKIT_RETURN_IF_ERROR(check_globals(info, fused.up_globals, "up_globals", experts));
  MOEKIT_RETURN_IF_ERROR(check_globals(info, fused.down_globals, "down_globals", experts));
  const std::int64_t gate_up_bias = experts * num_gate_up_rows(problem);
  if (problem.gate_up_bias != (fused.gate_up_bias.data != nullptr) ||
      (problem.gate_up_bias && fused.gate_up_bias.size != gate_up_bias)) {
    return invalid_argument(cat("gate_up_bias has ",
                                fused.gate_up_bias.size,
                                " elements, expected ",
                                problem.gate_up_bias ? gate_up_bias : 0));
  }
  const std::int64_t down_bias = experts * problem.hidden_size;
  if (problem.down_bias != (fused.down_bias.data != nullptr) ||
      (problem.down_bias && fused.down_bias.size != down_bias)) {
    return invalid_argument(cat("down_bias has ",
                                fused.down_bias.size,
                                " elements, expected ",
                                problem.down_bias ? down_bias : 0));
  }
  return {};
}

float global_of(std::span<const float> globals, std::int64_t expert) {
  return globals.empty() ? 1.0F : globals[static_cast<std::size_t>(expert)];
}

std::optional<float> input_scale_of(std::span<const float> scales, std::int64_t expert) {
  return scales.empty() ? std::nullopt
                        : std::optional<float>(scales[static_cast<std::size_t>(expert)]);
}

// A matrix of the shape, without storage. Wide scales are unpacked as f32.
WeightMatrix matrix_of(const formats::PackingShape& shape) {
  WeightMatrix matrix;
  matrix.format = shape.format;
  matrix.rows = shape.rows;
  matrix.cols = shape.cols;
  matrix.group_offset = shape.group_offset;
  matrix.group_size = shape.group_size;
  matrix.group_row_offset = shape.row_offset;
  const FormatInfo& info = format_info(shape.format);
  if (info.scale == DType::kBf16) {
    matrix.scale_dtype = DType::kF32;
  }
  matrix.row_stride_bytes = code_row_bytes(shape.format, shape.cols);
  matrix.scale_row_stride_bytes = num_scale_cols(matrix) * scale_elem_bytes(matrix);
  matrix.zero_point_row_stride = info.element == DType::kI4 ? num_scale_cols(matrix) : 0;
  return matrix;
}

// One matrix of an expert, without gaps, inside `storage` at `cursor`.
WeightMatrix claim(const formats::PackingShape& shape,
                   std::byte*& cursor,
                   std::vector<formats::UnpackedPart>& parts) {
  WeightMatrix matrix = matrix_of(shape);
  const auto code_bytes = static_cast<std::size_t>(matrix.row_stride_bytes * shape.rows);
  const auto scale_bytes =
      static_cast<std::size_t>(matrix.scale_row_stride_bytes * num_scale_rows(matrix));
  const auto zero_bytes = static_cast<std::size_t>(matrix.zero_point_row_stride * shape.rows);
  matrix.codes = cursor;
  matrix.scales = scale_bytes == 0 ? nullptr : cursor + code_bytes;
  std::byte* zeros = cursor + code_bytes + scale_bytes;
  matrix.zero_points = zero_bytes == 0 ? nullptr : reinterpret_cast<const std::uint8_t*>(zeros);
  parts.push_back({{cursor, code_bytes}, {cursor + code_bytes, scale_bytes}, {zeros, zero_bytes}});
  cursor = zeros + zero_bytes;
  return matrix;
}

std::int64_t unpacked_bytes(const formats::PackingShape& shape) {
  const WeightMatrix matrix = matrix_of(shape);
  return ((matrix.row_stride_bytes + matrix.zero_point_row_stride) * shape.rows +
          matrix.scale_row_stride_bytes * num_scale_rows(matrix)) *
         shape.num_parts;
}

BiasView packed_bias(const float* values, std::int64_t size) {
  return values == nullptr ? BiasView{} : BiasView{values, DType::kF32, size, 1};
}

}  // namespace

Result<ExpertsSource> split_fused(const Problem& problem, const FusedExperts& fused) noexcept {
  return base::at_border([&]() -> Result<ExpertsSource> {
    MOEKIT_RETURN_IF_ERROR(validate_problem(problem));
    const FormatInfo& info = format_info(fused.format);
    MOEKIT_RETURN_IF_ERROR(check_fused(problem, fused, info));
    const RowSplit split = row_split(problem);
    const std::int64_t inner = problem.intermediate_size;
    const FusedTensor gate_up{fused.gate_up_codes,
                              fused.gate_up_scales,
                              fused.gate_up_zero_points,
                              inner,
                              problem.hidden_size};
    const FusedTensor down{
        fused.down_codes, fused.down_scales, fused.down_zero_points, problem.hidden_size, inner};
    const std::int64_t gate_up_rows = num_gate_up_rows(problem);
    const bool gated = activation_is_gated(problem.activation.kind);
    ExpertsSource source;
    source.experts.resize(static_cast<std::size_t>(problem.num_experts));
    for (std::int64_t e = 0; e < problem.num_experts; ++e) {
      ExpertWeights& expert = source.experts[static_cast<std::size_t>(e)];
      const std::int64_t first = e * gate_up_rows;
      expert.up = rows_of(fused, gate_up, {first + split.up_begin, split.step});
      expert.up.input_scale = input_scale_of(fused.up_input_scales, e);
      expert.up.global_scale = global_of(fused.up_globals, e);
      expert.up_bias = bias_of(fused.gate_up_bias, first + split.up_begin, split.step, inner);
      if (gated) {
        expert.gate = rows_of(fused, gate_up, {first + split.gate_begin, split.step});
        expert.gate.input_scale = input_scale_of(fused.gate_input_scales, e);
        expert.gate.global_scale = global_of(fused.gate_globals, e);
        expert.gate_bias = bias_of(fused.gate_up_bias, first + split.gate_begin, split.step, inner);
      }
      expert.down = rows_of(fused, down, {e * down.rows, 1});
      expert.down.input_scale = input_scale_of(fused.down_input_scales, e);
      expert.down.global_scale = global_of(fused.down_globals, e);
      expert.down_bias = bias_of(fused.down_bias, e * problem.hidden_size, 1, problem.hidden_size);
    }
    return source;
  });
}

Result<ExpertWeights> unpack_expert(const PackedExperts& packed,
                                    std::int64_t expert,
                                    std::vector<std::byte>& storage) noexcept {
  return base::at_border([&]() -> Result<ExpertWeights> {
    const PackedExperts::State* state = packed.state();
    if (state == nullptr) {
      return invalid_argument("experts were not prepared");
    }
    if (state->on_device) {
      return invalid_argument("experts are on a device; unpack what was uploaded");
    }
    const plan::PackedLayout& layout = state->layout;
    if (expert < 0 || expert >= layout.num_experts) {
      return invalid_argument(cat("expert ", expert, ", expected 0..", layout.num_experts - 1));
    }
    storage.assign(static_cast<std::size_t>(unpacked_bytes(layout.gate_up.shape) +
                                            unpacked_bytes(layout.down.shape)),
                   std::byte{0});
    std::byte* cursor = storage.data();
    const plan::PackedView view{&layout, state->base};
    const float* globals = view.globals(expert);
    ExpertWeights weights;
    std::vector<formats::UnpackedPart> parts;
    if (layout.gate_up.shape.num_parts == 2) {
      weights.gate = claim(layout.gate_up.shape, cursor, parts);
      weights.gate.global_scale = globals[0];
    }
    weights.up = claim(layout.gate_up.shape, cursor, parts);
    weights.up.global_scale = globals[1];
    layout.packing->unpack(view.gate_up(expert), layout.gate_up.shape, parts);
    parts.clear();
    weights.down = claim(layout.down.shape, cursor, parts);
    weights.down.global_scale = globals[2];
    layout.packing->unpack(view.down(expert), layout.down.shape, parts);
    weights.gate_bias = packed_bias(view.gate_bias(expert), layout.gate_up.shape.rows);
    weights.up_bias = packed_bias(view.up_bias(expert), layout.gate_up.shape.rows);
    weights.down_bias = packed_bias(view.down_bias(expert), layout.down.shape.rows);
    return weights;
  });
}

}  // namespace moekit
