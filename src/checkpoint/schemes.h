// SPDX-License-Identifier: Apache-2.0
#pragma once

// Naming schemes: which tensor names and dtypes a producer writes for one MoE layer. Adding a
// producer whose format exists is one row here.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "moekit/dtype.h"
#include "moekit/format.h"
#include "moekit/problem.h"

namespace moekit::checkpoint {

/// Suffixes behind `<module>experts.<e>.<projection>.`; an empty name means the tensor does not
/// exist.
struct LinearScheme {
  std::string_view name;
  Format format;
  std::string_view codes;
  DType codes_dtype;
  std::string_view scales;
  DType scales_dtype;  // where `scales` exists; E8M0 may also be stored as U8
  std::string_view global;
  std::string_view input_scale;
  bool reciprocal = false;  // global and input scale are stored as 1 / value
};

inline constexpr std::array kLinearSchemes{
    // NVIDIA ModelOpt export_hf_checkpoint, quant_algo NVFP4.
    LinearScheme{"modelopt_nvfp4",
                 Format::kNvfp4,
                 "weight",
                 DType::kU8,
                 "weight_scale",
                 DType::kE4m3,
                 "weight_scale_2",
                 "input_scale"},
    // compressed-tensors nvfp4-pack-quantized.
    LinearScheme{"compressed_tensors_nvfp4",
                 Format::kNvfp4,
                 "weight_packed",
                 DType::kU8,
                 "weight_scale",
                 DType::kE4m3,
                 "weight_global_scale",
                 "input_global_scale",
                 true},
    // compressed-tensors mxfp4-pack-quantized.
    LinearScheme{"compressed_tensors_mxfp4",
                 Format::kMxfp4,
                 "weight_packed",
                 DType::kU8,
                 "weight_scale",
                 DType::kE8m0,
                 "",
                 ""},
    LinearScheme{"bf16", Format::kBf16, "weight", DType::kBf16, "", DType::kF32, "", ""},
};

/// Names of the three projections of one expert.
struct ProjectionNames {
  std::string_view gate;
  std::string_view up;
  std::string_view down;
};

inline constexpr std::array kProjectionNames{
    ProjectionNames{"gate_proj", "up_proj", "down_proj"},
    ProjectionNames{"w1", "w3", "w2"},  // Mixtral, MiniMax: w1 gate, w3 up
};

/// Names behind `<module>` where one tensor holds all experts.
struct StackedScheme {
  std::string_view name;
  Format format;
  std::string_view gate_up_codes;
  std::string_view gate_up_scales;
  std::string_view gate_up_bias;  // may be absent unless bias_required
  std::string_view down_codes;
  std::string_view down_scales;
  std::string_view down_bias;
  bool transposed;  // [E, K, N] instead of [E, N, K]
  RowOrder row_order;
  bool bias_required;
};

inline constexpr std::array kStackedSchemes{
    StackedScheme{"gpt_oss_mxfp4",
                  Format::kMxfp4,
                  "experts.gate_up_proj_blocks",
                  "experts.gate_up_proj_scales",
                  "experts.gate_up_proj_bias",
                  "experts.down_proj_blocks",
                  "experts.down_proj_scales",
                  "experts.down_proj_bias",
                  false,
                  RowOrder::kInterleaved,
                  true},
    // The same model under OpenAI's original names.
    StackedScheme{"gpt_oss_mxfp4",
                  Format::kMxfp4,
                  "mlp1_weight.blocks",
                  "mlp1_weight.scales",
                  "mlp1_bias",
                  "mlp2_weight.blocks",
                  "mlp2_weight.scales",
                  "mlp2_bias",
                  false,
                  RowOrder::kInterleaved,
                  true},
    // Unquantised gpt-oss; told from the next row by its shape and its biases.
    StackedScheme{"bf16",
                  Format::kBf16,
                  "experts.gate_up_proj",
                  "",
                  "experts.gate_up_proj_bias",
                  "experts.down_proj",
                  "",
                  "experts.down_proj_bias",
                  true,
                  RowOrder::kInterleaved,
                  true},
    // Qwen3.5-MoE and other checkpoints saved in transformers 5's own fused form.
    StackedScheme{"bf16",
                  Format::kBf16,
                  "experts.gate_up_proj",
                  "",
                  "experts.gate_up_proj_bias",
                  "experts.down_proj",
                  "",
                  "experts.down_proj_bias",
                  false,
                  RowOrder::kGateUp,
                  false},
};

/// GGUF: one tensor per projection over all experts, behind `blk.L.`.
inline constexpr std::string_view kGgufGate = "ffn_gate_exps.weight";
inline constexpr std::string_view kGgufUp = "ffn_up_exps.weight";
inline constexpr std::string_view kGgufDown = "ffn_down_exps.weight";
inline constexpr std::string_view kGgufGateUp = "ffn_gate_up_exps.weight";  // gate rows first

/// Suffixes that tell a quantisation moekit has no format for.
struct ForeignSuffix {
  std::string_view suffix;
  std::string_view what;
  std::string_view nearest;
};

inline constexpr std::array kForeignSuffixes{
    ForeignSuffix{"weight_scale_inv", "fp8_block128", "bf16"},
    ForeignSuffix{"qweight", "int4 (AWQ or GPTQ)", "nvfp4 or mxfp4"},
    ForeignSuffix{"trellis", "exl3", "nvfp4 or mxfp4"},
    ForeignSuffix{"scale", "DeepSeek-V4 native FP4 or FP8", "mxfp4 as compressed-tensors"},
    ForeignSuffix{"weight_shape", "int4 (compressed-tensors pack-quantized)", "nvfp4 or mxfp4"},
};

/// Names of the router's tensors behind `<module>`, in order of trial.
inline constexpr std::array<std::string_view, 3> kRouterWeights{
    "gate.weight", "router.weight", "ffn_gate_inp.weight"};
inline constexpr std::array<std::string_view, 3> kRouterBiases{
    "router.bias", "gate.bias", "ffn_gate_inp.bias"};
inline constexpr std::array<std::string_view, 3> kCorrectionBiases{
    "gate.e_score_correction_bias", "e_score_correction_bias", "exp_probs_b.bias"};

}  // namespace moekit::checkpoint
