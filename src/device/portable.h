// SPDX-License-Identifier: Apache-2.0
#pragma once

// What both compilers (the host's and NVRTC) need before anything else: fixed-width names without
// <cstdint>, bit casts, and the inline namespace that keeps functions built with different ISA
// flags apart. Freestanding: includes nothing.
//
// Two object files that include the same inline function and are built with different -m flags
// would otherwise hand the linker one weak symbol, and the baseline entry point could end up in
// AVX-512 code. Functions under device/numerics, layout and routing therefore live in `inline
// namespace MOEKIT_ISA`; types (Spec, Args) stay outside it because they cross the border.

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)
#define MOEKIT_ISA isa_cuda
#elif defined(__AMX_BF16__)
#define MOEKIT_ISA isa_amx
#elif defined(__AVX512F__)
#define MOEKIT_ISA isa_avx512
#elif defined(__AVX2__)
#define MOEKIT_ISA isa_avx2
#else
#define MOEKIT_ISA isa_portable
#endif

namespace moekit::device {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
#if defined(__INT64_TYPE__)
using i64 = __INT64_TYPE__;  // the type behind std::int64_t, so that pointers convert
using u64 = __UINT64_TYPE__;
#else
using i64 = long long;
using u64 = unsigned long long;
#endif

inline namespace MOEKIT_ISA {

constexpr u32 bits_of(float value) {
  return __builtin_bit_cast(u32, value);
}

constexpr float float_of(u32 bits) {
  return __builtin_bit_cast(float, bits);
}

constexpr float kQuietNan = __builtin_bit_cast(float, 0x7FC00000U);

constexpr bool is_nan(float value) {
  return (bits_of(value) & 0x7FFFFFFFU) > 0x7F800000U;
}

constexpr bool is_finite(float value) {
  return (bits_of(value) & 0x7F800000U) != 0x7F800000U;
}

constexpr float abs_f32(float value) {
  return float_of(bits_of(value) & 0x7FFFFFFFU);
}

// Integer ceiling division for non-negative extents.
template <typename T>
constexpr T ceil_div(T value, T divisor) {
  return (value + divisor - 1) / divisor;
}

template <typename T>
constexpr T round_up(T value, T multiple) {
  return ceil_div(value, multiple) * multiple;
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
