// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/edges/suites.h"

namespace moekit::tests {
namespace {

TEST(VerifySuites, FullOnThisMachinesBestInstructionSet) {
  const SuiteTotals totals = run_suite(VerifySuite::kFull, host_cpu());
  EXPECT_EQ(totals.passed, totals.cases);
  EXPECT_GE(totals.cases, 900);
  EXPECT_EQ(totals.tokens_checked + totals.tokens_unjudged, totals.tokens_expected);
  EXPECT_LT(totals.tokens_unjudged * 10, totals.tokens_expected);
  EXPECT_GE(totals.tokens_checked, 10000);
}

TEST(VerifySuites, QuickOnPortableCode) {
  const SuiteTotals totals =
      run_suite(VerifySuite::kQuick, device_from_name("cpu:portable").value());
  EXPECT_EQ(totals.passed, totals.cases);
  EXPECT_GE(totals.cases, 120);
}

}  // namespace
}  // namespace moekit::tests
