// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_probe.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/dot_peak.h"

namespace moekit::cli {
namespace {

// NOLINTNEXTLINE(modernize-use-using): an alias cannot carry the attribute in both compilers
typedef std::uint64_t U64x2 __attribute__((vector_size(16)));

/// Asking the second-level cache far ahead and the first near: the fastest linear read of those
/// that were tried, and what a body that streams weights may do as well.
constexpr std::size_t kFarBytes = 16384;
constexpr std::size_t kNearBytes = 1024;

/// Xor of all whole 64-byte lines. Memory is the limit and not the loop, which takes few
/// instructions a line: scripts/check_instructions counts them.
std::uint64_t read_all(std::span<const std::byte> bytes) {
  constexpr std::size_t kLineBytes = 64;
  std::array<U64x2, kLineBytes / sizeof(U64x2)> sums{};
  for (std::size_t i = 0; i + kLineBytes <= bytes.size(); i += kLineBytes) {
    const std::byte* line = bytes.data() + i;
    __builtin_prefetch(line + kFarBytes, 0, 2);
    __builtin_prefetch(line + kNearBytes);
    for (std::size_t j = 0; j < sums.size(); ++j) {
      U64x2 words;
      std::memcpy(&words, line + j * sizeof words, sizeof words);
      sums[j] ^= words;
    }
  }
  const U64x2 all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  return all[0] ^ all[1];
}

/// Some milliseconds, so that a clock that falls with wide vectors has fallen.
constexpr int kDotRounds = 500;

}  // namespace

struct BenchProbe::State {
  using Clock = std::chrono::steady_clock;

  explicit State(int count) : num_threads(count) {}

  ~State() {
    stopping = true;
    generation.fetch_add(1);
    generation.notify_all();
  }

  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// Until all threads are here. Yielding and not sleeping: a read takes less than a millisecond,
  /// and a wake-up a tenth of one. True for the last to come.
  bool meet() {
    const std::int64_t arrival = arrivals.fetch_add(1, std::memory_order_acq_rel);
    const std::int64_t round = arrival / num_threads;
    while (arrivals.load(std::memory_order_acquire) < (round + 1) * num_threads) {
      std::this_thread::yield();
    }
    return arrival % num_threads == num_threads - 1;
  }

  void work_part(int index) {
    // Nobody's wake-up time counts. The last to come begins at once; any other may get a core again
    // when the rest are done, and would find that they took no time.
    if (meet()) {
      start = Clock::now();
    }
    if (peak.has_value()) {
      for (int i = 0; i < kDotRounds; ++i) {
        run_peak_round(*peak);
      }
    } else {
      const std::size_t part = bytes.size() / static_cast<std::size_t>(num_threads);
      const std::uint64_t sum =
          read_all(bytes.subspan(static_cast<std::size_t>(index) * part, part));
      sink.fetch_xor(sum, std::memory_order_relaxed);  // keeps the loads alive
    }
    const Clock::rep now = Clock::now().time_since_epoch().count();
    for (Clock::rep latest = end.load(); latest < now && !end.compare_exchange_weak(latest, now);) {
    }
    meet();
  }

  /// All threads at the task that `bytes` and `peak` describe; seconds.
  double run() {
    generation.fetch_add(1);
    generation.notify_all();
    work_part(0);
    const Clock::time_point last{Clock::duration(end.load())};
    return std::chrono::duration<double>(last - start).count();
  }

  void work(int index) {
    for (std::uint64_t seen = 0;;) {
      generation.wait(seen);
      ++seen;
      if (stopping) {
        return;
      }
      work_part(index);
    }
  }

  int num_threads;
  std::atomic<std::int64_t> arrivals{0};
  std::atomic<std::uint64_t> generation{0};
  std::atomic<bool> stopping{false};
  std::atomic<std::uint64_t> sink{0};
  std::span<const std::byte> bytes{};
  std::optional<PeakRound> peak{};      // set: multiply instead of reading
  Clock::time_point start{};            // written by one thread between its two meetings
  std::atomic<Clock::rep> end{0};       // of the last to be done; clocks do not run back
  std::vector<std::jthread> workers{};  // last: joined before the rest is destroyed
};

Result<BenchProbe> BenchProbe::create(int num_threads) {
  auto state = std::make_shared<State>(num_threads);
  try {
    for (int i = 1; i < num_threads; ++i) {
      state->workers.emplace_back([raw = state.get(), i] { raw->work(i); });
    }
  } catch (const std::system_error& error) {
    return out_of_memory(fmt::format("probe thread: {}", error.what()));
  }
  return BenchProbe(std::move(state));
}

double BenchProbe::gbps(std::span<const std::byte> bytes) {
  state_->bytes = bytes;
  state_->peak.reset();
  return static_cast<double>(bytes.size()) / state_->run() / 1e9;
}

double BenchProbe::gflops(PeakRound round) {
  state_->peak = round;
  const double flops = static_cast<double>(peak_round_flops(round)) * kDotRounds;
  return flops * state_->num_threads / state_->run() / 1e9;
}

}  // namespace moekit::cli
