// SPDX-License-Identifier: Apache-2.0
#pragma once

// SHA-256 (FIPS 180-4), for identities that leave the process: kernel image ids, cache keys and
// checksums of files. Our own hundred lines, because a cryptographic digest is what CMake computes
// too (file(SHA256), so embedded sources can be checked) and because libcrypto would become a link
// dependency of every program that uses moekit; nothing here is hot enough to need more.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace moekit::base {

class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;

  void update(std::span<const std::byte> bytes) noexcept;
  void update(std::string_view text) noexcept;

  /// Its length, then the text: neighbouring fields cannot run into each other.
  void update_field(std::string_view text) noexcept;

  /// The digest of everything so far. The object must not be updated afterwards.
  [[nodiscard]] Digest finish() noexcept;
  [[nodiscard]] std::string finish_hex();

 private:
  void compress(const std::uint8_t* block) noexcept;

  // First 32 bits of the fractional parts of the square roots of the first eight primes.
  std::array<std::uint32_t, 8> state_{0x6a09e667U,
                                      0xbb67ae85U,
                                      0x3c6ef372U,
                                      0xa54ff53aU,
                                      0x510e527fU,
                                      0x9b05688cU,
                                      0x1f83d9abU,
                                      0x5be0cd19U};
  std::array<std::uint8_t, 64> buffer_{};
  std::size_t buffered_ = 0;
  std::uint64_t total_bytes_ = 0;
};

[[nodiscard]] std::string sha256_hex(std::string_view text);

/// The first eight bytes of the SHA-256, big-endian: stable over processes and machines.
[[nodiscard]] std::uint64_t stable_hash64(std::string_view text) noexcept;

}  // namespace moekit::base
