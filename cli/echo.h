// SPDX-License-Identifier: Apache-2.0
#pragma once

// What somebody typed, or what a file holds, inside a message of one line.

#include <string>
#include <string_view>
#include <vector>

namespace moekit::cli {

/// `text` whole up to 200 characters, else its first 80 and how many there are: `aaa... (5000
/// characters)`. A path keeps its last 60 too, where the name of the file stands.
[[nodiscard]] std::string shortened(std::string_view text);

/// Text from a file as a terminal may see it: control characters become spaces, and then shortened.
[[nodiscard]] std::string shown(std::string_view text);

/// `message` with every one of `values` and every other word in it shortened.
[[nodiscard]] std::string with_short_values(std::string message,
                                            const std::vector<std::string>& values);

}  // namespace moekit::cli
