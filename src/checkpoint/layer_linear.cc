// SPDX-License-Identifier: Apache-2.0
// Experts stored one linear layer at a time: <module>experts.<e>.<projection>.<suffix>.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/layer_weights.h"
#include "checkpoint/schemes.h"
#include "checkpoint/stored_orders.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

/// One projection of one expert.
struct Linear {
  WeightMatrix matrix{};
  BiasView bias{};
  std::optional<float> input_scale{};
};

/// The names in use and the scheme that the first projection has and all others must have.
struct LayerNaming {
  std::string prefix;  // `<module>experts.`
  const ProjectionNames* projections = nullptr;
  const LinearScheme* scheme = nullptr;
  bool gated = true;
};

bool codes_match(const TensorReader& tensors, const std::string& base, const LinearScheme& scheme) {
  const NamedTensor* codes = tensors.find(cat(base, scheme.codes));
  return codes != nullptr && has_dtype(*codes, scheme.codes_dtype);
}

bool scales_match(const TensorReader& tensors,
                  const std::string& base,
                  const LinearScheme& scheme) {
  if (scheme.scales.empty()) {
    return true;
  }
  const NamedTensor* scales = tensors.find(cat(base, scheme.scales));
  if (scales == nullptr) {
    return false;
  }
  if (!scheme.scales_dtype.has_value()) {
    return order_matches(tensors, base, scheme);
  }
  const bool other_e8m0 = scheme.scales_dtype == DType::kE8m0 &&
                          (has_dtype(*scales, DType::kU8) || has_dtype(*scales, DType::kF32));
  return has_dtype(*scales, *scheme.scales_dtype) || other_e8m0;
}

/// The scheme of one linear layer: codes and scales decide; where no row fits both, the first whose
/// codes fit (its missing scales are then reported by name).
const LinearScheme* match_scheme(const TensorReader& tensors, const std::string& base) {
  const LinearScheme* by_codes = nullptr;
  for (const LinearScheme& scheme : kLinearSchemes) {
    if (!codes_match(tensors, base, scheme)) {
      continue;
    }
    if (scales_match(tensors, base, scheme)) {
      return &scheme;
    }
    by_codes = by_codes == nullptr ? &scheme : by_codes;
  }
  return by_codes;
}

Status no_scheme(const TensorReader& tensors, const std::string& base) {
  for (const ForeignSuffix& foreign : kForeignSuffixes) {
    if (tensors.find(cat(base, foreign.suffix)) != nullptr) {
      return unsupported(cat("tensor ",
                             printable(cat(base, foreign.suffix)),
                             " belongs to ",
                             foreign.what,
                             ", nearest supported: ",
                             foreign.nearest));
    }
  }
  const NamedTensor* weight = tensors.find(cat(base, "weight"));
  if (weight == nullptr) {
    return invalid_argument(cat("missing tensor ", printable(cat(base, "weight"))));
  }
  return unsupported(cat("tensor ",
                         printable(weight->name),
                         " has dtype ",
                         dtype_text(*weight),
                         ", which no naming scheme stores weights in, nearest supported: bf16"));
}

Result<const LinearScheme*> require_scheme(const TensorReader& tensors, const std::string& base) {
  // Most codes are named `weight`; their scale tensor tells them apart.
  const LinearScheme* scheme = match_scheme(tensors, base);
  const bool foreign =
      std::any_of(kForeignSuffixes.begin(), kForeignSuffixes.end(), [&](const ForeignSuffix& row) {
        return tensors.find(cat(base, row.suffix)) != nullptr;
      });
  if (scheme == nullptr || (foreign && !scales_match(tensors, base, *scheme))) {
    return no_scheme(tensors, base);
  }
  return scheme;
}

/// The one f32 of a scalar tensor, shaped [] or [1].
Result<float> read_scalar(const TensorReader& tensors, const std::string& name) {
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* tensor, tensors.require(name));
  const TensorView& view = tensor->view;
  if (view.dtype != DType::kF32 || view.rank > 1 || tensor->bytes != 4) {
    return invalid_argument(cat("tensor ",
                                printable(name),
                                " is ",
                                dtype_name(view.dtype),
                                " ",
                                shape_text(view),
                                ", expected one f32"));
  }
  float value = 0.0F;
  std::memcpy(&value, view.data, sizeof value);
  return value;
}

