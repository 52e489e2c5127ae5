// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device sources inside the library, and the walk from one of them to everything it includes. All
// includes are root-relative and ours, so a walk over lines is exact enough: an include inside an
// inactive #if counts as reached, which can only make an image id change too often.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/status.h"

namespace moekit::jit {

struct SourceFile {
  std::string_view name;  // `device/numerics/bf16.h`
  std::string_view text;
  std::string_view sha256;  // as CMake computed it when it embedded the file
};

/// Sorted by name.
[[nodiscard]] std::span<const SourceFile> embedded_sources() noexcept;

/// The files that `text` reaches through `#include "…"`, sorted by name, each once.
///
/// Errors  kInternal  an include that no source answers, or one in angle brackets, naming both ends
[[nodiscard]] Result<std::vector<SourceFile>> reached_sources(std::string_view text,
                                                              std::span<const SourceFile> sources);

}  // namespace moekit::jit
