// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_info.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <sched.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#include "base/cpu_quota.h"

namespace moekit::base {

namespace {

constexpr bool has(std::uint32_t word, int bit) {
  return ((word >> bit) & 1U) != 0;
}

#if defined(__x86_64__) || defined(__i386__)

struct Cpuid {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
};

Cpuid cpuid(unsigned leaf, unsigned subleaf) {
  Cpuid out;
  if (__get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx) == 0) {
    return {};
  }
  return out;
}

std::uint64_t read_xcr0() {
  unsigned low = 0;
  unsigned high = 0;
  // The instruction and not the intrinsic: _xgetbv needs -mxsave, and base has baseline flags.
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

CpuidWords read_cpuid_words() {
  CpuidWords words;
  words.leaf1_ecx = cpuid(1, 0).ecx;
  const Cpuid leaf7 = cpuid(7, 0);
  words.leaf7_ebx = leaf7.ebx;
  words.leaf7_ecx = leaf7.ecx;
  words.leaf7_edx = leaf7.edx;
  words.leaf7_1_eax = leaf7.eax >= 1 ? cpuid(7, 1).eax : 0;
  constexpr int kOsxsave = 27;
  words.xcr0 = has(words.leaf1_ecx, kOsxsave) ? read_xcr0() : 0;
  return words;
}

// Linux saves the tiles' 8 KiB only for processes that asked for them (5.16 and later). The
// permission holds for every thread of the process, and asking again changes nothing.
bool may_use_tiles() {
#if defined(__x86_64__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, newer than some headers
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::string read_model() {
  constexpr unsigned kBrandFirst = 0x80000002U;
  if (cpuid(0x80000000U, 0).eax < kBrandFirst + 2) {
    return {};
  }
  std::array<char, 49> brand{};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    const Cpuid part = cpuid(kBrandFirst + leaf, 0);
    std::memcpy(brand.data() + std::size_t{leaf} * 16, &part, 16);
  }
  std::string model(brand.data());
  model.erase(0, std::min(model.find_first_not_of(' '), model.size()));
  model.erase(model.find_last_not_of(' ') + 1);
  return model;
}

bool is_intel() {
  const Cpuid vendor = cpuid(0, 0);
  return vendor.ebx == 0x756E6547U && vendor.edx == 0x49656E69U && vendor.ecx == 0x6C65746EU;
}

#else

CpuidWords read_cpuid_words() {
  return {};
}

bool is_intel() {
  return false;
}

bool may_use_tiles() {
  return false;
}

std::string read_model() {
  return {};
}

#endif

/// What make() returns, or nothing where there is no memory for it: a processor has more to say
/// than its name.
template <typename Make>
auto or_nothing(Make make) noexcept -> decltype(make()) {
  try {
    return make();
  } catch (...) {
    return {};
  }
}

int count_threads() {
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // Fails on machines with more CPUs than cpu_set_t holds; then the count above stands.
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    threads = std::max(1, CPU_COUNT(&allowed));
  }
  return std::min(threads, or_nothing([] { return threads_from_cgroups(); }).value_or(threads));
}

std::int64_t cache_bytes(int name, std::int64_t fallback) {
  const long bytes = sysconf(name);
  return bytes > 0 ? static_cast<std::int64_t>(bytes) : fallback;
}

}  // namespace

CpuIsa isa_from_cpuid(const CpuidWords& words) noexcept {
  constexpr std::uint64_t kYmmState = 0x6;   // XMM, YMM
  constexpr std::uint64_t kZmmState = 0xE6;  // and opmask, ZMM0-15 high, ZMM16-31
  const bool avx2 = has(words.leaf1_ecx, 12) && has(words.leaf1_ecx, 28) &&  // FMA, AVX
                    has(words.leaf1_ecx, 29) && has(words.leaf7_ebx, 5) &&   // F16C, AVX2
                    (words.xcr0 & kYmmState) == kYmmState;
  if (!avx2) {
    return CpuIsa::kPortable;
  }
  const bool avx512 = has(words.leaf7_ebx, 16) && has(words.leaf7_ebx, 17) &&  // F, DQ
                      has(words.leaf7_ebx, 30) && has(words.leaf7_ebx, 31) &&  // BW, VL
                      has(words.leaf7_ecx, 1) && has(words.leaf7_ecx, 11) &&   // VBMI, VNNI
                      has(words.leaf7_1_eax, 5) &&                             // BF16
                      (words.xcr0 & kZmmState) == kZmmState;
  if (!avx512) {
    return CpuIsa::kAvx2;
  }
  constexpr std::uint64_t kTileState = 0x60000;                             // XTILECFG, XTILEDATA
  const bool amx = has(words.leaf7_edx, 22) && has(words.leaf7_edx, 24) &&  // AMX-BF16, AMX-TILE
                   has(words.leaf7_edx, 23) &&                              // AVX512-FP16
                   (words.xcr0 & kTileState) == kTileState;
  return amx ? CpuIsa::kAmx : CpuIsa::kAvx512;
}

bool avx_vnni_from_cpuid(const CpuidWords& words) noexcept {
  return isa_from_cpuid(words) >= CpuIsa::kAvx2 && has(words.leaf7_1_eax, 4);
}

CpuInfo detect_cpu() noexcept {
  CpuInfo info;
  const CpuidWords words = read_cpuid_words();
  info.isa = isa_from_cpuid(words);
  info.avx_vnni = avx_vnni_from_cpuid(words);
  if (info.isa == CpuIsa::kAmx && !may_use_tiles()) {
    info.isa = CpuIsa::kAvx512;
  }
  info.model = or_nothing(read_model);
  info.dots_at_half_rate = info.isa >= CpuIsa::kAvx512 && is_intel();
  info.threads = count_threads();
  // Fallbacks: the smallest sizes of the last ten years' server cores.
  info.l1d_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32768);
  info.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 262144);
  return info;
}

}  // namespace moekit::base
