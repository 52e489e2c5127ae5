// SPDX-License-Identifier: Apache-2.0
#include "moekit/device.h"

#include <gtest/gtest.h>

#include "plan/validate_device.h"

namespace moekit {
namespace {

TEST(DeviceFromName, EveryArchAndItsAlias) {
  int checked = 0;
  for (const char* name : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a", "sm_121a"}) {
    const Result<DeviceDescriptor> device = device_from_name(name);
    ASSERT_TRUE(device.has_value()) << name;
    EXPECT_EQ(arch_name(device->arch), name);
    EXPECT_GT(device->num_sms, 0);
    EXPECT_GE(device->smem_per_block_bytes, 99 * 1024);
    ++checked;
  }
  EXPECT_EQ(checked, 7);
  EXPECT_EQ(device_from_name("sm_90")->arch, Arch::kSm90a);
  EXPECT_EQ(device_from_name("sm_120")->arch, Arch::kSm120a);
  EXPECT_EQ(device_from_name("sm_90")->num_sms, 132);
}

TEST(DeviceFromName, CpuAndItsInstructionSets) {
  const Result<DeviceDescriptor> cpu = device_from_name("cpu");
  ASSERT_TRUE(cpu.has_value());
  EXPECT_EQ(cpu->arch, Arch::kCpu);
  EXPECT_GE(cpu->num_threads, 1);
  EXPECT_EQ(*cpu, host_cpu());
  EXPECT_EQ(device_from_name("cpu:portable")->isa, Isa::kPortable);
  EXPECT_EQ(device_from_name("cpu:avx512")->isa, Isa::kAvx512);  // planning needs no such machine
  EXPECT_EQ(device_from_name("cpu:amx")->isa, Isa::kAmx);
}

TEST(DeviceFromName, UnknownNamesListTheKnown) {
  for (const char* name : {"", "gpu", "sm_90b", "cpu:", "cpu:sse", "sm_7"}) {
    const Result<DeviceDescriptor> device = device_from_name(name);
    ASSERT_FALSE(device.has_value()) << name;
    EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_NE(device_from_name("gpu").status().message().find("sm_90a"), std::string_view::npos);
}

TEST(DeviceFromName, FiguresMayBeReplaced) {
  const Result<DeviceDescriptor> part = device_from_name("sm_120a:num_sms=94");
  ASSERT_TRUE(part.has_value()) << part.status().to_string();
  DeviceDescriptor expected = *device_from_name("sm_120a");
  expected.num_sms = 94;
  EXPECT_EQ(*part, expected);
  expected.smem_per_block_bytes = 65536;
  EXPECT_EQ(device_from_name("sm_120:smem_per_block_bytes=65536,num_sms=94").value(), expected);
  for (const char* bad : {"sm_120a:",
                          "sm_120a:num_sms",
                          "sm_120a:num_sms=",
                          "sm_120a:num_sms=0",
                          "sm_120a:num_sms=9x",
                          "sm_120a:sms=4",
                          "sm_120a:num_sms=4,",
                          "sm_120a:num_sms=99999",
                          "sm_9:num_sms=4"}) {
    EXPECT_EQ(device_from_name(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  const Status twice = device_from_name("sm_120a:num_sms=94,num_sms=95").status();
  EXPECT_NE(twice.message().find("'num_sms=95': num_sms was given before"), std::string_view::npos)
      << twice.to_string();
}

TEST(ValidateDevice, RangesThatSizesComeFrom) {
  EXPECT_TRUE(plan::validate_device(host_cpu()).ok());
  EXPECT_TRUE(plan::validate_device(*device_from_name("sm_90a")).ok());
  DeviceDescriptor device = host_cpu();
  for (const std::int64_t threads :
       {std::int64_t{0}, std::int64_t{-7}, std::int64_t{1025}, std::int64_t{1} << 40}) {
    device.num_threads = threads;
    EXPECT_EQ(plan::validate_device(device).code(), StatusCode::kInvalidArgument) << threads;
  }
  device = host_cpu();
  device.isa = static_cast<Isa>(77);
  EXPECT_EQ(plan::validate_device(device).message(),
            "device: arch 0 or isa 77 is not an enumerator");
  device = *device_from_name("sm_90a");
  device.num_sms = 0;
  EXPECT_EQ(plan::validate_device(device).message(), "device: num_sms 0, expected 1..65536");
}

}  // namespace
}  // namespace moekit
