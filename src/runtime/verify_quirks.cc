// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify_quirks.h"

#include <array>

#include "base/text.h"

namespace moekit::verify {
namespace {

using base::cat;

// One row a name: which field of Quirks it sets, and to what.
struct QuirkRow {
  std::string_view name;
  int group;
  std::uint8_t value;
};

enum Group : int { kWeights, kBiases, kRoutes, kIds, kInputs, kViews, kPlan, kNumGroups };

template <typename Enum>
constexpr QuirkRow row(std::string_view name, Group group, Enum value) {
  return {name, group, static_cast<std::uint8_t>(value)};
}

constexpr QuirkRow kRows[] = {
    row("raw_codes", kWeights, WeightQuirk::kRawCodes),
    row("subnormal_scales", kWeights, WeightQuirk::kSubnormalScales),
    row("zero_scales", kWeights, WeightQuirk::kZeroScales),
    row("wide_scales", kWeights, WeightQuirk::kWideScales),
    row("unequal_globals", kWeights, WeightQuirk::kUnequalGlobals),
    row("dormant_expert", kWeights, WeightQuirk::kDormantExpert),
    row("transposed", kWeights, WeightQuirk::kTransposed),
    row("f32_bias", kBiases, BiasQuirk::kF32),
    row("f16_strided_bias", kBiases, BiasQuirk::kF16Strided),
    row("all_to_one_expert", kRoutes, RouteQuirk::kAllToOneExpert),
    row("duplicate_ids", kRoutes, RouteQuirk::kDuplicateIds),
    row("inactive_ids", kRoutes, RouteQuirk::kInactiveIds),
    row("out_of_range_ids", kRoutes, RouteQuirk::kOutOfRangeIds),
    row("inactive_tokens", kRoutes, RouteQuirk::kInactiveTokens),
    row("all_inactive", kRoutes, RouteQuirk::kAllInactive),
    row("zero_weights", kRoutes, RouteQuirk::kZeroWeights),
    row("tied_logits", kRoutes, RouteQuirk::kTiedLogits),
    row("masked_logits", kRoutes, RouteQuirk::kMaskedLogits),
    row("int64_ids", kIds, IdQuirk::kInt64),
    row("int64_wide_ids", kIds, IdQuirk::kInt64Wide),
    row("zero_x", kInputs, InputQuirk::kZero),
    row("negative_zero_x", kInputs, InputQuirk::kNegativeZero),
    row("large_x", kInputs, InputQuirk::kLarge),
    row("subnormal_x", kInputs, InputQuirk::kSubnormal),
    row("nan_token", kInputs, InputQuirk::kNanToken),
    row("inf_token", kInputs, InputQuirk::kInfToken),
    row("one_hot_x", kInputs, InputQuirk::kOneHot),
    row("strided", kViews, ViewQuirk::kStrided),
    row("chunked", kPlan, PlanQuirk::kChunked),
};

using Values = std::array<std::uint8_t, kNumGroups>;

Values values_of(const Quirks& quirks) {
  return {static_cast<std::uint8_t>(quirks.weights),
          static_cast<std::uint8_t>(quirks.biases),
          static_cast<std::uint8_t>(quirks.routes),
          static_cast<std::uint8_t>(quirks.ids),
          static_cast<std::uint8_t>(quirks.inputs),
          static_cast<std::uint8_t>(quirks.views),
          static_cast<std::uint8_t>(quirks.plan)};
}

Quirks quirks_of(const Values& values) {
  return {static_cast<WeightQuirk>(values[kWeights]),
          static_cast<BiasQuirk>(values[kBiases]),
          static_cast<RouteQuirk>(values[kRoutes]),
          static_cast<IdQuirk>(values[kIds]),
          static_cast<InputQuirk>(values[kInputs]),
          static_cast<ViewQuirk>(values[kViews]),
          static_cast<PlanQuirk>(values[kPlan])};
}

Status set_quirk(std::string_view name, Values& values) {
  for (const QuirkRow& known : kRows) {
    if (known.name != name) {
      continue;
    }
    std::uint8_t& value = values[static_cast<std::size_t>(known.group)];
    if (value != 0) {
      return invalid_argument(cat("quirk ", name, " excludes another one given with it"));
    }
    value = known.value;
    return {};
  }
  return invalid_argument(
      cat("unknown quirk '", name, "', expected none or of: ", base::join(quirk_names())));
}

}  // namespace

std::vector<std::string_view> quirk_names() {
  std::vector<std::string_view> names;
  for (const QuirkRow& known : kRows) {
    names.push_back(known.name);
  }
  return names;
}

std::string quirks_name(const Quirks& quirks) {
  const Values values = values_of(quirks);
  std::vector<std::string_view> names;
  for (const QuirkRow& known : kRows) {
    if (values[static_cast<std::size_t>(known.group)] == known.value) {
      names.push_back(known.name);
    }
  }
  return names.empty() ? "none" : base::join(names, "+");
}

Result<Quirks> quirks_from_name(std::string_view name) {
  Values values{};
  if (name.empty() || name == "none") {
    return quirks_of(values);
  }
  while (true) {
    const std::size_t plus = name.find('+');
    MOEKIT_RETURN_IF_ERROR(set_quirk(name.substr(0, plus), values));
    if (plus == std::string_view::npos) {
      return quirks_of(values);
    }
    name.remove_prefix(plus + 1);
  }
}

Status check_quirks(const Quirks& quirks, const Problem& problem) {
  const Format format = recipe_info(problem.recipe).weights;
  const bool of_logits =
      quirks.routes == RouteQuirk::kTiedLogits || quirks.routes == RouteQuirk::kMaskedLogits;
  if (of_logits && !problem.routing.has_value()) {
    return invalid_argument("quirks of logits need routing=");
  }
  if (problem.routing.has_value() && !of_logits &&
      (quirks.routes != RouteQuirk::kUniform || quirks.ids != IdQuirk::kInt32)) {
    return invalid_argument("quirks of ids exclude routing=");
  }
  if (quirks.weights == WeightQuirk::kTransposed && format != Format::kBf16) {
    return invalid_argument("quirk transposed needs bf16 weights");
  }
  if (quirks.weights == WeightQuirk::kSubnormalScales && format == Format::kBf16) {
    return invalid_argument("quirk subnormal_scales needs weights with scales");
  }
  if (quirks.weights == WeightQuirk::kUnequalGlobals && format == Format::kBf16) {
    return invalid_argument("quirk unequal_globals needs weights with globals");
  }
  return {};
}

}  // namespace moekit::verify
