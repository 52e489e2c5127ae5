// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/json_text.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace moekit::checkpoint {
namespace {

std::string nested(int depth) {
  return std::string(static_cast<std::size_t>(depth), '[') +
         std::string(static_cast<std::size_t>(depth), ']');
}

TEST(JsonText, builds_the_document) {
  const Result<Document> parsed = parse_json(R"({"a":[1,-2,2.5,"x",null,true,{"b":[]}],"c":{}} )");
  ASSERT_TRUE(parsed.has_value()) << parsed.status().to_string();
  EXPECT_EQ(**parsed, nlohmann::json::parse(R"({"a":[1,-2,2.5,"x",null,true,{"b":[]}],"c":{}})"));
}

TEST(JsonText, hostile_documents_are_refused) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "syntax error"},
      {"{", "syntax error"},
      {"{}x", "syntax error"},
      {R"({"a":1,"a":2})", "duplicate key 'a'"},
      {R"({"b":{"a":1,"a":2}})", "duplicate key 'a'"},
      {"\"\xFF\"", "syntax error"},
      {"\"\xC0\xAF\"", "syntax error"},
      {R"("\ud800")", "syntax error"},
      {"[1e999]", "number out of range"},
      {"[NaN]", "syntax error"},
      {nested(base::kMaxJsonDepth + 1), "nesting deeper than 32"},
      {nested(100000), "nesting deeper than 32"},
      {std::string(100000, '['), "nesting deeper than 32"},
  };
  for (const auto& [text, words] : cases) {
    const Result<Document> parsed = parse_json(text);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << text.substr(0, 40);
    EXPECT_NE(parsed.status().message().find(words), std::string_view::npos)
        << parsed.status().message();
  }
  EXPECT_TRUE(parse_json(nested(base::kMaxJsonDepth)).has_value());
}

TEST(JsonText, names_in_messages_are_printable_and_short) {
  EXPECT_EQ(printable("a.b"), "'a.b'");
  EXPECT_EQ(printable(std::string_view("a\n\0\x1B\xC3", 5)), "'a\\x0a\\x00\\x1b\\xc3'");
  EXPECT_LT(printable(std::string(100000, 'x')).size(), 200U);
}

TEST(JsonText, python_literals_become_objects_outside_strings) {
  EXPECT_EQ(wrap_python_literals(R"([NaN,Infinity,-Infinity,"NaN \" Infinity"])"),
            R"([{"__float__": "NaN"},{"__float__": "Infinity"},{"__float__": "-Infinity"},)"
            R"("NaN \" Infinity"])");
  EXPECT_EQ(wrap_python_literals("\"\\"), "\"\\");
}

}  // namespace
}  // namespace moekit::checkpoint
