// SPDX-License-Identifier: Apache-2.0
#pragma once

// One lane's eight values, from their bits to codes, scale and operand. What lanes of a group share
// is the folded amax alone, so the host runs the same code with a loop where the kernel shuffles.

#include "device/numerics/quantize.h"
#include "kernels/quantize_rows/args.h"
#include "kernels/quantize_rows/spec.h"

namespace moekit::kernels::quantize_rows {
inline namespace MOEKIT_ISA {

struct Lane {
  float values[kLaneElems];
  device::u32 amax_bits;
};

/// Bits of eight BF16, two a word as memory holds them.
constexpr Lane load_lane(const device::u32 (&words)[4]) {
  Lane lane{};
  for (int i = 0; i < kLaneElems; ++i) {
    const device::u32 word = words[i / 2];
    lane.values[i] =
        device::bf16_to_f32(static_cast<device::u16>(i % 2 == 0 ? word & 0xFFFFU : word >> 16));
    lane.amax_bits = device::fold_amax(lane.amax_bits, lane.values[i]);
  }
  return lane;
}

struct LaneResult {
  device::u32 codes[2];    // eight bytes, or four bytes in the first word
  device::u32 scale_bits;  // a byte, or the bits of an f32
  device::u32 operand[4];  // eight BF16
};

/// `amax_bits` is that of the whole group.
template <Rule kRule>
constexpr LaneResult quantize_lane(const Lane& lane, device::u32 amax_bits, float global) {
  LaneResult result{};
  float divisor = 0.0F;
  if constexpr (kRule == Rule::kQ4) {
    result.scale_bits = device::q4_scale(amax_bits, global);
    divisor = device::q4_divisor(result.scale_bits, global);
  } else if constexpr (kRule == Rule::kQ8) {
    result.scale_bits = device::q8_byte(amax_bits);
  } else {
    divisor = device::q8b_scale(amax_bits);
    result.scale_bits = device::bits_of(divisor);
  }
  for (int i = 0; i < kLaneElems; ++i) {
    device::u32 code = 0;
    device::u32 operand = 0;
    if constexpr (kRule == Rule::kQ4) {
      code = device::q4_code(lane.values[i], divisor);
      operand = device::q4_operand(code, result.scale_bits);
      result.codes[0] |= code << (4 * i);
    } else if constexpr (kRule == Rule::kQ8) {
      code = device::q8_payload(lane.values[i], result.scale_bits);
      operand = device::q8_operand(code, result.scale_bits);
      result.codes[i / 4] |= code << (8 * (i % 4));
    } else {
      // The f32 scale is no power of two: the operand of an FP8 product is the payload itself.
      code = device::q8b_payload(lane.values[i], divisor);
      operand = device::bf16_from_f32(device::e4m3_to_f32(code));
      result.codes[i / 4] |= code << (8 * (i % 4));
    }
    result.operand[i / 2] |= operand << (16 * (i % 2));
  }
  return result;
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::kernels::quantize_rows
