// SPDX-License-Identifier: Apache-2.0
#include "base/json_writer.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace moekit::base {
namespace {

template <typename Write>
std::string written(const Write& write) {
  std::string out;
  auto sink = [&](std::string_view piece) { out += piece; };
  JsonWriter json(sink);
  write(json);
  return out;
}

TEST(JsonWriter, OneMemberALine) {
  const std::string text = written([](JsonWriter& json) {
    json.begin_object();
    json.member("a", 1);
    json.key("empty");
    json.begin_array();
    json.end_array();
    json.key("list");
    json.begin_array();
    json.value(true);
    json.begin_object();
    json.end_object();
    json.begin_object();
    json.member("b", "x");
    json.end_object();
    json.end_array();
    json.member("c", std::int64_t{-5});
    json.end_object();
  });
  EXPECT_EQ(text, R"({
  "a": 1,
  "empty": [],
  "list": [
    true,
    {},
    {
      "b": "x"
    }
  ],
  "c": -5
})");
}

TEST(JsonWriter, NumbersReadBackAndSayWhatTheyAre) {
  const std::vector<std::pair<double, std::string>> cases{
      {0.0, "0.0"},
      {-0.0, "-0.0"},
      {1.0, "1.0"},
      {2.5, "2.5"},
      {0.1F, "0.10000000149011612"},
      {1.702F, "1.7020000219345093"},
      {0.0001, "0.0001"},
      {0.00001, "1e-05"},
      {123456789012345.0, "123456789012345.0"},
      {1e15, "1e+15"},
      {1.5e300, "1.5e+300"},
      {5e-324, "5e-324"},
      {std::numeric_limits<double>::infinity(), "null"},
      {std::nan(""), "null"},
  };
  for (const auto& [value, expected] : cases) {
    const double number = value;
    EXPECT_EQ(written([&](JsonWriter& json) { json.value(number); }), expected);
  }
}

TEST(JsonWriter, TextIsEscapedAndAlwaysUtf8) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"plain \x7F", "\"plain \x7F\""},
      {"\"\\/\b\f\n\r\t", R"("\"\\/\b\f\n\r\t")"},
      {std::string("\x01\x1F\0", 3), R"("\u0001\u001f\u0000")"},
      {"\xC3\xA9\xE2\x82\xAC", "\"\xC3\xA9\xE2\x82\xAC\""},
      {"a\xFF"
       "b\xC3",
       "\"a\xEF\xBF\xBD"
       "b\xEF\xBF\xBD\""},
  };
  for (const auto& [value, expected] : cases) {
    const std::string& content = value;
    EXPECT_EQ(written([&](JsonWriter& json) { json.value(content); }), expected);
  }
}

}  // namespace
}  // namespace moekit::base
