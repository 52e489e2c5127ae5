// SPDX-License-Identifier: Apache-2.0
#pragma once

// What this machine's CPU offers to the process: instruction set, threads, cache sizes. Asked once
// when a device descriptor is made, never on a hot path.

#include <cstdint>
#include <string>

namespace moekit::base {

/// Instruction sets that bodies are compiled for; a higher one includes the lower ones.
enum class CpuIsa : std::uint8_t {
  kPortable,
  kAvx2,    // with FMA and F16C
  kAvx512,  // F, BW, VL, DQ, VBMI, VNNI and BF16 together: Zen 4, Sapphire Rapids and later
  kAmx,     // AMX-TILE, AMX-BF16 and AVX512-FP16: Sapphire Rapids and later
};

struct CpuInfo {
  CpuIsa isa = CpuIsa::kPortable;
  std::string model{};  // the processor's own brand string; empty where it has none
  int threads = 1;      // hardware threads this process may use: affinity and cgroup quota
  std::int64_t l1d_bytes = 0;
  std::int64_t l2_bytes = 0;  // of one core
  // Two 512-bit multiply-adds start in a cycle, a BF16 dot product in two: Intel's cores (measured
  // on Emerald Rapids, panels/README.md 6). AMD's start one of either.
  bool dots_at_half_rate = false;
  bool avx_vnni = false;  // dot products of bytes without AVX-512: Alder Lake, Zen 5 and later
};

/// Asks the processor and the operating system. An ISA counts only when both the instructions
/// (CPUID) and the saving of its registers (XCR0) are there; for tiles Linux is asked to let this
/// process use them, which no later call takes back.
[[nodiscard]] CpuInfo detect_cpu() noexcept;

/// The highest ISA for these CPUID words and XCR0; separate from detect_cpu so that a test can ask
/// about machines that are not here.
struct CpuidWords {
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0;
  std::uint32_t leaf7_ecx = 0;
  std::uint32_t leaf7_edx = 0;
  std::uint32_t leaf7_1_eax = 0;
  std::uint64_t xcr0 = 0;
};

[[nodiscard]] CpuIsa isa_from_cpuid(const CpuidWords& words) noexcept;

/// AVX-VNNI beside AVX2.
[[nodiscard]] bool avx_vnni_from_cpuid(const CpuidWords& words) noexcept;

}  // namespace moekit::base
