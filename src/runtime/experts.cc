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
  std::int64_t rows;  // of one expert
  std::int64_t cols;
};

WeightMatrix rows_of(Format format,
                     const FusedTensor& tensor,
                     std::int64_t first_row,
                     std::int64_t row_step) {
  WeightMatrix matrix;
  matrix.format = format;
  matrix.cols = tensor.cols;
  const std::int64_t code_bytes = code_row_bytes(format, tensor.cols);
  const std::int64_t scale_bytes = num_scale_cols(matrix);  // one byte each
  matrix.codes = static_cast<const std::byte*>(tensor.codes) + first_row * code_bytes;
  matrix.row_stride_bytes = code_bytes * row_step;
  if (scale_bytes != 0) {
    matrix.scales = static_cast<const std::byte*>(tensor.scales) + first_row * scale_bytes;
    matrix.scale_row_stride_bytes = scale_bytes * row_step;
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
  const std::int64_t experts = problem.num_experts;
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

// One matrix of an expert, without gaps, inside `storage` at `cursor`.
WeightMatrix claim(const formats::PackingShape& shape,
                   std::byte*& cursor,
                   std::vector<formats::UnpackedPart>& parts) {
  WeightMatrix matrix;
  matrix.format = shape.format;
  matrix.rows = shape.rows;
  matrix.cols = shape.cols;
  matrix.group_offset = shape.group_offset;
  matrix.row_stride_bytes = code_row_bytes(shape.format, shape.cols);
  matrix.scale_row_stride_bytes = num_scale_cols(matrix);
  const auto code_bytes = static_cast<std::size_t>(matrix.row_stride_bytes * shape.rows);
  const auto scale_bytes = static_cast<std::size_t>(matrix.scale_row_stride_bytes * shape.rows);
  matrix.codes = cursor;
  matrix.scales = scale_bytes == 0 ? nullptr : cursor + code_bytes;
  parts.push_back({{cursor, code_bytes}, {cursor + code_bytes, scale_bytes}});
  cursor += code_bytes + scale_bytes;
  return matrix;
}

std::int64_t unpacked_bytes(const formats::PackingShape& shape) {
  WeightMatrix matrix;
  matrix.format = shape.format;
  matrix.cols = shape.cols;
  matrix.group_offset = shape.group_offset;
  return (code_row_bytes(shape.format, shape.cols) + num_scale_cols(matrix)) * shape.rows *
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
    const FusedTensor gate_up{
        fused.gate_up_codes, fused.gate_up_scales, num_gate_up_rows(problem), problem.hidden_size};
    const FusedTensor down{fused.down_codes, fused.down_scales, problem.hidden_size, inner};
    const bool gated = activation_is_gated(problem.activation.kind);
    ExpertsSource source;
    source.experts.resize(static_cast<std::size_t>(problem.num_experts));
    for (std::int64_t e = 0; e < problem.num_experts; ++e) {
      ExpertWeights& expert = source.experts[static_cast<std::size_t>(e)];
      const std::int64_t first = e * gate_up.rows;
      expert.up = rows_of(fused.format, gate_up, first + split.up_begin, split.step);
      expert.up.rows = inner;
      expert.up.global_scale = global_of(fused.up_globals, e);
      expert.up_bias = bias_of(fused.gate_up_bias, first + split.up_begin, split.step, inner);
      if (gated) {
        expert.gate = rows_of(fused.format, gate_up, first + split.gate_begin, split.step);
        expert.gate.rows = inner;
        expert.gate.global_scale = global_of(fused.gate_globals, e);
        expert.gate_bias = bias_of(fused.gate_up_bias, first + split.gate_begin, split.step, inner);
      }
      expert.down = rows_of(fused.format, down, e * down.rows, 1);
      expert.down.rows = problem.hidden_size;
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
