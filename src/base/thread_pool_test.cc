// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <sched.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "base/float_environment.h"

namespace moekit::base {
namespace {

std::unique_ptr<ThreadPool> make_pool(int num_threads) {
  auto pool = ThreadPool::create(num_threads);
  EXPECT_TRUE(pool.has_value()) << pool.status().to_string();
  return std::move(pool).value();
}

TEST(ThreadPool, EveryWorkerRunsOncePerRegion) {
  for (const int num_threads : {1, 2, 3, 4, 8}) {
    const auto pool = make_pool(num_threads);
    ASSERT_EQ(pool->num_threads(), num_threads);
    std::vector<int> counts(static_cast<std::size_t>(num_threads), 0);  // plain: a race would show
    for (int region = 0; region < 200; ++region) {
      pool->parallel([&](int worker, int num_workers) {
        EXPECT_EQ(num_workers, num_threads);
        ++counts[static_cast<std::size_t>(worker)];
      });
    }
    for (const int count : counts) {
      EXPECT_EQ(count, 200);
    }
  }
}

TEST(ThreadPool, WritesOfARegionAreSeenByTheCallerAndTheNextRegion) {
  const auto pool = make_pool(2);
  std::vector<int> values(64, 0);
  for (int region = 1; region <= 500; ++region) {
    pool->parallel([&](int worker, int num_workers) {
      // Each worker reads what the other one wrote in the region before.
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (static_cast<int>(i + static_cast<std::size_t>(region)) % num_workers == worker) {
          ++values[i];
        }
      }
    });
    for (const int value : values) {
      ASSERT_EQ(value, region);
    }
  }
}

TEST(ThreadPool, ParkedWorkersWake) {
  const auto pool = make_pool(2);
  std::atomic<int> runs{0};
  for (int region = 0; region < 5; ++region) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // well past the spin time
    pool->parallel([&](int, int) { runs.fetch_add(1); });
  }
  EXPECT_EQ(runs.load(), 10);
}

TEST(ThreadPool, CallerParksBehindASlowWorker) {
  const auto pool = make_pool(2);
  int slow_result = 0;
  pool->parallel([&](int worker, int) {
    if (worker == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      slow_result = 7;
    }
  });
  EXPECT_EQ(slow_result, 7);
}

TEST(ThreadPool, RegionsOfSeveralCallersTakeTurns) {
  const auto pool = make_pool(2);
  int shared_count = 0;  // written by worker 0 of each region: regions must not overlap
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int region = 0; region < 200; ++region) {
        pool->parallel([&](int worker, int) {
          if (worker == 0) {
            ++shared_count;
          }
        });
      }
    });
  }
  callers.clear();
  EXPECT_EQ(shared_count, 600);
}

#if defined(__x86_64__)
TEST(ThreadPool, RegionsRunInTheDefaultFloatEnvironment) {
  const unsigned found = _mm_getcsr();
  const unsigned flushing = found | 0x8040U | 0x6000U;  // both flush modes, round toward zero
  _mm_setcsr(flushing);
  const auto pool = make_pool(2);
  std::vector<unsigned> modes(2, 0);
  std::vector<float> halves(2, 0.0F);
  volatile float smallest_normal = 0x1p-126F;
  pool->parallel([&](int worker, int) {
    const auto w = static_cast<std::size_t>(worker);
    modes[w] = _mm_getcsr();
    halves[w] = smallest_normal * 0.5F;
  });
  EXPECT_EQ(_mm_getcsr() & 0xFFC0U, flushing & 0xFFC0U);
  _mm_setcsr(found);
  for (std::size_t w = 0; w < 2; ++w) {
    EXPECT_EQ(modes[w] & 0xFFC0U, 0x1F80U);
    EXPECT_EQ(halves[w], 0x1p-127F);
  }
}
#endif

// A child has no workers: its regions are done by the caller, even when a region of another thread
// was running at the fork, and it may destroy the pool.
TEST(ThreadPool, ForkedChildrenDoEveryPartThemselves) {
  auto pool = make_pool(3);
  std::vector<int> counts(3, 0);
  const auto count = [&](int worker, int) { ++counts[static_cast<std::size_t>(worker)]; };
  pool->parallel(count);
  std::atomic<bool> running{false};
  std::atomic<bool> stop{false};
  std::jthread other([&] {
    pool->parallel([&](int worker, int) {
      running = true;
      while (worker == 0 && !stop) {
        std::this_thread::yield();
      }
    });
  });
  while (!running) {
    std::this_thread::yield();
  }
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang ends as a signal
    pool->parallel(count);
    pool->parallel(count);
    pool.reset();
    _exit(counts == std::vector<int>(3, 3) ? 0 : 1);
  }
  stop = true;
  other.join();
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  pool->parallel(count);
  EXPECT_EQ(counts, std::vector<int>(3, 2));  // and the parent goes on
}

// A thread that spins where its peer needs the core: two threads on one core took 700 us a region.
TEST(ThreadPool, MoreThreadsThanTheAffinityAllowsDoNotSpin) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (std::size_t cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const auto pool = make_pool(2);  // its worker inherits the one core
  pool->parallel([](int, int) {});
  timespec begin{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
  constexpr int kRegions = 50;
  for (int region = 0; region < kRegions; ++region) {
    pool->parallel([](int, int) {});
  }
  timespec end{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  const double us = 1e6 * static_cast<double>(end.tv_sec - begin.tv_sec) +
                    1e-3 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
  // Processor time, so that a loaded machine does not matter: spinning costs 200 us and more.
  EXPECT_LT(us / kRegions, 100.0);
}

TEST(ThreadPool, RefusesBadCountsWithTheValue) {
  for (const int bad : {0, -1, 1025}) {
    const auto pool = ThreadPool::create(bad);
    ASSERT_FALSE(pool.has_value());
    EXPECT_EQ(pool.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(pool.status().message().find(std::to_string(bad)), std::string_view::npos);
  }
}

}  // namespace
}  // namespace moekit::base
