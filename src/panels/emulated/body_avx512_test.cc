// SPDX-License-Identifier: Apache-2.0

// body_avx512.cc over emulated instructions. Under names and in a namespace of their own, since the
// program also has the real one, and compiled for every processor.

#include "device/portable.h"

#undef MOEKIT_ISA
#define MOEKIT_ISA isa_emulated_avx512

#include "panels/emulated/test_avx512.h"

#define kAvx512Body kEmulatedAvx512Body
#define kAvx512DigitBody kEmulatedAvx512DigitBody

#include "panels/body_avx512.cc"
