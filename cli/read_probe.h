// SPDX-License-Identifier: Apache-2.0
#pragma once

// The bandwidth that a linear read reaches right now: the yardstick beside every timing, because a
// shared machine's memory swings within a minute.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "moekit/status.h"

namespace moekit::cli {

class ReadProbe {
 public:
  [[nodiscard]] static Result<ReadProbe> create(int num_threads);

  /// Reads every byte once, split evenly over the threads; GB/s from the moment when all of them
  /// stand ready until the last is done.
  [[nodiscard]] double gbps(std::span<const std::byte> bytes);

 private:
  struct State;

  explicit ReadProbe(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace moekit::cli
