// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

namespace moekit::base {

/// Owns an open file descriptor; negative owns nothing.
class Descriptor {
 public:
  explicit Descriptor(int value) noexcept : value_(value) {}

  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  ~Descriptor() {
    if (value_ >= 0) {
      ::close(value_);
    }
  }

  [[nodiscard]] int get() const noexcept { return value_; }

  [[nodiscard]] bool ok() const noexcept { return value_ >= 0; }

 private:
  int value_;
};

}  // namespace moekit::base
