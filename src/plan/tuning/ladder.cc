// SPDX-License-Identifier: Apache-2.0
#include "plan/tuning/ladder.h"

#include <algorithm>

namespace moekit::plan {
namespace {

constexpr std::int64_t kNoLimit = std::int64_t{1} << 40;

// The CPU's direct family finds an expert's tokens by scanning the ids, which costs active experts
// * routes comparisons; at 8 tokens of top-8 that is 4,096, a microsecond, and sorting costs the
// same.
constexpr LadderRow kRows[] = {
    {Arch::kCpu, std::nullopt, 8, kNoLimit, "derived: scan of 64 routes per expert"},
    {Arch::kSm90a, std::nullopt, 64, kNoLimit, "performance target: two launches up to M = 64"},
};

}  // namespace

const LadderRow* ladder_row(Arch arch, Recipe recipe) noexcept {
  const LadderRow* fallback = nullptr;
  for (const LadderRow& row : kRows) {
    if (row.arch != arch) {
      continue;
    }
    if (row.recipe == recipe) {
      return &row;
    }
    if (!row.recipe.has_value()) {
      fallback = &row;
    }
  }
  return fallback;
}

std::int64_t direct_max_tokens(const LadderRow& row, std::int64_t top_k) noexcept {
  return std::min(row.direct_max_tokens, row.direct_max_routes / top_k);
}

}  // namespace moekit::plan
