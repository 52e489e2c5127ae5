// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <pthread.h>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/cpu_info.h"
#include "base/float_environment.h"
#include "base/text.h"

namespace moekit::base {

namespace {

// Two lines: the adjacent-line prefetcher of x86 servers pulls lines in pairs.
constexpr std::size_t kFalseSharingBytes = 128;

// How long a thread spins before it parks: as long as waking a parked one took (median 220 us on a
// two-core Zen 3 virtual machine; a region met spinning starts and ends within 0.2 us), so that
// guessing wrong costs at most twice the best choice. The steps of a layer follow each other within
// a few us: a worker never parks inside a layer.
constexpr std::chrono::microseconds kSpinTime{200};

constexpr std::uint32_t kMinusOne = 0xFFFFFFFFU;

void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Forks that led to this process. A child has the memory of a pool but none of its threads.
std::atomic<std::uint32_t> num_forks{0};

std::uint32_t count_forks() {
  static const int watched =
      pthread_atfork(nullptr, nullptr, [] { num_forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(watched);
  return num_forks.load(std::memory_order_relaxed);
}

// A counter that threads can wait on: spin first, then park. Signalling costs one atomic
// operation and one load while nobody is parked.
class Gate {
 public:
  [[nodiscard]] std::uint32_t load() const { return value_.load(std::memory_order_acquire); }

  /// 0 -> 1; false when another thread holds it.
  [[nodiscard]] bool try_take() {
    std::uint32_t free = 0;
    return value_.compare_exchange_strong(free, 1, std::memory_order_acquire);
  }

  void store_quietly(std::uint32_t value) { value_.store(value, std::memory_order_relaxed); }

  /// Adds `delta` (modulo 2^32) and wakes whoever is parked.
  void add(std::uint32_t delta) {
    value_.fetch_add(delta, std::memory_order_seq_cst);
    // Sequentially consistent on both sides: either this load sees the sleeper, or the sleeper's
    // check of value_ sees the addition.
    if (sleepers_.load(std::memory_order_seq_cst) != 0) {
      {
        const std::lock_guard lock(mutex_);
      }  // a sleeper that counted itself is waiting after this
      parked_.notify_all();
    }
  }

  /// Returns when ready(value) holds.
  template <typename Ready>
  void wait(std::chrono::microseconds spin_time, Ready ready) {
    if (ready(load())) {
      return;
    }
    const auto deadline = std::chrono::steady_clock::now() + spin_time;
    do {
      // 32 pauses are 0.5 to 2 us: the clock is read rarely, the answer comes soon.
      for (int i = 0; i < 32; ++i) {
        pause_cpu();
        if (ready(load())) {
          return;
        }
      }
    } while (std::chrono::steady_clock::now() < deadline);
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (!ready(value_.load(std::memory_order_seq_cst))) {
      parked_.wait(lock);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  alignas(kFalseSharingBytes) std::atomic<std::uint32_t> value_{0};
  alignas(kFalseSharingBytes) std::atomic<std::uint32_t> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable parked_;
};

}  // namespace

struct ThreadPool::State {
  Gate turns;    // 0: free, 1: a region runs
  Gate epoch;    // counts regions; workers wait for it to move
  Gate running;  // workers that have not finished the region
  // Written before epoch moves and read after it is seen to have moved.
  Task task = nullptr;
  void* context = nullptr;
  bool stopping = false;
  int num_threads = 1;
  std::uint32_t made_after_forks = 0;
  std::chrono::microseconds spin_time = kSpinTime;
  // Last member: the threads join before anything they use goes away.
  std::vector<std::jthread> workers;

  void work(int worker) {
    // A thread inherits the modes of the one that started it.
    const DefaultFloatEnvironment environment;
    std::uint32_t seen = 0;
    while (true) {
      epoch.wait(spin_time, [seen](std::uint32_t value) { return value != seen; });
      ++seen;
      if (stopping) {
        return;
      }
      task(context, worker, num_threads);
      running.add(kMinusOne);
    }
  }

  void release_workers() { epoch.add(1); }

  [[nodiscard]] bool threads_are_here() const {
    return made_after_forks == num_forks.load(std::memory_order_relaxed);
  }
};

ThreadPool::ThreadPool(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(int num_threads) {
  constexpr int kMaxThreads = 1024;
  if (num_threads < 1 || num_threads > kMaxThreads) {
    return invalid_argument(cat("num_threads ", num_threads, ", expected 1 to ", kMaxThreads));
  }
  try {
    auto state = std::make_unique<State>();
    state->num_threads = num_threads;
    state->made_after_forks = count_forks();
    // Of the process and not of the machine: affinity and quota may leave it fewer.
    if (num_threads > detect_cpu().threads) {
      state->spin_time = {};  // a spinning thread would hold the core that its peer needs
    }
    std::unique_ptr<ThreadPool> pool(new ThreadPool(std::move(state)));
    State* const shared = pool->state_.get();
    shared->workers.reserve(static_cast<std::size_t>(num_threads - 1));
    for (int worker = 1; worker < num_threads; ++worker) {
      shared->workers.emplace_back([shared, worker] { shared->work(worker); });
    }
    return pool;
  } catch (const std::system_error& error) {
    return out_of_memory(cat("starting ", num_threads, " threads: ", error.what()));
  } catch (const std::bad_alloc&) {
    return out_of_memory(cat("starting ", num_threads, " threads"));
  }
}

ThreadPool::~ThreadPool() {
  if (!state_->threads_are_here()) {
    static_cast<void>(state_.release());  // nobody to join; a child that leaves it loses little
    return;
  }
  state_->stopping = true;
  state_->release_workers();
}

int ThreadPool::num_threads() const noexcept {
  return state_->num_threads;
}

void ThreadPool::run(Task task, void* context) noexcept {
  State& state = *state_;
  const DefaultFloatEnvironment environment;
  if (!state.threads_are_here()) {
    // A forked child does everybody's part: results do not depend on who does what.
    for (int worker = 0; worker < state.num_threads; ++worker) {
      task(context, worker, state.num_threads);
    }
    return;
  }
  while (!state.turns.try_take()) {
    state.turns.wait(state.spin_time, [](std::uint32_t value) { return value == 0; });
  }
  if (state.num_threads > 1) {
    state.task = task;
    state.context = context;
    state.running.store_quietly(static_cast<std::uint32_t>(state.num_threads - 1));
    state.release_workers();
  }
  task(context, 0, state.num_threads);
  state.running.wait(state.spin_time, [](std::uint32_t value) { return value == 0; });
  state.turns.add(kMinusOne);
}

}  // namespace moekit::base
