// SPDX-License-Identifier: Apache-2.0
#include "kernels/catalog.h"

#include "kernels/decode_gemv/planner.h"
#include "kernels/grouped_gemm/planner.h"
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

}  // namespace moekit::kernels
