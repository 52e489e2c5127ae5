// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the environment says about kernel images, in one place for the runtime and for
// `moekit kernels`.

#include "moekit/kernels.h"

#include "jit/nvrtc_table.h"

namespace moekit {

/// The bundle lies in `moekit/kernels` beside a shared library, or beside the program that holds
/// the static one, in the ways of an installed tree: DIR/moekit/kernels and
/// DIR/../lib/moekit/kernels; the first that exists.
[[nodiscard]] KernelFolders environment_folders();

[[nodiscard]] Result<jit::NvrtcTable> open_environment_nvrtc();

}  // namespace moekit
