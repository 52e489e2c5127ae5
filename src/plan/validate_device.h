// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moekit/device.h"
#include "moekit/status.h"

namespace moekit::plan {

/// A descriptor comes from the caller: every number that a size is computed from has a range.
///
/// Errors  kInvalidArgument  an enumerator outside its enum, num_threads or num_sms out of range
[[nodiscard]] Status validate_device(const DeviceDescriptor& device);

}  // namespace moekit::plan
