// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace moekit::base {
namespace {

TEST(Log, WithoutASinkEverythingIsDropped) {
  const Log log;
  log.error("event=lost");
  log.warn_once("subject", "event=lost");
}

TEST(Log, LinesArriveWithTheirLevel) {
  std::vector<std::string> lines;
  const Log log([&](LogLevel level, std::string_view line) {
    lines.push_back(std::string(log_level_name(level)) + " " + std::string(line));
  });
  log.error("a");
  log.warn("b");
  log.info("c");
  log.debug("d");
  EXPECT_EQ(lines, (std::vector<std::string>{"error a", "warn b", "info c", "debug d"}));
}

TEST(Log, WarnOnceIsOncePerSubjectAlsoThroughCopiesAndThreads) {
  std::vector<std::string> lines;
  const Log log([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([copy = log] { copy.warn_once("folder", "first"); });
    }
  }
  log.warn_once("folder", "second");
  log.warn_once("entry", "third");
  EXPECT_EQ(lines, (std::vector<std::string>{"first", "third"}));
}

TEST(Log, AThrowingSinkDoesNotCrossTheBorder) {
  const Log log([](LogLevel, std::string_view) { throw std::runtime_error("sink"); });
  EXPECT_NO_THROW(log.info("a"));
}

TEST(Log, StderrSinkKeepsToItsLevel) {
  testing::internal::CaptureStderr();
  const Log log(stderr_sink(LogLevel::kWarn));
  log.info("hidden");
  log.warn("jit.bad_entry kernel=k");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "moekit: warn jit.bad_entry kernel=k\n");
}

}  // namespace
}  // namespace moekit::base
