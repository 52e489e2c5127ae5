// SPDX-License-Identifier: Apache-2.0
#pragma once

// The CPU's packed layout. Index maps and the reasons for them: device/layout/panel16.h.

#include "device/layout/panel16.h"
#include "formats/packing.h"

namespace moekit::formats {

extern const Packing kPanel16Packing;

/// The shape as the index maps and the kernels take it.
[[nodiscard]] device::Panel16Shape panel16_shape(const PackingShape& shape) noexcept;

}  // namespace moekit::formats
