// SPDX-License-Identifier: Apache-2.0
#pragma once

// Performs what plan/launch.h describes.

#include <span>

#include "moekit/status.h"

#include "cuda/device.h"
#include "plan/launch.h"

namespace moekit::cuda {

struct LoadedKernel;

/// Submits one launch to `stream`. `arguments` is the kernel's one parameter, copied before this
/// returns. The device's context need not be current: where the driver wants it, it is entered.
///
/// Errors  kDevice  the driver's reason, naming the step
/// Effects one driver call when the context is current; no allocation
[[nodiscard]] Status launch_kernel(Device& device,
                                   const LoadedKernel& kernel,
                                   const plan::LaunchGeometry& geometry,
                                   std::span<std::byte> arguments,
                                   CuStream stream);

/// Clears what the launch of `step` counts on being zero.
///
/// Errors  kDevice  the driver's reason, naming the step
/// Effects one driver call when the context is current; no allocation
[[nodiscard]] Status clear_bytes(Device& device,
                                 std::string_view step,
                                 const plan::ClearedBytes& cleared,
                                 CuStream stream);

/// Encodes the tensor maps of a launch into its argument block. Host work: no stream, no context.
///
/// Errors  kInvalidArgument  a map the driver refuses, naming step, extents and box
[[nodiscard]] Status encode_tensor_maps(const DriverTable& driver,
                                        std::string_view step,
                                        plan::Launch& launch);

/// One map, for those that live in packed weights. `destination` is 64-aligned.
[[nodiscard]] Status encode_tensor_map(const DriverTable& driver,
                                       std::string_view step,
                                       const plan::TensorMapDescription& description,
                                       CuTensorMap& destination);

}  // namespace moekit::cuda
