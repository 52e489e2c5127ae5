// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "plan/launch.h"

namespace moekit::kernels::decode_gemv {

/// A layer of integers and powers of two: every sum is exact, so bits can be compared whatever the
/// order of summation.
[[nodiscard]] Result<plan::SelfTest> known_answer(std::string_view kernel);

}  // namespace moekit::kernels::decode_gemv
