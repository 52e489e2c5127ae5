// SPDX-License-Identifier: Apache-2.0
#include "plan/launch.h"

#include <algorithm>

namespace moekit::plan {

std::string entry_symbol(std::string_view kernel) {
  std::string symbol(kernel);
  std::replace(symbol.begin(), symbol.end(), '.', '_');
  return symbol;
}

}  // namespace moekit::plan
