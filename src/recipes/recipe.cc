// SPDX-License-Identifier: Apache-2.0
#include "moekit/recipe.h"

namespace moekit {
namespace {

constexpr bool rows_follow_the_enum() {
  for (std::size_t i = 0; i < kRecipes.size(); ++i) {
    if (static_cast<std::size_t>(kRecipes[i].recipe) != i) {
      return false;
    }
  }
  return true;
}

static_assert(rows_follow_the_enum(), "recipe_info indexes kRecipes by enumerator");

// Operands are what the quantiser writes, without one bf16.
constexpr bool quantizers_fit() {
  for (std::size_t i = 0; i < kQuantizers.size(); ++i) {
    if (static_cast<std::size_t>(kQuantizers[i].quantizer) != i) {
      return false;
    }
  }
  for (const RecipeInfo& info : kRecipes) {
    if (kQuantizers[static_cast<std::size_t>(info.quantizer)].element != info.operand) {
      return false;
    }
  }
  return true;
}

static_assert(quantizers_fit(), "kQuantizers by enumerator; a recipe's operand is its quantiser's");

struct ActivationRow {
  ActivationKind kind;
  std::string_view name;
};

constexpr std::array kActivations{
    ActivationRow{ActivationKind::kSilu, "silu"},
    ActivationRow{ActivationKind::kSwigluOai, "swiglu_oai"},
    ActivationRow{ActivationKind::kSitu, "situ"},
    ActivationRow{ActivationKind::kGeluTanh, "gelu_tanh"},
    ActivationRow{ActivationKind::kRelu2, "relu2"},
};

}  // namespace

const QuantizerInfo& quantizer_info(Quantizer quantizer) noexcept {
  const auto index = static_cast<std::size_t>(quantizer);
  return kQuantizers[index < kQuantizers.size() ? index : 0];
}

const RecipeInfo& recipe_info(Recipe recipe) noexcept {
  const auto index = static_cast<std::size_t>(recipe);
  return kRecipes[index < kRecipes.size() ? index : 0];
}

std::optional<Recipe> recipe_from_name(std::string_view name) noexcept {
  for (const RecipeInfo& info : kRecipes) {
    if (info.name == name) {
      return info.recipe;
    }
  }
  return std::nullopt;
}

Recipe default_recipe(Format format) noexcept {
  const RecipeInfo* found = nullptr;
  for (const RecipeInfo& info : kRecipes) {
    if (info.weights == format && (found == nullptr || info.quantizer < found->quantizer)) {
      found = &info;
    }
  }
  return found == nullptr ? Recipe::kW16a16 : found->recipe;
}

std::string_view activation_name(ActivationKind kind) noexcept {
  for (const ActivationRow& row : kActivations) {
    if (row.kind == kind) {
      return row.name;
    }
  }
  return "unknown";
}

std::optional<ActivationKind> activation_from_name(std::string_view name) noexcept {
  for (const ActivationRow& row : kActivations) {
    if (row.name == name) {
      return row.kind;
    }
  }
  return std::nullopt;
}

}  // namespace moekit
