// SPDX-License-Identifier: Apache-2.0
#pragma once

// Exit codes of every verb, and which Status ends with which.

#include "moekit/status.h"

namespace moekit::cli {

enum class ExitCode : int {
  kOk = 0,
  kCheckFailed = 1,  // a comparison with the oracle failed
  kUsage = 2,        // bad usage, an invalid argument, an unreadable or invalid input
  kRefused = 3,      // the planner or a format refuses a correct request
  kFailed = 4,       // precondition, output, memory, device, internal
};

/// kIo counts as an unreadable input; whoever writes an output returns kFailed himself.
[[nodiscard]] constexpr ExitCode exit_code_of(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return ExitCode::kOk;
    case StatusCode::kInvalidArgument:
    case StatusCode::kIo:
      return ExitCode::kUsage;
    case StatusCode::kUnsupported:
      return ExitCode::kRefused;
    case StatusCode::kFailedPrecondition:
    case StatusCode::kOutOfMemory:
    case StatusCode::kDevice:
    case StatusCode::kInternal:
      return ExitCode::kFailed;
  }
  return ExitCode::kFailed;
}

}  // namespace moekit::cli
