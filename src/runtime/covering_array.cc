// SPDX-License-Identifier: Apache-2.0
#include "runtime/covering_array.h"

#include <algorithm>
#include <numeric>

#include "runtime/verify_buffers.h"

namespace moekit::verify {
namespace {

// More candidates shorten the array by a few rows at proportional cost.
constexpr int kCandidates = 8;

struct Pair {
  int factor_a = 0;
  int level_a = 0;
  int factor_b = 0;
  int level_b = 0;
};

// Which pairs are still missing, indexed by level: all levels of all factors are numbered through.
class MissingPairs {
 public:
  explicit MissingPairs(const CoveringProblem& problem) : problem_(problem) {
    for (const int levels : problem.num_levels) {
      first_.push_back(total_);
      total_ += levels;
    }
    missing_.assign(static_cast<std::size_t>(total_) * static_cast<std::size_t>(total_), 0);
    for_each_pair([this](const Pair& pair) {
      LevelRow row(problem_.num_levels.size(), kUnset);
      row[static_cast<std::size_t>(pair.factor_a)] = pair.level_a;
      row[static_cast<std::size_t>(pair.factor_b)] = pair.level_b;
      if (problem_.feasible(row)) {
        missing_[index_of(pair)] = 1;
        ++count_;
      }
    });
  }

  [[nodiscard]] std::int64_t count() const { return count_; }

  [[nodiscard]] bool is_missing(const Pair& pair) const { return missing_[index_of(pair)] != 0; }

  /// Missing pairs that level `level` of factor `factor` makes with the chosen ones.
  [[nodiscard]] int gain(const LevelRow& row, int factor, int level) const {
    int gain = 0;
    for (int other = 0; other < static_cast<int>(row.size()); ++other) {
      const int chosen = row[static_cast<std::size_t>(other)];
      if (other != factor && chosen != kUnset) {
        gain += is_missing(ordered(factor, level, other, chosen)) ? 1 : 0;
      }
    }
    return gain;
  }

  void cover(const LevelRow& row) {
    for (int a = 0; a < static_cast<int>(row.size()); ++a) {
      for (int b = a + 1; b < static_cast<int>(row.size()); ++b) {
        char& missing = missing_[index_of(
            {a, row[static_cast<std::size_t>(a)], b, row[static_cast<std::size_t>(b)]})];
        count_ -= missing;
        missing = 0;
      }
    }
  }

  /// The `skip`-th missing pair.
  [[nodiscard]] Pair find(std::int64_t skip) const {
    Pair found;
    bool done = false;
    for_each_pair([&](const Pair& pair) {
      if (!done && is_missing(pair) && skip-- == 0) {
        found = pair;
        done = true;
      }
    });
    return found;
  }

 private:
  template <typename Body>
  void for_each_pair(const Body& body) const {
    const int factors = static_cast<int>(problem_.num_levels.size());
    for (int a = 0; a < factors; ++a) {
      for (int b = a + 1; b < factors; ++b) {
        for (int i = 0; i < problem_.num_levels[static_cast<std::size_t>(a)]; ++i) {
          for (int j = 0; j < problem_.num_levels[static_cast<std::size_t>(b)]; ++j) {
            body(Pair{a, i, b, j});
          }
        }
      }
    }
  }

  static Pair ordered(int factor, int level, int other, int other_level) {
    return factor < other ? Pair{factor, level, other, other_level}
                          : Pair{other, other_level, factor, level};
  }

  [[nodiscard]] std::size_t index_of(const Pair& pair) const {
    const int a = first_[static_cast<std::size_t>(pair.factor_a)] + pair.level_a;
    const int b = first_[static_cast<std::size_t>(pair.factor_b)] + pair.level_b;
    return static_cast<std::size_t>(a) * static_cast<std::size_t>(total_) +
           static_cast<std::size_t>(b);
  }

  const CoveringProblem& problem_;
  std::vector<int> first_{};
  int total_ = 0;
  std::vector<char> missing_{};
  std::int64_t count_ = 0;
};

// The feasible level of `factor` that gains most; ties are drawn.
int best_level(const CoveringProblem& problem,
               const MissingPairs& missing,
               LevelRow& row,
               int factor,
               Random& random) {
  int best = kUnset;
  int best_gain = -1;
  std::int64_t ties = 0;
  for (int level = 0; level < problem.num_levels[static_cast<std::size_t>(factor)]; ++level) {
    const int gain = missing.gain(row, factor, level);
    if (gain < best_gain) {
      continue;
    }
    row[static_cast<std::size_t>(factor)] = level;
    const bool feasible = problem.feasible(row);
    row[static_cast<std::size_t>(factor)] = kUnset;
    if (!feasible) {
      continue;
    }
    ties = gain == best_gain ? ties + 1 : 1;
    if (gain > best_gain || random.below(ties) == 0) {
      best = level;
    }
    best_gain = gain;
  }
  return best;
}

struct Candidate {
  LevelRow row{};
  int gain = -1;
};

Candidate make_candidate(const CoveringProblem& problem,
                         const MissingPairs& missing,
                         Random& random) {
  const Pair seed = missing.find(random.below(missing.count()));
  Candidate candidate{LevelRow(problem.num_levels.size(), kUnset), 1};
  candidate.row[static_cast<std::size_t>(seed.factor_a)] = seed.level_a;
  candidate.row[static_cast<std::size_t>(seed.factor_b)] = seed.level_b;
  std::vector<int> order(problem.num_levels.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i],
              order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i) + 1))]);
  }
  for (const int factor : order) {
    int& level = candidate.row[static_cast<std::size_t>(factor)];
    if (level == kUnset) {
      const int best = best_level(problem, missing, candidate.row, factor, random);
      candidate.gain += missing.gain(candidate.row, factor, best);
      level = best;
    }
  }
  return candidate;
}

}  // namespace

std::vector<LevelRow> covering_array(const CoveringProblem& problem) {
  MissingPairs missing(problem);
  Random random(20240611);
  std::vector<LevelRow> rows;
  while (missing.count() > 0) {
    Candidate best;
    for (int i = 0; i < kCandidates; ++i) {
      Candidate candidate = make_candidate(problem, missing, random);
      if (candidate.gain > best.gain) {
        best = std::move(candidate);
      }
    }
    missing.cover(best.row);
    rows.push_back(std::move(best.row));
  }
  return rows;
}

std::int64_t count_missing_pairs(const CoveringProblem& problem,
                                 const std::vector<LevelRow>& rows) {
  MissingPairs missing(problem);
  for (const LevelRow& row : rows) {
    missing.cover(row);
  }
  return missing.count();
}

}  // namespace moekit::verify
