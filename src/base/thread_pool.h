// SPDX-License-Identifier: Apache-2.0
#pragma once

// A small pool of std::jthread workers for parallel regions: every worker runs the same callable
// with its own index, the caller is worker 0, and run() returns when all are done. No queue and no
// allocation per region. OpenMP reports false races under ThreadSanitizer, hence our own.

#include <memory>
#include <type_traits>

#include "moekit/status.h"

namespace moekit::base {

class ThreadPool {
 public:
  /// num_threads >= 1 counts the caller.
  ///
  /// Errors  kInvalidArgument  num_threads < 1 or > 1024
  ///         kOutOfMemory      the system refuses a thread
  [[nodiscard]] static Result<std::unique_ptr<ThreadPool>> create(int num_threads);

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  [[nodiscard]] int num_threads() const noexcept;

  using Task = void (*)(void* context, int worker, int num_workers);

  /// Runs task(context, w, num_threads) for every w, in the default floating-point environment
  /// whatever the caller's is. Regions of one pool take turns; a region must not start another, and
  /// workers must not wait for each other: a forked child has no threads but its own, which then
  /// does every part.
  void run(Task task, void* context) noexcept;

  /// The same for a callable (int worker, int num_workers), taken by reference.
  template <typename Body>
  void parallel(Body&& body) noexcept {
    using Bare = std::remove_reference_t<Body>;
    run(
        [](void* context, int worker, int num_workers) {
          (*static_cast<Bare*>(context))(worker, num_workers);
        },
        const_cast<std::remove_const_t<Bare>*>(&body));
  }

 private:
  struct State;
  explicit ThreadPool(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace moekit::base
