// SPDX-License-Identifier: Apache-2.0
#pragma once

// decode_gemv as launches, sources and known answers.

#include "plan/launch.h"

namespace moekit::kernels::decode_gemv {

extern const plan::CudaFamily kCuda;

}  // namespace moekit::kernels::decode_gemv
