// SPDX-License-Identifier: Apache-2.0
#pragma once

// Test equipment: the program that links emulated/machine_test.cc believes that it runs on a
// processor with AVX-512 and AMX. The library has none of this: here stand definitions of
// base::detect_cpu, panels::body_for and panels::running_body that come before the library's.

#include "base/cpu_info.h"
#include "panels/body.h"

namespace moekit::base {

/// What detect_cpu says elsewhere.
[[nodiscard]] CpuInfo detect_real_cpu() noexcept;

}  // namespace moekit::base

namespace moekit::panels {

extern const Body kEmulatedAvx512Body;
extern const Body kEmulatedAvx512DigitBody;
extern const Body kEmulatedAmxBody;
extern const Body kEmulatedAmxDirectBody;

}  // namespace moekit::panels
