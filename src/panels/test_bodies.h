// SPDX-License-Identifier: Apache-2.0
#pragma once

// Test equipment: what the tests of bodies and steps run. One program runs what the processor has
// (host_bodies_test.cc), another one emulated instructions (emulated/machine_test.cc).

#include <string>
#include <vector>

#include "panels/body.h"

namespace moekit::panels {

struct NamedBody {
  std::string name;
  const Body* body;
};

const std::vector<NamedBody>& bodies_under_test();

/// Names that LayerCase::run takes.
const std::vector<std::string>& testable_isas();

/// The device whose plans run the body of `isa` from now on.
std::string select_body(const std::string& isa);

}  // namespace moekit::panels
