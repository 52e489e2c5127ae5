// SPDX-License-Identifier: Apache-2.0

// The table of docs/planning.md: every item once, every test that it names exists.

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

namespace moekit::tests {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream content;
  content << stream.rdbuf();
  return content.str();
}

// `Suite.Name` of every TEST in the tree.
std::set<std::string> tests_of_the_tree() {
  std::set<std::string> names;
  const std::regex test(R"(\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\))");
  for (const char* const folder : {"src", "tests"}) {
    const std::filesystem::path root = std::filesystem::path(MOEKIT_SOURCE_DIR) / folder;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      const std::string file = entry.path().filename().string();
      if (!file.ends_with("_test.cc")) {
        continue;
      }
      const std::string text = read_file(entry.path());
      for (std::sregex_iterator it(text.begin(), text.end(), test); it != std::sregex_iterator();
           ++it) {
        names.insert((*it)[1].str().append(".").append((*it)[2].str()));
      }
    }
  }
  return names;
}

TEST(Acceptance, EveryItemNamesTestsThatExist) {
  const std::set<std::string> known = tests_of_the_tree();
  ASSERT_GT(known.size(), 300U);
  const std::string page =
      read_file(std::filesystem::path(MOEKIT_SOURCE_DIR) / "docs" / "planning.md");
  std::set<std::string> items;
  std::istringstream lines(page);
  const std::regex row(R"(^\| ([CD]\d+) \| (.*) \|$)");
  const std::regex named(R"(`(\w+\.\w+)`)");
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) {
      continue;
    }
    const std::string item = match[1];
    const std::string answer = match[2];
    EXPECT_TRUE(items.insert(item).second) << item << " stands twice";
    int tests = 0;
    for (std::sregex_iterator it(answer.begin(), answer.end(), named); it != std::sregex_iterator();
         ++it) {
      EXPECT_TRUE(known.contains((*it)[1])) << item << " names " << (*it)[1];
      ++tests;
    }
    EXPECT_TRUE(tests > 0 || answer.starts_with("moot: ")) << item;
  }
  for (int number = 1; number <= 22; ++number) {
    for (const char* const group : {"C", "D"}) {
      const std::string item = std::string(group).append(std::to_string(number));
      EXPECT_TRUE(items.contains(item)) << item;
    }
  }
  EXPECT_EQ(items.size(), 44U);
}

}  // namespace
}  // namespace moekit::tests
