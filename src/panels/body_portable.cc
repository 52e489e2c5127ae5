// SPDX-License-Identifier: Apache-2.0

// The body for any processor, on the compiler's 16-byte vectors (SSE2, NEON and the like all have
// them). Without a byte shuffle the cheapest decode is a table: a byte of codes holds two columns
// of one row, and one 8-byte load gives both weights. Two rows make a vector; a row's sum is two
// lanes.

#include <array>
#include <bit>

#include "device/numerics/e2m1.h"
#include "device/numerics/e4m3.h"
#include "device/numerics/e8m0.h"
#include "panels/body_loops.h"

namespace moekit::panels {

namespace {

// NOLINTBEGIN(modernize-use-using): an alias cannot carry the attribute in both compilers
typedef float F32x4 __attribute__((vector_size(16)));
typedef double F64x2 __attribute__((vector_size(16)));
typedef std::uint32_t U32x4 __attribute__((vector_size(16)));
typedef std::int32_t I32x4 __attribute__((vector_size(16)));

// NOLINTEND(modernize-use-using)

// Weights of (low nibble, high nibble), as the bits of a double so that one load moves both.
constexpr std::array<double, 256> make_pair_table() {
  std::array<double, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    table[byte] = std::bit_cast<double>(
        std::array<float, 2>{device::e2m1_to_f32(byte & 0xFU), device::e2m1_to_f32(byte >> 4)});
  }
  return table;
}

constexpr std::array<double, 256> kPairTable = make_pair_table();

constexpr std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (std::uint32_t code = 0; code < 256; ++code) {
    table[code] = device::e4m3_to_f32(code);
  }
  return table;
}

constexpr std::array<float, 256> kE4m3Table = make_e4m3_table();

struct Portable {
  using Operand = float;

  // Codes: vector v holds rows 2v and 2v + 1, two lanes a row. BF16: vectors 0 to 3 sum the even
  // columns of rows 4v to 4v + 3, vectors 4 to 7 the odd ones.
  struct Sums {
    F32x4 at[8];
  };

  using Scale = Sums;

  struct Constants {};

  static constexpr int kParts = 1;
  template <int>
  static constexpr int kPartsTogether = 1;
  static constexpr int kMaxTokens = 4;
  template <int>
  static constexpr int kGroupsTogether = 0;

  static Sums zero() { return {}; }

  static Constants constants() { return {}; }

  // Bytes 0 to 3 of a row's word hold columns (0, 2), (4, 6), (1, 3), (5, 7): operands to match.
  template <int kTokens>
  static void gather_operands(const float* x, F32x4 (*out)[4]) {
    for (int t = 0; t < kTokens; ++t) {
      const float* pairs[4];
      for (i64 pair = 0; pair < 4; ++pair) {
        pairs[pair] = x + operand_at<kTokens>(pair, t);
      }
      for (int odd = 0; odd < 2; ++odd) {
        const F32x4 first = {pairs[0][odd], pairs[1][odd], pairs[0][odd], pairs[1][odd]};
        const F32x4 last = {pairs[2][odd], pairs[3][odd], pairs[2][odd], pairs[3][odd]};
        out[t][2 * odd] = first;
        out[t][2 * odd + 1] = last;
      }
    }
  }

  static F32x4 decode(const std::byte* first_row, const std::byte* second_row) {
    return std::bit_cast<F32x4>(F64x2{kPairTable[static_cast<std::size_t>(*first_row)],
                                      kPairTable[static_cast<std::size_t>(*second_row)]});
  }

  template <int kPartCount, int kTokens>
  static void add_codes(const Constants& /*constants*/,
                        const std::byte* line,
                        const float* x,
                        TileSums<Portable, kTokens>* sums) {
    F32x4 operands[kTokens][4];
    gather_operands<kTokens>(x, operands);
    for (i64 v = 0; v < 8; ++v) {
      const std::byte* rows = line + v * 8;
      F32x4 weights[4];
      for (i64 byte = 0; byte < 4; ++byte) {
        weights[byte] = decode(rows + byte, rows + 4 + byte);
      }
      for (int t = 0; t < kTokens; ++t) {
        F32x4 sum = sums->at[t].at[v];
        for (int byte = 0; byte < 4; ++byte) {
          sum += weights[byte] * operands[t][byte];
        }
        sums->at[t].at[v] = sum;
      }
    }
  }

  template <int kTokens>
  static void add_bf16(const std::byte* lines, i64 /*part*/, const float* x, Sums* sums) {
    for (i64 pair = 0; pair < 4; ++pair) {
      for (i64 v = 0; v < 4; ++v) {
        U32x4 words;
        std::memcpy(&words, lines + pair * kPanel16LineBytes + v * 16, sizeof(words));
        const auto even = std::bit_cast<F32x4>(words << 16);
        const auto odd = std::bit_cast<F32x4>(words & 0xFFFF0000U);
        for (int t = 0; t < kTokens; ++t) {
          const float* at = x + operand_at<kTokens>(pair, t);
          sums[t].at[v] += even * at[0];
          sums[t].at[v + 4] += odd * at[1];
        }
      }
    }
  }

