// SPDX-License-Identifier: Apache-2.0
#include "plan/family_rules.h"

#include <algorithm>

#include "base/text.h"

namespace moekit::plan {

using base::cat;

double active_weight_bytes(const FamilyContext& context, std::int64_t num_tokens) {
  const Problem& problem = context.problem;
  const std::int64_t active = std::min(num_tokens * problem.top_k, problem.num_experts);
  return static_cast<double>(active) *
         static_cast<double>(context.layout.gate_up.expert_stride_bytes +
                             context.layout.down.expert_stride_bytes);
}

std::string refused_pdl_first(const FamilyContext& context) {
  if (!context.overrides.pdl_first || context.device.arch >= Arch::kSm90a) {
    return {};
  }
  return cat("pin pdl_first chains launches, which ",
             arch_name(context.device.arch),
             " cannot; nearest: sm_90a");
}

std::string refused_operands(const FamilyContext& context) {
  const RecipeInfo& recipe = recipe_info(context.problem.recipe);
  const QuantizerInfo& quantizer = quantizer_info(recipe.quantizer);
  if (quantizer.fits_bf16) {
    return {};
  }
  return cat("recipe ",
             recipe.name,
             " on ",
             arch_name(context.device.arch),
             ": operands of rule ",
             quantizer.name,
             " do not fit bf16; nearest: w4a16_nvfp4");
}

}  // namespace moekit::plan
