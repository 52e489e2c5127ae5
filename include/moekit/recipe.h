// SPDX-License-Identifier: Apache-2.0
#pragma once

// What numbers are computed. A recipe is one row of `kRecipes`: the operand values of both products
// and every rounding point. Which instruction executes it is a kernel's business. Between rounding
// points everything is f32.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "moekit/format.h"

#pragma GCC visibility push(default)

namespace moekit {

enum class Recipe : std::uint8_t {
  kW4a16Nvfp4,
  kW4a16Mxfp4,
  kW16a16,
  kW4a4Nvfp4,
  kW4a8Nvfp4,
  kW4a8Mxfp4,
  kW8a8Fp8Block128,
  kW4a16Int4,
};

/// How x and the intermediate (both bf16 before) become operands of FC1 and FC2; rules in spec
/// section 2, bit-defined. Groups start at the tensor's (or shard's) first column.
enum class Quantizer : std::uint8_t {
  kNone,  // bf16 operands
  kQ4,    // E2M1 with an E4M3 scale per 16 and the checkpoint's input scale as global
  kQ8,    // E4M3 with an E8M0 scale per 32
  kQ8b,   // E4M3 with an f32 scale per 128
};

struct QuantizerInfo {
  Quantizer quantizer;
  std::string_view name;
  DType element;
  std::optional<DType> scale;
  std::int64_t group_size;  // elements along K that share a scale; 0 without scales
  bool needs_input_scale;
  bool fits_bf16;  // code * scale is exact in bf16, so kernels with bf16 operands serve it
};

inline constexpr std::array kQuantizers{
    QuantizerInfo{Quantizer::kNone, "none", DType::kBf16, std::nullopt, 0, false, true},
    QuantizerInfo{Quantizer::kQ4, "q4", DType::kE2m1, DType::kE4m3, 16, true, true},
    QuantizerInfo{Quantizer::kQ8, "q8", DType::kE4m3, DType::kE8m0, 32, false, true},
    QuantizerInfo{Quantizer::kQ8b, "q8b", DType::kE4m3, DType::kF32, 128, false, false},
};

[[nodiscard]] const QuantizerInfo& quantizer_info(Quantizer quantizer) noexcept;

struct RecipeInfo {
  Recipe recipe;
  std::string_view name;
  Format weights;
  DType operand;        // element type of x and the intermediate as they enter the products
  DType intermediate;   // the first rounding between activation and FC2; the quantiser follows
  Quantizer quantizer;  // of x before FC1 and of the intermediate before FC2
};

inline constexpr std::array kRecipes{
    RecipeInfo{Recipe::kW4a16Nvfp4,
               "w4a16_nvfp4",
               Format::kNvfp4,
               DType::kBf16,
               DType::kBf16,
               Quantizer::kNone},
    RecipeInfo{Recipe::kW4a16Mxfp4,
               "w4a16_mxfp4",
               Format::kMxfp4,
               DType::kBf16,
               DType::kBf16,
               Quantizer::kNone},
    RecipeInfo{
        Recipe::kW16a16, "w16a16", Format::kBf16, DType::kBf16, DType::kBf16, Quantizer::kNone},
    RecipeInfo{Recipe::kW4a4Nvfp4,
               "w4a4_nvfp4",
               Format::kNvfp4,
               DType::kE2m1,
               DType::kBf16,
               Quantizer::kQ4},
    RecipeInfo{Recipe::kW4a8Nvfp4,
               "w4a8_nvfp4",
               Format::kNvfp4,
               DType::kE4m3,
               DType::kBf16,
               Quantizer::kQ8},
    RecipeInfo{Recipe::kW4a8Mxfp4,
               "w4a8_mxfp4",
               Format::kMxfp4,
               DType::kE4m3,
               DType::kBf16,
               Quantizer::kQ8},
    RecipeInfo{Recipe::kW8a8Fp8Block128,
               "w8a8_fp8_block128",
               Format::kFp8Block128,
               DType::kE4m3,
               DType::kBf16,
               Quantizer::kQ8b},
    RecipeInfo{Recipe::kW4a16Int4,
               "w4a16_int4",
               Format::kInt4,
               DType::kBf16,
               DType::kBf16,
               Quantizer::kNone},
};

[[nodiscard]] const RecipeInfo& recipe_info(Recipe recipe) noexcept;
[[nodiscard]] std::optional<Recipe> recipe_from_name(std::string_view name) noexcept;

/// The recipe that computes with weights of `format` and 16-bit activations, where there is one;
/// else the first that computes with them.
[[nodiscard]] Recipe default_recipe(Format format) noexcept;

/// How gate_up becomes the intermediate; formulas in spec section 3.
enum class ActivationKind : std::uint8_t { kSilu, kSwigluOai, kSitu, kGeluTanh, kRelu2 };

/// A parameter that the kind does not have must stay empty (an error otherwise); an empty parameter
/// that it has takes the default: swiglu_oai alpha 1.702, beta 1, limit 7; situ gate_scale 4,
/// up_scale 25.
struct Activation {
  ActivationKind kind = ActivationKind::kSilu;
  std::optional<float> limit{};       // silu, swiglu_oai: g = min(g, L), u = clamp(u, -L, L)
  std::optional<float> alpha{};       // swiglu_oai
  std::optional<float> beta{};        // swiglu_oai
  std::optional<float> gate_scale{};  // situ: b
  std::optional<float> up_scale{};    // situ: c

  friend bool operator==(const Activation&, const Activation&) = default;
};

[[nodiscard]] std::string_view activation_name(ActivationKind kind) noexcept;
[[nodiscard]] std::optional<ActivationKind> activation_from_name(std::string_view name) noexcept;

/// False for relu2: gate_up then has intermediate_size rows and no gate.
[[nodiscard]] constexpr bool activation_is_gated(ActivationKind kind) noexcept {
  return kind != ActivationKind::kRelu2;
}

}  // namespace moekit

#pragma GCC visibility pop
