// SPDX-License-Identifier: Apache-2.0

// The bodies of emulated/test_avx512.h. Loops over lanes, written for compilers to vectorise.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device/numerics/bf16.h"
#include "panels/emulated/test_avx512.h"

namespace moekit::panels {

namespace {

template <typename Lane, typename Register>
auto lanes_of(const Register& value) {
  return std::bit_cast<std::array<Lane, sizeof(Register) / sizeof(Lane)>>(value);
}

template <typename Lane, typename Register, typename Operation>
Register each(const Register& a, Operation operation) {
  auto lanes = lanes_of<Lane>(a);
  for (Lane& lane : lanes) {
    lane = static_cast<Lane>(operation(lane));
  }
  return std::bit_cast<Register>(lanes);
}

template <typename Lane, typename Register, typename Operation>
Register each(const Register& a, const Register& b, Operation operation) {
  auto lanes = lanes_of<Lane>(a);
  const auto others = lanes_of<Lane>(b);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    lanes[i] = static_cast<Lane>(operation(lanes[i], others[i]));
  }
  return std::bit_cast<Register>(lanes);
}

template <typename Register, typename Lane>
Register all(Lane value) {
  std::array<Lane, sizeof(Register) / sizeof(Lane)> lanes;
  lanes.fill(value);
  return std::bit_cast<Register>(lanes);
}

template <typename Register>
Register loaded(const void* from) {
  Register out;
  std::memcpy(&out, from, sizeof(out));
  return out;
}

void check_line(const char* instruction, const void* at) {
  if (reinterpret_cast<std::uintptr_t>(at) % 64 != 0) {
    fault(instruction, "address is no multiple of 64");
  }
}

// a * b + c rounded to odd: what an addition in double loses goes into its last bit, so that a
// second rounding, to f32, is the right one. The product is exact.
double fused_to_odd(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = static_cast<double>(c);
  const double sum = product + addend;
  const double back = sum - product;
  const double lost = (product - (sum - back)) + (addend - back);  // NaN where sum is infinite
  const auto bits = std::bit_cast<std::int64_t>(sum);
  const std::int64_t away = (lost > 0.0) == (sum > 0.0) ? 1 : -1;
  const bool move = (lost > 0.0 || lost < 0.0) && (bits & 1) == 0;
  return std::bit_cast<double>(bits + (move ? away : 0));
}

// Tiny is what rounds to less than 2^-126 with room in the exponent: half a last place below it.
float accumulated(float sum, float a, float b) {
  const double exact = fused_to_odd(flushed(a), flushed(b), flushed(sum));
  constexpr double kTiny = 0x1p-126 * (1.0 - 0x1p-25);
  return static_cast<float>(std::abs(exact) < kTiny ? std::copysign(0.0, exact) : exact);
}

// sums[i] = accumulated(sums[i], a[i], b). Where f32 holds every product a plain addition is the
// same.
void accumulate_all(std::array<float, 16>& sums, const std::array<float, 16>& a, float b) {
  std::array<float, 16> products;
  int inexact = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    products[i] = a[i] * b;
    const float size = std::abs(products[i]);
    inexact |=
        static_cast<int>(a[i] != 0.0F) & static_cast<int>(!(size >= 0x1p-126F && size < 0x1p127F));
  }
  if (inexact != 0 || !(std::abs(b) >= 0x1p-126F)) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = accumulated(sums[i], a[i], b);
    }
    return;
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = flushed(flushed(sums[i]) + products[i]);
  }
}

}  // namespace

void fault(const char* instruction, const char* reason) {
  std::fprintf(stderr, "emulated %s: %s\n", instruction, reason);
  std::abort();
}

float fused(float a, float b, float c) {
  return static_cast<float>(fused_to_odd(a, b, c));
}

float accumulate(float sum, float a, float b) {
  return accumulated(sum, a, b);
}

__m128i _mm_loadu_si128(const void* from) {
  return loaded<__m128i>(from);
}

__m512i _mm512_loadu_si512(const void* from) {
  return loaded<__m512i>(from);
}

__m512i _mm512_load_si512(const void* from) {
  check_line("vmovdqa64", from);
  return loaded<__m512i>(from);
}

void _mm512_store_si512(void* to, const __m512i& value) {
  check_line("vmovdqa64", to);
  std::memcpy(to, &value, sizeof(value));
}

__m512 _mm512_loadu_ps(const void* from) {
  return loaded<__m512>(from);
}

