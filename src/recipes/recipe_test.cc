// SPDX-License-Identifier: Apache-2.0
#include "moekit/recipe.h"

#include <gtest/gtest.h>

namespace moekit {
namespace {

TEST(Recipe, names_round_trip) {
  ASSERT_GE(kRecipes.size(), 8U);
  for (const RecipeInfo& info : kRecipes) {
    EXPECT_EQ(recipe_from_name(info.name), info.recipe);
    EXPECT_EQ(recipe_info(info.recipe).name, info.name);
    const RecipeInfo& chosen = recipe_info(default_recipe(info.weights));
    EXPECT_EQ(chosen.weights, info.weights);
    EXPECT_LE(chosen.quantizer, info.quantizer);
  }
  EXPECT_EQ(default_recipe(Format::kNvfp4), Recipe::kW4a16Nvfp4);
  EXPECT_EQ(default_recipe(Format::kFp8Block128), Recipe::kW8a8Fp8Block128);
  EXPECT_EQ(default_recipe(Format::kInt4), Recipe::kW4a16Int4);
  EXPECT_EQ(recipe_from_name("w4a16"), std::nullopt);
}

TEST(Recipe, activation_names_round_trip) {
  int count = 0;
  for (int i = 0; i <= static_cast<int>(ActivationKind::kRelu2); ++i) {
    const auto kind = static_cast<ActivationKind>(i);
    EXPECT_EQ(activation_from_name(activation_name(kind)), kind);
    ++count;
  }
  EXPECT_EQ(count, 5);
  EXPECT_EQ(activation_from_name("gelu"), std::nullopt);
}

}  // namespace
}  // namespace moekit
