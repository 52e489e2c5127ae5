// SPDX-License-Identifier: Apache-2.0
#pragma once

// Bulk copies into shared memory and vector accesses to it.

#include "device/portable.h"

namespace moekit::device {

struct alignas(16) Words4 {
  u32 x, y, z, w;
};

struct alignas(16) Floats4 {
  float x, y, z, w;
};

inline namespace MOEKIT_ISA {

/// L2 policy for bytes that are read once: they leave first.
inline u64 evict_first_policy() {
  u64 policy = 0;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Global to shared, 16-aligned, a multiple of 16 bytes; completes on the mbarrier.
inline void bulk_copy(u32 destination, const void* source, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(source),
      "r"(bytes),
      "r"(barrier)
      : "memory");
}

inline void bulk_copy(u32 destination, const void* source, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(destination),
      "l"(source),
      "r"(bytes),
      "r"(barrier),
      "l"(policy)
      : "memory");
}

/// This thread's accesses to shared memory come before bulk copies that are requested after the
/// next barrier.
inline void shared_before_copies_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// 16 bytes, global to shared, asynchronous to this thread.
inline void copy_16_async(u32 destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
}

inline void prefetch_to_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/// 16 bytes of global memory, 16-aligned. kConstant: nobody writes them while the kernel runs.
template <bool kConstant>
inline Words4 load_global_words(const void* from) {
  Words4 value;
  if constexpr (kConstant) {
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
  } else {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
  }
  return value;
}

/// The same of floats that other blocks may have written while the kernel runs.
inline Floats4 load_global_floats(const float* from) {
  Floats4 value;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(from)
               : "memory");
  return value;
}

inline Words4 load_shared_words(u32 address) {
  Words4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

inline u32 load_shared_u32(u32 address) {
  u32 value = 0;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

inline u32 load_shared_u16(u32 address) {
  u16 value = 0;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}

inline u32 load_shared_u8(u32 address) {
  u16 value = 0;
  asm volatile("ld.shared.u8 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}

inline float load_shared_f32(u32 address) {
  float value = 0.0F;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

inline Floats4 load_shared_floats(u32 address) {
  Floats4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

inline void store_shared_u32(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

inline void store_shared_u8(u32 address, u32 value) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

inline void store_shared_f32(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

inline void store_shared_floats(u32 address, const Floats4& value) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "f"(value.x),
               "f"(value.y),
               "f"(value.z),
               "f"(value.w)
               : "memory");
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
