// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify_suite.h"

#include <set>

#include <gtest/gtest.h>

#include "runtime/verify_quirks.h"

namespace moekit::verify {
namespace {

TEST(CoveringArray, SmallProblemByExhaustiveCount) {
  CoveringProblem problem{{3, 4, 2, 5}, [](const LevelRow& row) {
                            return !(row[0] == 2 && row[3] == 4);  // one forbidden pair
                          }};
  const std::vector<LevelRow> rows = covering_array(problem);
  EXPECT_GE(rows.size(), 19U);  // 4 * 5 pairs of the two largest factors, less nothing
  EXPECT_LE(rows.size(), 30U);
  // Counted here from the rows alone.
  std::set<std::vector<int>> seen;
  for (const LevelRow& row : rows) {
    ASSERT_FALSE(row[0] == 2 && row[3] == 4);
    for (int a = 0; a < 4; ++a) {
      for (int b = a + 1; b < 4; ++b) {
        seen.insert({a, row[static_cast<std::size_t>(a)], b, row[static_cast<std::size_t>(b)]});
      }
    }
  }
  EXPECT_EQ(seen.size(), 3U * 4 + 3 * 2 + 3 * 5 - 1 + 4 * 2 + 4 * 5 + 2 * 5);
  EXPECT_EQ(count_missing_pairs(problem, rows), 0);
  EXPECT_GT(count_missing_pairs(problem, {rows.begin(), rows.begin() + 5}), 0);
}

// Every pair that can be completed is in a row; every row is complete and allowed.
void expect_covered(VerifySuite suite) {
  const CoveringProblem problem = suite_problem(suite);
  const std::vector<LevelRow> rows = covering_array(problem);
  std::set<std::vector<int>> seen;
  const int factors = static_cast<int>(Factor::kCount);
  for (const LevelRow& row : rows) {
    ASSERT_EQ(row.size(), static_cast<std::size_t>(factors));
    ASSERT_TRUE(problem.feasible(row));
    for (int a = 0; a < factors; ++a) {
      const int level = row[static_cast<std::size_t>(a)];
      ASSERT_GE(level, 0);
      ASSERT_LT(level, problem.num_levels[static_cast<std::size_t>(a)]);
      for (int b = a + 1; b < factors; ++b) {
        seen.insert({a, level, b, row[static_cast<std::size_t>(b)]});
      }
    }
  }
  std::int64_t pairs = 0;
  std::int64_t infeasible = 0;
  for (int a = 0; a < factors; ++a) {
    for (int b = a + 1; b < factors; ++b) {
      for (int i = 0; i < problem.num_levels[static_cast<std::size_t>(a)]; ++i) {
        for (int j = 0; j < problem.num_levels[static_cast<std::size_t>(b)]; ++j) {
          LevelRow row(static_cast<std::size_t>(factors), kUnset);
          row[static_cast<std::size_t>(a)] = i;
          row[static_cast<std::size_t>(b)] = j;
          ++pairs;
          if (!problem.feasible(row)) {
            ++infeasible;
            EXPECT_EQ(seen.count({a, i, b, j}), 0U);
          } else {
            EXPECT_EQ(seen.count({a, i, b, j}), 1U) << a << "=" << i << " " << b << "=" << j;
          }
        }
      }
    }
  }
  EXPECT_GT(pairs, suite == VerifySuite::kFull ? 10000 : 3500);
  // Left out are only quirks that a format does not have, top_k above E, pinned direct above 9
  // tokens, and layers beyond the budget.
  EXPECT_LT(infeasible, pairs / 25);
}

TEST(VerifySuite, EveryPairOfTheQuickSuiteIsCovered) {
  expect_covered(VerifySuite::kQuick);
}

TEST(VerifySuite, EveryPairOfTheFullSuiteIsCovered) {
  expect_covered(VerifySuite::kFull);
}

TEST(VerifySuite, EveryPublishedExtentOccurs) {
  // The lists at the end of the table of published models.
  const std::set<std::int64_t> intermediates = {
      64,  96,  128, 160, 176, 192,  232,  256,  320,  336,  352,  384,  464,  512,  640,  672,
      704, 768, 800, 896, 928, 1024, 1280, 1344, 1408, 1536, 1792, 1856, 2048, 2688, 2880, 3072};
  const std::set<std::int64_t> experts = {1,   8,   16,  20,  32,  33,  40,  41,  48,
                                          60,  62,  64,  72,  128, 129, 160, 161, 256,
                                          257, 272, 288, 384, 385, 512, 513, 576, 896};
  const std::set<std::int64_t> top_ks = {1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 16, 22};
  const std::set<std::int64_t> tokens = {0, 1, 2, 7, 8, 9, 33, 257};
  std::set<std::int64_t> seen[4];
  const std::vector<VerifyCase> cases = *verify_suite(VerifySuite::kFull);
  EXPECT_GE(cases.size(), 900U);
  EXPECT_LE(cases.size(), 3000U);
  for (const VerifyCase& c : cases) {
    seen[0].insert(c.problem.intermediate_size);
    seen[1].insert(c.problem.num_experts);
    seen[2].insert(c.problem.top_k);
    seen[3].insert(c.num_tokens);
  }
  const std::set<std::int64_t>* wanted[] = {&intermediates, &experts, &top_ks, &tokens};
  for (int i = 0; i < 4; ++i) {
    for (const std::int64_t value : *wanted[i]) {
      EXPECT_EQ(seen[i].count(value), 1U) << i << " " << value;
    }
  }
}

TEST(VerifySuite, EveryCaseIsValidAndReadsBackFromItsLine) {
  for (const VerifySuite suite : {VerifySuite::kQuick, VerifySuite::kFull}) {
    const std::vector<VerifyCase> cases = *verify_suite(suite);
    EXPECT_GE(cases.size(), 100U);
    for (const VerifyCase& c : cases) {
      const std::string line = *verify_case_line(c);
      ASSERT_TRUE(validate_problem(c.problem).ok())
          << line << validate_problem(c.problem).message();
      const Result<Quirks> quirks = quirks_from_name(c.quirk);
      ASSERT_TRUE(quirks.has_value()) << line;
      ASSERT_TRUE(check_quirks(*quirks, c.problem).ok()) << line;
      const Result<VerifyCase> back = parse_verify_case(line);
      ASSERT_TRUE(back.has_value()) << line << ": " << back.status().to_string();
      EXPECT_EQ(back->problem, c.problem) << line;
      EXPECT_EQ(back->num_tokens, c.num_tokens) << line;
      EXPECT_EQ(back->seed, c.seed) << line;
      EXPECT_EQ(back->quirk, c.quirk) << line;
      EXPECT_EQ(back->overrides, c.overrides) << line;
    }
  }
}

TEST(VerifySuite, IsTheSameEveryTime) {
  const std::vector<VerifyCase> first = *verify_suite(VerifySuite::kQuick);
  const std::vector<VerifyCase> second = *verify_suite(VerifySuite::kQuick);
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(*verify_case_line(first[i]), *verify_case_line(second[i]));
  }
}

TEST(VerifySuite, EveryModelLineParses) {
  EXPECT_EQ(model_cases().size(), 11U);
}

}  // namespace
}  // namespace moekit::verify