  template <Panel16Element kElement>
  static Scale scale(const std::byte* bytes, i64 /*part*/) {
    const auto value = [&](i64 row) {
      const auto code = static_cast<std::uint32_t>(bytes[row]);
      return kElement == Panel16Element::kNvfp4 ? device::e5m3_to_f32(code)
                                                : device::e8m0_to_f32(code);
    };
    Scale out;
    for (i64 v = 0; v < 8; ++v) {
      const float first = value(2 * v);
      const float second = value(2 * v + 1);
      out.at[v] = F32x4{first, first, second, second};
    }
    return out;
  }

  struct ZeroPoints {
    F32x4 at[4];
  };

  struct NoZeroPoints {};

  static U32x4 load_words(const std::byte* words) {
    U32x4 loaded;
    std::memcpy(&loaded, words, sizeof(loaded));
    return loaded;
  }

  // Below 2^31, so that the signed conversion, which every instruction set has, serves.
  static F32x4 to_floats(U32x4 integers) {
    return __builtin_convertvector(std::bit_cast<I32x4>(integers), F32x4);
  }

  template <Panel16Element kElement>
  static auto zero_points(const std::byte* words, i64 /*part*/) {
    if constexpr (kElement == Panel16Element::kInt4) {
      ZeroPoints zeros;
      for (i64 v = 0; v < 4; ++v) {
        zeros.at[v] = to_floats(load_words(words + v * 16) & device::kPanel16ZeroPointBits);
      }
      return zeros;
    } else {
      return NoZeroPoints{};
    }
  }

  template <Panel16Element kElement>
  static Scale wide_scale(const std::byte* words, i64 /*part*/) {
    Scale out;
    for (i64 v = 0; v < 4; ++v) {
      U32x4 rows = load_words(words + v * 16);
      if (kElement == Panel16Element::kInt4) {
        rows &= ~device::kPanel16ZeroPointBits;
      }
      out.at[v] = std::bit_cast<F32x4>(rows);
      out.at[v + 4] = out.at[v];
    }
    return out;
  }

  static Sums scaled(const Sums& sums, float factor) {
    Sums out;
    for (int v = 0; v < 8; ++v) {
      out.at[v] = sums.at[v] * factor;
    }
    return out;
  }

  template <int kTokens>
  static void add_int4(
      const std::byte* line, i64 /*part*/, const ZeroPoints& zeros, const float* x, Sums* sums) {
    for (i64 v = 0; v < 4; ++v) {
      const U32x4 words = load_words(line + v * 16);
      for (i64 pair = 0; pair < 4; ++pair) {
        const auto shift = static_cast<std::uint32_t>(4 * pair);
        const F32x4 even = to_floats((words >> shift) & 15U) - zeros.at[v];
        const F32x4 odd = to_floats((words >> (16U + shift)) & 15U) - zeros.at[v];
        for (int t = 0; t < kTokens; ++t) {
          const float* at = x + operand_at<kTokens>(pair, t);
          sums[t].at[v] += even * at[0];
          sums[t].at[v + 4] += odd * at[1];
        }
      }
    }
  }

  // Of four rows, whose words lie side by side.
  static F32x4 e4m3_values(const std::byte* bytes) {
    return F32x4{kE4m3Table[static_cast<std::size_t>(bytes[0])],
                 kE4m3Table[static_cast<std::size_t>(bytes[4])],
                 kE4m3Table[static_cast<std::size_t>(bytes[8])],
                 kE4m3Table[static_cast<std::size_t>(bytes[12])]};
  }

  template <int kTokens>
  static void add_e4m3(const std::byte* lines, i64 /*part*/, const float* x, Sums* sums) {
    for (i64 col = 0; col < kPanel16StepCols; ++col) {
      const std::byte* column = lines + col / 4 * kPanel16LineBytes + (col % 2) * 2 + (col % 4) / 2;
      for (i64 v = 0; v < 4; ++v) {
        const F32x4 weights = e4m3_values(column + v * 16);
        for (int t = 0; t < kTokens; ++t) {
          sums[t].at[v + 4 * (col % 2)] += weights * x[operand_at<kTokens>(col / 2, t) + col % 2];
        }
      }
    }
  }

  static Sums multiply_add(const Sums& sums, const Scale& scale, const Sums& total) {
    Sums out;
    for (int v = 0; v < 8; ++v) {
      out.at[v] = total.at[v] + sums.at[v] * scale.at[v];
    }
    return out;
  }

  static void store_codes(const Sums& sums, i64 /*part*/, float* out) {
    for (i64 v = 0; v < 8; ++v) {
      out[2 * v] = sums.at[v][0] + sums.at[v][1];
      out[2 * v + 1] = sums.at[v][2] + sums.at[v][3];
    }
  }

  template <Panel16Element>
  static void store_wide(const Sums& sums, i64 part, float* out) {
    store_bf16(sums, part, out);
  }

  static void store_bf16(const Sums& sums, i64 /*part*/, float* out) {
    for (i64 v = 0; v < 4; ++v) {
      const F32x4 rows = sums.at[v] + sums.at[v + 4];
      std::memcpy(out + 4 * v, &rows, sizeof(rows));
    }
  }
};

}  // namespace

constinit const Body kPortableBody = make_body<Portable>(Isa::kPortable);

}  // namespace moekit::panels
