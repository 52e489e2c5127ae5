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

/// How the bytes of one linear layer lie; each order has one function in stored_orders.h.
enum class StoredOrder : std::uint8_t { kRows, kFp8Blocks, kPackQuantized, kAwq, kGptq };

/// Suffixes behind `<module>experts.<e>.<projection>.`; an empty name means the tensor does not
/// exist.
struct LinearScheme {
  std::string_view name;
  Format format;
  std::string_view codes;
  DType codes_dtype;
  std::string_view scales;
  std::optional<DType> scales_dtype;  // of kRows; E8M0 may also be stored as U8 or as f32
  std::string_view global = "";
  std::string_view input_scale = "";
  bool reciprocal = false;  // global and input scale are stored as 1 / value
  StoredOrder order = StoredOrder::kRows;
};

inline constexpr std::array kLinearSchemes{
    // NVIDIA ModelOpt export_hf_checkpoint, quant_algo NVFP4.
    LinearScheme{.name = "modelopt_nvfp4",
                 .format = Format::kNvfp4,
                 .codes = "weight",
                 .codes_dtype = DType::kU8,
                 .scales = "weight_scale",
                 .scales_dtype = DType::kE4m3,
                 .global = "weight_scale_2",
                 .input_scale = "input_scale"},
    // compressed-tensors nvfp4-pack-quantized.
    LinearScheme{.name = "compressed_tensors_nvfp4",
                 .format = Format::kNvfp4,
                 .codes = "weight_packed",
                 .codes_dtype = DType::kU8,
                 .scales = "weight_scale",
                 .scales_dtype = DType::kE4m3,
                 .global = "weight_global_scale",
                 .input_scale = "input_global_scale",
                 .reciprocal = true},
    // compressed-tensors mxfp4-pack-quantized.
    LinearScheme{.name = "compressed_tensors_mxfp4",
                 .format = Format::kMxfp4,
                 .codes = "weight_packed",
                 .codes_dtype = DType::kU8,
                 .scales = "weight_scale",
                 .scales_dtype = DType::kE8m0},
    // AMD Quark, per-group FP4 with E8M0 scales.
    LinearScheme{.name = "quark_mxfp4",
                 .format = Format::kMxfp4,
                 .codes = "weight",
                 .codes_dtype = DType::kU8,
                 .scales = "weight_scale",
                 .scales_dtype = DType::kE8m0,
                 .input_scale = "input_scale"},
    // DeepSeek-V4's own files, expert_dtype fp4.
    LinearScheme{.name = "deepseek_v4_mxfp4",
                 .format = Format::kMxfp4,
                 .codes = "weight",
                 .codes_dtype = DType::kI8,
                 .scales = "scale",
                 .scales_dtype = DType::kE8m0},
    // DeepSeek-V3 and everybody's fine-grained FP8; the name says inverse and means a multiplier.
    LinearScheme{.name = "fp8_block128",
                 .format = Format::kFp8Block128,
                 .codes = "weight",
                 .codes_dtype = DType::kE4m3,
                 .scales = "weight_scale_inv",
                 .scales_dtype = std::nullopt,
                 .order = StoredOrder::kFp8Blocks},
    // DeepSeek-V4 Base, FP8 experts.
    LinearScheme{.name = "deepseek_v4_fp8",
                 .format = Format::kFp8Block128,
                 .codes = "weight",
                 .codes_dtype = DType::kE4m3,
                 .scales = "scale",
                 .scales_dtype = std::nullopt,
                 .order = StoredOrder::kFp8Blocks},
    // compressed-tensors float-quantized, strategy block.
    LinearScheme{.name = "compressed_tensors_fp8_block",
                 .format = Format::kFp8Block128,
                 .codes = "weight",
                 .codes_dtype = DType::kE4m3,
                 .scales = "weight_scale",
                 .scales_dtype = std::nullopt,
                 .order = StoredOrder::kFp8Blocks},
    // compressed-tensors pack-quantized, 4 bits.
    LinearScheme{.name = "compressed_tensors_int4",
                 .format = Format::kInt4,
                 .codes = "weight_packed",
                 .codes_dtype = DType::kI32,
                 .scales = "weight_scale",
                 .scales_dtype = std::nullopt,
                 .order = StoredOrder::kPackQuantized},
    // AutoAWQ's gemm version. GPTQ has the same names and other shapes.
    LinearScheme{.name = "awq",
                 .format = Format::kInt4,
                 .codes = "qweight",
                 .codes_dtype = DType::kI32,
                 .scales = "scales",
                 .scales_dtype = std::nullopt,
                 .order = StoredOrder::kAwq},
    LinearScheme{.name = "gptq",
                 .format = Format::kInt4,
                 .codes = "qweight",
                 .codes_dtype = DType::kI32,
                 .scales = "scales",
                 .scales_dtype = std::nullopt,
                 .order = StoredOrder::kGptq},
    LinearScheme{.name = "bf16",
                 .format = Format::kBf16,
                 .codes = "weight",
                 .codes_dtype = DType::kBf16,
                 .scales = "",
                 .scales_dtype = std::nullopt},
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
  std::string_view model_type = "";  // the only model that stores so; empty: told by the tensors
  std::string_view gate_codes = "";  // gate apart from up, which gate_up_codes then names alone
  std::string_view module = "";      // the name that `<module>` ends with; empty: any
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
    // Llama-4: transposed as gpt-oss is, but gate before up and no biases.
    StackedScheme{"bf16",
                  Format::kBf16,
                  "experts.gate_up_proj",
                  "",
                  "experts.gate_up_proj_bias",
                  "experts.down_proj",
                  "",
                  "experts.down_proj_bias",
                  true,
                  RowOrder::kGateUp,
                  false,
                  "llama4"},
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
    // Step-3.5: one tensor per projection. Dense layers have the same names without `moe.`.
    StackedScheme{"bf16",
                  Format::kBf16,
                  "up_proj.weight",
                  "",
                  "",
                  "down_proj.weight",
                  "",
                  "",
                  false,
                  RowOrder::kGateUp,
                  false,
                  "",
                  "gate_proj.weight",
                  "moe."},
};

