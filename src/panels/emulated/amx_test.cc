// SPDX-License-Identifier: Apache-2.0

// The bodies of emulated/test_amx.h.

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "device/numerics/bf16.h"
#include "panels/emulated/test_amx.h"

namespace moekit::panels {

namespace {

constexpr int kMostRows = 16;
constexpr int kMostRowBytes = 64;
constexpr std::size_t kLanes = 16;  // of 32 bits

struct Tile {
  int rows = 0;
  int row_bytes = 0;
  alignas(64) std::byte bytes[kMostRows][kMostRowBytes] = {};
};

struct Tiles {
  bool configured = false;
  std::array<Tile, 8> at{};
};

thread_local Tiles tiles;
thread_local std::int64_t configurations = 0;

Tile& configured_tile(const char* instruction, int number) {
  if (!tiles.configured) {
    fault(instruction, "no tiles are configured");
  }
  if (number < 0 || number > 7 || tiles.at[static_cast<std::size_t>(number)].rows == 0) {
    fault(instruction, "this tile is not configured");
  }
  return tiles.at[static_cast<std::size_t>(number)];
}

// A row of bf16 pairs, the even and the odd elements apart; subnormals are zeros.
struct Pairs {
  std::array<float, kLanes> even;
  std::array<float, kLanes> odd;
};

Pairs pairs_of(const std::byte* row) {
  std::array<std::uint16_t, 2 * kLanes> bits;
  std::memcpy(bits.data(), row, sizeof(bits));
  Pairs pairs;
  for (std::size_t i = 0; i < kLanes; ++i) {
    pairs.even[i] = flushed(device::bf16_to_f32(bits[2 * i]));
    pairs.odd[i] = flushed(device::bf16_to_f32(bits[2 * i + 1]));
  }
  return pairs;
}

struct Exponents {
  int least = 255;
  int most = 0;
};

Exponents exponents_of(const std::array<Pairs, kMostRows>& rows) {
  Exponents out;
  for (const Pairs& row : rows) {
    for (const std::array<float, kLanes>& values : {row.even, row.odd}) {
      for (const float value : values) {
        const int exponent = static_cast<int>((std::bit_cast<std::uint32_t>(value) >> 23) & 0xFFU);
        out.least = exponent == 0 ? out.least : std::min(out.least, exponent);
        out.most = std::max(out.most, exponent);
      }
    }
  }
  return out;
}

// Where f32 holds every product, a plain addition is the fused one.
bool all_products_are_exact(const Exponents& a, const Exponents& b) {
  return a.least + b.least - 254 >= -126 && a.most + b.most - 254 <= 125;
}

void accumulate_row(std::array<float, kLanes>& sums,
                    float a,
                    const std::array<float, kLanes>& b,
                    bool exact) {
  if (exact) {
    for (std::size_t n = 0; n < kLanes; ++n) {
      const float sum = sums[n] + a * b[n];
      sums[n] = flushed(sum);
    }
    return;
  }
  for (std::size_t n = 0; n < kLanes; ++n) {
    sums[n] = accumulate(sums[n], a, b[n]);
  }
}

void check_shapes(const Tile& sums, const Tile& rows, const Tile& columns) {
  constexpr const char* kName = "tdpbf16ps";
  if (sums.rows != rows.rows) {
    fault(kName, "sums and their first operand differ in rows");
  }
  if (sums.row_bytes != columns.row_bytes) {
    fault(kName, "sums and their second operand differ in bytes of a row");
  }
  if (rows.row_bytes / 4 != columns.rows) {
    fault(kName, "the first operand's pairs are not the second operand's rows");
  }
  for (const Tile* tile : {&sums, &rows, &columns}) {
    if (tile->row_bytes % 4 != 0) {
      fault(kName, "bytes of a row are no multiple of 4");
    }
  }
}

template <typename Values>
bool all_zero(const Values& values) {
  return std::all_of(std::begin(values), std::end(values), [](auto value) { return value == 0; });
}

}  // namespace

std::int64_t num_configurations() {
  return configurations;
}

bool holds_tiles() {
  return tiles.configured;
}

void load_config(const TileConfig& config) {
  constexpr const char* kName = "ldtilecfg";
  if (config.palette == 0) {
    release_tiles();
    return;
  }
  if (config.palette != 1) {
    fault(kName, "unknown palette");
  }
  if (config.start_row != 0) {
    fault(kName, "a start row other than 0");
  }
  const std::array<std::uint8_t, 64> bytes = std::bit_cast<std::array<std::uint8_t, 64>>(config);
  const auto none_in = [&bytes](std::ptrdiff_t first, std::ptrdiff_t end) {
    return std::all_of(bytes.begin() + first, bytes.begin() + end, [](auto b) { return b == 0; });
  };
  if (!none_in(2, 16) || !none_in(32, 48) || !none_in(56, 64)) {
    fault(kName, "reserved bytes are not 0");
  }
  ++configurations;
  Tiles configured;
  configured.configured = true;
  for (std::size_t i = 0; i < configured.at.size(); ++i) {
    Tile& tile = configured.at[i];
    tile.rows = config.rows[i];
    tile.row_bytes = config.row_bytes[i];
    if (tile.rows > kMostRows) {
      fault(kName, "more than 16 rows");
    }
    if (tile.row_bytes > kMostRowBytes) {
      fault(kName, "more than 64 bytes in a row");
    }
    if ((tile.rows == 0) != (tile.row_bytes == 0)) {
      fault(kName, "rows without bytes or bytes without rows");
    }
  }
  tiles = configured;
}

void release_tiles() {
  tiles = Tiles();
}

void load_emulated_tile(int number, const std::byte* base, std::int64_t stride) {
  Tile& tile = configured_tile("tileloadd", number);
  std::memset(tile.bytes, 0, sizeof(tile.bytes));
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(tile.bytes[row], base + row * stride, static_cast<std::size_t>(tile.row_bytes));
  }
}

