// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"

#include <cstring>

#include "base/text.h"
#include "cuda/kernel_table.h"

namespace moekit::cuda {
namespace {

constexpr std::size_t kMaxAttributes = 3;

unsigned to_unsigned(std::int64_t value) {
  return static_cast<unsigned>(value);
}

bool has_cluster(const Dim3& cluster) {
  return cluster.x != 1 || cluster.y != 1 || cluster.z != 1;
}

unsigned set_attributes(const plan::LaunchGeometry& geometry,
                        std::array<CuLaunchAttribute, kMaxAttributes>& attributes) {
  unsigned count = 0;
  if (geometry.cooperative) {
    attributes[count].id = kCuLaunchCooperative;
    attributes[count++].value.flag = 1;
  }
  if (has_cluster(geometry.cluster)) {
    attributes[count].id = kCuLaunchClusterDimension;
    attributes[count++].value.dimensions = {to_unsigned(geometry.cluster.x),
                                            to_unsigned(geometry.cluster.y),
                                            to_unsigned(geometry.cluster.z)};
  }
  if (geometry.pdl_edge) {
    attributes[count].id = kCuLaunchProgrammaticSerialization;
    attributes[count++].value.flag = 1;
  }
  return count;
}

/// Calls `submit`, in the device's context where the driver wants it: no context, or another one,
/// may be current in this thread. Asked for only then: the common call is the submission alone.
template <typename Submit>
Result<CuResult> in_context(Device& device, const Submit& submit) {
  const CuResult result = submit();
  if (result != kCuInvalidContext && result != kCuInvalidHandle) [[likely]] {
    return result;
  }
  const CurrentContext current(device);
  MOEKIT_RETURN_IF_ERROR(current.status());
  return submit();
}

// CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion of the driver's ABI.
constexpr std::array<int, 6> kElements = {0, 1, 2, 9, 6, 7};

}  // namespace

Status launch_kernel(Device& device,
                     const LoadedKernel& kernel,
                     const plan::LaunchGeometry& geometry,
                     std::span<std::byte> arguments,
                     CuStream stream) {
  std::array<CuLaunchAttribute, kMaxAttributes> attributes{};
  CuLaunchConfig config;
  config.grid_x = to_unsigned(geometry.grid.x);
  config.grid_y = to_unsigned(geometry.grid.y);
  config.grid_z = to_unsigned(geometry.grid.z);
  config.block_x = to_unsigned(geometry.block.x);
  config.block_y = to_unsigned(geometry.block.y);
  config.block_z = to_unsigned(geometry.block.z);
  config.smem_bytes = to_unsigned(geometry.smem_bytes);
  config.stream = stream;
  config.attributes = attributes.data();
  config.num_attributes = set_attributes(geometry, attributes);
  std::array<void*, 1> parameters = {arguments.data()};
  const DriverTable& driver = device.driver();
  MOEKIT_ASSIGN_OR_RETURN(const CuResult result, in_context(device, [&] {
                            return driver.launch(
                                &config, kernel.function, parameters.data(), nullptr);
                          }));
  if (result == kCuSuccess) [[likely]] {
    return {};
  }
  return device.check(result,
                      base::cat("step ",
                                kernel.name,
                                ": launching ",
                                geometry.grid.x,
                                " x ",
                                geometry.grid.y,
                                " x ",
                                geometry.grid.z,
                                " blocks of ",
                                geometry.block.x,
                                " threads with ",
                                geometry.smem_bytes,
                                " bytes of shared memory"));
}

Status clear_bytes(Device& device,
                   std::string_view step,
                   const plan::ClearedBytes& cleared,
                   CuStream stream) {
  const auto begin = reinterpret_cast<CuDevicePointer>(cleared.begin);
  MOEKIT_ASSIGN_OR_RETURN(const CuResult result, in_context(device, [&] {
                            return device.driver().fill_bytes(begin, 0, cleared.size, stream);
                          }));
  if (result == kCuSuccess) [[likely]] {
    return {};
  }
  return device.check(result,
                      base::cat("step ", step, ": clearing ", cleared.size, " bytes before it"));
}

Status encode_tensor_map(const DriverTable& driver,
                         std::string_view step,
                         const plan::TensorMapDescription& description,
                         CuTensorMap& destination) {
  constexpr std::array<std::uint32_t, 5> kUnitStride = {1, 1, 1, 1, 1};
  const CuResult result =
      driver.tensor_map_encode(&destination,
                               kElements[static_cast<std::size_t>(description.element)],
                               static_cast<unsigned>(description.rank),
                               const_cast<void*>(description.base),
                               description.extent.data(),
                               description.stride_bytes.data(),
                               description.box.data(),
                               kUnitStride.data(),
                               0,
                               static_cast<int>(description.swizzle),
                               static_cast<int>(description.l2),
                               0);
  if (result == kCuSuccess) {
    return {};
  }
  const auto rank = static_cast<std::size_t>(description.rank);
  return invalid_argument(
      base::cat(driver_status(driver, result, base::cat("step ", step, ": tensor map")).message(),
                ", extents ",
                base::join(std::span(description.extent).first(rank)),
                ", box ",
                base::join(std::span(description.box).first(rank))));
}

Status encode_tensor_maps(const DriverTable& driver, std::string_view step, plan::Launch& launch) {
  for (std::size_t i = 0; i < launch.num_tensor_maps; ++i) {
    const plan::TensorMapDescription& description = launch.tensor_maps[i];
    const std::span<std::byte> arguments = launch.arguments.bytes();
    if (description.argument_offset % 64 != 0 ||
        description.argument_offset + sizeof(CuTensorMap) > arguments.size()) {
      return internal_error(base::cat("step ",
                                      step,
                                      ": tensor map ",
                                      i,
                                      " at argument byte ",
                                      description.argument_offset,
                                      " of ",
                                      arguments.size()));
    }
    CuTensorMap map;
    MOEKIT_RETURN_IF_ERROR(encode_tensor_map(driver, step, description, map));
    std::memcpy(arguments.data() + description.argument_offset, &map, sizeof(map));
  }
  return {};
}

}  // namespace moekit::cuda
