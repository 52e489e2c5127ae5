// SPDX-License-Identifier: Apache-2.0
#include "jit/sources.h"

#include <array>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "jit/test_folder.h"

namespace moekit::jit {
namespace {

TEST(EmbeddedSources, AreTheFilesOfTheTreeByteForByte) {
  std::size_t checked = 0;
  for (const SourceFile& file : embedded_sources()) {
    const std::string path = std::string(MOEKIT_SOURCE_DIR "/src/") + std::string(file.name);
    EXPECT_EQ(TestFolder::read(path), file.text) << file.name;
    EXPECT_EQ(base::sha256_hex(file.text), file.sha256) << file.name;
    ++checked;
  }
  EXPECT_GE(checked, 7U);
}

TEST(EmbeddedSources, AreFreestandingAndReachEachOther) {
  std::size_t checked = 0;
  for (const SourceFile& file : embedded_sources()) {
    const Result<std::vector<SourceFile>> reached = reached_sources(file.text, embedded_sources());
    ASSERT_TRUE(reached.has_value()) << file.name << ": " << reached.status().to_string();
    ++checked;
  }
  EXPECT_GE(checked, 7U);
}

constexpr std::array<SourceFile, 3> kReached = {SourceFile{"a.h", "#include \"b.h\"\nint a;\n", ""},
                                                SourceFile{"b.h", "#pragma once\nint b;", ""},
                                                SourceFile{"c.h", "int c;\n", ""}};

TEST(ReachedSources, FollowsIncludesOnceAndSortsThem) {
  const auto reached = reached_sources(
      "  #  include \"b.h\"\n#include \"a.h\"\n// text #include \"c.h\"\n", kReached);
  ASSERT_TRUE(reached.has_value());
  ASSERT_EQ(reached->size(), 2U);
  EXPECT_EQ((*reached)[0].name, "a.h");
  EXPECT_EQ((*reached)[1].name, "b.h");
}

TEST(ReachedSources, CyclesEnd) {
  constexpr std::array<SourceFile, 2> kCycle = {SourceFile{"a.h", "#include \"b.h\"", ""},
                                                SourceFile{"b.h", "#include \"a.h\"", ""}};
  const auto reached = reached_sources("#include \"a.h\"", kCycle);
  ASSERT_TRUE(reached.has_value());
  EXPECT_EQ(reached->size(), 2U);
}

TEST(ReachedSources, UnknownAndAngleIncludesAreErrorsThatNameBothEnds) {
  const Status unknown = reached_sources("#include \"d.h\"", kReached).status();
  EXPECT_EQ(unknown.code(), StatusCode::kInternal);
  EXPECT_NE(unknown.message().find("prelude includes \"d.h\""), std::string::npos);
  const Status angle = reached_sources("#include <cstdint>", kReached).status();
  EXPECT_NE(angle.message().find("<cstdint>"), std::string::npos);
}

}  // namespace
}  // namespace moekit::jit
