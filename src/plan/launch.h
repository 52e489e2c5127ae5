// SPDX-License-Identifier: Apache-2.0
#pragma once

// A CUDA launch as data. A kernel family describes (source, geometry, argument bytes, tensor maps,
// a known answer); only the cuda backend performs. Nothing here names a driver type.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "moekit/device.h"
#include "moekit/plan.h"
#include "moekit/status.h"

#include "plan/family.h"

namespace moekit::plan {

/// What the run-time compiler gets for one kernel. A pure function of the kernel's name.
struct KernelSource {
  std::string kernel{};  // dotted name, `decode_gemv.w4a16_mxfp4.down_n64k128s4.sm90a`
  std::string entry{};   // extern "C" symbol: entry_symbol(kernel)
  Arch arch = Arch::kSm90a;
  std::string prelude{};  // `#include "kernels/…/device/kernel.cuh"`, constexpr Spec, entry
  std::vector<std::string> options{};  // beyond those that every kernel gets (jit/image.h)
  std::int64_t num_threads = 0;        // largest block, from the Spec
  std::int64_t smem_bytes = 0;         // largest shared memory of a launch, static part included
  bool shares_sm = false;              // another kernel's blocks are to stand beside its own

  friend bool operator==(const KernelSource&, const KernelSource&) = default;
};

/// The dotted name with `_` for `.`.
[[nodiscard]] std::string entry_symbol(std::string_view kernel);

/// Every arch that kernels are compiled for.
inline constexpr std::array<Arch, 7> kCudaArchs = {Arch::kSm80,
                                                   Arch::kSm86,
                                                   Arch::kSm89,
                                                   Arch::kSm90a,
                                                   Arch::kSm100a,
                                                   Arch::kSm120a,
                                                   Arch::kSm121a};

/// The last part of a kernel name, `sm90a`, and back.
[[nodiscard]] std::string arch_suffix(Arch arch);
[[nodiscard]] Result<Arch> arch_from_suffix(std::string_view suffix);

struct LaunchGeometry {
  Dim3 grid{};
  Dim3 block{};
  Dim3 cluster{};               // 1 x 1 x 1: no cluster
  std::int64_t smem_bytes = 0;  // extern __shared__
  bool cooperative = false;     // all blocks co-resident, a grid barrier is allowed
  bool pdl_edge = false;        // may start before the launch before it has finished
};

/// The one by-value parameter of a kernel, at most what every arch takes (4 KiB, CUDA C++
/// programming guide, function parameters).
class ArgumentBlock {
 public:
  static constexpr std::size_t kCapacity = 4096;

  // Not defaulted: `{}` would clear the bytes, and this sits in the hot path.
  ArgumentBlock() noexcept {}  // NOLINT(modernize-use-equals-default)

  template <typename Args>
  void set(const Args& args) noexcept {
    static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= kCapacity);
    static_assert(alignof(Args) <= 64);
    std::memcpy(bytes_.data(), &args, sizeof(Args));
    size_ = sizeof(Args);
  }

  [[nodiscard]] std::span<std::byte> bytes() noexcept { return {bytes_.data(), size_}; }

 private:
  alignas(64) std::array<std::byte, kCapacity> bytes_;
  std::size_t size_ = 0;
};

enum class TensorMapElement : std::uint8_t { kU8, kU16, kU32, kBf16, kF16, kF32 };
enum class TensorMapSwizzle : std::uint8_t { kNone, k32B, k64B, k128B };
enum class TensorMapL2 : std::uint8_t { kNone, k64B, k128B, k256B };

/// A tiled tensor map (TMA descriptor): 128 opaque bytes that the backend encodes on the host.
/// Extents and boxes count elements, innermost first; out-of-range elements read as zero.
struct TensorMapDescription {
  std::size_t argument_offset = 0;  // where the 128 bytes go in the argument block, 64-aligned
  const void* base = nullptr;       // device memory, 16-aligned
  TensorMapElement element = TensorMapElement::kU8;
  int rank = 0;  // 1 to 5
  std::array<std::uint64_t, 5> extent{};
  std::array<std::uint64_t, 4> stride_bytes{};  // of dimensions 1…rank-1, multiples of 16
  std::array<std::uint32_t, 5> box{};
  TensorMapSwizzle swizzle = TensorMapSwizzle::kNone;
  TensorMapL2 l2 = TensorMapL2::kNone;
};

/// Device memory that holds zeros when the launch begins, whatever it held before: the backend
/// clears it in the order of the stream.
struct ClearedBytes {
  void* begin = nullptr;
  std::size_t size = 0;  // 0: nothing
};

/// One launch of one call, described without allocating.
struct Launch {
  static constexpr std::size_t kMaxTensorMaps = 4;

  LaunchGeometry geometry{};
  ClearedBytes cleared{};
  ArgumentBlock arguments{};
  std::array<TensorMapDescription, kMaxTensorMaps> tensor_maps{};
  std::size_t num_tensor_maps = 0;
};

/// What a family sees of a call on a device: the same as on a CPU, every pointer a device pointer.
using CudaCall = CpuCall;

struct SelfTestBuffer {
  std::vector<std::byte> before{};  // content when the kernel starts; its size is the buffer's
  std::vector<std::byte> after{};   // the known answer, bit for bit; empty: not looked at
};

/// Writes the address of a buffer into the argument block.
struct SelfTestPointer {
  std::size_t argument_offset = 0;
  std::size_t buffer = 0;
  std::size_t byte_offset = 0;
};

/// A tiny launch with a known answer: an image built for the wrong arch suffix can load and then
/// compute garbage. Chosen so that every rounding is exact or defined, so bits can be compared.
struct SelfTest {
  LaunchGeometry geometry{};
  std::vector<std::byte> arguments{};
  std::vector<SelfTestPointer> pointers{};
  std::vector<SelfTestBuffer> buffers{};
};

/// The CUDA half of a kernel family.
struct CudaFamily {
  /// Every kernel that the family has for `arch`, for images built ahead of time; empty where it
  /// has none.
  std::vector<KernelSource> (*catalog)(Arch arch);
  /// The source behind a step's (or catalogue entry's) kernel name.
  Result<KernelSource> (*source)(std::string_view kernel);
  /// Geometry and arguments of one call. Called per run: must not allocate.
  Status (*launch)(const CudaCall& call, Launch& out);
  /// The known answer of a kernel.
  Result<SelfTest> (*self_test)(std::string_view kernel);
  /// What the family asks of a call's tensors beyond bind's own checks, alignment say; null:
  /// nothing. Called by bind: must not allocate where it succeeds.
  Status (*check_call)(const CudaCall& call) = nullptr;
};

}  // namespace moekit::plan
