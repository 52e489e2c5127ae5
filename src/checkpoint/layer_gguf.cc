// SPDX-License-Identifier: Apache-2.0
// Experts of a GGUF: one tensor per projection, ne = [K, N, E], codes and scales in one block. The
// blocks are taken apart into moekit's order (low nibble = even k, scales in rows of their own),
// which costs one copy of the layer; BF16 is viewed in place.
#include <cstring>
#include <utility>

#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/layer_weights.h"
#include "checkpoint/model_facts.h"
#include "checkpoint/schemes.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

/// A block type: `groups` scales, then as many runs of codes.
struct BlockScheme {
  std::string_view scheme;
  std::string_view type;  // GGUF's name
  Format format;
  std::int64_t block_elems;
  std::int64_t groups;
};

// Within a run of n elements byte j holds element j low and element j + n / 2 high.
constexpr std::array kBlockSchemes{
    BlockScheme{"gguf_mxfp4", "MXFP4", Format::kMxfp4, 32, 1},
    BlockScheme{"gguf_nvfp4", "NVFP4", Format::kNvfp4, 64, 4},
};

/// One projection of all experts.
struct BlockStack {
  const BlockScheme* blocks = nullptr;  // null: bf16
  WeightMatrix first{};                 // of expert 0
  std::int64_t num_experts = 0;
  std::int64_t expert_bytes = 0;
  std::int64_t expert_scale_bytes = 0;
};

/// `bytes` bytes of a run in halves order, as many in pairs order.
void pair_nibbles(const std::byte* run, std::int64_t bytes, std::byte* pairs) {
  constexpr std::byte kLow{0x0F};
  const std::int64_t half = bytes / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const std::byte even = run[2 * i];
    const std::byte odd = run[2 * i + 1];
    pairs[i] = (even & kLow) | (odd << 4);
    pairs[half + i] = (even >> 4) | (odd & ~kLow);
  }
}

/// ggml decodes the scale byte 0x7F, a NaN in E4M3, as 0: its files may hold it in dead groups.
std::byte scale_byte(std::byte stored, Format format) {
  constexpr std::byte kNan{0x7F};
  return format == Format::kNvfp4 && stored == kNan ? std::byte{0} : stored;
}

void take_apart(const BlockScheme& scheme,
                std::span<const std::byte> blocks,
                std::byte* codes,
                std::byte* scales) {
  const std::int64_t run_bytes = scheme.block_elems / scheme.groups / 2;
  const std::byte* at = blocks.data();
  const std::byte* const end = at + blocks.size();
  while (at != end) {
    for (std::int64_t group = 0; group < scheme.groups; ++group) {
      *scales++ = scale_byte(at[group], scheme.format);
    }
    at += scheme.groups;
    for (std::int64_t group = 0; group < scheme.groups; ++group) {
      pair_nibbles(at, run_bytes, codes);
      at += run_bytes;
      codes += run_bytes;
    }
  }
}

Result<BlockStack> read_blocks(const BlockScheme& scheme,
                               const TensorEntry& entry,
                               LayerStorage& storage) {
  if (entry.shape.size() != 3) {
    return invalid_argument(cat("tensor ",
                                printable(entry.name),
                                " has shape [",
                                base::join(entry.shape),
                                "], expected [experts, rows, columns]"));
  }
  BlockStack stack{.blocks = &scheme};
  stack.num_experts = entry.shape[0];
  WeightMatrix& matrix = stack.first;
  matrix.format = scheme.format;
  matrix.rows = entry.shape[1];
  matrix.cols = entry.shape[2];
  matrix.row_stride_bytes = matrix.cols / 2;
  matrix.scale_row_stride_bytes = matrix.cols / scheme.block_elems * scheme.groups;
  stack.expert_bytes = matrix.rows * matrix.row_stride_bytes;
  stack.expert_scale_bytes = matrix.rows * matrix.scale_row_stride_bytes;
  std::byte* codes = storage.take(stack.num_experts * stack.expert_bytes);
  std::byte* scales = storage.take(stack.num_experts * stack.expert_scale_bytes);
  take_apart(scheme, entry.bytes, codes, scales);
  matrix.codes = codes;
  matrix.scales = scales;
  return stack;
}

Result<BlockStack> read_plain(const TensorReader& tensors, const std::string& name) {
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* tensor, tensors.require(name));
  const TensorView& view = tensor->view;
  if (view.dtype != DType::kBf16 || view.rank != 3) {
    return unsupported(cat("tensor ",
                           printable(name),
                           " is ",
                           dtype_text(*tensor),
                           " ",
                           shape_text(view),
                           ", nearest supported: bf16 [experts, rows, columns]"));
  }
  BlockStack stack;
  stack.num_experts = view.shape[0];
  stack.first.rows = view.shape[1];
  stack.first.cols = view.shape[2];
  stack.first.codes = view.data;
  stack.first.row_stride_bytes = 2 * view.shape[2];
  stack.expert_bytes = stack.first.rows * stack.first.row_stride_bytes;
  return stack;
}

