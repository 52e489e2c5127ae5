// SPDX-License-Identifier: Apache-2.0
#pragma once

// What modelling code fixes and configurations leave out: one row per model_type. Source: the
// routers and configuration defaults of transformers 5 (models/NAME/modeling_NAME.py, *Router).

#include <array>
#include <cstdint>
#include <string_view>

#include "moekit/recipe.h"
#include "moekit/routing.h"

namespace moekit::checkpoint {

enum class Renormalize : std::uint8_t { kNever, kAlways, kFieldElseFalse, kFieldElseTrue };

struct ModelFacts {
  std::string_view model_type;
  Scoring scoring;
  Renormalize renormalize;
  double routed_scaling;    // where routed_scaling_factor is absent
  std::int64_t num_groups;  // where n_group and topk_group are absent
  std::int64_t top_groups;
  ActivationKind activation;         // where no activation is named
  bool activation_is_fixed = false;  // gpt-oss names silu and computes swiglu_oai
  bool weight_on_input = false;      // Llama-4 scales the experts' input
  bool own_router_input = false;     // Gemma-4's router norms and scales another tensor than x
};

inline constexpr std::array kModelFacts{
    ModelFacts{
        "mixtral", Scoring::kSoftmax, Renormalize::kAlways, 1.0, 1, 1, ActivationKind::kSilu},
    ModelFacts{"qwen2_moe",
               Scoring::kSoftmax,
               Renormalize::kFieldElseFalse,
               1.0,
               1,
               1,
               ActivationKind::kSilu},
    ModelFacts{"qwen3_moe",
               Scoring::kSoftmax,
               Renormalize::kFieldElseFalse,
               1.0,
               1,
               1,
               ActivationKind::kSilu},
    ModelFacts{"qwen3_next",
               Scoring::kSoftmax,
               Renormalize::kFieldElseTrue,
               1.0,
               1,
               1,
               ActivationKind::kSilu},
    ModelFacts{
        "qwen3_5_moe", Scoring::kSoftmax, Renormalize::kAlways, 1.0, 1, 1, ActivationKind::kSilu},
    ModelFacts{
        "olmoe", Scoring::kSoftmax, Renormalize::kFieldElseFalse, 1.0, 1, 1, ActivationKind::kSilu},
    // transformers' DeepSeek-V2 router never divides, whatever norm_topk_prob says.
    ModelFacts{
        "deepseek_v2", Scoring::kSoftmax, Renormalize::kNever, 1.0, 1, 1, ActivationKind::kSilu},
    ModelFacts{"deepseek_v3",
               Scoring::kSigmoid,
               Renormalize::kFieldElseTrue,
               2.5,
               8,
               4,
               ActivationKind::kSilu},
    ModelFacts{"deepseek_v4",
               Scoring::kSqrtSoftplus,
               Renormalize::kFieldElseTrue,
               1.5,
               1,
               1,
               ActivationKind::kSilu},
    ModelFacts{"kimi_k2",
               Scoring::kSigmoid,
               Renormalize::kFieldElseTrue,
               2.5,
               8,
               4,
               ActivationKind::kSilu},
    ModelFacts{"glm4_moe",
               Scoring::kSigmoid,
               Renormalize::kFieldElseTrue,
               1.0,
               1,
               1,
               ActivationKind::kSilu},
    ModelFacts{"glm4_moe_lite",
               Scoring::kSigmoid,
               Renormalize::kFieldElseTrue,
               1.8,
               1,
               1,
               ActivationKind::kSilu},
    ModelFacts{"glm_moe_dsa",
               Scoring::kSigmoid,
               Renormalize::kFieldElseTrue,
               2.5,
               1,
               1,
               ActivationKind::kSilu},
    ModelFacts{
        "minimax_m2", Scoring::kSigmoid, Renormalize::kAlways, 1.0, 1, 1, ActivationKind::kSilu},
    ModelFacts{"step3p5",
               Scoring::kSigmoid,
               Renormalize::kFieldElseTrue,
               1.0,
               1,
               1,
               ActivationKind::kSilu},
    ModelFacts{"nemotron_h",
               Scoring::kSigmoid,
               Renormalize::kFieldElseTrue,
               1.0,
               1,
               1,
               ActivationKind::kRelu2},
    ModelFacts{"gpt_oss",
               Scoring::kSoftmaxSelected,
               Renormalize::kNever,
               1.0,
               1,
               1,
               ActivationKind::kSwigluOai,
               true},
    ModelFacts{"llama4",
               Scoring::kSigmoid,
               Renormalize::kNever,
               1.0,
               1,
               1,
               ActivationKind::kSilu,
               false,
               true},
    ModelFacts{"minimax_m3_vl",
               Scoring::kSigmoid,
               Renormalize::kAlways,
               1.0,
               1,
               1,
               ActivationKind::kSwigluOai,
               true},
    // Its router reads the residual stream, normed and scaled, and its experts another norm of it.
    ModelFacts{"gemma4",
               Scoring::kSoftmax,
               Renormalize::kAlways,
               1.0,
               1,
               1,
               ActivationKind::kGeluTanh,
               false,
               false,
               true},
};

enum class RouterPart : std::uint8_t { kBias, kCorrectionBias, kExpertScale };

/// A tensor that the router of a model always has: without it the files would route otherwise than
/// the model, without a word. Source: the same modelling files.
struct RequiredRouterPart {
  std::string_view model_type;
  RouterPart part;
  std::string_view name;
};

inline constexpr std::array kRequiredRouterParts{
    RequiredRouterPart{"gpt_oss", RouterPart::kBias, "bias"},
    RequiredRouterPart{"gemma4", RouterPart::kExpertScale, "per_expert_scale"},
    RequiredRouterPart{"deepseek_v3", RouterPart::kCorrectionBias, "e_score_correction_bias"},
    RequiredRouterPart{"deepseek_v4", RouterPart::kCorrectionBias, "correction bias"},
    RequiredRouterPart{"kimi_k2", RouterPart::kCorrectionBias, "e_score_correction_bias"},
    RequiredRouterPart{"glm4_moe", RouterPart::kCorrectionBias, "e_score_correction_bias"},
    RequiredRouterPart{"glm4_moe_lite", RouterPart::kCorrectionBias, "e_score_correction_bias"},
    RequiredRouterPart{"glm_moe_dsa", RouterPart::kCorrectionBias, "e_score_correction_bias"},
    RequiredRouterPart{"minimax_m2", RouterPart::kCorrectionBias, "e_score_correction_bias"},
    RequiredRouterPart{"nemotron_h", RouterPart::kCorrectionBias, "e_score_correction_bias"},
};

/// The row of `model_type` (a trailing `_text` of multimodal models is dropped), or null.
[[nodiscard]] constexpr const ModelFacts* find_model_facts(std::string_view model_type) {
  constexpr std::string_view kTextSuffix = "_text";
  if (model_type.ends_with(kTextSuffix)) {
    model_type.remove_suffix(kTextSuffix.size());
  }
  for (const ModelFacts& facts : kModelFacts) {
    if (facts.model_type == model_type) {
      return &facts;
    }
  }
  return nullptr;
}

}  // namespace moekit::checkpoint
