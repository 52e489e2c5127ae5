// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tile instructions of body_amx.cc, and the intrinsics. Tests bring the same names in plain C++
// (emulated/test_amx.h), for processors without tiles.

#include <cstdint>

namespace moekit::panels {

/// What `ldtilecfg` reads: bytes of a row and rows of each of the eight tiles.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

static_assert(sizeof(TileConfig) == 64);

}  // namespace moekit::panels

#if !defined(MOEKIT_EMULATED_INSTRUCTIONS)

#include <cstddef>
#include <immintrin.h>

#include "device/portable.h"

namespace moekit::panels {
inline namespace MOEKIT_ISA {

// Instructions and not the intrinsics: those of g++ 12 do not say that they read memory.
template <int kTile>
void load_tile(const std::byte* base, device::i64 stride) {
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(base), "r"(stride) : "memory");
}

template <int kTile>
void store_tile(float* base, device::i64 stride) {
  __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(base), "r"(stride)
                   : "memory");
}

template <int kTile>
void zero_sums() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

// sums += rows * columns: pairs of bf16.
template <int kSums, int kRows, int kColumns>
void add_products() {
  __asm__ volatile(
      "tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kColumns));
}

inline void load_config(const TileConfig& config) {
  __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

inline void release_tiles() {
  __asm__ volatile("tilerelease");
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::panels

#endif