/// Whether `prefix`, what stands before a scheme's names, is a module of it.
[[nodiscard]] constexpr bool fits_module(const StackedScheme& scheme, std::string_view prefix) {
  if (!prefix.ends_with(scheme.module)) {
    return false;
  }
  prefix.remove_suffix(scheme.module.size());
  return prefix.empty() || prefix.ends_with('.');
}

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
    ForeignSuffix{
        "weight_scale_inv", "fp8_block128 of another element type", "fp8_block128 in E4M3"},
    ForeignSuffix{"qweight", "int4 of another word", "awq or gptq in I32"},
    ForeignSuffix{"trellis", "exl3", "nvfp4 or mxfp4"},
    ForeignSuffix{"weight_shape", "a pack-quantized form", "4 bits in I32"},
};

/// Names of the router's tensors behind `<module>`, in order of trial.
inline constexpr std::array<std::string_view, 3> kRouterWeights{
    "gate.weight", "router.weight", "ffn_gate_inp.weight"};
inline constexpr std::array<std::string_view, 3> kRouterBiases{
    "router.bias", "gate.bias", "ffn_gate_inp.bias"};
inline constexpr std::array<std::string_view, 4> kCorrectionBiases{
    "gate.e_score_correction_bias", "e_score_correction_bias", "exp_probs_b.bias", "router_bias"};
inline constexpr std::array<std::string_view, 2> kHashTables{"gate.tid2eid",
                                                             "ffn_gate_tid2eid.weight"};
/// Of routers whose projection reads an input of its own (Gemma-4).
inline constexpr std::array<std::string_view, 2> kOwnInputRouters{"router.proj.weight",
                                                                  "ffn_gate_inp.weight"};
inline constexpr std::array<std::string_view, 1> kExpertScales{"router.per_expert_scale"};
/// Gemma-4 in GGUF: the same tensor where down has no global of that name (NVFP4 multiplies both).
inline constexpr std::string_view kGgufExpertScale = "ffn_down_exps.scale";

}  // namespace moekit::checkpoint
