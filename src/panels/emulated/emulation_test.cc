// SPDX-License-Identifier: Apache-2.0

// What the emulated instructions do, by examples from their documentation and, where the processor
// has the real ones, bit for bit beside them.

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "device/numerics/bf16.h"
#include "panels/emulated/test_amx.h"
#include "panels/emulated/test_machine.h"
#include "panels/test_dot_case.h"

namespace moekit::panels {
namespace {

using Halves = std::array<std::uint16_t, 32>;
using Words = std::array<std::uint32_t, 16>;
using Floats = std::array<float, 16>;

template <typename Lanes, typename Register>
Lanes lanes(const Register& value) {
  return std::bit_cast<Lanes>(value);
}

std::uint16_t bf16(float value) {
  return device::bf16_from_f32(value);
}

Halves counted_halves() {
  Halves out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<std::uint16_t>(0x8001U + 257U * i);
  }
  return out;
}

TEST(Emulation, ShiftsTakeEveryCount) {
  const Halves a = counted_halves();
  const auto value = std::bit_cast<__m512i>(a);
  for (unsigned count = 0; count < 40; ++count) {
    const Halves left = lanes<Halves>(_mm512_slli_epi16(value, count));
    const Halves right = lanes<Halves>(_mm512_srli_epi16(value, count));
    const Halves sign = lanes<Halves>(_mm512_srai_epi16(value, count));
    const Words wide = lanes<Words>(_mm512_slli_epi32(value, count));
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto power = std::uint64_t{1} << count;
      EXPECT_EQ(left[i], (a[i] * power) & 0xFFFFU) << count;
      EXPECT_EQ(right[i], a[i] / power) << count;
      const double exact =
          std::floor(static_cast<std::int16_t>(a[i]) / std::ldexp(1.0, int(count)));
      EXPECT_EQ(static_cast<std::int16_t>(sign[i]), exact) << count;
    }
    const Words words = lanes<Words>(value);
    for (std::size_t i = 0; i < words.size(); ++i) {
      EXPECT_EQ(wide[i], count > 31 ? 0U : (words[i] << count));
    }
  }
}

TEST(Emulation, PlacesOfLanes) {
  const Halves a = counted_halves();
  const auto value = std::bit_cast<__m512i>(a);
  Halves index;
  for (std::size_t i = 0; i < index.size(); ++i) {
    index[i] = static_cast<std::uint16_t>(0xABC0U + 7U * i);  // five bits count
  }
  const Halves permuted =
      lanes<Halves>(_mm512_permutexvar_epi16(std::bit_cast<__m512i>(index), value));
  for (std::size_t i = 0; i < index.size(); ++i) {
    EXPECT_EQ(permuted[i], a[index[i] & 31U]);
  }
  const __m256i high = _mm512_extracti64x4_epi64(value, 1);
  const Halves twice = lanes<Halves>(_mm512_broadcast_i64x4(high));
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(twice[i], a[16 + i % 16]);
  }
  using Bytes = std::array<std::uint8_t, 64>;
  const Bytes b = lanes<Bytes>(value);
  Bytes order;
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<std::uint8_t>(37U * i + 5U);
  }
  const auto places = std::bit_cast<__m512i>(order);
  const Bytes across = lanes<Bytes>(_mm512_permutexvar_epi8(places, value));
  const Bytes within = lanes<Bytes>(_mm512_shuffle_epi8(value, places));
  const Bytes moved = lanes<Bytes>(_mm512_bsrli_epi128(value, 3));
  for (std::size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(across[i], b[order[i] & 63U]);
    EXPECT_EQ(within[i], (order[i] & 0x80U) != 0 ? 0U : b[i / 16 * 16 + (order[i] & 15U)]);
    EXPECT_EQ(moved[i], i % 16 + 3 < 16 ? b[i + 3] : 0U);
  }
  const Halves some = lanes<Halves>(
      _mm512_maskz_permutexvar_epi16(0x80000005U, std::bit_cast<__m512i>(index), value));
  for (std::size_t i = 0; i < some.size(); ++i) {
    EXPECT_EQ(some[i], i == 0 || i == 2 || i == 31 ? permuted[i] : 0U);
  }
}

