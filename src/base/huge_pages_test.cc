// SPDX-License-Identifier: Apache-2.0
#include "base/huge_pages.h"

#include <filesystem>
#include <memory>
#include <new>

#include <gtest/gtest.h>

namespace moekit::base {
namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;

TEST(HugePages, OnlyWholePagesAreAskedFor) {
  const auto memory = std::make_unique<std::byte[]>(4 * kPage);
  const std::span<std::byte> bytes(memory.get(), 4 * kPage);
  // Where the kernel has such pages at all, at least two whole ones lie in eight megabytes.
  EXPECT_EQ(wish_huge_pages(bytes),
            std::filesystem::exists("/sys/kernel/mm/transparent_hugepage/enabled"));
  EXPECT_FALSE(wish_huge_pages(bytes.first(kPage - 1)));  // less than a page
  EXPECT_FALSE(wish_huge_pages({}));
  for (std::size_t i = 0; i < bytes.size(); i += 4096) {
    ASSERT_EQ(bytes[i], std::byte{0}) << i;  // contents stay
  }
}

}  // namespace
}  // namespace moekit::base
