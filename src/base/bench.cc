// SPDX-License-Identifier: Apache-2.0

// pool/spinning/N: from the start of an empty region to its end on a pool of N threads whose last
// region has just ended: what each step of a layer pays. pool/parked/N: the same after a pause in
// which the workers have gone to sleep: what the first step after a pause pays.

#include <chrono>
#include <thread>

#include <benchmark/benchmark.h>

#include "base/thread_pool.h"

namespace moekit::base {
namespace {

void empty_region(benchmark::State& state, std::chrono::microseconds pause) {
  auto made = ThreadPool::create(static_cast<int>(state.range(0)));
  if (!made.has_value()) {
    state.SkipWithError(made.status().to_string().c_str());
    return;
  }
  ThreadPool& pool = **made;
  for (auto _ : state) {
    if (pause.count() > 0) {
      std::this_thread::sleep_for(pause);
    }
    const auto start = std::chrono::steady_clock::now();
    pool.parallel([](int worker, int /*num_workers*/) { benchmark::DoNotOptimize(worker); });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(elapsed.count());
  }
}

// Longer than workers spin before they park.
constexpr std::chrono::microseconds kLongPause{2000};

BENCHMARK_CAPTURE(empty_region, spinning, std::chrono::microseconds{0})
    ->Name("pool/spinning")
    ->Arg(1)
    ->Arg(2)
    ->Arg(4)
    ->Arg(16)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(empty_region, parked, kLongPause)
    ->Name("pool/parked")
    ->Arg(2)
    ->Arg(4)
    ->Arg(16)
    ->Iterations(200)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace moekit::base
