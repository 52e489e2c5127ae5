// SPDX-License-Identifier: Apache-2.0
#pragma once

// The multiply-adds that one core can start: an instruction that bodies of an instruction set, or
// engines that round activations to bytes, multiply with, in independent chains, without a memory
// operand. The other yardsticks beside every timing.

#include <cstdint>

#include "moekit/device.h"

namespace moekit::cli {

enum class PeakKind : std::uint8_t {
  kDot,          // of vectors: vdpbf16ps with AVX-512; the same as kMultiplyAdd below it
  kMultiplyAdd,  // f32, of as wide vectors
  kTile,         // tdpbf16ps, with AMX alone
  kByteDot,      // vpdpbusd, with AVX-512 and AMX: not exact, but what 8-bit engines multiply with
};

struct PeakRound {
  Isa isa = Isa::kPortable;
  PeakKind kind = PeakKind::kDot;
};

/// What run_peak_round() computes; a multiply-add counts two. 0: the ISA has no such instruction.
[[nodiscard]] std::int64_t peak_round_flops(PeakRound round);

/// One round of that many. The processor must have its ISA, and for kTile the process the tiles'
/// permission, which host_cpu() asks for.
void run_peak_round(PeakRound round);

}  // namespace moekit::cli
