// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace moekit::base {
namespace {

Config parse(std::vector<std::string_view> entries) {
  return parse_config(entries);
}

TEST(Config, DefaultsOfAnEmptyEnvironment) {
  const Config config = parse({});
  EXPECT_EQ(config.cache_folder, "");
  EXPECT_EQ(config.cache_mode, CacheMode::kReadWrite);
  EXPECT_FALSE(config.log_level.has_value());
  EXPECT_EQ(config.num_threads, 0);
  EXPECT_FALSE(config.devices.has_value());
  EXPECT_TRUE(config.problems.empty());
}

TEST(Config, CacheFolderFollowsTheOrderOfTheDocument) {
  EXPECT_EQ(parse({"HOME=/h/u"}).cache_folder, "/h/u/.cache/moekit");
  EXPECT_EQ(parse({"HOME=/h/u", "XDG_CACHE_HOME=/x"}).cache_folder, "/x/moekit");
  EXPECT_EQ(parse({"HOME=/h/u", "XDG_CACHE_HOME=relative"}).cache_folder, "/h/u/.cache/moekit");
  EXPECT_EQ(parse({"MOEKIT_CACHE=/c", "XDG_CACHE_HOME=/x"}).cache_folder, "/c");
  EXPECT_EQ(parse({"MOEKIT_CACHE=", "HOME=/g"}).cache_folder, "/g/.cache/moekit");
}

TEST(Config, EveryVariableIsRead) {
  const Config config = parse({"MOEKIT_CACHE=/c",
                               "MOEKIT_CACHE_MODE=read_only",
                               "MOEKIT_BUNDLE=none",
                               "MOEKIT_LOG_LEVEL=info",
                               "MOEKIT_THREADS=3",
                               "MOEKIT_DEVICES=0,2",
                               "MOEKIT_CUDA_LIBRARY=/l/libcuda.so",
                               "MOEKIT_NVRTC_LIBRARY=none",
                               "CUDA_PATH=/opt/cuda"});
  EXPECT_EQ(config.cache_folder, "/c");
  EXPECT_EQ(config.cache_mode, CacheMode::kReadOnly);
  EXPECT_EQ(config.bundle_folder, "none");
  EXPECT_EQ(config.log_level, LogLevel::kInfo);
  EXPECT_EQ(config.num_threads, 3);
  EXPECT_EQ(config.devices, (std::vector<int>{0, 2}));
  EXPECT_EQ(config.cuda_library, "/l/libcuda.so");
  EXPECT_EQ(config.nvrtc_library, "none");
  EXPECT_EQ(config.toolkit_folder, "/opt/cuda");
  EXPECT_TRUE(config.problems.empty());
  EXPECT_EQ(parse({"MOEKIT_DEVICES=none"}).devices, std::vector<int>{});
}

TEST(Config, UnknownNameIsReportedWithTheNearest) {
  const Config config = parse({"MOEKIT_CACHE_MODES=off", "MOEKIT_TILE_M=64", "OTHER=1"});
  ASSERT_EQ(config.problems.size(), 2U);
  EXPECT_EQ(config.problems[0],
            "MOEKIT_CACHE_MODES is not a variable of moekit, the nearest is MOEKIT_CACHE_MODE");
  EXPECT_NE(config.problems[1].find("MOEKIT_TILE_M is not a variable"), std::string::npos);
}

TEST(Config, BadValuesKeepTheDefaultAndSaySo) {
  const std::vector<std::string_view> bad = {"MOEKIT_CACHE_MODE=maybe",
                                             "MOEKIT_LOG_LEVEL=loud",
                                             "MOEKIT_THREADS=0",
                                             "MOEKIT_THREADS=12x",
                                             "MOEKIT_THREADS=99999999999999999999",
                                             "MOEKIT_DEVICES=1,",
                                             "MOEKIT_DEVICES=-1"};
  for (const std::string_view entry : bad) {
    const Config config = parse({entry});
    ASSERT_EQ(config.problems.size(), 1U) << entry;
    EXPECT_NE(config.problems[0].find(std::string(entry)), std::string::npos);
    EXPECT_EQ(config.num_threads, 0);
    EXPECT_EQ(config.cache_mode, CacheMode::kReadWrite);
    EXPECT_FALSE(config.devices.has_value());
  }
}

TEST(Config, TableIsTheDocument) {
  EXPECT_GE(environment_variables().size(), 8U);
  EXPECT_LE(environment_variables().size(), 10U);
  std::ifstream file(MOEKIT_SOURCE_DIR "/docs/environment.md");
  ASSERT_TRUE(file.good());
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), environment_markdown());
}

}  // namespace
}  // namespace moekit::base
