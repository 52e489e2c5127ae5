// SPDX-License-Identifier: Apache-2.0
#include "plan/tuning/table.h"

namespace moekit::plan {
namespace {

// Direct calls of 4-bit codes sum digits on `amx`, grouped ones tiles, whose decoding costs the
// same for one token as for four; elsewhere the two differ in name alone.
constexpr DirectRow kDirect[] = {
    {.max_tokens = 16,
     .tenths_per_expert = 10,
     .source = "digits beside tiles, bench/results/xeon-cpu-direct-0001.jsonl"},
};

}  // namespace

const TuningTable kCpuTable{.arch = Arch::kCpu, .direct = kDirect};

}  // namespace moekit::plan
