// SPDX-License-Identifier: Apache-2.0
#pragma once

// The library's border: public entries are noexcept and run their body through at_border, which
// turns what the standard library throws into a Status, without memory for a message too. The
// caller's floating-point modes stay outside: quantisers, routing and the oracle are bit-defined.

#include <utility>

#include "moekit/status.h"

#include "base/float_environment.h"

namespace moekit::base {

/// kOutOfMemory, made when the program started: this allocates nothing.
[[nodiscard]] Status host_memory_exhausted() noexcept;

/// What the exception being handled amounts to: kOutOfMemory (bad_alloc) or kInternal.
[[nodiscard]] Status status_of_exception() noexcept;

/// Returns body(); an exception becomes its status_of_exception(), whatever its type.
template <typename Body>
[[nodiscard]] auto at_border(Body&& body) noexcept -> decltype(body()) {
  const DefaultFloatEnvironment environment;
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    return status_of_exception();
  }
}

}  // namespace moekit::base
