// SPDX-License-Identifier: Apache-2.0
#pragma once

// One source to one cubin.

#include "moekit/status.h"

#include "jit/image.h"
#include "jit/nvrtc_table.h"

namespace moekit::jit {

/// Compiles in memory: no include path, no file, no environment.
///
/// Errors  kInternal     our source does not compile; the message carries the compiler's first
/// error
///         kUnsupported  this compiler does not know the arch or an option, naming compiler and
///         arch
[[nodiscard]] Result<Image> compile_image(const NvrtcTable& nvrtc, const ResolvedRequest& resolved);

/// Registers, shared memory, stack and spills out of what `--ptxas-options=-v` says. Spills and
/// stack are summed over the functions of the program.
void read_ptxas_log(std::string_view log, ImageFacts& facts);

}  // namespace moekit::jit
