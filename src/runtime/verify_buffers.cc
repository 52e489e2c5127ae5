// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify_buffers.h"

#include <algorithm>
#include <cstring>

namespace moekit::verify {
namespace {

// A cache line and a vector of the widest ISA fit many times over.
constexpr std::size_t kGuardBytes = 1024;
constexpr std::size_t kAlignment = 256;
constexpr std::byte kGuard{0xA5};

bool all_guard(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kGuard; });
}

}  // namespace

std::uint64_t Random::next() noexcept {
  state_ += 0x9E3779B97F4A7C15U;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

float Random::normal() noexcept {
  constexpr std::uint64_t kMask = (std::uint64_t{1} << 21) - 1;
  const std::uint64_t bits = next();
  const std::uint64_t sum = (bits & kMask) + ((bits >> 21) & kMask) + (bits >> 43);
  // Three uniforms have variance 1/4.
  return (static_cast<float>(sum) * 0x1p-21F - 1.5F) * 2.0F;
}

GuardedBuffer::GuardedBuffer(std::int64_t bytes)
    : storage_(static_cast<std::size_t>(bytes) + 2 * kGuardBytes + kAlignment, kGuard),
      size_(static_cast<std::size_t>(bytes)) {
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data()) + kGuardBytes;
  offset_ = kGuardBytes + (kAlignment - address % kAlignment) % kAlignment;
  std::fill_n(storage_.begin() + static_cast<std::ptrdiff_t>(offset_), size_, std::byte{0});
}

bool GuardedBuffer::intact() const noexcept {
  const std::span<const std::byte> all(storage_);
  return storage_.empty() ||
         (all_guard(all.first(offset_)) && all_guard(all.subspan(offset_ + size_)));
}

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t hash) noexcept {
  const auto mix = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  };
  mix(bytes.size());
  std::size_t at = 0;
  for (; at + sizeof(std::uint64_t) <= bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    mix(word);
  }
  for (; at < bytes.size(); ++at) {
    mix(static_cast<std::uint64_t>(bytes[at]));
  }
  return hash;
}

}  // namespace moekit::verify
