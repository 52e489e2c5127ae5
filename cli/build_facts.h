// SPDX-License-Identifier: Apache-2.0
#pragma once

// What this program was built from; generated at build time by cli/write_build_facts.cmake.

#include <string_view>

namespace moekit::cli {

[[nodiscard]] std::string_view build_version() noexcept;

/// Commit hash, or `unknown` outside a git checkout.
[[nodiscard]] std::string_view build_commit() noexcept;

/// True when tracked files differed from the commit.
[[nodiscard]] bool build_is_dirty() noexcept;

}  // namespace moekit::cli
