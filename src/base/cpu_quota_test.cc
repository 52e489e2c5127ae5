// SPDX-License-Identifier: Apache-2.0

// Made-up trees of /proc and /sys/fs/cgroup, written as the kernel writes them.

#include "base/cpu_quota.h"

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace moekit::base {
namespace {

constexpr const char* kMountTwo =
    "24 1 0:22 / /proc rw,nosuid - proc proc rw\n"
    "31 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kMountOne =
    "32 31 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
    "35 31 0:30 / /sys/fs/cgroup/cpuset rw shared:9 - cgroup cgroup rw,cpuset\n"
    "36 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n";
constexpr const char* kCpu = "/sys/fs/cgroup/cpu,cpuacct";

/// A folder that stands for the machine's root while a test runs.
class Machine {
 public:
  Machine(const std::string& membership, const std::string& mountinfo)
      : root_(testing::TempDir() + "cpu_quota_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(root_);
    write("/proc/self/cgroup", membership);
    write("/proc/self/mountinfo", mountinfo);
  }

  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  ~Machine() { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  void limit_two(const std::string& folder, const std::string& line) const {
    write(folder + "/cpu.max", line + "\n");
  }

  void limit_one(const std::string& folder, const std::string& quota) const {
    write(folder + "/cpu.cfs_quota_us", quota + "\n");
    write(folder + "/cpu.cfs_period_us", "100000\n");
  }

  [[nodiscard]] std::optional<int> threads() const { return threads_from_cgroups(root_); }

 private:
  std::string root_;
};

TEST(CpuQuota, TwoTakesTheSmallestOnThePathToTheRoot) {
  const Machine machine("0::/user.slice/job/step\n", kMountTwo);
  EXPECT_EQ(machine.threads(), std::nullopt);
  machine.limit_two("/sys/fs/cgroup/user.slice/job/step", "max 100000");
  EXPECT_EQ(machine.threads(), std::nullopt);
  machine.limit_two("/sys/fs/cgroup/user.slice", "800000 100000");
  EXPECT_EQ(machine.threads(), 8);
  machine.limit_two("/sys/fs/cgroup/user.slice/job", "300000 100000");
  EXPECT_EQ(machine.threads(), 3);
  machine.limit_two("/sys/fs/cgroup/user.slice/job/step", "400000 100000");
  EXPECT_EQ(machine.threads(), 3);
  machine.limit_two("/sys/fs/cgroup/other", "100000 100000");  // not on the path
  EXPECT_EQ(machine.threads(), 3);
}

TEST(CpuQuota, OneTakesTheSmallestOnThePathToTheRoot) {
  const Machine machine(
      "6:cpuset:/\n4:cpu,cpuacct:/docker/3f2a/inner\n1:name=systemd:/docker/3f2a\n", kMountOne);
  EXPECT_EQ(machine.threads(), std::nullopt);
  machine.limit_one(kCpu, "-1");
  machine.limit_one(std::string(kCpu) + "/docker/3f2a/inner", "-1");
  EXPECT_EQ(machine.threads(), std::nullopt);
  machine.limit_one(std::string(kCpu) + "/docker/3f2a/inner", "600000");
  EXPECT_EQ(machine.threads(), 6);
  machine.limit_one(std::string(kCpu) + "/docker/3f2a", "250000");
  EXPECT_EQ(machine.threads(), 2);
  machine.write(std::string(kCpu) + "/docker/3f2a/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(machine.threads(), 5);
}

// What a container sees whose control group is mounted but not renamed: the membership is the
// host's path, the mounted root is that very group.
TEST(CpuQuota, AMountedSubtreeIsItsOwnRoot) {
  const Machine machine("4:cpu,cpuacct:/docker/3f2a\n",
                        "36 31 0:31 /docker/3f2a /sys/fs/cgroup/cpu,cpuacct ro master:10 - cgroup "
                        "cgroup rw,cpu,cpuacct\n");
  machine.limit_one(kCpu, "400000");
  EXPECT_EQ(machine.threads(), 4);
  machine.write("/proc/self/cgroup", "4:cpu,cpuacct:/docker/3f2a/job\n");
  machine.limit_one(std::string(kCpu) + "/job", "200000");
  EXPECT_EQ(machine.threads(), 2);
}

TEST(CpuQuota, AGroupOutsideOfTheMountCountsAsItsRoot) {
  const Machine machine("0::/../../elsewhere\n", kMountTwo);
  machine.limit_two("/sys/fs/cgroup", "500000 100000");
  machine.limit_two("/sys/fs/elsewhere", "100000 100000");
  EXPECT_EQ(machine.threads(), 5);
}

TEST(CpuQuota, BothVersionsMayBeMounted) {
  const Machine machine(
      "4:cpu,cpuacct:/a\n0::/b\n",
      std::string(kMountOne) + "40 31 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  machine.limit_one(std::string(kCpu) + "/a", "700000");
  EXPECT_EQ(machine.threads(), 7);
  machine.limit_two("/sys/fs/cgroup/unified/b", "600000 100000");
  EXPECT_EQ(machine.threads(), 6);
}

TEST(CpuQuota, MountPointsMayHoldBlanks) {
  const Machine machine("0::/\n", "31 25 0:26 / /my\\040cgroups rw,nosuid - cgroup2 cgroup2 rw\n");
  machine.limit_two("/my cgroups", "200000 100000");
  EXPECT_EQ(machine.threads(), 2);
}

TEST(CpuQuota, RoundsDownIsAtLeastOneAndSkipsWhatIsNoQuota) {
  const Machine machine("0::/\n", kMountTwo);
  const std::vector<std::pair<std::string, std::optional<int>>> lines{
      {"200000 100000", 2},
      {"250000 100000", 2},
      {"50000 100000", 1},
      {"max 100000", std::nullopt},
      {"", std::nullopt},
      {"100000", std::nullopt},
      {"100000 0", std::nullopt},
      {"-1 100000", std::nullopt},
      {"99999999999999999999 1", std::nullopt},
  };
  for (const auto& [line, threads] : lines) {
    machine.limit_two("/sys/fs/cgroup", line);
    EXPECT_EQ(machine.threads(), threads) << line;
  }
}

TEST(CpuQuota, TextsThatAreNotTheKernelsLimitNothing) {
  const Machine machine("4\n4:cpu\n::\n\n",
                        "36 31 0:31\n- cgroup2 a b\n1 2 3 4 5 6 - cgroup2\n 1 2 - - - - -\n\n");
  EXPECT_EQ(machine.threads(), std::nullopt);
  EXPECT_EQ(threads_from_cgroups("/nowhere"), std::nullopt);
}

}  // namespace
}  // namespace moekit::base
