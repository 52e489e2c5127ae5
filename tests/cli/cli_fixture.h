// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs the built program as a user would and reads what it wrote.

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace moekit::test {

struct CliResult {
  int exit_code = -1;  // 128 + signal when it was killed
  std::string out{};
  std::string err{};

  /// `out` as JSON; throws, and so fails the test, when it is none.
  [[nodiscard]] nlohmann::json json() const;
};

/// A folder of its own for each test program run, removed at exit.
[[nodiscard]] const std::filesystem::path& scratch_folder();

[[nodiscard]] std::filesystem::path source_folder();

/// A folder of testdata/checkpoints/.
[[nodiscard]] inline std::string folder(const char* name) {
  return (source_folder() / "testdata/checkpoints" / name).string();
}

/// The program with `arguments`; `redirect` is appended to the shell's command (`>/dev/full`).
[[nodiscard]] CliResult run_cli(const std::vector<std::string>& arguments,
                                const std::string& redirect = {},
                                const std::string& program = MOEKIT_CLI);

/// --experts 8 --top-k 2 --hidden 128 --intermediate 64, then `more`.
[[nodiscard]] std::vector<std::string> with_shape(const std::string& verb,
                                                  const std::vector<std::string>& more = {});

[[nodiscard]] std::string read_file(const std::filesystem::path& path);

void write_file(const std::filesystem::path& path, const std::string& content);

}  // namespace moekit::test
