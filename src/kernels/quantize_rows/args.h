// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernel arguments of quantize_rows.

#include "device/portable.h"

namespace moekit::kernels::quantize_rows {

/// Shapes   x        [num_rows, num_cols] bf16, row stride x_stride, 16-byte aligned rows
///          codes    [num_rows, num_cols] 4 or 8 bits an element, rows without gaps; null: not
///                   written
///          scales   [num_rows, ceil(num_cols / group)] E4M3, E8M0 or f32; null: not written
///          operand  [num_rows, num_cols] bf16, code * scale without the global, rows without gaps;
///                   null: not written
///          global   f32 [1], Q4 alone
/// Units    strides in elements
struct Args {
  const device::u16* x;
  device::u8* codes;
  void* scales;
  device::u16* operand;
  const float* global;
  device::i64 num_rows;
  device::i64 num_cols;  // a multiple of 8
  device::i64 x_stride;  // a multiple of 8
};

static_assert(sizeof(Args) == 64);

}  // namespace moekit::kernels::quantize_rows
