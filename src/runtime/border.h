// SPDX-License-Identifier: Apache-2.0
#pragma once

// The public border: what the standard library throws becomes a Status here and nowhere else.

#include <exception>
#include <new>

#include "moekit/status.h"

namespace moekit {

/// Calls `body`, which returns a Status or a Result; std::bad_alloc becomes kOutOfMemory, anything
/// else kInternal.
template <typename Body>
auto guard_border(Body&& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "an allocation failed");
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, error.what());
  }
}

}  // namespace moekit
