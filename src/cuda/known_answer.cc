// SPDX-License-Identifier: Apache-2.0
#include "cuda/known_answer.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "cuda/kernel_table.h"
#include "cuda/launch.h"

namespace moekit::cuda {
namespace {

Status patch_pointers(const plan::SelfTest& test,
                      std::span<const DeviceBuffer> buffers,
                      std::span<std::byte> arguments) {
  for (const plan::SelfTestPointer& pointer : test.pointers) {
    if (pointer.buffer >= buffers.size() ||
        pointer.argument_offset + sizeof(CuDevicePointer) > arguments.size()) {
      return internal_error(base::cat("self-test pointer at ",
                                      pointer.argument_offset,
                                      " to buffer ",
                                      pointer.buffer,
                                      " is out of range"));
    }
    const CuDevicePointer address = buffers[pointer.buffer].address() + pointer.byte_offset;
    std::memcpy(arguments.data() + pointer.argument_offset, &address, sizeof(address));
  }
  return {};
}

Status compare(const DevicePointer& device,
               const LoadedKernel& kernel,
               std::size_t buffer,
               std::span<const std::byte> got,
               std::span<const std::byte> expected) {
  const auto [got_at, expected_at] =
      std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  if (got_at == got.end() && expected_at == expected.end()) {
    return {};
  }
  return device_error(base::cat("kernel ",
                                kernel.name,
                                " loads on cuda:",
                                device->ordinal(),
                                " (",
                                device->descriptor().name,
                                ") and computes a wrong answer: buffer ",
                                buffer,
                                " byte ",
                                got_at - got.begin(),
                                " is ",
                                std::to_integer<int>(*got_at),
                                ", expected ",
                                std::to_integer<int>(*expected_at),
                                " (image ",
                                kernel.image_id,
                                ")"));
}

}  // namespace

Status run_self_test(const DevicePointer& device,
                     const LoadedKernel& kernel,
                     const plan::SelfTest& test) {
  MOEKIT_ASSIGN_OR_RETURN(const Stream stream, Stream::create(device));
  std::vector<DeviceBuffer> buffers;
  for (const plan::SelfTestBuffer& buffer : test.buffers) {
    MOEKIT_ASSIGN_OR_RETURN(DeviceBuffer made,
                            DeviceBuffer::allocate(device, buffer.before.size()));
    MOEKIT_RETURN_IF_ERROR(stream.upload(made.address(), buffer.before));
    buffers.push_back(std::move(made));
  }
  std::vector<std::byte> arguments = test.arguments;
  MOEKIT_RETURN_IF_ERROR(patch_pointers(test, buffers, arguments));
  {
    const CurrentContext current(*device);
    MOEKIT_RETURN_IF_ERROR(current.status());
    MOEKIT_RETURN_IF_ERROR(
        launch_kernel(*device, kernel, test.geometry, arguments, stream.handle()));
  }
  std::vector<std::vector<std::byte>> got(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    got[i].resize(test.buffers[i].after.size());
    MOEKIT_RETURN_IF_ERROR(stream.download(got[i], buffers[i].address())
                               .with_context(base::cat("self-test of kernel ", kernel.name)));
  }
  MOEKIT_RETURN_IF_ERROR(
      stream.synchronize().with_context(base::cat("self-test of kernel ", kernel.name)));
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    MOEKIT_RETURN_IF_ERROR(compare(device, kernel, i, got[i], test.buffers[i].after));
  }
  return {};
}

}  // namespace moekit::cuda
