// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the floor reads: units of two regions of packed experts.

#include "device/portable.h"

namespace moekit::kernels::memory_floor {

struct Args {
  const device::u8* gate_up;  // unit of expert 0
  const device::u8* down;
  const device::i32* experts;        // [num_active] ascending
  device::u32* arrivals;             // grows by the grid with every launch, never reset
  device::u32* sink;                 // never written in practice: keeps the loads alive
  device::i64 gate_up_stride_bytes;  // bytes of a unit, multiples of 16
  device::i64 down_stride_bytes;
  device::i32 num_active;
  device::i32 unused;
};

static_assert(sizeof(Args) == 64 && alignof(Args) == 8);

}  // namespace moekit::kernels::memory_floor
