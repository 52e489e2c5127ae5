// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory of a verify case: every buffer stands between guard bytes, so that a write beyond it is
// seen, and random values come from a generator whose sequence no standard library decides.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moekit::verify {

/// SplitMix64 (Steele, Lea, Flood 2014): one 64-bit state, the same sequence everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept;

  /// [0, bound)
  std::int64_t below(std::int64_t bound) noexcept {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
  }

  /// [0, 1)
  float uniform() noexcept { return static_cast<float>(next() >> 40) * 0x1p-24F; }

  /// Mean 0, variance 1, within +-3: the sum of three uniforms out of one draw. Tails do not matter
  /// here, a hundred million draws a second do.
  float normal() noexcept;

 private:
  std::uint64_t state_;
};

/// Zero-filled bytes, aligned to 256, with guard bytes before and after.
class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  explicit GuardedBuffer(std::int64_t bytes);

  [[nodiscard]] std::span<std::byte> bytes() noexcept { return {storage_.data() + offset_, size_}; }

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {storage_.data() + offset_, size_};
  }

  template <typename T>
  [[nodiscard]] T* as() noexcept {
    return reinterpret_cast<T*>(storage_.data() + offset_);
  }

  /// No guard byte has changed.
  [[nodiscard]] bool intact() const noexcept;

 private:
  std::vector<std::byte> storage_{};
  std::size_t offset_ = 0;
  std::size_t size_ = 0;
};

/// A 64-bit digest, a word at a time.
[[nodiscard]] std::uint64_t hash_bytes(std::span<const std::byte> bytes,
                                       std::uint64_t hash) noexcept;

}  // namespace moekit::verify
