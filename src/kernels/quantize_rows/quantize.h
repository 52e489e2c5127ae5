// SPDX-License-Identifier: Apache-2.0
#pragma once

// The quantisers over whole matrices: the host body, and the CUDA kernels as data.

#include <cstdint>

#include "moekit/status.h"

#include "kernels/quantize_rows/args.h"
#include "kernels/quantize_rows/spec.h"
#include "plan/launch.h"

namespace moekit::kernels::quantize_rows {

/// Rows of x to codes, scales and operand: the bytes that the CUDA kernel writes.
///
/// Shapes    as Args, host memory
/// Numerics  bit-defined (device/numerics/quantize.h)
/// Effects   no allocation
void quantize_on_host(Rule rule, const Args& args) noexcept;

/// `quantize_rows.q4.rows_t256.sm90a`
[[nodiscard]] std::string kernel_name(Rule rule, Arch arch);

/// Geometry and arguments of one launch of kernel_name(rule, ·).
///
/// Errors  kInvalidArgument  num_cols or x_stride not a multiple of 8, unaligned pointers, Q4
///                           without a global, naming the value
[[nodiscard]] Status describe_launch(Rule rule, const Args& args, plan::Launch& out);

extern const plan::CudaFamily kCuda;

}  // namespace moekit::kernels::quantize_rows
