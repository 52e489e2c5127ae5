// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs a verify suite and sums its reports.

#include <cstdint>

#include "moekit/verify.h"

namespace moekit::tests {

struct SuiteTotals {
  std::int64_t cases = 0;
  std::int64_t passed = 0;
  std::int64_t tokens_checked = 0;
  std::int64_t tokens_expected = 0;  // all of a case up to 64, else 64: none may be left out
  std::int64_t tokens_unjudged = 0;  // of `chunked` cases with a quantiser: VerifyReport says why
  std::int64_t intermediates_checked = 0;
  std::int64_t outputs_checked = 0;
};

/// Every case on `device`; each failure is reported with the line that reproduces it.
[[nodiscard]] SuiteTotals run_suite(VerifySuite suite, const DeviceDescriptor& device);

}  // namespace moekit::tests
