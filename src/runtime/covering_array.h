// SPDX-License-Identifier: Apache-2.0
#pragma once

// Pairwise covering arrays: few rows in which every two levels of every two factors meet.

#include <cstdint>
#include <functional>
#include <vector>

namespace moekit::verify {

/// A level per factor; kUnset where none is chosen yet.
using LevelRow = std::vector<int>;
inline constexpr int kUnset = -1;

struct CoveringProblem {
  std::vector<int> num_levels{};  // of each factor
  /// Can this partial row be completed? Pairs that cannot are not asked for.
  std::function<bool(const LevelRow& partial)> feasible{};
};

/// Greedy, one row at a time (in the manner of AETG, Cohen et al. 1997): a row begins with a pair
/// that is still missing; each other factor takes the level that covers most missing pairs with
/// those already chosen; the best of several candidates is kept. Same problem, same rows.
[[nodiscard]] std::vector<LevelRow> covering_array(const CoveringProblem& problem);

/// Feasible pairs that no row has.
[[nodiscard]] std::int64_t count_missing_pairs(const CoveringProblem& problem,
                                               const std::vector<LevelRow>& rows);

}  // namespace moekit::verify
