// SPDX-License-Identifier: Apache-2.0
#pragma once

// The verbs of the program. An error becomes one line on stderr and the exit code of its status;
// whoever could not write an output reports that himself and returns kFailed.

#include <cstdint>
#include <vector>

#include "moekit/status.h"

#include "cli/console.h"
#include "cli/exit_code.h"
#include "cli/options.h"

namespace moekit::cli {

[[nodiscard]] Result<ExitCode> devices_verb(Console& console, const DevicesOptions& options);
[[nodiscard]] Result<ExitCode> inspect_verb(Console& console, const InspectOptions& options);
[[nodiscard]] Result<ExitCode> plan_verb(Console& console, const PlanOptions& options);
[[nodiscard]] Result<ExitCode> run_verb(Console& console, const RunOptions& options);
[[nodiscard]] Result<ExitCode> verify_verb(Console& console, const VerifyOptions& options);
[[nodiscard]] Result<ExitCode> bench_verb(Console& console, const BenchOptions& options);
[[nodiscard]] Result<ExitCode> quantize_verb(Console& console, const QuantizeVerbOptions& options);
/// bench_verb's half for a GPU.
[[nodiscard]] Result<ExitCode> bench_on_device(Console& console,
                                               const BenchOptions& options,
                                               const std::vector<std::int64_t>& tokens);
[[nodiscard]] Result<ExitCode> kernels_verb(Console& console, const KernelsOptions& options);

}  // namespace moekit::cli
