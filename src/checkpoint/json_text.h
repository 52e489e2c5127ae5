// SPDX-License-Identifier: Apache-2.0
#pragma once

// What this layer reads as JSON: base/json_document.h over nlohmann::json, and what Python writes
// that is none.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/json_document.h"

namespace moekit::checkpoint {

using base::printable;
using Document = base::JsonDocument<nlohmann::json>;

/// The key under which transformers writes a number that JSON does not have.
inline constexpr std::string_view kPythonFloatKey = "__float__";

/// As base::parse_json.
[[nodiscard]] inline Result<Document> parse_json(std::string_view text) {
  return base::parse_json<nlohmann::json>(text);
}

/// Python's json module writes NaN, Infinity and -Infinity, which JSON does not have; published
/// configurations contain them. Replaces each, outside strings, by the object that transformers
/// writes for it, {"__float__": "Infinity"}: no field reads one as a number, nor as absent.
[[nodiscard]] std::string wrap_python_literals(std::string_view text);

}  // namespace moekit::checkpoint
