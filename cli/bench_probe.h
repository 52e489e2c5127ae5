// SPDX-License-Identifier: Apache-2.0
#pragma once

// What memory and arithmetic reach right now: the yardsticks beside every timing, because a shared
// machine swings within a minute.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "moekit/device.h"
#include "moekit/status.h"

#include "cli/dot_peak.h"

namespace moekit::cli {

class BenchProbe {
 public:
  [[nodiscard]] static Result<BenchProbe> create(int num_threads);

  /// Reads every byte once, split evenly over the threads; GB/s from the moment when all of them
  /// stand ready until the last is done.
  [[nodiscard]] double gbps(std::span<const std::byte> bytes);

  /// GFLOP/s of all threads together, each of which multiplies and adds in registers for some
  /// milliseconds (dot_peak.h). The processor must have the ISA.
  [[nodiscard]] double gflops(PeakRound round);

 private:
  struct State;

  explicit BenchProbe(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace moekit::cli
