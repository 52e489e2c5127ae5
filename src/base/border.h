// SPDX-License-Identifier: Apache-2.0
#pragma once

// The library's border: public entries are noexcept and run their body through at_border, which
// turns what the standard library throws into a Status.

#include <exception>
#include <new>
#include <utility>

#include "moekit/status.h"

#include "base/text.h"

namespace moekit::base {

/// Returns body(); an exception becomes kOutOfMemory (bad_alloc) or kInternal, whatever its type.
template <typename Body>
[[nodiscard]] auto at_border(Body&& body) noexcept -> decltype(body()) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    return out_of_memory("host memory allocation failed");
  } catch (const std::exception& error) {
    return internal_error(cat("unexpected exception: ", error.what()));
  } catch (...) {  // a caller's callback may throw anything
    return internal_error("unexpected exception of a type that is no std::exception");
  }
}

}  // namespace moekit::base
