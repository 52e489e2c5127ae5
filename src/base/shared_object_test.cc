// SPDX-License-Identifier: Apache-2.0
#include "base/shared_object.h"

#include <array>

#include <gtest/gtest.h>

namespace moekit::base {
namespace {

TEST(SharedObject, TakesTheFirstThatLoads) {
  const std::array<std::string, 2> names = {"libmoekit_no_such_library.so", "libm.so.6"};
  const Result<SharedObject> library = SharedObject::open(names);
  ASSERT_TRUE(library.has_value()) << library.status().to_string();
  EXPECT_EQ(library->path(), "libm.so.6");
  EXPECT_NE(library->symbol("cos"), nullptr);
  EXPECT_EQ(library->symbol("moekit_no_such_symbol"), nullptr);
}

TEST(SharedObject, FailureNamesEveryCandidate) {
  const std::array<std::string, 2> names = {"libmoekit_a.so", "libmoekit_b.so"};
  const Status status = SharedObject::open(names).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("libmoekit_a.so"), std::string::npos);
  EXPECT_NE(status.message().find("libmoekit_b.so"), std::string::npos);
}

TEST(SharedObject, OwnFolderIsWhereThisProgramLies) {
  EXPECT_FALSE(own_folder().empty());
}

}  // namespace
}  // namespace moekit::base
