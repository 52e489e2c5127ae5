// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/json_text.h"

#include <array>

#include "base/text.h"

namespace moekit::checkpoint {
namespace {

using base::cat;

constexpr std::array<std::string_view, 3> kPythonLiterals{"-Infinity", "Infinity", "NaN"};

}  // namespace

std::string wrap_python_literals(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    if (in_string) {
      const std::size_t taken = text[i] == '\\' && i + 1 < text.size() ? 2 : 1;
      in_string = text[i] != '"';
      out += text.substr(i, taken);
      i += taken;
      continue;
    }
    std::string_view found;
    for (const std::string_view literal : kPythonLiterals) {
      if (found.empty() && text.substr(i).starts_with(literal)) {
        found = literal;
      }
    }
    if (!found.empty()) {
      out += cat(R"({")", kPythonFloatKey, R"(": ")", found, R"("})");
      i += found.size();
    } else {
      in_string = text[i] == '"';
      out += text[i++];
    }
  }
  return out;
}

}  // namespace moekit::checkpoint
