// SPDX-License-Identifier: Apache-2.0
#pragma once

// Inputs and outputs of a verify case, each in a buffer of its own between guard bytes.

#include <cstdint>
#include <deque>

#include "moekit/runtime.h"
#include "moekit/verify.h"

#include "runtime/verify_buffers.h"
#include "runtime/verify_quirks.h"

namespace moekit::verify {

struct CaseTensors {
  RunArguments arguments{};
  std::deque<GuardedBuffer> inputs{};
  GuardedBuffer out{};
  std::int64_t out_row_stride = 0;

  [[nodiscard]] std::uint64_t input_hash() const noexcept;
  [[nodiscard]] bool intact() const noexcept;
};

/// x, routes or logits, map, shared and output of `verify_case`.
[[nodiscard]] CaseTensors make_tensors(const VerifyCase& verify_case, const Quirks& quirks);

}  // namespace moekit::verify