Result<float> read_global(const TensorReader& tensors,
                          const std::string& base,
                          const LinearScheme& scheme) {
  if (scheme.global.empty()) {
    return 1.0F;
  }
  const std::string name = cat(base, scheme.global);
  MOEKIT_ASSIGN_OR_RETURN(const float stored, read_scalar(tensors, name));
  if (!scheme.reciprocal) {
    return stored;
  }
  if (stored == 0.0F) {
    return invalid_argument(
        cat("tensor ", printable(name), " is 0, and its reciprocal is the global scale"));
  }
  return 1.0F / stored;
}

Result<std::optional<float>> read_input_scale(const TensorReader& tensors,
                                              const std::string& base,
                                              const LinearScheme& scheme) {
  const std::string name = cat(base, scheme.input_scale);
  if (scheme.input_scale.empty() || tensors.find(name) == nullptr) {
    return std::optional<float>();
  }
  MOEKIT_ASSIGN_OR_RETURN(const float stored, read_scalar(tensors, name));
  return std::optional<float>(scheme.reciprocal ? 1.0F / stored : stored);
}

Result<WeightMatrix> read_codes(const LinearSource& source, const LinearScheme& scheme) {
  switch (scheme.order) {
    case StoredOrder::kFp8Blocks:
      return read_fp8_blocks(source, scheme);
    case StoredOrder::kPackQuantized:
      return read_pack_quantized(source, scheme);
    case StoredOrder::kAwq:
      return read_awq(source, scheme);
    case StoredOrder::kGptq:
      return read_gptq(source, scheme);
    case StoredOrder::kRows:
      break;
  }
  return read_rows(source, scheme);
}

Result<BiasView> read_bias(const TensorReader& tensors,
                           const std::string& base,
                           std::int64_t rows) {
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* bias, find_bias(tensors, cat(base, "bias"), {rows}));
  if (bias == nullptr) {
    return BiasView();
  }
  return BiasView{.data = bias->view.data, .dtype = bias->view.dtype, .size = rows};
}

Result<Linear> read_linear(const LayerNaming& naming, const LinearSource& source) {
  const TensorReader& tensors = *source.tensors;
  const std::string& base = source.base;
  MOEKIT_ASSIGN_OR_RETURN(const LinearScheme* scheme, require_scheme(tensors, base));
  if (scheme != naming.scheme) {
    return invalid_argument(cat("mixed formats: ",
                                printable(base),
                                " is ",
                                scheme->name,
                                ", the layer's first expert is ",
                                naming.scheme->name));
  }
  Linear linear;
  MOEKIT_ASSIGN_OR_RETURN(linear.matrix, read_codes(source, *scheme));
  MOEKIT_ASSIGN_OR_RETURN(linear.matrix.global_scale, read_global(tensors, base, *scheme));
  MOEKIT_ASSIGN_OR_RETURN(linear.bias, read_bias(tensors, base, linear.matrix.rows));
  MOEKIT_ASSIGN_OR_RETURN(linear.input_scale, read_input_scale(tensors, base, *scheme));
  linear.matrix.input_scale = linear.input_scale;
  return linear;
}

Result<LayerNaming> find_naming(const TensorReader& tensors, const std::string& prefix) {
  LayerNaming naming{.prefix = prefix};
  const std::string first = cat(prefix, "0.");
  for (const ProjectionNames& names : kProjectionNames) {
    if (tensors.has_prefix(cat(first, names.up, ".")) ||
        tensors.has_prefix(cat(first, names.down, "."))) {
      naming.projections = &names;
      naming.gated = tensors.has_prefix(cat(first, names.gate, "."));
      MOEKIT_ASSIGN_OR_RETURN(naming.scheme, require_scheme(tensors, cat(first, names.up, ".")));
      return naming;
    }
  }
  return invalid_argument(
      cat("expert ", printable(first), " has neither up_proj and down_proj nor w1, w2 and w3"));
}

Status check_shape(const Linear& linear,
                   const std::string& base,
                   std::int64_t rows,
                   std::int64_t cols) {
  if (linear.matrix.rows == rows && linear.matrix.cols == cols) {
    return {};
  }
  return invalid_argument(cat(printable(base),
                              " is [",
                              linear.matrix.rows,
                              ", ",
                              linear.matrix.cols,
                              "], expected [",
                              rows,
                              ", ",
                              cols,
                              "]"));
}

/// Reads one projection, checks its shape and appends its input scale.
Result<Linear> read_projection(LinearSource source,
                               const LayerNaming& naming,
                               std::int64_t expert,
                               std::string_view projection) {
  source.base = cat(naming.prefix, expert, ".", projection, ".");
  return read_linear(naming, source);
}

