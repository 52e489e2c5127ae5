// SPDX-License-Identifier: Apache-2.0
#include "plan/tuning/table.h"

namespace moekit::plan {
namespace {

// The direct family finds an expert's tokens by scanning the ids, which costs active experts *
// routes comparisons; at 8 tokens of top-8 that is 4,096, a microsecond, and sorting costs the
// same.
constexpr DirectRow kDirect[] = {
    {.max_tokens = 8, .source = "derived: scan of 64 routes per expert"},
};

}  // namespace

const TuningTable kCpuTable{.arch = Arch::kCpu, .direct = kDirect};

}  // namespace moekit::plan
