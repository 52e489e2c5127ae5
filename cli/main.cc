// SPDX-License-Identifier: Apache-2.0
// moekit: plan, run, verify and measure MoE layers from the command line.

#include <csignal>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "moekit/status.h"

#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/exit_code.h"

namespace moekit::cli {
namespace {

Result<ExitCode> parse_and_run(int argc, char** argv, Console& console) {
  try {
    MOEKIT_ASSIGN_OR_RETURN(const ChosenVerb verb, parse_command_line(argc, argv));
    return verb(console);
  } catch (const std::bad_alloc&) {
    return out_of_memory("the command line program ran out of memory");
  } catch (const std::exception& error) {
    return internal_error(error.what());
  }
}

}  // namespace
}  // namespace moekit::cli

int main(int argc, char** argv) {
  using moekit::cli::ExitCode;
  // A file size limit then fails a write, as a full disk does, instead of ending the program.
  std::signal(SIGXFSZ, SIG_IGN);
  moekit::cli::Console console(std::vector<std::string>(argv, argv + argc));
  const moekit::Result<ExitCode> result = moekit::cli::parse_and_run(argc, argv, console);
  ExitCode code = ExitCode::kFailed;
  if (result) {
    code = *result;
  } else {
    console.error(result.status());
    code = moekit::cli::exit_code_of(result.status().code());
  }
  if (!console.finish()) {
    console.error(moekit::io_error("could not write the report to standard output"));
    code = ExitCode::kFailed;
  }
  return static_cast<int>(code);
}
