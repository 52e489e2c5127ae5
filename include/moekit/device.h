// SPDX-License-Identifier: Apache-2.0
#pragma once

// A device as the planner sees it: a plain value, so that a plan for any device can be made on a
// machine without it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/status.h"

#pragma GCC visibility push(default)

namespace moekit {

enum class Arch : std::uint8_t { kCpu, kSm80, kSm86, kSm89, kSm90a, kSm100a, kSm120a, kSm121a };

/// Instruction set of a CPU body. A higher one includes the lower ones.
enum class Isa : std::uint8_t { kPortable, kAvx2, kAvx512, kAmx };

[[nodiscard]] std::string_view arch_name(Arch arch) noexcept;
[[nodiscard]] std::string_view isa_name(Isa isa) noexcept;
[[nodiscard]] std::optional<Arch> arch_from_name(std::string_view name) noexcept;
[[nodiscard]] std::optional<Isa> isa_from_name(std::string_view name) noexcept;

struct DeviceDescriptor {
  Arch arch = Arch::kCpu;
  std::string name{};  // `AMD EPYC …`, `NVIDIA H200`; empty when made from a name alone
  // CUDA
  std::int64_t num_sms = 0;
  std::int64_t smem_per_block_bytes = 0;  // opt-in limit
  std::int64_t l2_bytes = 0;
  // CPU
  Isa isa = Isa::kPortable;
  std::int64_t num_threads = 0;
  std::int64_t l1d_bytes = 0;
  std::int64_t l2_per_core_bytes = 0;

  friend bool operator==(const DeviceDescriptor&, const DeviceDescriptor&) = default;
};

/// Defaults of a device by name: `cpu` (this machine), `cpu:portable`, `cpu:avx2`, `cpu:avx512`,
/// `cpu:amx`, or an arch such as `sm_90a`; unsuffixed names (`sm_90`) are aliases. Figures of a GPU
/// may be replaced, `sm_120a:num_sms=94,smem_per_block_bytes=65536`, as a partitioned device has
/// fewer.
///
/// Errors  kInvalidArgument  an unknown name or figure, listing the known ones
[[nodiscard]] Result<DeviceDescriptor> device_from_name(std::string_view name) noexcept;

/// This machine's CPU: the best ISA that both the processor and the operating system offer, threads
/// available to the process, cache sizes.
[[nodiscard]] DeviceDescriptor host_cpu() noexcept;

/// The CPU, then each CUDA device that the driver names; without a driver the CPU alone.
[[nodiscard]] std::vector<DeviceDescriptor> list_devices() noexcept;

}  // namespace moekit

#pragma GCC visibility pop