void _mm512_storeu_ps(void* to, const __m512& value) {
  std::memcpy(to, &value, sizeof(value));
}

__m512 _mm512_setzero_ps() {
  return all<__m512>(0.0F);
}

__m512i _mm512_setzero_si512() {
  return all<__m512i>(0);
}

__m512 _mm512_set1_ps(float value) {
  return all<__m512>(value);
}

__m512i _mm512_set1_epi16(short value) {
  return all<__m512i>(value);
}

__m512i _mm512_set1_epi32(int value) {
  return all<__m512i>(value);
}

__m512i _mm512_and_si512(const __m512i& a, const __m512i& b) {
  return each<std::uint32_t>(a, b, [](std::uint32_t x, std::uint32_t y) { return x & y; });
}

__m512i _mm512_andnot_si512(const __m512i& a, const __m512i& b) {
  return each<std::uint32_t>(a, b, [](std::uint32_t x, std::uint32_t y) { return ~x & y; });
}

__m512i _mm512_or_si512(const __m512i& a, const __m512i& b) {
  return each<std::uint32_t>(a, b, [](std::uint32_t x, std::uint32_t y) { return x | y; });
}

__m512i _mm512_slli_epi16(const __m512i& a, unsigned count) {
  return each<std::uint16_t>(
      a, [count](std::uint32_t x) { return count > 15 ? 0U : (x << count) & 0xFFFFU; });
}

__m512i _mm512_slli_epi32(const __m512i& a, unsigned count) {
  return each<std::uint32_t>(a, [count](std::uint32_t x) { return count > 31 ? 0U : x << count; });
}

__m512i _mm512_srli_epi16(const __m512i& a, unsigned count) {
  return each<std::uint16_t>(a, [count](std::uint32_t x) { return count > 15 ? 0U : x >> count; });
}

__m512i _mm512_srai_epi16(const __m512i& a, unsigned count) {
  return each<std::int16_t>(a, [count](int x) { return x >> std::min(count, 15U); });
}

__m512i _mm512_srlv_epi32(const __m512i& a, const __m512i& counts) {
  return each<std::uint32_t>(
      a, counts, [](std::uint32_t x, std::uint32_t count) { return count > 31 ? 0U : x >> count; });
}

__m512i _mm512_bsrli_epi128(const __m512i& a, int bytes) {
  const auto values = lanes_of<std::uint8_t>(a);
  std::array<std::uint8_t, 64> lanes{};
  const auto distance = static_cast<std::size_t>(bytes & 0xFF);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    lanes[i] = i % 16 + distance < 16 ? values[i + distance] : std::uint8_t{0};
  }
  return std::bit_cast<__m512i>(lanes);
}

__m512i _mm512_permutexvar_epi16(const __m512i& index, const __m512i& a) {
  const auto values = lanes_of<std::uint16_t>(a);
  return each<std::uint16_t>(index, [&values](std::uint32_t i) { return values[i % 32U]; });
}

__m512i _mm512_maskz_permutexvar_epi16(__mmask32 mask, const __m512i& index, const __m512i& a) {
  auto lanes = lanes_of<std::uint16_t>(_mm512_permutexvar_epi16(index, a));
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    lanes[i] = ((mask >> i) & 1U) != 0 ? lanes[i] : std::uint16_t{0};
  }
  return std::bit_cast<__m512i>(lanes);
}

__m512i _mm512_permutexvar_epi8(const __m512i& index, const __m512i& a) {
  const auto values = lanes_of<std::uint8_t>(a);
  return each<std::uint8_t>(index, [&values](std::uint32_t i) { return values[i % 64U]; });
}

__m512 _mm512_permutexvar_ps(const __m512i& index, const __m512& a) {
  const auto values = lanes_of<std::uint32_t>(a);
  return _mm512_castsi512_ps(
      each<std::uint32_t>(index, [&values](std::uint32_t i) { return values[i % 16U]; }));
}

// Within each 16 bytes; an index with its high bit set gives zero.
__m512i _mm512_shuffle_epi8(const __m512i& a, const __m512i& index) {
  const auto values = lanes_of<std::uint8_t>(a);
  auto lanes = lanes_of<std::uint8_t>(index);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    lanes[i] = lanes[i] >= 128 ? std::uint8_t{0} : values[i / 16 * 16 + lanes[i] % 16];
  }
  return std::bit_cast<__m512i>(lanes);
}

__m512i _mm512_broadcast_i64x4(const __m256i& a) {
  return std::bit_cast<__m512i>(std::array<__m256i, 2>{a, a});
}

