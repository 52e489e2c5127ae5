// SPDX-License-Identifier: Apache-2.0

// body_amx.cc over emulated instructions, as body_avx512_test.cc.

#include "device/portable.h"

#undef MOEKIT_ISA
#define MOEKIT_ISA isa_emulated_amx

#include "panels/emulated/test_amx.h"

#define kAvx512Body kEmulatedAvx512Body
#define kAvx512DigitBody kEmulatedAvx512DigitBody
#define kAmxBody kEmulatedAmxBody
#define kAmxDirectBody kEmulatedAmxDirectBody

#include "panels/body_amx.cc"
