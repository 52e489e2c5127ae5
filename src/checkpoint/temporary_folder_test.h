// SPDX-License-Identifier: Apache-2.0
#pragma once

// A folder that a test owns and that is gone after it.

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <unistd.h>

#include <gtest/gtest.h>

namespace moekit::checkpoint {

class TemporaryFolder : public testing::Test {
 protected:
  void SetUp() override {
    const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = testing::TempDir() + "moekit_" + std::to_string(::getpid()) + "_" + info->name();
    std::filesystem::create_directories(folder_);
  }

  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }

  void write(const std::string& name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary) << content;
  }

  [[nodiscard]] std::int64_t count_entries() const {
    return std::distance(std::filesystem::directory_iterator(folder_),
                         std::filesystem::directory_iterator());
  }

  std::string folder_;
};

}  // namespace moekit::checkpoint