TEST(Emulation, ConversionsRoundToNearestEven) {
  Floats low;
  Floats upper;
  for (std::size_t i = 0; i < low.size(); ++i) {
    low[i] = 1.0F + static_cast<float>(i);
    upper[i] = 0x1.01p7F + static_cast<float>(i);  // halfway between two bf16
  }
  low[3] = 0x1p-130F;
  const Halves rounded =
      lanes<Halves>(_mm512_cvtne2ps_pbh(std::bit_cast<__m512>(upper), std::bit_cast<__m512>(low)));
  for (std::size_t i = 0; i < low.size(); ++i) {
    EXPECT_EQ(rounded[i], i == 3 ? 0U : bf16(low[i]));
    EXPECT_EQ(rounded[16 + i], bf16(upper[i]));
  }
}

TEST(Emulation, MasksNameLanes) {
  Halves a{};
  a[0] = 0x8000;
  a[5] = 1;
  a[31] = 0x7FFF;
  const auto value = std::bit_cast<__m512i>(a);
  const __mmask32 mask = _mm512_test_epi16_mask(value, _mm512_set1_epi16(0x7FFF));
  EXPECT_EQ(mask, (1U << 5) | (1U << 31));
  const Halves sums =
      lanes<Halves>(_mm512_mask_add_epi16(_mm512_set1_epi16(9), mask, value, _mm512_set1_epi16(2)));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(sums[i], i == 5 ? 3U : i == 31 ? 0x8001U : 9U);
  }
  Words words{};
  words[2] = 0xFFFFFFFFU;
  words[15] = 7;
  EXPECT_EQ(_mm512_cmplt_epi32_mask(std::bit_cast<__m512i>(words), _mm512_setzero_si512()),
            1U << 2);
  const auto all = std::bit_cast<__m512i>(words);
  EXPECT_EQ(lanes<Words>(_mm512_min_epi32(all, _mm512_setzero_si512()))[2], 0xFFFFFFFFU);
  EXPECT_EQ(lanes<Words>(_mm512_max_epi32(all, _mm512_setzero_si512()))[2], 0U);
  EXPECT_EQ(lanes<Words>(_mm512_andnot_si512(all, _mm512_set1_epi32(6)))[15], 0U);
  EXPECT_EQ(_mm512_cmpgt_epu16_mask(value, _mm512_set1_epi16(1)), 1U | (1U << 31));
  EXPECT_EQ(lanes<Halves>(_mm512_max_epu16(value, _mm512_set1_epi16(2)))[0], 0x8000U);
  EXPECT_EQ(lanes<Halves>(_mm512_subs_epu16(value, _mm512_set1_epi16(2)))[5], 0U);
}

float any_float(std::mt19937& random) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(random()));
}

