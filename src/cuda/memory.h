// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory, streams, events and graphs of one device, each released by its owner.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "moekit/status.h"

#include "cuda/device.h"

namespace moekit::cuda {

using DevicePointer = std::shared_ptr<Device>;

/// Device memory. Empty when default-constructed or of 0 bytes.
class DeviceBuffer {
 public:
  DeviceBuffer() noexcept = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer();

  /// Aligned to 256 bytes, as the driver guarantees.
  ///
  /// Errors  kOutOfMemory  naming bytes wanted and free
  [[nodiscard]] static Result<DeviceBuffer> allocate(const DevicePointer& device,
                                                     std::size_t bytes);

  /// Memory whose last byte is the last of its mapping: what reads or writes past it faults. For
  /// checks; the address is as aligned as `bytes` is.
  ///
  /// Errors  as allocate
  [[nodiscard]] static Result<DeviceBuffer> allocate_guarded(const DevicePointer& device,
                                                             std::size_t bytes);

  [[nodiscard]] CuDevicePointer address() const noexcept { return address_; }

  /// The address as a pointer to hand to kernels and views; never to be dereferenced here.
  [[nodiscard]] std::byte* pointer() const noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  DevicePointer device_{};
  CuDevicePointer address_ = 0;
  std::size_t bytes_ = 0;

  /// Of guarded memory: a mapped run of granules and one behind it that is only reserved.
  struct Mapping {
    CuDevicePointer base = 0;
    std::size_t mapped_bytes = 0;
    std::size_t reserved_bytes = 0;
  };

  [[nodiscard]] static Status map(Device& device, Mapping& mapping);
  static void unmap(const Device& device, const Mapping& mapping);

  Mapping mapping_{};
};

/// Page-locked host memory: what copies at full speed and asynchronously.
class HostBuffer {
 public:
  HostBuffer() noexcept = default;
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer();

  [[nodiscard]] static Result<HostBuffer> allocate(const DevicePointer& device, std::size_t bytes);

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {pointer_, bytes_}; }

 private:
  DevicePointer device_{};
  std::byte* pointer_ = nullptr;
  std::size_t bytes_ = 0;
};

class Stream {
 public:
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&&) = delete;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  /// One that does not wait for the default stream.
  [[nodiscard]] static Result<Stream> create(const DevicePointer& device);

  [[nodiscard]] CuStream handle() const noexcept { return handle_; }

  [[nodiscard]] const DevicePointer& device() const noexcept { return device_; }

  [[nodiscard]] Status synchronize() const;
  [[nodiscard]] Status upload(CuDevicePointer to, std::span<const std::byte> from) const;
  [[nodiscard]] Status download(std::span<std::byte> to, CuDevicePointer from) const;
  [[nodiscard]] Status fill(CuDevicePointer to, std::size_t bytes, unsigned char value) const;

 private:
  Stream(DevicePointer device, CuStream handle) noexcept
      : device_(std::move(device)), handle_(handle) {}

  DevicePointer device_{};
  CuStream handle_ = nullptr;
};

class Event {
 public:
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  [[nodiscard]] static Result<Event> create(const DevicePointer& device);
  [[nodiscard]] Status record(const Stream& stream) const;
  [[nodiscard]] Status synchronize() const;

  /// Makes later work on `stream` wait for this event.
  [[nodiscard]] Status block(const Stream& stream) const;

  /// Milliseconds from `begin` to this event, both reached.
  [[nodiscard]] Result<float> elapsed_ms(const Event& begin) const;

 private:
  Event(DevicePointer device, CuEvent handle) noexcept
      : device_(std::move(device)), handle_(handle) {}

  DevicePointer device_{};
  CuEvent handle_ = nullptr;
};

/// Recorded work that replays with one call.
class Graph {
 public:
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&&) = delete;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  /// Records what `work` submits to `stream`. An error of `work` ends the capture and is returned.
  [[nodiscard]] static Result<Graph> capture(const Stream& stream,
                                             const std::function<Status()>& work);

  [[nodiscard]] Status launch(const Stream& stream) const;

 private:
  Graph(DevicePointer device, CuGraphExec exec) noexcept
      : device_(std::move(device)), exec_(exec) {}

  DevicePointer device_{};
  CuGraphExec exec_ = nullptr;
};

}  // namespace moekit::cuda
