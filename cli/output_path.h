// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where an output may go: never over what it was computed from.

#include <string>

#include "moekit/status.h"

namespace moekit::cli {

/// Writing over a file that is mapped, or that the next run reads, would destroy what the user
/// gave.
///
/// Errors  kInvalidArgument     `output` is the same file as `input` or as a file of `checkpoint`
///                              (anything in its folder; for a single file, it and the
///                              configurations beside it), or lies at the name of one
///         kFailedPrecondition  `output` is a folder, a device, a FIFO or a socket
[[nodiscard]] Status check_output_path(const std::string& output,
                                       const std::string& checkpoint,
                                       const std::string& input);

}  // namespace moekit::cli
