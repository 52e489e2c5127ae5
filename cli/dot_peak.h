// SPDX-License-Identifier: Apache-2.0
#pragma once

// The multiply-adds that one core can start: an instruction that the bodies of an instruction set
// multiply with, in independent chains, without a memory operand. The other yardstick beside every
// timing.

#include <cstdint>

#include "moekit/device.h"

namespace moekit::cli {

enum class PeakKind : std::uint8_t {
  kDot,          // the widest: vdpbf16ps with AVX-512
  kMultiplyAdd,  // f32, of as wide vectors; the same as kDot where no dot product is
};

struct PeakRound {
  Isa isa = Isa::kPortable;
  PeakKind kind = PeakKind::kDot;
};

/// What run_peak_round() computes; a multiply-add counts two.
[[nodiscard]] std::int64_t peak_round_flops(PeakRound round);

/// One round of that many. The processor must have its ISA.
void run_peak_round(PeakRound round);

}  // namespace moekit::cli
