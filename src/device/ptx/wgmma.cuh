// SPDX-License-Identifier: Apache-2.0
#pragma once

// Warpgroup matrix instructions with BF16 operands and f32 sums: the first operand (64 x 16) in
// registers, the second (16 x 8 n) in shared memory, K contiguous, 128-byte swizzle.

#include "device/portable.h"

namespace moekit::device {
inline namespace MOEKIT_ISA {

/// The half of a descriptor that names the place (shared, 1024-aligned but for K steps of 32 bytes)
/// of the second operand: groups of eight columns of 128 bytes.
inline u32 wgmma_address(u32 address) {
  constexpr u32 kUnusedStride = 1U << 16;
  return kUnusedStride | ((address & 0x3FFFFU) >> 4);
}

/// The other half: 128-byte swizzle, groups 1024 bytes apart.
constexpr u32 kWgmmaLayout = (1U << 30) | (1024U >> 4);

inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Until at most `kGroups` of the committed groups are running.
template <i32 kGroups>
inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

/// Generic stores so far are seen by what reads shared memory asynchronously.
inline void async_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// The same for global memory: writes of other blocks that this thread has seen.
inline void async_proxy_fence_all() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

/// d[64 x 8 kOctets] = a * b + (add ? d : 0). A lane's sums of eight columns are those of m16n8k16.
template <i32 kOctets>
inline void wgmma_m64k16(float (&d)[kOctets][4], const u32 (&a)[4], u32 b, u32 add) {
  static_assert(kOctets == 2 || kOctets == 3);
  if constexpr (kOctets == 2) {
    asm volatile(
        "{\n\t.reg .pred add;\n\t.reg .b64 columns;\n\tmov.b64 columns, {%12, %14};\n\t"
        "setp.ne.b32 add, %13, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, columns, add, 1, 1, 0;\n\t}"
        : "+f"(d[0][0]),
          "+f"(d[0][1]),
          "+f"(d[0][2]),
          "+f"(d[0][3]),
          "+f"(d[1][0]),
          "+f"(d[1][1]),
          "+f"(d[1][2]),
          "+f"(d[1][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), "n"(kWgmmaLayout));
  } else {
    asm volatile(
        "{\n\t.reg .pred add;\n\t.reg .b64 columns;\n\tmov.b64 columns, {%16, %18};\n\t"
        "setp.ne.b32 add, %17, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, columns, add, "
        "1, 1, 0;\n\t}"
        : "+f"(d[0][0]),
          "+f"(d[0][1]),
          "+f"(d[0][2]),
          "+f"(d[0][3]),
          "+f"(d[1][0]),
          "+f"(d[1][1]),
          "+f"(d[1][2]),
          "+f"(d[1][3]),
          "+f"(d[2][0]),
          "+f"(d[2][1]),
          "+f"(d[2][2]),
          "+f"(d[2][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), "n"(kWgmmaLayout));
  }
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
