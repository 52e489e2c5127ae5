// SPDX-License-Identifier: Apache-2.0

// One rank's weights as views of the whole layer's.

#include "moekit/experts.h"

#include "base/border.h"
#include "base/text.h"

namespace moekit {
namespace {

using base::cat;

const void* advanced(const void* pointer, std::int64_t bytes) {
  return pointer == nullptr ? nullptr : static_cast<const std::byte*>(pointer) + bytes;
}

const std::uint8_t* advanced(const std::uint8_t* pointer, std::int64_t bytes) {
  return pointer == nullptr ? nullptr : pointer + bytes;
}

WeightMatrix rows_of(const WeightMatrix& whole, const ColumnRange& range) {
  WeightMatrix part = whole;
  part.rows = range.end - range.begin;
  part.codes = advanced(whole.codes, range.begin * whole.row_stride_bytes);
  // Blocks of rows share a scale: the shard begins inside one.
  const std::int64_t group_rows = format_info(whole.format).group_rows;
  const std::int64_t first = whole.group_row_offset + range.begin;
  part.scales = advanced(whole.scales, first / group_rows * whole.scale_row_stride_bytes);
  part.group_row_offset = first % group_rows;
  part.zero_points = advanced(whole.zero_points, range.begin * whole.zero_point_row_stride);
  return part;
}

WeightMatrix columns_of(const WeightMatrix& whole, const ColumnRange& range) {
  WeightMatrix part = whole;
  part.cols = range.end - range.begin;
  part.codes = advanced(whole.codes,
                        whole.col_stride_elems != 1
                            ? range.begin * whole.col_stride_elems * 2  // transposed bf16
                            : code_row_bytes(whole.format, range.begin));
  const std::int64_t group = scale_group_size(whole);
  if (group != 0) {
    const std::int64_t first = whole.group_offset + range.begin;
    part.scales = advanced(whole.scales, first / group * scale_elem_bytes(whole));
    part.zero_points = advanced(whole.zero_points, first / group);
    part.group_offset = first % group;
  }
  return part;
}

BiasView bias_of(const BiasView& whole, const ColumnRange& range) {
  BiasView part = whole;
  part.data = advanced(whole.data, range.begin * whole.stride * dtype_bits(whole.dtype) / 8);
  part.size = whole.data == nullptr ? 0 : range.end - range.begin;
  return part;
}

Status check_shape(const WeightMatrix& matrix,
                   std::string_view name,
                   std::int64_t rows,
                   std::int64_t cols) {
  if (matrix.rows != rows || matrix.cols != cols) {
    return invalid_argument(cat(name,
                                " has shape [",
                                matrix.rows,
                                ", ",
                                matrix.cols,
                                "], the whole layer's is [",
                                rows,
                                ", ",
                                cols,
                                "]"));
  }
  return {};
}

Status check_whole_expert(const Problem& layer, const ExpertWeights& expert) {
  const std::int64_t inner = layer.intermediate_size;
  if (activation_is_gated(layer.activation.kind)) {
    MOEKIT_RETURN_IF_ERROR(check_shape(expert.gate, "gate", inner, layer.hidden_size));
  }
  MOEKIT_RETURN_IF_ERROR(check_shape(expert.up, "up", inner, layer.hidden_size));
  return check_shape(expert.down, "down", layer.hidden_size, inner);
}

ExpertWeights part_of(const ExpertWeights& whole,
                      const Problem& layer,
                      const Shard& shard,
                      const ColumnRange& columns) {
  ExpertWeights part = whole;
  if (activation_is_gated(layer.activation.kind)) {
    part.gate = rows_of(whole.gate, columns);
  }
  part.up = rows_of(whole.up, columns);
  part.down = columns_of(whole.down, columns);
  part.gate_bias = bias_of(whole.gate_bias, columns);
  part.up_bias = bias_of(whole.up_bias, columns);
  if (shard.tp_rank != 0) {
    part.down_bias = {};  // counted once, on rank 0
  }
  return part;
}

}  // namespace

Result<ExpertsSource> shard_source(const Problem& layer,
                                   const Shard& shard,
                                   const ExpertsSource& source) noexcept {
  return base::at_border([&]() -> Result<ExpertsSource> {
    const auto num_experts = static_cast<std::int64_t>(source.experts.size());
    if (num_experts != layer.num_experts) {
      return invalid_argument(
          cat("source has ", num_experts, " experts, the whole layer ", layer.num_experts));
    }
    MOEKIT_ASSIGN_OR_RETURN(const ColumnRange columns, shard_columns(layer, shard));
    MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::int64_t> experts, shard_experts(layer, shard));
    ExpertsSource part;
    part.experts.reserve(experts.size());
    for (const std::int64_t id : experts) {
      const ExpertWeights& whole = source.experts[static_cast<std::size_t>(id)];
      MOEKIT_RETURN_IF_ERROR(check_whole_expert(layer, whole).with_context(cat("expert ", id)));
      part.experts.push_back(part_of(whole, layer, shard, columns));
    }
    return part;
  });
}

}  // namespace moekit
