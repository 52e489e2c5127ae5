// SPDX-License-Identifier: Apache-2.0
#include "cuda/memory.h"

#include <utility>

#include "base/text.h"

namespace moekit::cuda {

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(std::move(other.device_)),
      address_(std::exchange(other.address_, 0)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapping_(std::exchange(other.mapping_, {})) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapping_, other.mapping_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (address_ == 0) {
    return;
  }
  const CurrentContext current(*device_);
  if (mapping_.base != 0) {
    unmap(*device_, mapping_);
  } else {
    device_->driver().memory_free(address_);
  }
}

void DeviceBuffer::unmap(const Device& device, const Mapping& mapping) {
  if (mapping.mapped_bytes != 0) {
    device.driver().memory_unmap(mapping.base, mapping.mapped_bytes);
  }
  device.driver().address_free(mapping.base, mapping.reserved_bytes);
}

Status DeviceBuffer::map(Device& device, Mapping& mapping) {
  const DriverTable& driver = device.driver();
  const CuAllocationProperties properties{.location = {.id = device.ordinal()}};
  const std::size_t bytes = mapping.mapped_bytes;
  mapping.mapped_bytes = 0;  // until it is
  MOEKIT_RETURN_IF_ERROR(
      device.check(driver.address_reserve(&mapping.base, mapping.reserved_bytes, 0, 0, 0),
                   "reserving addresses"));
  CuMemoryHandle handle = 0;
  MOEKIT_RETURN_IF_ERROR(device.check(driver.memory_create(&handle, bytes, &properties, 0),
                                      base::cat("creating ", bytes, " bytes of memory")));
  const CuResult mapped = driver.memory_map(mapping.base, bytes, 0, handle, 0);
  // The mapping keeps the memory; without one it goes here.
  driver.memory_release(handle);
  MOEKIT_RETURN_IF_ERROR(device.check(mapped, "mapping memory"));
  mapping.mapped_bytes = bytes;
  const CuAccessDescription access{.location = {.id = device.ordinal()}};
  return device.check(driver.memory_set_access(mapping.base, bytes, &access, 1),
                      "opening mapped memory");
}

Result<DeviceBuffer> DeviceBuffer::allocate_guarded(const DevicePointer& device,
                                                    std::size_t bytes) {
  DeviceBuffer buffer;
  if (bytes == 0) {
    return buffer;
  }
  const CurrentContext current(*device);
  MOEKIT_RETURN_IF_ERROR(current.status());
  const CuAllocationProperties properties{.location = {.id = device->ordinal()}};
  std::size_t granule = 0;
  MOEKIT_RETURN_IF_ERROR(device->check(
      device->driver().memory_granularity(&granule, &properties, 0), "asking for the granularity"));
  Mapping mapping;
  mapping.mapped_bytes = (bytes + granule - 1) / granule * granule;
  mapping.reserved_bytes = mapping.mapped_bytes + granule;
  if (const Status status = map(*device, mapping); !status.ok()) {
    if (mapping.base != 0) {
      unmap(*device, mapping);
    }
    return status;
  }
  buffer.device_ = device;
  buffer.mapping_ = mapping;
  buffer.address_ = mapping.base + (mapping.mapped_bytes - bytes);
  buffer.bytes_ = bytes;
  return buffer;
}

std::byte* DeviceBuffer::pointer() const noexcept {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address_));
}