Result<BlockStack> read_stack(const Checkpoint::State& state,
                              const std::string& name,
                              LayerStorage& storage) {
  const TensorReader tensors(state);
  const auto found = state.blocks.find(name);
  if (found == state.blocks.end()) {
    return read_plain(tensors, name);
  }
  for (const BlockScheme& scheme : kBlockSchemes) {
    if (scheme.type == found->second.dtype->name) {
      return read_blocks(scheme, found->second, storage);
    }
  }
  return unsupported(cat("tensor ",
                         printable(name),
                         " has GGUF type ",
                         found->second.dtype->name,
                         ", nearest supported: MXFP4, NVFP4, BF16"));
}

/// The f32 of every expert behind `name`, or nothing.
Result<std::vector<float>> read_floats(const TensorReader& tensors,
                                       const std::string& name,
                                       std::int64_t num_experts) {
  if (tensors.find(name) == nullptr) {
    return std::vector<float>();
  }
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* tensor,
                          tensors.require(name, DType::kF32, {num_experts}));
  const auto* values = static_cast<const float*>(tensor->view.data);
  return std::vector<float>(values, values + num_experts);
}

/// One projection with everything that belongs to it.
struct Projection {
  BlockStack stack{};
  std::vector<float> globals{};
  std::vector<float> input_scales{};
  const NamedTensor* bias = nullptr;
};

Result<Projection> read_projection(const Checkpoint::State& state,
                                   const std::string& name,
                                   LayerStorage& storage) {
  const TensorReader tensors(state);
  // `blk.L.ffn_up_exps.`
  const std::string base = name.substr(0, name.size() - std::string_view("weight").size());
  Projection projection;
  MOEKIT_ASSIGN_OR_RETURN(projection.stack, read_stack(state, name, storage));
  const std::int64_t experts = projection.stack.num_experts;
  MOEKIT_ASSIGN_OR_RETURN(projection.globals, read_floats(tensors, cat(base, "scale"), experts));
  MOEKIT_ASSIGN_OR_RETURN(projection.input_scales,
                          read_floats(tensors, cat(base, "input_scale"), experts));
  MOEKIT_ASSIGN_OR_RETURN(
      projection.bias,
      find_bias(tensors, cat(base, "bias"), {experts, projection.stack.first.rows}));
  return projection;
}

/// `rows` rows of one expert's matrix from `first` on.
WeightMatrix expert_matrix(const Projection& projection,
                           std::int64_t expert,
                           std::int64_t first,
                           std::int64_t rows) {
  const BlockStack& stack = projection.stack;
  WeightMatrix matrix = stack.first;
  matrix.rows = rows;
  matrix.codes = static_cast<const std::byte*>(matrix.codes) + expert * stack.expert_bytes +
                 first * matrix.row_stride_bytes;
  if (matrix.scales != nullptr) {
    matrix.scales = static_cast<const std::byte*>(matrix.scales) +
                    expert * stack.expert_scale_bytes + first * matrix.scale_row_stride_bytes;
  }
  if (!projection.globals.empty()) {
    matrix.global_scale = projection.globals[static_cast<std::size_t>(expert)];
  }
  return matrix;
}

BiasView expert_bias(const Projection& projection,
                     std::int64_t expert,
                     std::int64_t first,
                     std::int64_t rows) {
  if (projection.bias == nullptr) {
    return {};
  }
  const TensorView& view = projection.bias->view;
  const std::int64_t start = expert * view.shape[1] + first;
  return {.data = static_cast<const std::byte*>(view.data) + start * (dtype_bits(view.dtype) / 8),
          .dtype = view.dtype,
          .size = rows};
}

Status check_stack(const Projection& projection,
                   std::string_view name,
                   const Projection& down,
                   std::int64_t rows,
                   std::int64_t cols) {
  const BlockStack& stack = projection.stack;
  if (stack.blocks != down.stack.blocks) {
    const auto shown = [](const BlockStack& of) {
      return of.blocks == nullptr ? "BF16" : of.blocks->type;
    };
    return invalid_argument(cat(
        "mixed formats: ", name, " is ", shown(stack), ", ", kGgufDown, " is ", shown(down.stack)));
  }
  if (stack.num_experts != down.stack.num_experts || stack.first.rows != rows ||
      stack.first.cols != cols) {
    return invalid_argument(cat(name,
                                " is [",
                                stack.num_experts,
                                ", ",
                                stack.first.rows,
                                ", ",
                                stack.first.cols,
                                "], expected [",
                                down.stack.num_experts,
                                ", ",
                                rows,
                                ", ",
                                cols,
                                "]"));
  }
  if ((projection.bias == nullptr) != (down.bias == nullptr)) {
    return invalid_argument(cat(name, " and ", kGgufDown, ": only one of them has a bias"));
  }
  return {};
}

