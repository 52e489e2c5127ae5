// SPDX-License-Identifier: Apache-2.0
#pragma once

// Test equipment: the tile instructions of body_amx.cc under the names of instructions_amx.h, in
// plain C++. Each thread has its eight tiles. What the processor answers with #GP or #UD ends the
// program with a message: a bad configuration, a tile that is not configured, shapes that do not
// fit each other. A start row other than 0, which only an interrupted instruction leaves behind, is
// refused too.

#include <cstddef>
#include <cstdint>

#include "panels/emulated/test_avx512.h"
#include "panels/instructions_amx.h"

namespace moekit::panels {

void load_emulated_tile(int tile, const std::byte* base, std::int64_t stride);
void store_emulated_tile(int tile, std::byte* base, std::int64_t stride);
void zero_emulated_tile(int tile);

/// sums [m, n] += rows [m, 2k] * columns [k, n, 2]. As documented: the even and the odd columns of
/// one instruction are summed apart from zero, in ascending order, then together, then added.
void multiply_emulated_tiles(int sums, int rows, int columns);

void load_config(const TileConfig& config);
void release_tiles();

/// How often this thread loaded one.
[[nodiscard]] std::int64_t num_configurations();

/// Whether this thread holds a configuration.
[[nodiscard]] bool holds_tiles();

template <int kTile>
void load_tile(const std::byte* base, std::int64_t stride) {
  load_emulated_tile(kTile, base, stride);
}

template <int kTile>
void store_tile(float* base, std::int64_t stride) {
  store_emulated_tile(kTile, reinterpret_cast<std::byte*>(base), stride);
}

template <int kTile>
void zero_sums() {
  zero_emulated_tile(kTile);
}

template <int kSums, int kRows, int kColumns>
void add_products() {
  multiply_emulated_tiles(kSums, kRows, kColumns);
}

}  // namespace moekit::panels
