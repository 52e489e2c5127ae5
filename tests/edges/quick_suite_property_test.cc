// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/edges/suites.h"

namespace moekit::tests {
namespace {

TEST(VerifySuites, QuickOnThisMachinesBestInstructionSet) {
  const SuiteTotals totals = run_suite(VerifySuite::kQuick, host_cpu());
  EXPECT_EQ(totals.passed, totals.cases);
  EXPECT_GE(totals.cases, 120);
  EXPECT_EQ(totals.tokens_checked + totals.tokens_unjudged, totals.tokens_expected);
  EXPECT_LT(totals.tokens_unjudged * 10, totals.tokens_expected);
  EXPECT_GE(totals.tokens_checked, 1500);
  EXPECT_GE(totals.intermediates_checked, 1000000);
  EXPECT_GE(totals.outputs_checked, 100000);
}

}  // namespace
}  // namespace moekit::tests
