// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.h"

#include <array>
#include <optional>

#include "base/text.h"

namespace moekit::cuda {
namespace {

struct Capability {
  int major;
  int minor;
  Arch arch;
};

constexpr std::array kCapabilities = {Capability{8, 0, Arch::kSm80},
                                      Capability{8, 6, Arch::kSm86},
                                      Capability{8, 9, Arch::kSm89},
                                      Capability{9, 0, Arch::kSm90a},
                                      Capability{10, 0, Arch::kSm100a},
                                      Capability{12, 0, Arch::kSm120a},
                                      Capability{12, 1, Arch::kSm121a}};

std::optional<Arch> arch_of(int major, int minor) {
  for (const Capability& row : kCapabilities) {
    if (row.major == major && row.minor == minor) {
      return row.arch;
    }
  }
  return std::nullopt;
}

Result<CuDevice> find_device(const DriverTable& driver, int ordinal) {
  int count = 0;
  MOEKIT_RETURN_IF_ERROR(driver_status(driver, driver.device_get_count(&count), "counting GPUs"));
  if (ordinal < 0 || ordinal >= count) {
    return invalid_argument(base::cat("cuda:",
                                      ordinal,
                                      " does not exist, this machine has ",
                                      count,
                                      count == 1 ? " GPU" : " GPUs"));
  }
  CuDevice device = 0;
  MOEKIT_RETURN_IF_ERROR(
      driver_status(driver, driver.device_get(&device, ordinal), base::cat("cuda:", ordinal)));
  return device;
}

Result<DeviceDescriptor> describe(const DriverTable& driver, CuDevice device, int ordinal) {
  DeviceDescriptor descriptor;
  std::array<char, 256> name{};
  MOEKIT_RETURN_IF_ERROR(
      driver_status(driver,
                    driver.device_get_name(name.data(), static_cast<int>(name.size()) - 1, device),
                    "asking for a GPU's name"));
  descriptor.name = name.data();
  int major = 0;
  int minor = 0;

  struct Question {
    int attribute;
    int* int_answer;
    std::int64_t* answer;
  };

  const std::array<Question, 5> questions = {
      Question{kCuComputeCapabilityMajor, &major, nullptr},
      Question{kCuComputeCapabilityMinor, &minor, nullptr},
      Question{kCuMultiprocessorCount, nullptr, &descriptor.num_sms},
      Question{kCuSharedMemoryPerBlockOptin, nullptr, &descriptor.smem_per_block_bytes},
      Question{kCuL2CacheSize, nullptr, &descriptor.l2_bytes}};
  for (const Question& question : questions) {
    int value = 0;
    MOEKIT_RETURN_IF_ERROR(
        driver_status(driver,
                      driver.device_get_attribute(&value, question.attribute, device),
                      base::cat("asking cuda:", ordinal, " for attribute ", question.attribute)));
    if (question.int_answer != nullptr) {
      *question.int_answer = value;
    } else {
      *question.answer = value;
    }
  }
  const std::optional<Arch> arch = arch_of(major, minor);
  if (!arch) {
    return unsupported(base::cat("cuda:",
                                 ordinal,
                                 " (",
                                 descriptor.name,
                                 ") has compute capability ",
                                 major,
                                 ".",
                                 minor,
                                 ", kernels exist for 8.0, 8.6, 8.9, 9.0, 10.0, 12.0 and 12.1"));
  }
  descriptor.arch = *arch;
  return descriptor;
}

}  // namespace

Result<std::shared_ptr<Device>> Device::open(const DriverTable& driver, int ordinal) {
  MOEKIT_ASSIGN_OR_RETURN(const CuDevice handle, find_device(driver, ordinal));
  MOEKIT_ASSIGN_OR_RETURN(DeviceDescriptor descriptor, describe(driver, handle, ordinal));
  CuContext context = nullptr;
  MOEKIT_RETURN_IF_ERROR(driver_status(driver,
                                       driver.primary_context_retain(&context, handle),
                                       base::cat("opening cuda:", ordinal)));
  std::shared_ptr<Device> device(new Device(driver, ordinal, handle, context));
  device->descriptor_ = std::move(descriptor);
  return device;
}

Device::~Device() {
  driver_.primary_context_release(device_);
}

Status Device::check(CuResult result, std::string_view doing) {
  if (result == kCuSuccess) {
    return {};
  }
  Status status = driver_status(driver_, result, doing);
  if (is_sticky(result)) {
    const std::lock_guard lock(mutex_);
    if (sticky_.ok()) {
      sticky_ = status;
    }
  }
  return status;
}

Status Device::sticky_error() const {
  const std::lock_guard lock(mutex_);
  return sticky_;
}

Status Device::check_pointer(const void* pointer, std::string_view what) const {
  const auto address = static_cast<CuDevicePointer>(reinterpret_cast<std::uintptr_t>(pointer));
  unsigned type = 0;
  if (driver_.pointer_get_attribute(&type, kCuPointerMemoryType, address) != kCuSuccess ||
      (type != kCuMemoryDevice && type != kCuMemoryUnified)) {
    return invalid_argument(
        base::cat(what, " is not device memory, the plan is for cuda:", ordinal_));
  }
  int ordinal = -1;
  const CuResult result = driver_.pointer_get_attribute(&ordinal, kCuPointerDeviceOrdinal, address);
  if (result != kCuSuccess || (ordinal != ordinal_ && type == kCuMemoryDevice)) {
    return invalid_argument(
        base::cat(what, " is memory of cuda:", ordinal, ", the plan is for cuda:", ordinal_));
  }
  return {};
}

Status Device::check_stream(CuStream stream) const {
  if (stream == nullptr) {
    return {};  // the default stream belongs to whatever context is current
  }
  CuContext context = nullptr;
  MOEKIT_RETURN_IF_ERROR(
      driver_status(driver_, driver_.stream_get_context(stream, &context), "asking for a stream"));
  if (context != context_) {
    return invalid_argument(base::cat("the stream belongs to another context than that of cuda:",
                                      ordinal_,
                                      ", the plan's device"));
  }
  return {};
}

CurrentContext::CurrentContext(const Device& device) : driver_(device.driver()) {
  status_ = driver_status(driver_,
                          driver_.context_push(device.context()),
                          base::cat("entering cuda:", device.ordinal()));
  if (status_.ok() && driver_.thread_exchange_capture_mode(&previous_mode_) != kCuSuccess) {
    previous_mode_ = kCuCaptureModeRelaxed;
  }
}

CurrentContext::~CurrentContext() {
  if (!status_.ok()) {
    return;
  }
  driver_.thread_exchange_capture_mode(&previous_mode_);
  CuContext ignored = nullptr;
  driver_.context_pop(&ignored);
}

Result<DeviceDescriptor> describe_device(const DriverTable& driver, int ordinal) {
  MOEKIT_ASSIGN_OR_RETURN(const CuDevice device, find_device(driver, ordinal));
  return describe(driver, device, ordinal);
}

std::vector<DeviceDescriptor> describe_devices(const DriverTable& driver) {
  std::vector<DeviceDescriptor> devices;
  int count = 0;
  if (driver.device_get_count(&count) != kCuSuccess) {
    return devices;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    if (Result<DeviceDescriptor> descriptor = describe_device(driver, ordinal)) {
      devices.push_back(*std::move(descriptor));
    }
  }
  return devices;
}

}  // namespace moekit::cuda