/// No modelling code has a bias on one side of the activation alone, or in some experts only: all
/// three projections have one where the layer has one anywhere in its first expert.
Status check_biases(const LayerNaming& naming,
                    std::int64_t expert,
                    const ExpertWeights& weights,
                    LayerWeights& layer) {
  struct Role {
    std::string_view projection;
    bool present;
  };

  const ProjectionNames& names = *naming.projections;
  const bool up = weights.up_bias.data != nullptr;
  const std::array roles{Role{names.up, up},
                         Role{names.gate, naming.gated ? weights.gate_bias.data != nullptr : up},
                         Role{names.down, weights.down_bias.data != nullptr}};
  if (expert == 0) {
    layer.gate_up_bias =
        std::any_of(roles.begin(), roles.end(), [](const Role& role) { return role.present; });
    layer.down_bias = layer.gate_up_bias;
  }
  for (const Role& role : roles) {
    const std::string name = cat(naming.prefix, expert, ".", role.projection, ".bias");
    if (layer.gate_up_bias && !role.present) {
      return invalid_argument(
          cat("missing tensor ", printable(name), ", while other projections have a bias"));
    }
    if (!layer.gate_up_bias && role.present) {
      return invalid_argument(
          cat("tensor ", printable(name), " is a bias, while the layer's first expert has none"));
    }
  }
  return {};
}

Status read_expert(const LinearSource& source,
                   const LayerNaming& naming,
                   std::int64_t expert,
                   LayerWeights& layer) {
  const ProjectionNames& names = *naming.projections;
  MOEKIT_ASSIGN_OR_RETURN(const Linear up, read_projection(source, naming, expert, names.up));
  MOEKIT_ASSIGN_OR_RETURN(const Linear down, read_projection(source, naming, expert, names.down));
  if (expert == 0) {
    layer.intermediate_size = up.matrix.rows;
    layer.hidden_size = up.matrix.cols;
  }
  const std::string base = cat(naming.prefix, expert, ".");
  const std::int64_t hidden = layer.hidden_size;
  const std::int64_t inner = layer.intermediate_size;
  MOEKIT_RETURN_IF_ERROR(check_shape(up, cat(base, names.up), inner, hidden));
  MOEKIT_RETURN_IF_ERROR(check_shape(down, cat(base, names.down), hidden, inner));
  ExpertWeights weights;
  weights.up = up.matrix;
  weights.up_bias = up.bias;
  weights.down = down.matrix;
  weights.down_bias = down.bias;
  if (naming.gated) {
    MOEKIT_ASSIGN_OR_RETURN(const Linear gate, read_projection(source, naming, expert, names.gate));
    MOEKIT_RETURN_IF_ERROR(check_shape(gate, cat(base, names.gate), inner, hidden));
    weights.gate = gate.matrix;
    weights.gate_bias = gate.bias;
    if (gate.input_scale.has_value()) {
      layer.input_scales_gate.push_back(*gate.input_scale);
    }
  }
  MOEKIT_RETURN_IF_ERROR(check_biases(naming, expert, weights, layer));
  if (up.input_scale.has_value()) {
    layer.input_scales_up.push_back(*up.input_scale);
  }
  if (down.input_scale.has_value()) {
    layer.input_scales_down.push_back(*down.input_scale);
  }
  layer.experts.push_back(weights);
  return {};
}

/// Input scales that only some experts have say nothing about the layer; w4a16 needs none.
void drop_partial(std::vector<float>& scales, std::int64_t num_experts) {
  if (static_cast<std::int64_t>(scales.size()) != num_experts) {
    scales.clear();
  }
}

}  // namespace

Result<LayerWeights> read_linear_experts(const TensorReader& tensors,
                                         const ModelConfig& config,
                                         const std::string& prefix,
                                         std::int64_t num_experts) {
  MOEKIT_ASSIGN_OR_RETURN(const LayerNaming naming, find_naming(tensors, prefix));
  LayerWeights layer;
  layer.storage = std::make_shared<LayerStorage>();
  const LinearSource source{.tensors = &tensors, .config = &config, .storage = layer.storage.get()};
  layer.scheme = naming.scheme->name;
  layer.prefix = prefix;
  layer.format = naming.scheme->format;
  layer.gated = naming.gated;
  for (std::int64_t expert = 0; expert < num_experts; ++expert) {
    MOEKIT_RETURN_IF_ERROR(read_expert(source, naming, expert, layer));
  }
  drop_partial(layer.input_scales_gate, num_experts);
  drop_partial(layer.input_scales_up, num_experts);
  drop_partial(layer.input_scales_down, num_experts);
  return layer;
}

}  // namespace moekit::checkpoint
