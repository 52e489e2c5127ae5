// SPDX-License-Identifier: Apache-2.0
#pragma once

// Values as JSON and text, the same words in every verb.

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "moekit/moekit.h"

namespace moekit::cli {

/// A device as --device names it: `cpu`, `cuda:0`, ….
struct NamedDevice {
  std::string name;
  DeviceDescriptor device;
};

[[nodiscard]] std::vector<NamedDevice> named_devices();

[[nodiscard]] nlohmann::ordered_json device_json(const NamedDevice& named);
[[nodiscard]] nlohmann::ordered_json problem_json(const Problem& problem);
[[nodiscard]] nlohmann::ordered_json routing_json(const Routing& routing);
[[nodiscard]] nlohmann::ordered_json report_json(const VerifyReport& report,
                                                 std::int64_t num_tokens);

/// `passed, 64 of 200 tokens checked …` or `FAILED …`, a few lines.
[[nodiscard]] std::string report_text(const VerifyReport& report, std::int64_t num_tokens);

/// `sigmoid top 2 of 8, groups 2 of 4, renormalize=true …`, without a line break.
[[nodiscard]] std::string routing_text(const Routing& routing);

/// A text that the library made of values it was given. It fails for want of memory only, which is
/// the program's bad_alloc.
[[nodiscard]] std::string text_or_throw(Result<std::string> text);

/// Indented, one line break at the end; bytes that are not UTF-8 become U+FFFD.
[[nodiscard]] std::string json_text(const nlohmann::ordered_json& json);

/// On one line, for JSON lines.
[[nodiscard]] std::string json_line(const nlohmann::ordered_json& json);

}  // namespace moekit::cli