__m512i _mm512_broadcast_i32x4(const __m128i& a) {
  return std::bit_cast<__m512i>(std::array<__m128i, 4>{a, a, a, a});
}

__m256i _mm512_extracti64x4_epi64(const __m512i& a, int half) {
  return std::bit_cast<std::array<__m256i, 2>>(a)[static_cast<std::size_t>(half & 1)];
}

__m512 _mm512_castsi512_ps(const __m512i& a) {
  return std::bit_cast<__m512>(a);
}

__m256i _mm512_castsi512_si256(const __m512i& a) {
  return _mm512_extracti64x4_epi64(a, 0);
}

__m512h _mm512_castsi512_ph(const __m512i& a) {
  return std::bit_cast<__m512h>(a);
}

__m512i _mm512_castph_si512(const __m512h& a) {
  return std::bit_cast<__m512i>(a);
}

__m512i _mm512_add_epi16(const __m512i& a, const __m512i& b) {
  return each<std::uint16_t>(a, b, [](std::uint32_t x, std::uint32_t y) { return x + y; });
}

__m512i _mm512_mask_add_epi16(const __m512i& source,
                              __mmask32 mask,
                              const __m512i& a,
                              const __m512i& b) {
  auto lanes = lanes_of<std::uint16_t>(source);
  const auto sums = lanes_of<std::uint16_t>(_mm512_add_epi16(a, b));
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    lanes[i] = ((mask >> i) & 1U) != 0 ? sums[i] : lanes[i];
  }
  return std::bit_cast<__m512i>(lanes);
}

__m512i _mm512_sub_epi16(const __m512i& a, const __m512i& b) {
  return each<std::uint16_t>(a, b, [](std::uint32_t x, std::uint32_t y) { return x - y; });
}

__m512i _mm512_sub_epi32(const __m512i& a, const __m512i& b) {
  return each<std::uint32_t>(a, b, [](std::uint32_t x, std::uint32_t y) { return x - y; });
}

__m512i _mm512_add_epi32(const __m512i& a, const __m512i& b) {
  return each<std::uint32_t>(a, b, [](std::uint32_t x, std::uint32_t y) { return x + y; });
}

__m512i _mm512_subs_epu16(const __m512i& a, const __m512i& b) {
  return each<std::uint16_t>(
      a, b, [](std::uint32_t x, std::uint32_t y) { return x < y ? 0U : x - y; });
}

__m512i _mm512_max_epu16(const __m512i& a, const __m512i& b) {
  return each<std::uint16_t>(a, b, [](std::uint32_t x, std::uint32_t y) { return std::max(x, y); });
}

__m512i _mm512_min_epi32(const __m512i& a, const __m512i& b) {
  return each<std::int32_t>(a, b, [](int x, int y) { return std::min(x, y); });
}

__m512i _mm512_max_epi32(const __m512i& a, const __m512i& b) {
  return each<std::int32_t>(a, b, [](int x, int y) { return std::max(x, y); });
}

__mmask32 _mm512_test_epi16_mask(const __m512i& a, const __m512i& b) {
  const auto both = lanes_of<std::uint16_t>(_mm512_and_si512(a, b));
  __mmask32 mask = 0;
  for (std::size_t i = 0; i < both.size(); ++i) {
    mask |= static_cast<__mmask32>(both[i] != 0 ? 1U : 0U) << i;
  }
  return mask;
}

__mmask16 _mm512_cmplt_epi32_mask(const __m512i& a, const __m512i& b) {
  const auto left = lanes_of<std::int32_t>(a);
  const auto right = lanes_of<std::int32_t>(b);
  unsigned mask = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    mask |= (left[i] < right[i] ? 1U : 0U) << i;
  }
  return static_cast<__mmask16>(mask);
}

__mmask32 _mm512_cmpgt_epu16_mask(const __m512i& a, const __m512i& b) {
  const auto left = lanes_of<std::uint16_t>(a);
  const auto right = lanes_of<std::uint16_t>(b);
  __mmask32 mask = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    mask |= static_cast<__mmask32>(left[i] > right[i] ? 1U : 0U) << i;
  }
  return mask;
}

__m512i _mm512_cvtepu8_epi32(const __m128i& a) {
  const auto bytes = lanes_of<std::uint8_t>(a);
  std::array<std::uint32_t, 16> lanes;
  std::copy(bytes.begin(), bytes.end(), lanes.begin());
  return std::bit_cast<__m512i>(lanes);
}

