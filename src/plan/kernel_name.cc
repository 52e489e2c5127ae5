// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "base/text.h"
#include "plan/family.h"

namespace moekit::plan {

using base::cat;

std::string make_kernel_name(const KernelName& name) {
  return cat(name.family, ".", name.recipe, ".", name.role_tile, ".", name.arch);
}

Result<KernelName> parse_kernel_name(std::string_view name) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= name.size()) {
    const std::size_t dot = std::min(name.find('.', begin), name.size());
    parts.emplace_back(name.substr(begin, dot - begin));
    begin = dot + 1;
  }
  if (parts.size() != 4 || parts[0].empty() || parts[1].empty() || parts[2].empty() ||
      parts[3].empty()) {
    return invalid_argument(
        cat("kernel name '", name, "', expected <family>.<recipe>.<role>_<tile>.<arch>"));
  }
  return KernelName{parts[0], parts[1], parts[2], parts[3]};
}

std::string kernel_arch(const DeviceDescriptor& device) {
  if (device.arch == Arch::kCpu) {
    return std::string(isa_name(device.isa));
  }
  std::string arch(arch_name(device.arch));
  std::erase(arch, '_');
  return arch;
}

}  // namespace moekit::plan
