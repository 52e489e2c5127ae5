// SPDX-License-Identifier: Apache-2.0
// moekit devices: what plans on this machine can run on.

#include <cstdint>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "moekit/device.h"

#include "cli/options.h"
#include "cli/reports.h"
#include "cli/verbs.h"

namespace moekit::cli {
namespace {

std::string device_line(const NamedDevice& named) {
  const DeviceDescriptor& device = named.device;
  if (device.arch == Arch::kCpu) {
    return fmt::format("{:<8} {}  isa {}, {} threads, L1d {} KiB, L2 {} KiB per core\n",
                       named.name,
                       device.name,
                       isa_name(device.isa),
                       device.num_threads,
                       device.l1d_bytes / 1024,
                       device.l2_per_core_bytes / 1024);
  }
  return fmt::format("{:<8} {}  {}, {} SMs, {} KiB shared memory, L2 {} MiB\n",
                     named.name,
                     device.name,
                     arch_name(device.arch),
                     device.num_sms,
                     device.smem_per_block_bytes / 1024,
                     device.l2_bytes / (std::int64_t{1024} * 1024));
}

}  // namespace

Result<ExitCode> devices_verb(Console& console, const DevicesOptions& options) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string text;
  for (const NamedDevice& named : named_devices()) {
    rows.push_back(device_json(named));
    text += device_line(named);
  }
  console.report(options.json ? json_text({{"devices", rows}}) : text);
  return ExitCode::kOk;
}

}  // namespace moekit::cli
