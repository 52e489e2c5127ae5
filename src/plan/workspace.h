// SPDX-License-Identifier: Apache-2.0
#pragma once

// The workspace table: one slice per SliceId, each the largest that any rung asks for, disjoint, so
// that no two slices ever overlap and the total never shrinks as the capacity grows.

#include <array>
#include <cstdint>
#include <vector>

#include "moekit/plan.h"

#include "plan/family.h"

namespace moekit::plan {

class WorkspaceNeeds {
 public:
  /// Takes the maximum per slice.
  void add(const std::vector<SliceRequest>& requests);

  /// Slices in use, in SliceId order, each at a multiple of kWorkspaceAlignment.
  [[nodiscard]] std::vector<WorkspaceSlice> layout() const;

  [[nodiscard]] std::int64_t total_bytes() const;

 private:
  std::array<std::int64_t, kNumSlices> bytes_{};
};

}  // namespace moekit::plan
