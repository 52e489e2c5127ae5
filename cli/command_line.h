// SPDX-License-Identifier: Apache-2.0
#pragma once

// From argv to the verb that was chosen. Nothing runs before the whole command line was accepted.

#include <functional>

#include "moekit/status.h"

#include "cli/console.h"
#include "cli/exit_code.h"

namespace moekit::cli {

using ChosenVerb = std::function<Result<ExitCode>(Console&)>;

/// Errors  kInvalidArgument  an unknown verb or option, a missing or malformed value
[[nodiscard]] Result<ChosenVerb> parse_command_line(int argc, char** argv);

}  // namespace moekit::cli
