// SPDX-License-Identifier: Apache-2.0
#pragma once

// One variant of the memory floor: the shape of its ring of stages. Freestanding.

#include "device/portable.h"

namespace moekit::kernels::memory_floor {

struct Spec {
  device::i32 stage_bytes = 16384;
  device::i32 num_stages = 12;
  device::i32 blocks_per_sm = 1;
};

constexpr device::i32 kConsumerWarps = 4;
constexpr device::i32 kMaxUnits = 1024;  // active experts

inline namespace MOEKIT_ISA {

constexpr device::i32 num_threads(const Spec&) {
  return kConsumerWarps * 32 + 32;
}

constexpr device::i32 smem_bytes(const Spec& s) {
  return s.stage_bytes * s.num_stages;
}

constexpr const char* why_invalid(const Spec& s) {
  if (s.stage_bytes < 512 || s.stage_bytes % 512 != 0) {
    return "stage_bytes must be a multiple of 512: a word of it for each consumer lane";
  }
  return s.num_stages < 2 || s.num_stages > 32 ? "num_stages must be 2 to 32" : nullptr;
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::kernels::memory_floor