void store_emulated_tile(int number, std::byte* base, std::int64_t stride) {
  const Tile& tile = configured_tile("tilestored", number);
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(base + row * stride, tile.bytes[row], static_cast<std::size_t>(tile.row_bytes));
  }
}

void zero_emulated_tile(int number) {
  Tile& tile = configured_tile("tilezero", number);
  std::memset(tile.bytes, 0, sizeof(tile.bytes));
}

void multiply_emulated_tiles(int sums_number, int rows_number, int columns_number) {
  constexpr const char* kName = "tdpbf16ps";
  if (sums_number == rows_number || sums_number == columns_number ||
      rows_number == columns_number) {
    fault(kName, "one tile named twice");
  }
  Tile& sums = configured_tile(kName, sums_number);
  const Tile& rows = configured_tile(kName, rows_number);
  const Tile& columns = configured_tile(kName, columns_number);
  check_shapes(sums, rows, columns);
  std::array<Pairs, kMostRows> a;  // tiles hold zeros beyond their rows and bytes
  std::array<Pairs, kMostRows> b;
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = pairs_of(rows.bytes[i]);
    b[i] = pairs_of(columns.bytes[i]);
  }
  const bool exact = all_products_are_exact(exponents_of(a), exponents_of(b));
  const auto num_pairs = static_cast<std::size_t>(columns.rows);
  for (std::size_t m = 0; m < static_cast<std::size_t>(sums.rows); ++m) {
    std::array<float, kLanes> even{};
    std::array<float, kLanes> odd{};
    for (std::size_t k = 0; k < num_pairs; ++k) {
      accumulate_row(even, a[m].even[k], b[k].even, exact);
      accumulate_row(odd, a[m].odd[k], b[k].odd, exact);
    }
    std::array<float, kLanes> total;
    std::memcpy(total.data(), sums.bytes[m], sizeof(total));
    for (std::size_t n = 0; n < kLanes; ++n) {
      const float both = flushed(even[n] + odd[n]);
      total[n] = flushed(flushed(total[n]) + both);
    }
    std::memcpy(sums.bytes[m], total.data(), static_cast<std::size_t>(sums.row_bytes));
  }
}

}  // namespace moekit::panels
