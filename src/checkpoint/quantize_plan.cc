// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/quantize_plan.h"

#include <array>
#include <utility>

#include "base/text.h"
#include "checkpoint/json_text.h"
#include "checkpoint/layer_weights.h"
#include "checkpoint/schemes.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

struct Role {
  std::string_view name;
  const WeightMatrix* matrix;
  const BiasView* bias;
};

std::array<Role, 3> roles(const ExpertWeights& expert, const ProjectionNames& names) {
  return {Role{names.gate, &expert.gate, &expert.gate_bias},
          Role{names.up, &expert.up, &expert.up_bias},
          Role{names.down, &expert.down, &expert.down_bias}};
}

/// Experts that have tensors of their own keep their names.
void plan_linear(const Checkpoint::State& state, const CheckpointLayer& layer, QuantizePlan& plan) {
  const TensorReader tensors(state);
  const auto find_names = [&]() -> const ProjectionNames& {
    for (const ProjectionNames& names : kProjectionNames) {
      if (tensors.has_prefix(cat(layer.prefix, "0.", names.up, "."))) {
        return names;
      }
    }
    return kProjectionNames.front();
  };
  const ProjectionNames& names = find_names();
  for (std::size_t e = 0; e < layer.source.experts.size(); ++e) {
    for (const Role& role : roles(layer.source.experts[e], names)) {
      if (role.matrix->codes != nullptr) {
        const std::string base = cat(layer.prefix, e, ".", role.name, ".");
        plan.replacements[base + "weight"].matrices.push_back({base, *role.matrix});
        ++plan.num_matrices;
      }
    }
  }
}

/// Stacked experts become one linear layer each, gate and up apart, under the usual names.
void plan_stacked(const StackedScheme& scheme,
                  const std::string& module,
                  const CheckpointLayer& layer,
                  QuantizePlan& plan) {
  const ProjectionNames& names = kProjectionNames.front();
  for (std::size_t e = 0; e < layer.source.experts.size(); ++e) {
    for (const Role& role : roles(layer.source.experts[e], names)) {
      const bool is_down = role.name == names.down;
      const std::string base = cat(module, "experts.", e, ".", role.name, ".");
      plan.replacements[cat(module, is_down ? scheme.down_codes : scheme.gate_up_codes)]
          .matrices.push_back({base, *role.matrix});
      ++plan.num_matrices;
      if (role.bias->data != nullptr) {
        plan.replacements[cat(module, is_down ? scheme.down_bias : scheme.gate_up_bias)]
            .biases.push_back({base + "bias", *role.bias});
      }
    }
  }
}

}  // namespace

Result<QuantizePlan> plan_quantization(const Checkpoint::State& state) {
  QuantizePlan plan;
  for (const auto& [layer_id, module] : state.modules) {
    MOEKIT_ASSIGN_OR_RETURN(const CheckpointLayer layer, read_layer(state, layer_id));
    if (layer.scheme != "bf16") {
      return unsupported(cat("layer ",
                             layer_id,
                             " has experts of scheme ",
                             layer.scheme,
                             ", nearest supported: bf16 in safetensors"));
    }
    const std::string& prefix = *module.prefixes.begin();
    if (!module.expert_ids.empty()) {
      plan_linear(state, layer, plan);
    } else {
      for (const StackedScheme& scheme : kStackedSchemes) {
        if (state.tensors.contains(cat(prefix, scheme.gate_up_codes))) {
          plan_stacked(scheme, prefix, layer, plan);
          break;
        }
      }
    }
    ++plan.num_layers;
  }
  if (plan.num_matrices == 0) {
    return invalid_argument(cat(state.summary.path, " holds no MoE layer"));
  }
  return plan;
}

}  // namespace moekit::checkpoint
