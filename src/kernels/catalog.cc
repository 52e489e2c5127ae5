// SPDX-License-Identifier: Apache-2.0
#include "kernels/catalog.h"

#include <array>

#include "kernels/decode_gemv/planner.h"
#include "kernels/grouped_gemm/planner.h"
#include "kernels/memory_floor/floor.h"
#include "kernels/quantize_rows/quantize.h"
#include "kernels/route_topk/planner.h"

namespace moekit::kernels {

std::span<const plan::KernelFamily* const> catalog() noexcept {
  static constexpr const plan::KernelFamily* kFamilies[] = {
      &route_topk::kFamily,    // every problem that brings router logits
      &decode_gemv::kFamily,   // few tokens: direct execution
      &grouped_gemm::kFamily,  // many tokens: grouped execution
  };
  return kFamilies;
}

std::span<const CudaEntry> cuda_catalog() noexcept {
  struct Entries {
    std::array<CudaEntry, 16> rows{};
    std::size_t count = 0;
  };

  static const Entries entries = [] {
    Entries made;
    for (const plan::KernelFamily* family : catalog()) {
      if (family->cuda != nullptr) {
        made.rows[made.count++] = {family->name, family->cuda};
      }
    }
    // A step of recipes with quantised activations, which no plan for a GPU has yet.
    made.rows[made.count++] = {"quantize_rows", &quantize_rows::kCuda};
    // What layers are measured against; no plan has it.
    made.rows[made.count++] = {"memory_floor", &memory_floor::kCuda};
    return made;
  }();
  return std::span(entries.rows).first(entries.count);
}

}  // namespace moekit::kernels
