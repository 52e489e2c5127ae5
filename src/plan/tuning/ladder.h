// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where an architecture's execution families change over: data with a source, never code.

#include <cstdint>
#include <optional>
#include <string_view>

#include "moekit/device.h"
#include "moekit/recipe.h"

namespace moekit::plan {

/// The direct family serves M <= direct_max_tokens while M * top_k <= direct_max_routes; grouped
/// beyond.
struct LadderRow {
  Arch arch;
  std::optional<Recipe> recipe;  // nullopt: every recipe without a row of its own
  std::int64_t direct_max_tokens;
  std::int64_t direct_max_routes;
  std::string_view source;  // the committed measurement or document that says so
};

/// The row for `recipe` on `arch`; null when the architecture has no table.
[[nodiscard]] const LadderRow* ladder_row(Arch arch, Recipe recipe) noexcept;

/// Last M of the direct family.
[[nodiscard]] std::int64_t direct_max_tokens(const LadderRow& row, std::int64_t top_k) noexcept;

}  // namespace moekit::plan