Result<DeviceBuffer> DeviceBuffer::allocate(const DevicePointer& device, std::size_t bytes) {
  DeviceBuffer buffer;
  if (bytes == 0) {
    return buffer;
  }
  const CurrentContext current(*device);
  MOEKIT_RETURN_IF_ERROR(current.status());
  CuDevicePointer address = 0;
  const DriverTable& driver = device->driver();
  const CuResult result = driver.memory_alloc(&address, bytes);
  if (result == kCuOutOfMemory) {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    static_cast<void>(driver.memory_get_info(&free_bytes, &total_bytes));
    return out_of_memory(base::cat("cuda:",
                                   device->ordinal(),
                                   " has no room for ",
                                   bytes,
                                   " bytes, free are ",
                                   free_bytes,
                                   " of ",
                                   total_bytes));
  }
  MOEKIT_RETURN_IF_ERROR(device->check(result, base::cat("allocating ", bytes, " bytes")));
  buffer.device_ = device;
  buffer.address_ = address;
  buffer.bytes_ = bytes;
  return buffer;
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : device_(std::move(other.device_)),
      pointer_(std::exchange(other.pointer_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(pointer_, other.pointer_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (pointer_ != nullptr) {
    const CurrentContext current(*device_);
    device_->driver().host_free(pointer_);
  }
}

Result<HostBuffer> HostBuffer::allocate(const DevicePointer& device, std::size_t bytes) {
  HostBuffer buffer;
  if (bytes == 0) {
    return buffer;
  }
  const CurrentContext current(*device);
  MOEKIT_RETURN_IF_ERROR(current.status());
  void* pointer = nullptr;
  MOEKIT_RETURN_IF_ERROR(device->check(device->driver().host_alloc(&pointer, bytes, 0),
                                       base::cat("page-locking ", bytes, " bytes")));
  buffer.device_ = device;
  buffer.pointer_ = static_cast<std::byte*>(pointer);
  buffer.bytes_ = bytes;
  return buffer;
}

Stream::Stream(Stream&& other) noexcept
    : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}

Stream::~Stream() {
  if (handle_ != nullptr) {
    device_->driver().stream_destroy(handle_);
  }
}

Result<Stream> Stream::create(const DevicePointer& device) {
  const CurrentContext current(*device);
  MOEKIT_RETURN_IF_ERROR(current.status());
  CuStream handle = nullptr;
  MOEKIT_RETURN_IF_ERROR(device->check(
      device->driver().stream_create(&handle, kCuStreamNonBlocking), "making a stream"));
  return Stream(device, handle);
}

Status Stream::synchronize() const {
  return device_->check(device_->driver().stream_synchronize(handle_), "waiting for a stream");
}

Status Stream::upload(CuDevicePointer to, std::span<const std::byte> from) const {
  if (from.empty()) {
    return {};
  }
  const CurrentContext current(*device_);
  MOEKIT_RETURN_IF_ERROR(current.status());
  return device_->check(device_->driver().copy_to_device(to, from.data(), from.size(), handle_),
                        base::cat("copying ", from.size(), " bytes to the device"));
}

Status Stream::download(std::span<std::byte> to, CuDevicePointer from) const {
  if (to.empty()) {
    return {};
  }
  const CurrentContext current(*device_);
  MOEKIT_RETURN_IF_ERROR(current.status());
  return device_->check(device_->driver().copy_to_host(to.data(), from, to.size(), handle_),
                        base::cat("copying ", to.size(), " bytes to the host"));
}

Status Stream::fill(CuDevicePointer to, std::size_t bytes, unsigned char value) const {
  if (bytes == 0) {
    return {};
  }
  const CurrentContext current(*device_);
  MOEKIT_RETURN_IF_ERROR(current.status());
  return device_->check(device_->driver().fill_bytes(to, value, bytes, handle_),
                        base::cat("filling ", bytes, " bytes"));
}

Event::Event(Event&& other) noexcept
    : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}

Event::~Event() {
  if (handle_ != nullptr) {
    device_->driver().event_destroy(handle_);
  }
}

Result<Event> Event::create(const DevicePointer& device) {
  const CurrentContext current(*device);
  MOEKIT_RETURN_IF_ERROR(current.status());
  CuEvent handle = nullptr;
  MOEKIT_RETURN_IF_ERROR(
      device->check(device->driver().event_create(&handle, kCuEventTiming), "making an event"));
  return Event(device, handle);
}

Status Event::record(const Stream& stream) const {
  return device_->check(device_->driver().event_record(handle_, stream.handle()),
                        "recording an event");
}

Status Event::synchronize() const {
  return device_->check(device_->driver().event_synchronize(handle_), "waiting for an event");
}

Status Event::block(const Stream& stream) const {
  return device_->check(device_->driver().stream_wait_event(stream.handle(), handle_, 0),
                        "making a stream wait for an event");
}

Result<float> Event::elapsed_ms(const Event& begin) const {
  float milliseconds = 0.0F;
  MOEKIT_RETURN_IF_ERROR(device_->check(
      device_->driver().event_elapsed_ms(&milliseconds, begin.handle_, handle_), "timing"));
  return milliseconds;
}

Graph::Graph(Graph&& other) noexcept
    : device_(std::move(other.device_)), exec_(std::exchange(other.exec_, nullptr)) {}

Graph::~Graph() {
  if (exec_ != nullptr) {
    const CurrentContext current(*device_);
    device_->driver().graph_exec_destroy(exec_);
  }
}

Result<Graph> Graph::capture(const Stream& stream, const std::function<Status()>& work) {
  const DevicePointer& device = stream.device();
  const DriverTable& driver = device->driver();
  // Thread-local: what other threads do meanwhile is no concern of this capture.
  MOEKIT_RETURN_IF_ERROR(
      device->check(driver.stream_begin_capture(stream.handle(), kCuCaptureModeThreadLocal),
                    "beginning a capture"));
  const Status worked = work();
  CuGraph graph = nullptr;
  const Status ended =
      device->check(driver.stream_end_capture(stream.handle(), &graph), "ending a capture");
  CuGraphExec exec = nullptr;
  Status made = worked.ok() ? ended : worked;
  if (made.ok()) {
    // The capture found its context through the stream; instantiating needs it current.
    const CurrentContext current(*device);
    made = device->check(driver.graph_instantiate(&exec, graph, 0), "instantiating a graph");
  }
  if (graph != nullptr) {
    driver.graph_destroy(graph);
  }
  MOEKIT_RETURN_IF_ERROR(made);
  return Graph(device, exec);
}

Status Graph::launch(const Stream& stream) const {
  const CurrentContext current(*device_);
  MOEKIT_RETURN_IF_ERROR(current.status());
  return device_->check(device_->driver().graph_launch(exec_, stream.handle()),
                        "launching a graph");
}

}  // namespace moekit::cuda
