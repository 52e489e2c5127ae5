// SPDX-License-Identifier: Apache-2.0

// The table of docs/planning.md: every item once, every test that it names exists.

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace moekit::tests {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream content;
  content << stream.rdbuf();
  return content.str();
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// Reads the word at `at`, after blanks, and moves behind it.
std::string take_word(const std::string& text, std::size_t& at) {
  while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at])) != 0) {
    ++at;
  }
  const std::size_t begin = at;
  while (at < text.size() && is_word(text[at])) {
    ++at;
  }
  return text.substr(begin, at - begin);
}

// `Suite.Name` of every TEST in the tree. std::regex is left alone: g++ 12 warns inside of it.
std::set<std::string> tests_of_the_tree() {
  std::set<std::string> names;
  for (const char* const folder : {"src", "tests"}) {
    const std::filesystem::path root = std::filesystem::path(MOEKIT_SOURCE_DIR) / folder;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      const std::string file = entry.path().filename().string();
      if (!file.ends_with("_test.cc")) {
        continue;
      }
      const std::string text = read_file(entry.path());
      for (const char* const macro : {"\nTEST(", "\nTEST_F(", "\nTEST_P("}) {
        for (std::size_t at = text.find(macro); at != std::string::npos;
             at = text.find(macro, at)) {
          at += std::string_view(macro).size();
          const std::string suite = take_word(text, at);
          ++at;  // the comma
          names.insert(suite + "." + take_word(text, at));
        }
      }
    }
  }
  return names;
}

/// What stands between backticks and looks like `Suite.Name`.
std::vector<std::string> named_tests(const std::string& answer) {
  std::vector<std::string> names;
  std::size_t begin = answer.find('`');
  while (begin != std::string::npos) {
    const std::size_t end = answer.find('`', begin + 1);
    if (end == std::string::npos) {
      break;
    }
    const std::string name = answer.substr(begin + 1, end - begin - 1);
    const bool plain =
        std::all_of(name.begin(), name.end(), [](char c) { return is_word(c) || c == '.'; });
    if (plain && std::count(name.begin(), name.end(), '.') == 1) {
      names.push_back(name);
    }
    begin = answer.find('`', end + 1);
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
  for (std::string line; std::getline(lines, line);) {
    const std::size_t middle = line.find(" | ");
    const bool is_row = (line.starts_with("| C") || line.starts_with("| D")) && line.size() > 3 &&
                        std::isdigit(static_cast<unsigned char>(line[3])) != 0 &&
                        middle != std::string::npos && line.ends_with(" |");
    if (!is_row) {
      continue;
    }
    const std::string item = line.substr(2, middle - 2);
    const std::string answer = line.substr(middle + 3);
    EXPECT_TRUE(items.insert(item).second) << item << " stands twice";
    const std::vector<std::string> tests = named_tests(answer);
    for (const std::string& test : tests) {
      EXPECT_TRUE(known.contains(test)) << item << " names " << test;
    }
    EXPECT_TRUE(!tests.empty() || answer.starts_with("moot: ")) << item;
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
