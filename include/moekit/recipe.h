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

enum class Recipe : std::uint8_t { kW4a16Nvfp4, kW4a16Mxfp4, kW16a16 };

struct RecipeInfo {
  Recipe recipe;
  std::string_view name;
  Format weights;
  DType operand;       // x and the intermediate enter the products as this
  DType intermediate;  // the one rounding between activation and FC2
};

inline constexpr std::array kRecipes{
    RecipeInfo{Recipe::kW4a16Nvfp4, "w4a16_nvfp4", Format::kNvfp4, DType::kBf16, DType::kBf16},
    RecipeInfo{Recipe::kW4a16Mxfp4, "w4a16_mxfp4", Format::kMxfp4, DType::kBf16, DType::kBf16},
    RecipeInfo{Recipe::kW16a16, "w16a16", Format::kBf16, DType::kBf16, DType::kBf16},
};

[[nodiscard]] const RecipeInfo& recipe_info(Recipe recipe) noexcept;
[[nodiscard]] std::optional<Recipe> recipe_from_name(std::string_view name) noexcept;

/// The recipe that computes with weights of `format` and 16-bit activations.
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