/// The tensors of a layer: gate and up apart, or `up` alone with gate and up rows (`fused`).
struct GgufExperts {
  Projection gate{};
  Projection up{};
  Projection down{};
  bool fused = false;
  bool gated = true;
};

Result<GgufExperts> read_experts(const Checkpoint::State& state,
                                 const std::string& prefix,
                                 LayerStorage& storage) {
  const TensorReader tensors(state);
  GgufExperts experts;
  experts.fused = tensors.find(cat(prefix, kGgufGateUp)) != nullptr;
  experts.gated = experts.fused || tensors.find(cat(prefix, kGgufGate)) != nullptr;
  const std::string_view up_name = experts.fused ? kGgufGateUp : kGgufUp;
  MOEKIT_ASSIGN_OR_RETURN(experts.up, read_projection(state, cat(prefix, up_name), storage));
  MOEKIT_ASSIGN_OR_RETURN(experts.down, read_projection(state, cat(prefix, kGgufDown), storage));
  const ModelFacts* facts = find_model_facts(state.config.model_type);
  if (facts != nullptr && facts->own_router_input && experts.down.stack.blocks == nullptr) {
    experts.down.globals.clear();  // Gemma-4's scale per expert, which the router applies
  }
  const BlockStack& down = experts.down.stack;
  if (down.num_experts < 1 || down.num_experts > kMaxExperts) {
    return unsupported(
        cat(printable(prefix), " has ", down.num_experts, " experts, expected 1 to ", kMaxExperts));
  }
  const std::int64_t inner = down.first.cols;
  MOEKIT_RETURN_IF_ERROR(check_stack(
      experts.up, up_name, experts.down, experts.fused ? 2 * inner : inner, down.first.rows));
  if (experts.gated && !experts.fused) {
    MOEKIT_ASSIGN_OR_RETURN(experts.gate, read_projection(state, cat(prefix, kGgufGate), storage));
    MOEKIT_RETURN_IF_ERROR(
        check_stack(experts.gate, kGgufGate, experts.down, inner, down.first.rows));
  }
  return experts;
}

}  // namespace

bool has_gguf_experts(const TensorReader& tensors, const std::string& prefix) {
  return tensors.find(cat(prefix, kGgufUp)) != nullptr ||
         tensors.find(cat(prefix, kGgufGateUp)) != nullptr;
}

Result<LayerWeights> read_gguf_experts(const Checkpoint::State& state, const std::string& prefix) {
  LayerWeights layer;
  layer.storage = std::make_shared<LayerStorage>();
  MOEKIT_ASSIGN_OR_RETURN(const GgufExperts experts, read_experts(state, prefix, *layer.storage));
  const BlockStack& down = experts.down.stack;
  const std::int64_t inner = down.first.cols;
  layer.scheme = down.blocks == nullptr ? "gguf_bf16" : down.blocks->scheme;
  layer.prefix = prefix;
  layer.format = down.first.format;
  layer.gated = experts.gated;
  layer.hidden_size = down.first.rows;
  layer.intermediate_size = inner;
  layer.gate_up_bias = experts.up.bias != nullptr;
  layer.down_bias = experts.down.bias != nullptr;
  const Projection& gate = experts.fused ? experts.up : experts.gate;
  const std::int64_t up_first = experts.fused ? inner : 0;
  for (std::int64_t expert = 0; expert < down.num_experts; ++expert) {
    ExpertWeights weights;
    if (experts.gated) {
      weights.gate = expert_matrix(gate, expert, 0, inner);
      weights.gate_bias = expert_bias(gate, expert, 0, inner);
    }
    weights.up = expert_matrix(experts.up, expert, up_first, inner);
    weights.up_bias = expert_bias(experts.up, expert, up_first, inner);
    weights.down = expert_matrix(experts.down, expert, 0, layer.hidden_size);
    weights.down_bias = expert_bias(experts.down, expert, 0, layer.hidden_size);
    layer.experts.push_back(weights);
  }
  layer.input_scales_gate = experts.gated ? gate.input_scales : std::vector<float>();
  layer.input_scales_up = experts.up.input_scales;
  layer.input_scales_down = experts.down.input_scales;
  return layer;
}

}  // namespace moekit::checkpoint
