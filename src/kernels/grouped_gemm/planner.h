// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/family.h"

namespace moekit::kernels::grouped_gemm {

extern const plan::KernelFamily kFamily;

}  // namespace moekit::kernels::grouped_gemm
