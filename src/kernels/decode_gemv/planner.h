// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/family.h"

namespace moekit::kernels::decode_gemv {

extern const plan::KernelFamily kFamily;

}  // namespace moekit::kernels::decode_gemv
