// SPDX-License-Identifier: Apache-2.0
#pragma once

// Large pages for memory that is read in long streams.

#include <cstddef>
#include <span>

namespace moekit::base {

/// Asks the system to back the whole large pages inside `bytes` with such: a stream then meets a
/// new translation every 2 MiB instead of every 4 KiB. Only a wish; returns whether it was taken
/// down. To be called before the first touch.
bool wish_huge_pages(std::span<std::byte> bytes) noexcept;

}  // namespace moekit::base