// Of near exponents, so that the last bits meet.
float near_one(std::mt19937& random) {
  const auto bits = static_cast<std::uint32_t>(random());
  return std::bit_cast<float>((bits & 0x807FFFFFU) | ((0x70U + (bits >> 23) % 32U) << 23));
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

TEST(Emulation, FusedRoundsOnce) {
  std::mt19937 random(3);
  for (int i = 0; i < 400000; ++i) {
    const bool any = i % 4 == 0;
    const float a = any ? any_float(random) : near_one(random);
    const float b = any ? any_float(random) : near_one(random);
    const float c = i % 8 == 1 ? -a * b : any ? any_float(random) : near_one(random);
    ASSERT_TRUE(same(fused(a, b, c), std::fma(a, b, c))) << a << ' ' << b << ' ' << c;
  }
}

TEST(Emulation, AccumulationIsFusedWithoutSubnormals) {
  std::mt19937 random(5);
  int tiny = 0;
  for (int i = 0; i < 400000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    float a = std::bit_cast<float>(bits << 16);
    float b = std::bit_cast<float>(bits & 0xFFFF0000U);
    if (i % 2 == 0) {  // products about 2^-126
      a = std::ldexp(device::bf16_round(near_one(random)), -63);
      b = std::ldexp(device::bf16_round(near_one(random)), -63);
    }
    const float sum = i % 3 == 0 ? any_float(random) : std::ldexp(near_one(random), -125);
    const float exact = std::fma(flushed(a), flushed(b), flushed(sum));
    tiny += std::abs(exact) < 0x1p-126F && exact != 0.0F ? 1 : 0;
    if (std::abs(exact) != 0x1p-126F) {  // there the manual's "tiny" is decided before rounding
      ASSERT_TRUE(same(accumulate(sum, a, b), flushed(exact))) << sum << ' ' << a << ' ' << b;
    }
  }
  EXPECT_GE(tiny, 10000);
}

// Of a pair the odd element comes first: 1 + 2^24 loses the 1, and -2^24 leaves nothing.
TEST(Emulation, DotProductsHaveTheirOrderAndWidth) {
  __m512 sum = _mm512_set1_ps(1.0F);
  const std::uint16_t x[2] = {bf16(-0x1p12F), bf16(0x1p12F)};
  const auto weights = _mm512_set1_epi32(static_cast<int>((bf16(0x1p12F) << 16) | bf16(0x1p12F)));
  add_dots(sum, weights, x);
  for (const float lane : lanes<Floats>(sum)) {
    EXPECT_EQ(lane, 0.0F);
  }
  // 200 * -128 + 255 * 127, beyond 16 bits without saturation.
  __m512i digits = _mm512_set1_epi32(-7);
  const std::byte four[4] = {std::byte{0x80}, std::byte{0x7F}, std::byte{0}, std::byte{0xFF}};
  add_digits(digits, _mm512_set1_epi32(0x0107FFC8), four);
  EXPECT_EQ(static_cast<int>(lanes<Words>(digits)[9]), -7 - 200 * 128 + 255 * 127 - 1);
  // -32768 * 128 + 2 * 16384.
  const __m512i pairs = _mm512_dpwssd_epi32(
      _mm512_set1_epi32(5), _mm512_set1_epi32(0x00028000), _mm512_set1_epi32(0x40000080));
  EXPECT_EQ(static_cast<int>(lanes<Words>(pairs)[3]), 5 - 32768 * 128 + 2 * 16384);
  const float odd = 3.0F;
  add_products(sum, _mm512_set1_ps(0.5F), &odd);
  EXPECT_EQ(lanes<Floats>(sum)[15], 1.5F);
}

// The body knows what its thread's tiles are configured for: it hands them over first.
void start_without_tiles() {
  kEmulatedAmxBody.finish();
  release_tiles();
}

TileConfig config_of(int rows, int row_bytes = 64) {
  TileConfig config;
  for (int tile = 0; tile < 3; ++tile) {
    config.rows[tile] = static_cast<std::uint8_t>(tile == 2 ? 16 : rows);
    config.row_bytes[tile] = static_cast<std::uint16_t>(tile == 2 ? 64 : row_bytes);
  }
  return config;
}

// sums 0 += rows 1 * columns 2, for every number of rows; what lies beyond the rows is not read and
// not written.
TEST(Emulation, TileProductsAreSumsOfPairs) {
  start_without_tiles();
  std::mt19937 random(9);
  for (int num_rows = 1; num_rows <= 16; ++num_rows) {
    load_config(config_of(num_rows));
    constexpr int kStride = 72;  // of the rows, in bytes
    std::vector<std::uint16_t> a(static_cast<std::size_t>((num_rows - 1) * kStride / 2 + 32));
    std::vector<std::uint16_t> b(std::size_t{16} * 32);
    std::vector<float> sums(static_cast<std::size_t>(num_rows) * 16 + 16, -1.0F);
    for (std::vector<std::uint16_t>* values : {&a, &b}) {
      for (std::uint16_t& value : *values) {
        value = bf16(static_cast<float>(random() % 17U) - 8.0F);
      }
    }
    load_tile<0>(reinterpret_cast<const std::byte*>(sums.data()), 64);
    load_tile<1>(reinterpret_cast<const std::byte*>(a.data()), kStride);
    load_tile<2>(reinterpret_cast<const std::byte*>(b.data()), 64);
    add_products<0, 1, 2>();
    store_tile<0>(sums.data(), 64);
    for (std::size_t m = 0; m < static_cast<std::size_t>(num_rows); ++m) {
      for (std::size_t n = 0; n < 16; ++n) {
        float want = -1.0F;
        for (std::size_t k = 0; k < 32; ++k) {
          want += device::bf16_to_f32(a[m * (kStride / 2) + k]) *
                  device::bf16_to_f32(b[k / 2 * 32 + 2 * n + k % 2]);
        }
        EXPECT_EQ(sums[m * 16 + n], want) << m << ' ' << n;
      }
    }
    EXPECT_EQ(sums.back(), -1.0F);
  }
  release_tiles();
  EXPECT_FALSE(holds_tiles());
}

// Even columns are summed apart from odd ones, in order, and both together before the sum so far:
// row 0 has 2^24 and then ones in even columns, which are lost, where odd columns keep theirs.
TEST(Emulation, TileProductsKeepTheDocumentedOrder) {
  start_without_tiles();
  load_config(config_of(2));
  std::array<std::uint16_t, 64> a{};
  std::array<std::uint16_t, std::size_t{16} * 32> b;
  b.fill(bf16(1.0F));
  a[0] = bf16(0x1p24F);
  a[2] = bf16(1.0F);
  a[4] = bf16(1.0F);
  a[1] = bf16(1.0F);
  a[3] = bf16(1.0F);
  a[32] = bf16(0x1p-100F);
  std::array<float, 32> sums{};
  sums[0] = -0x1p24F;
  sums[16] = 0x1p-130F;
  load_tile<0>(reinterpret_cast<const std::byte*>(sums.data()), 64);
  load_tile<1>(reinterpret_cast<const std::byte*>(a.data()), 64);
  load_tile<2>(reinterpret_cast<const std::byte*>(b.data()), 64);
  add_products<0, 1, 2>();
  store_tile<0>(sums.data(), 64);
  EXPECT_EQ(sums[0], 2.0F);
  EXPECT_EQ(sums[16], 0x1p-100F);  // a subnormal sum so far is zero
  zero_sums<0>();
  store_tile<0>(sums.data(), 64);
  EXPECT_EQ(sums[1], 0.0F);
  release_tiles();
}

TEST(EmulationDeathTest, FaultsEndTheProgram) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  start_without_tiles();
  alignas(64) std::byte room[2048] = {};
  EXPECT_DEATH(load_tile<0>(room, 64), "tileloadd: no tiles are configured");
  EXPECT_DEATH((add_products<0, 1, 2>()), "tdpbf16ps: no tiles are configured");
  EXPECT_DEATH(load_config(config_of(17)), "ldtilecfg: more than 16 rows");
  EXPECT_DEATH(load_config(config_of(16, 68)), "ldtilecfg: more than 64 bytes");
  EXPECT_DEATH(load_config(config_of(0)), "ldtilecfg: rows without bytes");
  TileConfig config = config_of(16);
  config.palette = 2;
  EXPECT_DEATH(load_config(config), "unknown palette");
  config = config_of(16);
  config.rows[9] = 1;
  EXPECT_DEATH(load_config(config), "reserved bytes");
  config = config_of(16);
  config.rows[1] = 15;
  load_config(config);
  EXPECT_DEATH((add_products<0, 1, 2>()), "differ in rows");
  EXPECT_DEATH((add_products<1, 1, 2>()), "one tile named twice");
  EXPECT_DEATH(load_tile<3>(room, 64), "this tile is not configured");
  config = config_of(16);
  config.row_bytes[1] = 60;
  load_config(config);
  EXPECT_DEATH((add_products<0, 1, 2>()), "pairs are not the second operand's rows");
  config = config_of(16);
  config.row_bytes[0] = 60;
  load_config(config);
  EXPECT_DEATH((add_products<0, 1, 2>()), "differ in bytes of a row");
  release_tiles();
  EXPECT_DEATH(_mm512_store_si512(room + 32, _mm512_setzero_si512()), "no multiple of 64");
}

