// SPDX-License-Identifier: Apache-2.0
#pragma once

// The multiply-adds that one core can start: the instruction that the body of an instruction set
// multiplies with, in independent chains, without a memory operand. The other yardstick beside
// every timing.

#include <cstdint>

#include "moekit/device.h"

namespace moekit::cli {

/// What dot_peak_round() computes; a multiply-add counts two.
[[nodiscard]] std::int64_t dot_peak_round_flops(Isa isa);

/// One round of that many. The processor must have `isa`.
void dot_peak_round(Isa isa);

}  // namespace moekit::cli
