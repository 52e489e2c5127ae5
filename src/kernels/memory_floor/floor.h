// SPDX-License-Identifier: Apache-2.0
#pragma once

// The memory floor as launches: what a layer's time on a GPU is compared with.

#include <string>
#include <vector>

#include "kernels/memory_floor/args.h"
#include "plan/launch.h"

namespace moekit::kernels::memory_floor {

extern const plan::CudaFamily kCuda;

/// Every variant for `arch`; the floor is the fastest of them.
[[nodiscard]] std::vector<std::string> kernel_names(Arch arch);

/// One cooperative launch of `kernel` over a device of `num_sms`.
[[nodiscard]] Status describe_launch(std::string_view kernel,
                                     const Args& args,
                                     std::int64_t num_sms,
                                     plan::Launch& out);

}  // namespace moekit::kernels::memory_floor
