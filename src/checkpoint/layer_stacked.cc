// SPDX-License-Identifier: Apache-2.0
// Experts stored in one tensor per role: gpt-oss and transformers 5's fused form. Gate and up, even
// interleaved, become strided views; nothing is copied.
#include <utility>

#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/layer_weights.h"
#include "checkpoint/model_facts.h"
#include "checkpoint/schemes.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

/// One stacked tensor: matrices [rows, cols] of all experts, in the terms of the format.
struct Stack {
  WeightMatrix first{};  // expert 0
  std::int64_t num_experts = 0;
  std::int64_t expert_bytes = 0;
  std::int64_t expert_scale_bytes = 0;
};

const std::byte* advance(const void* start, std::int64_t bytes) {
  return start == nullptr ? nullptr : static_cast<const std::byte*>(start) + bytes;
}

Status wrong_rank(const NamedTensor& tensor, std::string_view expected) {
  return invalid_argument(cat("tensor ",
                              printable(tensor.name),
                              " has shape ",
                              shape_text(tensor.view),
                              ", expected ",
                              expected));
}

/// [E, N, groups, 16] codes and [E, N, groups] scales. `cols` is K where the configuration tells
/// it: the last group may be padded.
Result<Stack> read_blocks(const TensorReader& tensors,
                          const std::string& codes_name,
                          const std::string& scales_name,
                          std::optional<std::int64_t> cols) {
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* codes, tensors.require(codes_name));
  const TensorView& view = codes->view;
  if (view.rank != 4 || view.dtype != DType::kU8 || view.shape[3] != 16) {
    return wrong_rank(*codes, "[experts, rows, groups, 16] of u8");
  }
  MOEKIT_ASSIGN_OR_RETURN(
      const NamedTensor* scales,
      tensors.require(scales_name, DType::kE8m0, {view.shape[0], view.shape[1], view.shape[2]}));
  Stack stack;
  stack.num_experts = view.shape[0];
  WeightMatrix& matrix = stack.first;
  matrix.format = Format::kMxfp4;
  matrix.rows = view.shape[1];
  matrix.cols = view.shape[2] * 32;
  if (cols.has_value() && *cols<matrix.cols&& * cols + 32> matrix.cols) {
    matrix.cols = *cols;
  }
  matrix.codes = view.data;
  matrix.row_stride_bytes = view.shape[2] * 16;
  matrix.scales = scales->view.data;
  matrix.scale_row_stride_bytes = view.shape[2];
  stack.expert_bytes = matrix.rows * matrix.row_stride_bytes;
  stack.expert_scale_bytes = matrix.rows * matrix.scale_row_stride_bytes;
  return stack;
}

/// [E, N, K], or [E, K, N] when transposed.
Result<Stack> read_plain(const TensorReader& tensors, const std::string& name, bool transposed) {
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* codes, tensors.require(name));
  const TensorView& view = codes->view;
  if (view.rank != 3) {
    return wrong_rank(*codes, "three dimensions");
  }
  if (view.dtype != DType::kBf16) {
    return unsupported(cat("tensor ",
                           printable(name),
                           " has dtype ",
                           dtype_name(view.dtype),
                           ", nearest supported: bf16"));
  }
  Stack stack;
  stack.num_experts = view.shape[0];
  stack.expert_bytes = 2 * view.shape[1] * view.shape[2];
  WeightMatrix& matrix = stack.first;
  matrix.codes = view.data;
  matrix.rows = transposed ? view.shape[2] : view.shape[1];
  matrix.cols = transposed ? view.shape[1] : view.shape[2];
  matrix.row_stride_bytes = transposed ? 2 : 2 * view.shape[2];
  matrix.col_stride_elems = transposed ? view.shape[2] : 1;
  return stack;
}

Result<Stack> read_stack(const TensorReader& tensors,
                         const StackedScheme& scheme,
                         const std::string& codes_name,
                         const std::string& scales_name,
                         std::optional<std::int64_t> cols) {
  return scheme.format == Format::kMxfp4 ? read_blocks(tensors, codes_name, scales_name, cols)
                                         : read_plain(tensors, codes_name, scheme.transposed);
}

WeightMatrix expert_matrix(const Stack& stack, std::int64_t expert) {
  WeightMatrix matrix = stack.first;
  matrix.codes = advance(matrix.codes, expert * stack.expert_bytes);
  matrix.scales = advance(matrix.scales, expert * stack.expert_scale_bytes);
  return matrix;
}

/// Every `step`-th of `count` rows from `first`.
WeightMatrix select_rows(WeightMatrix matrix,
                         std::int64_t first,
                         std::int64_t step,
                         std::int64_t count) {
  matrix.codes = advance(matrix.codes, first * matrix.row_stride_bytes);
  matrix.scales = advance(matrix.scales, first * matrix.scale_row_stride_bytes);
  matrix.row_stride_bytes *= step;
  matrix.scale_row_stride_bytes *= step;
  matrix.rows = count;
  return matrix;
}

