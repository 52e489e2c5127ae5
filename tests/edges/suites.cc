// SPDX-License-Identifier: Apache-2.0
#include "tests/edges/suites.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "tests/edges/layer_under_test.h"

namespace moekit::tests {

SuiteTotals run_suite(VerifySuite suite, const DeviceDescriptor& device) {
  SuiteTotals totals;
  const std::vector<VerifyCase> cases = *verify_suite(suite);
  for (const VerifyCase& verify_case : cases) {
    ++totals.cases;
    totals.tokens_expected += std::min<std::int64_t>(verify_case.num_tokens, 64);
    const Result<VerifyReport> report = run_verify_case(shared_runtime(), verify_case, device);
    if (!report.has_value()) {
      ADD_FAILURE() << *verify_case_line(verify_case) << ": " << report.status().to_string();
      continue;
    }
    EXPECT_TRUE(report->passed) << *verify_case_line(verify_case) << ": " << report->first_failure;
    totals.passed += report->passed ? 1 : 0;
    totals.tokens_checked += report->tokens_checked;
    if (verify_case.quirk.find("chunked") != std::string::npos &&
        recipe_info(verify_case.problem.recipe).quantizer != Quantizer::kNone) {
      totals.tokens_unjudged +=
          std::min<std::int64_t>(verify_case.num_tokens, 64) - report->tokens_checked;
    }
    totals.intermediates_checked += report->intermediates_checked;
    totals.outputs_checked += report->outputs_checked;
  }
  return totals;
}

}  // namespace moekit::tests
