// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_probe.h"

#include <array>
#include <atomic>
#include <barrier>
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

/// Xor of all whole 64-byte lines: eight independent words, which the compiler turns into vector
/// loads; the memory, not the loop, is the limit.
std::uint64_t read_all(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, 8> sums{};
  for (std::size_t i = 0; i + sizeof sums <= bytes.size(); i += sizeof sums) {
    std::array<std::uint64_t, 8> line;
    std::memcpy(line.data(), bytes.data() + i, sizeof line);
    for (std::size_t j = 0; j < line.size(); ++j) {
      sums[j] ^= line[j];
    }
  }
  std::uint64_t all = 0;
  for (const std::uint64_t sum : sums) {
    all ^= sum;
  }
  return all;
}

/// Some milliseconds, so that a clock that falls with wide vectors has fallen.
constexpr int kDotRounds = 500;

}  // namespace

struct BenchProbe::State {
  explicit State(int count) : num_threads(count), gate(count) {}

  ~State() {
    stopping = true;
    generation.fetch_add(1);
    generation.notify_all();
  }

  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void work_part(int index) {
    gate.arrive_and_wait();  // nobody's wake-up time counts
    if (index == 0) {
      start = std::chrono::steady_clock::now();
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
    gate.arrive_and_wait();
  }

  /// All threads at the task that `bytes` and `peak` describe; seconds.
  double run() {
    generation.fetch_add(1);
    generation.notify_all();
    work_part(0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
  std::barrier<> gate;
  std::atomic<std::uint64_t> generation{0};
  std::atomic<bool> stopping{false};
  std::atomic<std::uint64_t> sink{0};
  std::span<const std::byte> bytes{};
  std::optional<PeakRound> peak{};  // set: multiply instead of reading
  std::chrono::steady_clock::time_point start{};
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