/// `count` elements of one expert's bias, every `step`-th from `first`.
BiasView select_bias(const NamedTensor* tensor,
                     std::int64_t expert,
                     std::int64_t first,
                     std::int64_t step,
                     std::int64_t count) {
  if (tensor == nullptr) {
    return {};
  }
  const TensorView& view = tensor->view;
  const std::int64_t start = expert * view.shape[1] + first;
  return {.data = advance(view.data, start * (dtype_bits(view.dtype) / 8)),
          .dtype = view.dtype,
          .size = count,
          .stride = step};
}

/// Told apart by shape: with gate_up [E, a, b] and down [E, c, d], a = 2 d and b = c when stored as
/// [N, K]; b = 2 c and a = d when transposed. Both cannot hold.
bool is_transposed(const TensorView& gate_up, const TensorView& down) {
  return gate_up.shape[2] == 2 * down.shape[1] && gate_up.shape[1] == down.shape[2];
}

Result<const StackedScheme*> match_scheme(const TensorReader& tensors,
                                          const std::string& prefix,
                                          const ModelConfig& config) {
  const ModelFacts* facts = find_model_facts(config.model_type);
  const std::string_view model_type = facts == nullptr ? std::string_view() : facts->model_type;
  for (const StackedScheme& scheme : kStackedSchemes) {
    if ((!scheme.model_type.empty() && scheme.model_type != model_type) ||
        !fits_module(scheme, prefix)) {
      continue;
    }
    const NamedTensor* gate_up = tensors.find(cat(prefix, scheme.gate_up_codes));
    if (gate_up == nullptr) {
      continue;
    }
    if (scheme.gate_up_scales.empty()) {
      MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* down,
                              tensors.require(cat(prefix, scheme.down_codes)));
      if (is_transposed(gate_up->view, down->view) != scheme.transposed) {
        continue;
      }
    }
    if (scheme.gate_up_bias.empty()) {
      return &scheme;
    }
    const bool down_bias = tensors.find(cat(prefix, scheme.down_bias)) != nullptr;
    const bool gate_up_bias = tensors.find(cat(prefix, scheme.gate_up_bias)) != nullptr;
    // No modelling code has a bias on one side of the activation alone.
    if (gate_up_bias != down_bias) {
      const std::string_view absent = down_bias ? scheme.gate_up_bias : scheme.down_bias;
      return invalid_argument(
          cat("missing tensor ",
              printable(cat(prefix, absent)),
              ", while ",
              printable(cat(prefix, down_bias ? scheme.down_bias : scheme.gate_up_bias)),
              " exists"));
    }
    if (scheme.bias_required && !gate_up_bias) {
      return unsupported(cat("missing tensor ",
                             printable(cat(prefix, scheme.gate_up_bias)),
                             ": transposed or packed stacked experts without biases have no known "
                             "row order, nearest supported: gpt-oss"));
    }
    return &scheme;
  }
  return invalid_argument(cat("no stacked expert tensors below ", printable(prefix)));
}

Status check_stacks(const Stack& gate_up, const Stack& down, const std::string& prefix) {
  const WeightMatrix& fused = gate_up.first;
  const WeightMatrix& second = down.first;
  if (gate_up.num_experts != down.num_experts || gate_up.num_experts < 1 || fused.rows % 2 != 0 ||
      second.cols != fused.rows / 2 || second.rows != fused.cols) {
    return invalid_argument(cat(printable(prefix),
                                " gate_up is [",
                                gate_up.num_experts,
                                ", ",
                                fused.rows,
                                ", ",
                                fused.cols,
                                "], down [",
                                down.num_experts,
                                ", ",
                                second.rows,
                                ", ",
                                second.cols,
                                "], expected [E, 2 I, H] and [E, H, I]"));
  }
  if (gate_up.num_experts > kMaxExperts) {
    return unsupported(
        cat(printable(prefix), " has ", gate_up.num_experts, " experts, at most ", kMaxExperts));
  }
  return {};
}

/// First gate row, first up row and the step between rows of one kind.
struct RowSelection {
  std::int64_t gate = 0;
  std::int64_t up = 0;
  std::int64_t step = 1;
};

RowSelection select(RowOrder order, std::int64_t intermediate_size) {
  switch (order) {
    case RowOrder::kInterleaved:
      return {.gate = 0, .up = 1, .step = 2};
    case RowOrder::kUpGate:
      return {.gate = intermediate_size, .up = 0, .step = 1};
    case RowOrder::kGateUp:
      break;
  }
  return {.gate = 0, .up = intermediate_size, .step = 1};
}

Status check_apart(const Stack& stack, std::string_view name, const Stack& down) {
  const WeightMatrix& matrix = stack.first;
  if (stack.num_experts != down.num_experts || stack.num_experts < 1 ||
      matrix.rows != down.first.cols || matrix.cols != down.first.rows) {
    return invalid_argument(cat(printable(name),
                                " is [",
                                stack.num_experts,
                                ", ",
                                matrix.rows,
                                ", ",
                                matrix.cols,
                                "], down [",
                                down.num_experts,
                                ", ",
                                down.first.rows,
                                ", ",
                                down.first.cols,
                                "], expected [E, I, H] and [E, H, I]"));
  }
  return {};
}

