// SPDX-License-Identifier: Apache-2.0
#pragma once

// The calling thread's floating-point modes. A host program may have set flush-to-zero, denormals-
// are-zero or another rounding direction (some libraries do when they load); results must not
// depend on that, and subnormal scales must not vanish.

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace moekit::base {

/// IEEE defaults (round to nearest, subnormals kept, exceptions masked) for its lifetime; restores
/// what it found. A few cycles where the modes are the defaults already.
class DefaultFloatEnvironment {
 public:
#if defined(__x86_64__)
  DefaultFloatEnvironment() noexcept : found_(_mm_getcsr()) {
    if ((found_ & kModes) != kDefaults) {
      _mm_setcsr((found_ & ~kModes) | kDefaults);
    }
  }

  ~DefaultFloatEnvironment() {
    if ((found_ & kModes) != kDefaults) {
      _mm_setcsr(found_);
    }
  }
#else
  DefaultFloatEnvironment() noexcept {}

  ~DefaultFloatEnvironment() {}
#endif

  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  // MXCSR: bit 6 denormals-are-zero, bits 7-12 exception masks, 13-14 rounding, 15 flush-to-zero.
  static constexpr unsigned kModes = 0xFFC0U;
  static constexpr unsigned kDefaults = 0x1F80U;
  unsigned found_;
#endif
};

}  // namespace moekit::base
