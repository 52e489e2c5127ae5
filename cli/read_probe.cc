// SPDX-License-Identifier: Apache-2.0
#include "cli/read_probe.h"

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

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

}  // namespace

struct ReadProbe::State {
  explicit State(int count) : num_threads(count), gate(count) {}

  ~State() {
    stopping = true;
    generation.fetch_add(1);
    generation.notify_all();
  }

  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void read_part(int index) {
    gate.arrive_and_wait();  // nobody's wake-up time counts
    if (index == 0) {
      start = std::chrono::steady_clock::now();
    }
    const std::size_t part = bytes.size() / static_cast<std::size_t>(num_threads);
    const std::uint64_t sum = read_all(bytes.subspan(static_cast<std::size_t>(index) * part, part));
    sink.fetch_xor(sum, std::memory_order_relaxed);  // keeps the loads alive
    gate.arrive_and_wait();
  }

  void work(int index) {
    for (std::uint64_t seen = 0;;) {
      generation.wait(seen);
      ++seen;
      if (stopping) {
        return;
      }
      read_part(index);
    }
  }

  int num_threads;
  std::barrier<> gate;
  std::atomic<std::uint64_t> generation{0};
  std::atomic<bool> stopping{false};
  std::atomic<std::uint64_t> sink{0};
  std::span<const std::byte> bytes{};
  std::chrono::steady_clock::time_point start{};
  std::vector<std::jthread> workers{};  // last: joined before the rest is destroyed
};

Result<ReadProbe> ReadProbe::create(int num_threads) {
  auto state = std::make_shared<State>(num_threads);
  try {
    for (int i = 1; i < num_threads; ++i) {
      state->workers.emplace_back([raw = state.get(), i] { raw->work(i); });
    }
  } catch (const std::system_error& error) {
    return out_of_memory(fmt::format("probe thread: {}", error.what()));
  }
  return ReadProbe(std::move(state));
}

double ReadProbe::gbps(std::span<const std::byte> bytes) {
  State& state = *state_;
  state.bytes = bytes;
  state.generation.fetch_add(1);
  state.generation.notify_all();
  state.read_part(0);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - state.start;
  return static_cast<double>(bytes.size()) / elapsed.count() / 1e9;
}

}  // namespace moekit::cli