/// gate, up and down each in a tensor of their own, without biases.
Result<LayerWeights> read_apart(const TensorReader& tensors,
                                const std::string& prefix,
                                const StackedScheme& scheme) {
  const std::string gate_name = cat(prefix, scheme.gate_codes);
  const std::string up_name = cat(prefix, scheme.gate_up_codes);
  MOEKIT_ASSIGN_OR_RETURN(const Stack gate, read_plain(tensors, gate_name, scheme.transposed));
  MOEKIT_ASSIGN_OR_RETURN(const Stack up, read_plain(tensors, up_name, scheme.transposed));
  MOEKIT_ASSIGN_OR_RETURN(const Stack down,
                          read_plain(tensors, cat(prefix, scheme.down_codes), scheme.transposed));
  MOEKIT_RETURN_IF_ERROR(check_apart(gate, gate_name, down));
  MOEKIT_RETURN_IF_ERROR(check_apart(up, up_name, down));
  if (up.num_experts > kMaxExperts) {
    return unsupported(
        cat(printable(prefix), " has ", up.num_experts, " experts, at most ", kMaxExperts));
  }
  LayerWeights layer;
  layer.scheme = scheme.name;
  layer.prefix = prefix;
  layer.format = scheme.format;
  layer.row_order = scheme.row_order;
  layer.hidden_size = up.first.cols;
  layer.intermediate_size = up.first.rows;
  for (std::int64_t expert = 0; expert < up.num_experts; ++expert) {
    ExpertWeights weights;
    weights.gate = expert_matrix(gate, expert);
    weights.up = expert_matrix(up, expert);
    weights.down = expert_matrix(down, expert);
    layer.experts.push_back(weights);
  }
  return layer;
}

}  // namespace

Result<LayerWeights> read_stacked_experts(const TensorReader& tensors,
                                          const std::string& prefix,
                                          const ModelConfig& config) {
  MOEKIT_ASSIGN_OR_RETURN(const StackedScheme* scheme, match_scheme(tensors, prefix, config));
  if (!scheme->gate_codes.empty()) {
    return read_apart(tensors, prefix, *scheme);
  }
  const auto size_of = [](const MaybeFact<std::int64_t>& fact) {
    return fact.has_value() ? std::optional(fact->value) : std::nullopt;
  };
  MOEKIT_ASSIGN_OR_RETURN(const Stack gate_up,
                          read_stack(tensors,
                                     *scheme,
                                     cat(prefix, scheme->gate_up_codes),
                                     cat(prefix, scheme->gate_up_scales),
                                     size_of(config.hidden_size)));
  // Half the rows of gate_up are I, whatever padding down's last group has.
  const std::int64_t inner = gate_up.first.rows / 2;
  MOEKIT_ASSIGN_OR_RETURN(const Stack down,
                          read_stack(tensors,
                                     *scheme,
                                     cat(prefix, scheme->down_codes),
                                     cat(prefix, scheme->down_scales),
                                     inner));
  MOEKIT_RETURN_IF_ERROR(check_stacks(gate_up, down, prefix));
  LayerWeights layer;
  layer.scheme = scheme->name;
  layer.prefix = scheme->gate_up_codes.starts_with("experts.") ? prefix + "experts." : prefix;
  layer.format = scheme->format;
  layer.row_order = scheme->row_order;
  layer.hidden_size = gate_up.first.cols;
  layer.intermediate_size = inner;
  MOEKIT_ASSIGN_OR_RETURN(
      const NamedTensor* gate_up_bias,
      find_bias(
          tensors, cat(prefix, scheme->gate_up_bias), {gate_up.num_experts, gate_up.first.rows}));
  MOEKIT_ASSIGN_OR_RETURN(
      const NamedTensor* down_bias,
      find_bias(
          tensors, cat(prefix, scheme->down_bias), {gate_up.num_experts, gate_up.first.cols}));
  layer.gate_up_bias = gate_up_bias != nullptr;
  layer.down_bias = down_bias != nullptr;
  const RowSelection rows = select(scheme->row_order, inner);
  for (std::int64_t expert = 0; expert < gate_up.num_experts; ++expert) {
    const WeightMatrix fused = expert_matrix(gate_up, expert);
    layer.experts.push_back(
        {.gate = select_rows(fused, rows.gate, rows.step, inner),
         .up = select_rows(fused, rows.up, rows.step, inner),
         .down = expert_matrix(down, expert),
         .gate_bias = select_bias(gate_up_bias, expert, rows.gate, rows.step, inner),
         .up_bias = select_bias(gate_up_bias, expert, rows.up, rows.step, inner),
         .down_bias = select_bias(down_bias, expert, 0, 1, layer.hidden_size)});
  }
  return layer;
}

}  // namespace moekit::checkpoint
