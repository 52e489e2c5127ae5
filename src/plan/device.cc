// SPDX-License-Identifier: Apache-2.0
#include "moekit/device.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "base/border.h"
#include "base/cpu_info.h"
#include "base/named.h"
#include "base/text.h"
#include "plan/concurrency.h"
#include "plan/validate_device.h"

namespace moekit {
namespace {

using base::cat;

constexpr base::Named<Arch> kArchs[] = {
    {Arch::kCpu, "cpu"},
    {Arch::kSm80, "sm_80"},
    {Arch::kSm86, "sm_86"},
    {Arch::kSm89, "sm_89"},
    {Arch::kSm90a, "sm_90a"},
    {Arch::kSm100a, "sm_100a"},
    {Arch::kSm120a, "sm_120a"},
    {Arch::kSm121a, "sm_121a"},
};
constexpr base::Named<Isa> kIsas[] = {{Isa::kPortable, "portable"},
                                      {Isa::kAvx2, "avx2"},
                                      {Isa::kAvx512, "avx512"},
                                      {Isa::kAmx, "amx"}};

// Public device figures of one representative product per architecture: A100, A10, L4, H200, B200,
// RTX PRO 6000, GB10. A live device's own figures replace them when one is asked.
struct CudaDefaults {
  Arch arch;
  std::int64_t num_sms;
  std::int64_t smem_per_block_bytes;
  std::int64_t l2_bytes;
};

constexpr std::int64_t kMib = std::int64_t{1} << 20;
constexpr std::int64_t kKib = 1024;
constexpr CudaDefaults kCudaDefaults[] = {
    {Arch::kSm80, 108, 163 * kKib, 40 * kMib},
    {Arch::kSm86, 72, 99 * kKib, 6 * kMib},
    {Arch::kSm89, 58, 99 * kKib, 48 * kMib},
    {Arch::kSm90a, 132, 227 * kKib, 60 * kMib},
    {Arch::kSm100a, 148, 227 * kKib, 126 * kMib},
    {Arch::kSm120a, 188, 99 * kKib, 128 * kMib},
    {Arch::kSm121a, 48, 99 * kKib, 24 * kMib},
};

Isa isa_of(base::CpuIsa isa) {
  switch (isa) {
    case base::CpuIsa::kAmx:
      return Isa::kAmx;
    case base::CpuIsa::kAvx512:
      return Isa::kAvx512;
    case base::CpuIsa::kAvx2:
      return Isa::kAvx2;
    case base::CpuIsa::kPortable:
      break;
  }
  return Isa::kPortable;
}

Result<DeviceDescriptor> cpu_device(std::string_view isa_text) {
  DeviceDescriptor device = host_cpu();
  const std::optional<Isa> isa = isa_from_name(isa_text);
  if (!isa.has_value()) {
    return invalid_argument(cat(
        "unknown CPU instruction set '", isa_text, "', expected portable, avx2, avx512 or amx"));
  }
  device.isa = *isa;
  return device;
}

struct Figure {
  std::string_view name;
  std::int64_t DeviceDescriptor::*field;
};

constexpr Figure kFigures[] = {{"num_sms", &DeviceDescriptor::num_sms},
                               {"smem_per_block_bytes", &DeviceDescriptor::smem_per_block_bytes},
                               {"l2_bytes", &DeviceDescriptor::l2_bytes}};

// `num_sms=94`
Status replace_figure(std::string_view text, DeviceDescriptor& device) {
  const std::size_t equals = std::min(text.find('='), text.size());
  const std::string_view value = text.substr(std::min(equals + 1, text.size()));
  for (const Figure& figure : kFigures) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (figure.name == text.substr(0, equals) && error == std::errc() &&
        end == value.data() + value.size() && number > 0) {
      device.*figure.field = number;
      return {};
    }
  }
  return invalid_argument(
      cat("device figure '",
          text,
          "', expected num_sms=N, smem_per_block_bytes=N or l2_bytes=N with N above 0"));
}

// The figures behind a name's colon, separated by commas.
Status replace_figures(std::string_view text, DeviceDescriptor& device) {
  std::vector<std::string_view> seen;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view figure = text.substr(0, comma);
    MOEKIT_RETURN_IF_ERROR(replace_figure(figure, device));
    const std::string_view name = figure.substr(0, figure.find('='));
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
      return invalid_argument(cat("device figure '", figure, "': ", name, " was given before"));
    }
    seen.push_back(name);
    if (comma == text.size()) {
      return plan::validate_device(device);
    }
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

std::string_view arch_name(Arch arch) noexcept {
  return base::name_of(kArchs, arch);
}

std::optional<Arch> arch_from_name(std::string_view name) noexcept {
  return base::value_of(kArchs, name);
}

std::string_view isa_name(Isa isa) noexcept {
  return base::name_of(kIsas, isa);
}

std::optional<Isa> isa_from_name(std::string_view name) noexcept {
  return base::value_of(kIsas, name);
}

DeviceDescriptor host_cpu() noexcept {
  base::CpuInfo info = base::detect_cpu();
  DeviceDescriptor device;
  device.arch = Arch::kCpu;
  device.name = std::move(info.model);
  device.isa = isa_of(info.isa);
  device.num_threads = info.threads;
  device.l1d_bytes = info.l1d_bytes;
  device.l2_per_core_bytes = info.l2_bytes;
  return device;
}

namespace {

Result<DeviceDescriptor> device_of_name(std::string_view name) {
  if (name == "cpu") {
    return host_cpu();
  }
  if (name.substr(0, 4) == "cpu:") {
    return cpu_device(name.substr(4));
  }
  const std::size_t colon = name.find(':');
  if (colon != std::string_view::npos) {
    MOEKIT_ASSIGN_OR_RETURN(DeviceDescriptor device, device_of_name(name.substr(0, colon)));
    if (device.arch != Arch::kCpu) {
      MOEKIT_RETURN_IF_ERROR(replace_figures(name.substr(colon + 1), device));
      return device;
    }
  }
  for (const base::Named<Arch>& row : kArchs) {
    // `sm_90` stands for `sm_90a`: an unsuffixed name is an alias where the suffixed one is meant.
    if (row.name != name && row.name != cat(name, "a")) {
      continue;
    }
    for (const CudaDefaults& defaults : kCudaDefaults) {
      if (defaults.arch == row.value) {
        DeviceDescriptor device;
        device.arch = row.value;
        device.num_sms = defaults.num_sms;
        device.smem_per_block_bytes = defaults.smem_per_block_bytes;
        device.l2_bytes = defaults.l2_bytes;
        return device;
      }
    }
  }
  std::string known;
  for (const base::Named<Arch>& row : kArchs) {
    known += cat(known.empty() ? "" : ", ", row.name);
  }
  return invalid_argument(cat("unknown device '",
                              name,
                              "', expected one of ",
                              known,
                              " (a CPU takes :portable, :avx2, :avx512 or :amx)"));
}

}  // namespace

Result<DeviceDescriptor> device_from_name(std::string_view name) noexcept {
  return base::at_border([&] { return device_of_name(name); });
}

namespace plan {

Status validate_device(const DeviceDescriptor& device) {
  constexpr std::int64_t kMostThreads = 1024;  // as the thread pool has them
  constexpr std::int64_t kMostSms = 1 << 16;
  if (!arch_from_name(arch_name(device.arch)).has_value() ||
      !isa_from_name(isa_name(device.isa)).has_value()) {
    return invalid_argument(cat("device: arch ",
                                static_cast<int>(device.arch),
                                " or isa ",
                                static_cast<int>(device.isa),
                                " is not an enumerator"));
  }
  if (device.arch == Arch::kCpu && (device.num_threads < 1 || device.num_threads > kMostThreads)) {
    return invalid_argument(
        cat("device: num_threads ", device.num_threads, ", expected 1..", kMostThreads));
  }
  if (device.arch != Arch::kCpu && (device.num_sms < 1 || device.num_sms > kMostSms)) {
    return invalid_argument(cat("device: num_sms ", device.num_sms, ", expected 1..", kMostSms));
  }
  const std::int64_t most_smem = max_smem_per_block(device.arch);
  if (device.arch != Arch::kCpu &&
      (device.smem_per_block_bytes < 0 || device.smem_per_block_bytes > most_smem)) {
    return invalid_argument(cat("device: smem_per_block_bytes ",
                                device.smem_per_block_bytes,
                                ", expected 0..",
                                most_smem,
                                " on ",
                                arch_name(device.arch)));
  }
  return {};
}

}  // namespace plan
}  // namespace moekit
