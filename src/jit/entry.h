// SPDX-License-Identifier: Apache-2.0
#pragma once

// An image as files: `kernel.cubin`, `source.cu` and `meta.json`. The meta text carries length and
// SHA-256 of the other two, the echo of the entry's key and a SHA-256 over itself, and has exactly
// one legal spelling, so that a flipped byte in any of the three files is seen.

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "moekit/status.h"

#include "jit/image.h"

namespace moekit::jit {

inline constexpr std::array<std::string_view, 3> kEntryFiles = {
    "kernel.cubin", "source.cu", "meta.json"};

/// Contents in the order of kEntryFiles; a file that is not there is empty.
using EntryContents = std::array<std::string, kEntryFiles.size()>;

[[nodiscard]] EntryContents encode_entry(const Image& image, std::string_view key);

/// The inverse, with every check.
///
/// Errors  kInvalidArgument  what is wrong: missing file, length, checksum, schema, or another
///                           key's entry (`expected_key` empty: any key)
[[nodiscard]] Result<Image> decode_entry(EntryContents contents, std::string_view expected_key);

}  // namespace moekit::jit
