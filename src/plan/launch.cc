// SPDX-License-Identifier: Apache-2.0
#include "plan/launch.h"

#include <algorithm>

#include "base/text.h"

namespace moekit::plan {

std::string entry_symbol(std::string_view kernel) {
  std::string symbol(kernel);
  std::replace(symbol.begin(), symbol.end(), '.', '_');
  return symbol;
}

std::string arch_suffix(Arch arch) {
  std::string suffix(arch_name(arch));
  std::erase(suffix, '_');
  return suffix;
}

Result<Arch> arch_from_suffix(std::string_view suffix) {
  std::string known;
  for (const Arch arch : kCudaArchs) {
    if (arch_suffix(arch) == suffix) {
      return arch;
    }
    known += base::cat(known.empty() ? "" : ", ", arch_suffix(arch));
  }
  return invalid_argument(
      base::cat("'", suffix, "' is no arch of a CUDA kernel, expected one of ", known));
}

}  // namespace moekit::plan
