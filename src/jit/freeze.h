// SPDX-License-Identifier: Apache-2.0
#pragma once

// The promise after warm-up: from freeze() on, a kernel that is not resolved yet is an error and
// never a compile in the middle of serving.

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

namespace moekit::jit {

class FreezeGate {
 public:
  /// Freezing again keeps frozen and takes the newer reason.
  void freeze(std::string_view reason) {
    const std::lock_guard lock(mutex_);
    reason_ = reason;
    frozen_.store(true, std::memory_order_release);
  }

  /// The reason stays readable for messages about what happened since.
  void unfreeze(std::string_view reason) {
    const std::lock_guard lock(mutex_);
    reason_ = reason;
    frozen_.store(false, std::memory_order_release);
  }

  [[nodiscard]] bool frozen() const noexcept { return frozen_.load(std::memory_order_acquire); }

  /// Of the last freeze or unfreeze.
  [[nodiscard]] std::string reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  std::atomic<bool> frozen_{false};
  mutable std::mutex mutex_;
  std::string reason_;
};

}  // namespace moekit::jit