__m512 _mm512_mul_ps(const __m512& a, const __m512& b) {
  return each<float>(a, b, [](float x, float y) { return x * y; });
}

// f32 holds the product of two f16 exactly.
__m512h _mm512_mul_ph(const __m512h& a, const __m512h& b) {
  return each<std::uint16_t>(a, b, [](std::uint16_t x, std::uint16_t y) {
    return device::f16_from_f32(device::f16_to_f32(x) * device::f16_to_f32(y));
  });
}

__m512 _mm512_fmadd_ps(const __m512& a, const __m512& b, const __m512& c) {
  auto lanes = lanes_of<float>(c);
  const auto left = lanes_of<float>(a);
  const auto right = lanes_of<float>(b);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    lanes[i] = fused(left[i], right[i], lanes[i]);
  }
  return std::bit_cast<__m512>(lanes);
}

__m512 _mm512_cvtph_ps(const __m256i& a) {
  const auto halves = lanes_of<std::uint16_t>(a);
  std::array<float, 16> lanes;
  std::transform(halves.begin(), halves.end(), lanes.begin(), [](std::uint16_t half) {
    return device::f16_to_f32(half);
  });
  return std::bit_cast<__m512>(lanes);
}

__m512 _mm512_cvtepi32_ps(const __m512i& a) {
  const auto words = lanes_of<std::int32_t>(a);
  std::array<float, 16> lanes;
  std::transform(words.begin(), words.end(), lanes.begin(), [](std::int32_t word) {
    return static_cast<float>(word);
  });
  return std::bit_cast<__m512>(lanes);
}

// Subnormal operands are zeros of their sign.
__m512bh _mm512_cvtne2ps_pbh(const __m512& high, const __m512& low) {
  std::array<std::uint16_t, 32> lanes;
  const auto to_bf16 = [](float value) { return device::bf16_from_f32(flushed(value)); };
  const auto low_lanes = lanes_of<float>(low);
  const auto high_lanes = lanes_of<float>(high);
  std::transform(low_lanes.begin(), low_lanes.end(), lanes.begin(), to_bf16);
  std::transform(high_lanes.begin(), high_lanes.end(), lanes.begin() + 16, to_bf16);
  return std::bit_cast<__m512bh>(lanes);
}

void add_dots(__m512& sum, const __m512i& weights, const std::uint16_t* x) {
  auto sums = lanes_of<float>(sum);
  const auto pairs = lanes_of<std::uint32_t>(weights);
  std::array<float, 16> odd;
  std::array<float, 16> even;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    odd[i] = flushed(std::bit_cast<float>(pairs[i] & 0xFFFF0000U));
    even[i] = flushed(std::bit_cast<float>(pairs[i] << 16));
  }
  std::uint16_t pair[2];
  std::memcpy(pair, x, sizeof(pair));
  accumulate_all(sums, odd, flushed(device::bf16_to_f32(pair[1])));
  accumulate_all(sums, even, flushed(device::bf16_to_f32(pair[0])));
  sum = std::bit_cast<__m512>(sums);
}

void add_products(__m512& sum, const __m512& weights, const float* x) {
  sum = _mm512_fmadd_ps(weights, _mm512_set1_ps(*x), sum);
}

__m512i _mm512_dpwssd_epi32(const __m512i& sum, const __m512i& a, const __m512i& b) {
  const auto left = lanes_of<std::int16_t>(a);
  const auto right = lanes_of<std::int16_t>(b);
  auto sums = lanes_of<std::uint32_t>(sum);  // wraps
  for (std::size_t i = 0; i < sums.size(); ++i) {
    for (std::size_t k = 2 * i; k < 2 * i + 2; ++k) {
      sums[i] += static_cast<std::uint32_t>(left[k] * right[k]);
    }
  }
  return std::bit_cast<__m512i>(sums);
}

void add_digits(__m512i& sum, const __m512i& weights, const std::byte* x) {
  std::int8_t digits[4];
  std::memcpy(digits, x, sizeof(digits));
  const auto bytes = lanes_of<std::uint8_t>(weights);
  auto sums = lanes_of<std::uint32_t>(sum);  // wraps
  for (std::size_t i = 0; i < sums.size(); ++i) {
    int products = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      products += bytes[4 * i + k] * digits[k];
    }
    sums[i] += static_cast<std::uint32_t>(products);
  }
  sum = std::bit_cast<__m512i>(sums);
}

}  // namespace moekit::panels
