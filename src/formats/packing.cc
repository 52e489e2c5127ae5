// SPDX-License-Identifier: Apache-2.0
#include "formats/packing.h"

#include "formats/packing_panel16.h"
#include "formats/packing_tile16.h"

namespace moekit::formats {

std::span<const Packing> packings() noexcept {
  static const Packing rows[] = {kPanel16Packing, kTile16Packing};
  return rows;
}

const Packing* packing_for(Format format, ArchClass arch_class) noexcept {
  for (const Packing& packing : packings()) {
    if (packing.arch_class == arch_class && packing.supports(format)) {
      return &packing;
    }
  }
  return nullptr;
}

}  // namespace moekit::formats
