// SPDX-License-Identifier: Apache-2.0
#include "base/huge_pages.h"

#include <cstdint>
#include <sys/mman.h>

namespace moekit::base {

bool wish_huge_pages(std::span<std::byte> bytes) noexcept {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t kPageBytes = std::uintptr_t{2} << 20;  // x86-64, and AArch64 of 4 KiB
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = (address + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::uintptr_t end = (address + bytes.size()) / kPageBytes * kPageBytes;
  return begin < end &&
         ::madvise(bytes.data() + (begin - address), end - begin, MADV_HUGEPAGE) == 0;
#else
  static_cast<void>(bytes);
  return false;
#endif
}

}  // namespace moekit::base
