// SPDX-License-Identifier: Apache-2.0
// Stands in for the oracle in the program `moekit_cli_failing` (linker option --wrap, see
// CMakeLists.txt): every check fails. Exit code 1 cannot be produced by any input as long as the
// kernels are right.

#include "moekit/verify.h"

namespace moekit::test {
namespace {

VerifyReport failed_report() {
  VerifyReport report;
  report.outputs_checked = 1;
  report.outputs_out_of_bound = 1;
  report.first_failure = "injected failure";
  return report;
}

}  // namespace

Result<VerifyReport> failing_verify_call(const Plan& plan,
                                         const ExpertsSource& source,
                                         const RunArguments& arguments,
                                         std::span<const std::byte> workspace) noexcept
    asm("__wrap_" MOEKIT_VERIFY_CALL_SYMBOL);

Result<VerifyReport> failing_run_verify_case(const Runtime& runtime,
                                             const VerifyCase& verify_case,
                                             const DeviceDescriptor& device) noexcept
    asm("__wrap_" MOEKIT_RUN_VERIFY_CASE_SYMBOL);

Result<VerifyReport> failing_verify_call(const Plan& /*plan*/,
                                         const ExpertsSource& /*source*/,
                                         const RunArguments& /*arguments*/,
                                         std::span<const std::byte> /*workspace*/) noexcept {
  return failed_report();
}

Result<VerifyReport> failing_run_verify_case(const Runtime& /*runtime*/,
                                             const VerifyCase& /*verify_case*/,
                                             const DeviceDescriptor& /*device*/) noexcept {
  return failed_report();
}

}  // namespace moekit::test
