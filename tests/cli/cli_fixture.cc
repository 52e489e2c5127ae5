// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/cli_fixture.h"

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

namespace moekit::test {
namespace {

std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) {
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return out.append("'");
}

/// PREFIX and a number; append, because g++ 12 sees an overlap in `"literal" + std::string`.
std::string numbered(const char* prefix, int number) {
  return std::string(prefix).append(std::to_string(number));
}

struct Scratch {
  Scratch() : path(std::filesystem::temp_directory_path() / (numbered("moekit_cli_", getpid()))) {
    std::filesystem::create_directories(path);
  }

  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }

  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::filesystem::path path;
};

}  // namespace

nlohmann::json CliResult::json() const {
  return nlohmann::json::parse(out);
}

const std::filesystem::path& scratch_folder() {
  static const Scratch scratch;
  return scratch.path;
}

std::filesystem::path source_folder() {
  return MOEKIT_SOURCE_DIR;
}

CliResult run_cli(const std::vector<std::string>& arguments,
                  const std::string& redirect,
                  const std::string& program) {
  static std::atomic<int> counter{0};
  const std::string stem = (scratch_folder() / (numbered("call", counter++))).string();
  std::string command = quoted(program);
  for (const std::string& argument : arguments) {
    command.append(" ").append(quoted(argument));
  }
  command.append(" </dev/null >").append(quoted(stem + ".out"));
  command.append(" 2>").append(quoted(stem + ".err"));
  command.append(" ").append(redirect);
  const int status = std::system(command.c_str());  // NOLINT(cert-env33-c): a shell user's view
  CliResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_file(stem + ".out");
  result.err = read_file(stem + ".err");
  return result;
}

std::vector<std::string> with_shape(const std::string& verb, const std::vector<std::string>& more) {
  std::vector<std::string> arguments{
      verb, "--experts", "8", "--top-k", "2", "--hidden", "128", "--intermediate", "64"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

void write_file(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace moekit::test
