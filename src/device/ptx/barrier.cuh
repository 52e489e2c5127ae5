// SPDX-License-Identifier: Apache-2.0
#pragma once

// Barriers: mbarrier objects in shared memory, named barriers of a block, the cluster barrier, and
// the edges of programmatic dependent launch. One instruction each.

#include "device/portable.h"

namespace moekit::device {
inline namespace MOEKIT_ISA {

inline u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

inline void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes initialised barriers visible to the copy engine and to the cluster.
inline void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Ends its life: the place may hold something else, or a new one. Nobody may wait on it.
inline void mbarrier_invalidate(u32 barrier) {
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

inline void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

inline void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// One of the expected arrivals, made when this thread's asynchronous copies so far are there.
inline void mbarrier_arrive_async(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

inline void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n\t"
      ".reg .pred done;\n\t"
      "again:\n\t"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n\t"
      "@done bra finished;\n\t"
      "bra again;\n\t"
      "finished:\n\t"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// `threads` threads of the block, whole warps, meet at barrier `id` (0 is __syncthreads).
inline void named_barrier(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

inline void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n\t"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

inline u32 cluster_rank() {
  u32 rank = 0;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

inline u32 cluster_size() {
  u32 size = 0;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

/// The generic address of `pointer` (shared memory of this block) in block `rank` of the cluster.
template <typename T>
inline T* cluster_map(T* pointer, u32 rank) {
  u64 mapped = 0;
  asm("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(reinterpret_cast<u64>(pointer)), "r"(rank));
  return reinterpret_cast<T*>(mapped);
}

/// Adds 1 for the grid: whoever reads the sum by load_acquire sees what this thread has written,
/// and what others of its block had written before they met it at a barrier.
inline void add_release(u32* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

/// The same, and returns what stood there: the thread sees what those before it have written.
inline u32 add_acquire_release(u32* counter) {
  u32 before = 0;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

inline u32 load_acquire(const u32* counter) {
  u32 value = 0;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

/// The next kernel of the stream may be launched once every block has said this.
inline void grid_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Until the kernel before has finished and its writes are visible.
inline void grid_dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