// Between calls a thread keeps its tiles; `finish` gives them back.
TEST(Emulation, FinishReleasesTheTiles) {
  start_without_tiles();
  const DotCase dots(kShapes[6], 20);
  dots.dot(kEmulatedAmxBody, 0, 20);
  EXPECT_TRUE(holds_tiles());
  kEmulatedAmxBody.finish();
  EXPECT_FALSE(holds_tiles());
}

// The bits of both. Returns how many were compared.
int64_t expect_equal_bits(const DotCase& dots,
                          const Body& emulated,
                          const Body& real,
                          int64_t count) {
  const std::vector<float> have = dots.dot(emulated, 0, count);
  const std::vector<float> want = dots.dot(real, 0, count);
  EXPECT_EQ(have.size(), want.size());
  for (std::size_t i = 0; i < have.size(); ++i) {
    EXPECT_TRUE(same(have[i], want[i])) << i << ": " << have[i] << ", hardware " << want[i];
  }
  return static_cast<int64_t>(have.size());
}

// Plain operands and any bits, over every shape and tile. Returns how many sums were compared.
int64_t expect_bits_of_hardware(const Body& emulated, const Body& real, const Panel16Shape& shape) {
  const Body& own = body_of(emulated, shape.element);
  const Body& other = body_of(real, shape.element);
  int64_t compared = 0;
  for (const std::uint32_t least_e8m0 : {120U, 60U, 0U}) {
    DotCase dots(shape, own.max_tokens, least_e8m0);
    for (const bool wild : {false, true}) {
      if (wild) {
        dots.make_wild(least_e8m0);
      }
      for (const int64_t count : {1, 2, 5, 7, 16, 17, 33, 50, 64}) {
        if (count <= own.max_tokens && !testing::Test::HasFailure()) {
          SCOPED_TRACE("isa " + std::to_string(static_cast<int>(own.isa)) + " element " +
                       std::to_string(static_cast<int>(shape.element)) + " cols " +
                       std::to_string(shape.cols) + " tokens " + std::to_string(count) +
                       (wild ? " wild" : ""));
          compared += expect_equal_bits(dots, own, other, count);
        }
      }
    }
  }
  return compared;
}

TEST(Emulation, HasTheBitsOfTheHardware) {
#if defined(__x86_64__)
  const base::CpuIsa isa = base::detect_real_cpu().isa;
  if (isa < base::CpuIsa::kAvx512) {
    GTEST_SKIP() << "avx512 and amx: this processor lacks the instructions that emulated ones are "
                    "compared with";
  }
  std::vector<std::pair<const Body*, const Body*>> pairs{
      {&kEmulatedAvx512Body, &kAvx512Body}, {&kEmulatedAvx512DigitBody, &kAvx512DigitBody}};
  if (isa >= base::CpuIsa::kAmx) {
    pairs.emplace_back(&kEmulatedAmxBody, &kAmxBody);
  }
  int64_t compared = 0;
  for (const auto& [emulated, real] : pairs) {
    for (const Panel16Shape& shape : kShapes) {
      compared += expect_bits_of_hardware(*emulated, *real, shape);
    }
  }
  // Tiles of sanitized programs have fewer tokens.
  EXPECT_GE(compared, kMostTokensOfTile < 16 ? 40000 : 100000);
#else
  GTEST_SKIP() << "avx512 and amx: other processors have neither";
#endif
}

}  // namespace
}  // namespace moekit::panels
