// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_info.h"

#include <gtest/gtest.h>

namespace moekit::base {
namespace {

// CPUID words of a Zen 4 core, as its public programming reference lists the bits.
CpuidWords zen4() {
  return {.leaf1_ecx = (1U << 12) | (1U << 27) | (1U << 28) | (1U << 29),
          .leaf7_ebx = (1U << 5) | (1U << 16) | (1U << 17) | (1U << 30) | (1U << 31),
          .leaf7_ecx = (1U << 1) | (1U << 11),
          .leaf7_1_eax = 1U << 5,
          .xcr0 = 0xE7};
}

TEST(CpuInfo, IsaNeedsEveryInstructionSetOfTheBodies) {
  EXPECT_EQ(isa_from_cpuid(zen4()), CpuIsa::kAvx512);
  CpuidWords no_bf16 = zen4();  // Ice Lake
  no_bf16.leaf7_1_eax = 0;
  EXPECT_EQ(isa_from_cpuid(no_bf16), CpuIsa::kAvx2);
  CpuidWords no_vbmi = zen4();  // Cooper Lake
  no_vbmi.leaf7_ecx = 1U << 11;
  EXPECT_EQ(isa_from_cpuid(no_vbmi), CpuIsa::kAvx2);
  CpuidWords no_fma = zen4();
  no_fma.leaf1_ecx &= ~(1U << 12);
  EXPECT_EQ(isa_from_cpuid(no_fma), CpuIsa::kPortable);
}

// And those of a Sapphire Rapids core.
CpuidWords sapphire_rapids() {
  CpuidWords words = zen4();
  words.leaf7_edx = (1U << 22) | (1U << 23) | (1U << 24) | (1U << 25);
  words.xcr0 = 0x602E7;
  return words;
}

TEST(CpuInfo, TilesNeedInstructionsAndState) {
  EXPECT_EQ(isa_from_cpuid(sapphire_rapids()), CpuIsa::kAmx);
  for (const int bit : {22, 23, 24}) {
    CpuidWords lacking = sapphire_rapids();
    lacking.leaf7_edx &= ~(1U << static_cast<unsigned>(bit));
    EXPECT_EQ(isa_from_cpuid(lacking), CpuIsa::kAvx512) << bit;
  }
  for (const int bit : {17, 18}) {
    CpuidWords unsaved = sapphire_rapids();
    unsaved.xcr0 &= ~(std::uint64_t{1} << static_cast<unsigned>(bit));
    EXPECT_EQ(isa_from_cpuid(unsaved), CpuIsa::kAvx512) << bit;
  }
  CpuidWords no_bf16 = sapphire_rapids();
  no_bf16.leaf7_1_eax = 0;
  EXPECT_EQ(isa_from_cpuid(no_bf16), CpuIsa::kAvx2);
}

TEST(CpuInfo, AvxVnniStandsBesideAvx2) {
  EXPECT_FALSE(avx_vnni_from_cpuid(zen4()));
  CpuidWords alder_lake = zen4();
  alder_lake.leaf7_ebx = 1U << 5;
  alder_lake.leaf7_1_eax = 1U << 4;
  EXPECT_EQ(isa_from_cpuid(alder_lake), CpuIsa::kAvx2);
  EXPECT_TRUE(avx_vnni_from_cpuid(alder_lake));
  alder_lake.xcr0 = 0x3;  // the system saves no ymm
  EXPECT_FALSE(avx_vnni_from_cpuid(alder_lake));
}

TEST(CpuInfo, IsaNeedsTheOperatingSystem) {
  CpuidWords no_zmm = zen4();
  no_zmm.xcr0 = 0x7;
  EXPECT_EQ(isa_from_cpuid(no_zmm), CpuIsa::kAvx2);
  CpuidWords no_ymm = zen4();
  no_ymm.xcr0 = 0x3;
  EXPECT_EQ(isa_from_cpuid(no_ymm), CpuIsa::kPortable);
  EXPECT_EQ(isa_from_cpuid({}), CpuIsa::kPortable);
}

TEST(CpuInfo, ThisMachineIsPlausible) {
  const CpuInfo info = detect_cpu();
  EXPECT_GE(info.threads, 1);
  EXPECT_GE(info.l1d_bytes, 8 * 1024);
  EXPECT_GE(info.l2_bytes, info.l1d_bytes);
#if defined(__x86_64__)
  EXPECT_EQ(info.dots_at_half_rate, info.isa >= CpuIsa::kAvx512 && __builtin_cpu_is("intel") != 0);
  EXPECT_EQ(info.isa >= CpuIsa::kAvx2, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(info.isa >= CpuIsa::kAvx512,
            __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vbmi") != 0 &&
                __builtin_cpu_supports("avx512bf16") != 0);
#endif
}

}  // namespace
}  // namespace moekit::base
