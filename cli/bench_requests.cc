// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_requests.h"

#include <iostream>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

namespace moekit::cli {
namespace {

constexpr int kMaxCalls = 1000;

Result<BenchRequest> parse_request(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  std::string rest;
  BenchRequest request;
  if (!(words >> word >> request.num_tokens >> request.num_calls) || word != "go" ||
      words >> rest || request.num_tokens < 1 || request.num_calls < 1 ||
      request.num_calls > kMaxCalls) {
    return invalid_argument(fmt::format(
        "--on-request: '{}' on the standard input, expected 'go TOKENS CALLS' with 1 to {} calls",
        line,
        kMaxCalls));
  }
  return request;
}

/// The answer must be out before the next request is waited for.
Status answer(Console& console, std::string_view text) {
  console.report(text);
  return console.finish() ? Status{} : io_error("--on-request: cannot write the answer");
}

}  // namespace

Status serve_bench_requests(Console& console, const TimeCalls& time_calls) {
  MOEKIT_RETURN_IF_ERROR(answer(console, "ready\n"));
  for (std::string line; std::getline(std::cin, line);) {
    MOEKIT_ASSIGN_OR_RETURN(const BenchRequest request, parse_request(line));
    MOEKIT_ASSIGN_OR_RETURN(const std::vector<double> times, time_calls(request));
    MOEKIT_RETURN_IF_ERROR(answer(console, fmt::format("us {:.2f}\n", fmt::join(times, " "))));
  }
  return {};
}

}  // namespace moekit::cli
