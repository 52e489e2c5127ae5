// SPDX-License-Identifier: Apache-2.0
// Stands in for the probes in the program `moekit_cli_disturbed` (linker option --wrap, see
// CMakeLists.txt): what they say beside a call of one token is steady and high, beside any other a
// crawl, with peaks that change by the round. No test can make a machine do that when asked.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moekit::test {

// Members of a class that no test may include: `self` is the object, `round` its two bytes, the
// instruction set and the kind of peak.
double disturbed_gbps(void* self,
                      std::span<const std::byte> bytes) asm("__wrap_" MOEKIT_PROBE_GBPS_SYMBOL);
double disturbed_gflops(void* self, std::uint16_t round) asm("__wrap_" MOEKIT_PROBE_GFLOPS_SYMBOL);

namespace {

constexpr double kHigh = 1e6;
constexpr double kCrawl = 1e-6;
// The two experts of one token, in nvfp4 packed and padded, are less than this.
constexpr std::size_t kMostBytesOfOneToken = 40000;

bool disturbed = false;
std::array<int, 256> rounds_of_kind{};

}  // namespace

double disturbed_gbps(void* /*self*/, std::span<const std::byte> bytes) {
  disturbed = bytes.size() > kMostBytesOfOneToken;
  return disturbed ? kCrawl : kHigh;
}

double disturbed_gflops(void* /*self*/, std::uint16_t round) {
  const int odd = ++rounds_of_kind.at(round >> 8U) % 2;
  return disturbed ? kCrawl * (1.0 + 1.5 * odd) : kHigh;
}

}  // namespace moekit::test
