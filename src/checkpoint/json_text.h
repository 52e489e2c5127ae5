// SPDX-License-Identifier: Apache-2.0
#pragma once

// JSON from files that nobody vouches for: bounded in size and depth, duplicate keys refused, every
// failure a Status.

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "moekit/status.h"

namespace moekit::checkpoint {

inline constexpr int kMaxJsonDepth = 32;

/// The key under which transformers writes a number that JSON does not have.
inline constexpr std::string_view kPythonFloatKey = "__float__";

/// `text` with everything but printable ASCII escaped and the middle of long texts cut, in quotes:
/// what a name from a file looks like inside a one-line message.
[[nodiscard]] std::string printable(std::string_view text);

/// Parses one JSON document.
///
/// Errors  kInvalidArgument  syntax, ill-formed UTF-8, numbers out of range, nesting deeper than
///                           kMaxJsonDepth, a key twice in one object, anything after the document
[[nodiscard]] Result<nlohmann::json> parse_json(std::string_view text);

/// Python's json module writes NaN, Infinity and -Infinity, which JSON does not have; published
/// configurations contain them. Replaces each, outside strings, by the object that transformers
/// writes for it, {"__float__": "Infinity"}: no field reads one as a number, nor as absent.
[[nodiscard]] std::string wrap_python_literals(std::string_view text);

}  // namespace moekit::checkpoint
