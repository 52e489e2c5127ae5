// SPDX-License-Identifier: Apache-2.0
#pragma once

// One GPU: its primary context, which other libraries of the program share, and what the planner
// wants to know of it.

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "moekit/device.h"
#include "moekit/status.h"

#include "cuda/driver_table.h"

namespace moekit::cuda {

class Device {
 public:
  /// Retains the primary context of the driver's device `ordinal`.
  ///
  /// Errors  kInvalidArgument  no such ordinal, naming how many there are
  ///         kUnsupported      a GPU that no kernel is written for, naming its compute capability
  ///         kDevice           the driver's reason
  [[nodiscard]] static Result<std::shared_ptr<Device>> open(const DriverTable& driver, int ordinal);

  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] const DriverTable& driver() const noexcept { return driver_; }

  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }

  [[nodiscard]] CuContext context() const noexcept { return context_; }

  [[nodiscard]] const DeviceDescriptor& descriptor() const noexcept { return descriptor_; }

  /// driver_status that also keeps the first error after which the context is lost.
  [[nodiscard]] Status check(CuResult result, std::string_view doing);

  /// The first such error; ok while there is none.
  [[nodiscard]] Status sticky_error() const;

  /// Errors  kInvalidArgument  `pointer` is not memory of this device, naming `what` and what it is
  [[nodiscard]] Status check_pointer(const void* pointer, std::string_view what) const;

  /// Errors  kInvalidArgument  `stream` belongs to another context
  [[nodiscard]] Status check_stream(CuStream stream) const;

 private:
  Device(const DriverTable& driver, int ordinal, CuDevice device, CuContext context)
      : driver_(driver), ordinal_(ordinal), device_(device), context_(context) {}

  DriverTable driver_;  // by value: buffers keep their device alive, and need nothing else
  int ordinal_;
  CuDevice device_;
  CuContext context_;
  DeviceDescriptor descriptor_{};
  mutable std::mutex mutex_;  // guards sticky_
  Status sticky_{};
};

/// Makes a device's context current for a scope and lets another thread's stream capture live:
/// without the relaxed mode, an allocation here would invalidate a capture that is global there.
class CurrentContext {
 public:
  explicit CurrentContext(const Device& device);
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext();

  [[nodiscard]] const Status& status() const noexcept { return status_; }

 private:
  const DriverTable& driver_;
  Status status_{};
  int previous_mode_ = kCuCaptureModeRelaxed;
};

/// What the planner sees of the driver's device `ordinal`, without making a context.
///
/// Errors  as Device::open
[[nodiscard]] Result<DeviceDescriptor> describe_device(const DriverTable& driver, int ordinal);

/// Every device that moekit can use, in the driver's order.
[[nodiscard]] std::vector<DeviceDescriptor> describe_devices(const DriverTable& driver);

}  // namespace moekit::cuda
