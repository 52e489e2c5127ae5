// SPDX-License-Identifier: Apache-2.0
#pragma once

// `moekit bench --on-request`: our side of bench/compare. Two programs stay set up and are asked in
// turn, so that both meet the same machine within milliseconds.
//
//   program    ready              once it is set up
//   compare    go TOKENS CALLS    and nothing more until the answer
//   program    us T1 T2 ...       CALLS times in microseconds
//   compare    closes the pipe; the program ends with status 0

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "moekit/status.h"

#include "cli/console.h"

namespace moekit::cli {

struct BenchRequest {
  std::int64_t num_tokens = 0;
  int num_calls = 0;
};

/// Times of the calls, in microseconds.
using TimeCalls = std::function<Result<std::vector<double>>(const BenchRequest&)>;

/// Says `ready`, then answers every line of the standard input until its end.
[[nodiscard]] Status serve_bench_requests(Console& console, const TimeCalls& time_calls);

}  // namespace moekit::cli
