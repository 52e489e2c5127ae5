// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.h"

#include <gtest/gtest.h>

#include "cuda/driver_fake.h"
#include "cuda/memory.h"

namespace moekit::cuda {
namespace {

class DeviceTest : public testing::Test {
 protected:
  DriverTable driver = DriverFake::table();
  DevicePointer device = *Device::open(driver, 0);
};

TEST(Driver, HiddenOrMissingLibraryIsUnsupportedWithTheReason) {
  const Status hidden = open_driver("none").status();
  EXPECT_EQ(hidden.code(), StatusCode::kUnsupported);
  EXPECT_NE(hidden.message().find("MOEKIT_CUDA_LIBRARY=none"), std::string::npos);
  const Status missing = open_driver("libmoekit_no_driver.so").status();
  EXPECT_EQ(missing.code(), StatusCode::kUnsupported);
  EXPECT_NE(missing.message().find("libmoekit_no_driver.so"), std::string::npos);
  const Status wrong = open_driver("libm.so.6").status();
  EXPECT_EQ(wrong.code(), StatusCode::kUnsupported);
  EXPECT_NE(wrong.message().find("has no cuInit"), std::string::npos);
}

TEST_F(DeviceTest, DescriptorIsReadFromTheDriver) {
  const DeviceDescriptor& descriptor = device->descriptor();
  EXPECT_EQ(descriptor.arch, Arch::kSm90a);
  EXPECT_EQ(descriptor.name, "NVIDIA H200");
  EXPECT_EQ(descriptor.num_sms, 132);
  EXPECT_EQ(descriptor.smem_per_block_bytes, 227 << 10);
  EXPECT_EQ(descriptor.l2_bytes, 60 << 20);
  EXPECT_EQ(describe_devices(driver), std::vector<DeviceDescriptor>{descriptor});
}

TEST_F(DeviceTest, OrdinalOutOfRangeSaysHowManyThereAre) {
  for (const int ordinal : {-1, 1}) {
    const Status status = Device::open(driver, ordinal).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("this machine has 1 GPU"), std::string::npos);
  }
}

TEST_F(DeviceTest, PrimaryContextIsRetainedAndReleased) {
  DriverFake::forget_calls();
  device.reset();
  EXPECT_EQ(DriverFake::calls(), std::vector<std::string>{"primary_context_release"});
}

TEST_F(DeviceTest, BuffersCopyAndAreFreed) {
  const std::array<std::byte, 3> bytes = {std::byte{1}, std::byte{2}, std::byte{3}};
  {
    const Result<Stream> stream = Stream::create(device);
    ASSERT_TRUE(stream.has_value());
    Result<DeviceBuffer> buffer = DeviceBuffer::allocate(device, 3);
    ASSERT_TRUE(buffer.has_value());
    EXPECT_EQ(buffer->address() % 256, 0U);
    ASSERT_TRUE(stream->upload(buffer->address(), bytes).ok());
    std::array<std::byte, 3> back{};
    const DeviceBuffer moved = *std::move(buffer);
    ASSERT_TRUE(stream->download(back, moved.address()).ok());
    EXPECT_EQ(back, bytes);
    EXPECT_EQ(DriverFake::live_allocations(), 1);
  }
  EXPECT_EQ(DriverFake::live_allocations(), 0);
}

TEST_F(DeviceTest, OutOfMemoryNamesWantedAndFree) {
  DriverFake::fail_next("memory_alloc", kCuOutOfMemory);
  const Status status = DeviceBuffer::allocate(device, 4096).status();
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(status.message(), "cuda:0 has no room for 4096 bytes, free are 1000 of 2000");
}

TEST_F(DeviceTest, ForeignPointersAndStreamsAreErrors) {
  const Result<DeviceBuffer> buffer = DeviceBuffer::allocate(device, 64);
  EXPECT_TRUE(device->check_pointer(buffer->pointer() + 63, "x").ok());
  const int on_host = 0;
  const Status foreign = device->check_pointer(&on_host, "x");
  EXPECT_EQ(foreign.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(foreign.message(), "x is not device memory, the plan is for cuda:0");
  EXPECT_TRUE(device->check_stream(nullptr).ok());
  EXPECT_TRUE(device->check_stream(Stream::create(device)->handle()).ok());
  EXPECT_EQ(device->check_stream(DriverFake::foreign_stream()).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(DeviceTest, GraphEndsItsCaptureWhateverTheWorkDoes) {
  const Result<Stream> stream = Stream::create(device);
  DriverFake::forget_calls();
  const Status failed =
      Graph::capture(*stream, [] { return failed_precondition("not loaded"); }).status();
  EXPECT_EQ(failed, failed_precondition("not loaded"));
  EXPECT_EQ(
      DriverFake::calls(),
      (std::vector<std::string>{"stream_begin_capture", "stream_end_capture", "graph_destroy"}));
  const Result<Graph> graph = Graph::capture(*stream, [] { return Status(); });
  ASSERT_TRUE(graph.has_value());
  EXPECT_TRUE(graph->launch(*stream).ok());
}

TEST_F(DeviceTest, EventsTime) {
  const Result<Stream> stream = Stream::create(device);
  const Result<Event> begin = Event::create(device);
  const Result<Event> end = Event::create(device);
  ASSERT_TRUE(begin->record(*stream).ok());
  ASSERT_TRUE(end->record(*stream).ok());
  ASSERT_TRUE(end->synchronize().ok());
  EXPECT_EQ(end->elapsed_ms(*begin).value_or(0.0F), 1.5F);
}

}  // namespace
}  // namespace moekit::cuda
