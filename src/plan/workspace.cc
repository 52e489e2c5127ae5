// SPDX-License-Identifier: Apache-2.0
#include "plan/workspace.h"

#include <algorithm>

#include "base/named.h"
#include "device/portable.h"

namespace moekit::plan {
namespace {

constexpr base::Named<SliceId> kSlices[] = {
    {SliceId::kTopkIds, "topk_ids"},
    {SliceId::kTopkWeights, "topk_weights"},
    {SliceId::kRouteExperts, "route_experts"},
    {SliceId::kExpertOffsets, "expert_offsets"},
    {SliceId::kRouteOrder, "route_order"},
    {SliceId::kRouteBlocks, "route_blocks"},
    {SliceId::kXOperand, "x_operand"},
    {SliceId::kInnerOperand, "inner_operand"},
    {SliceId::kIntermediate, "intermediate"},
    {SliceId::kRouteOutput, "route_output"},
    {SliceId::kGridBarrier, "grid_barrier"},
    {SliceId::kScratch, "scratch"},
};
static_assert(std::size(kSlices) == kNumSlices);

constexpr auto kAlignment = static_cast<std::int64_t>(kWorkspaceAlignment);

}  // namespace

std::string_view slice_name(SliceId id) noexcept {
  return base::name_of(kSlices, id);
}

std::optional<SliceId> slice_from_name(std::string_view name) noexcept {
  return base::value_of(kSlices, name);
}

void WorkspaceNeeds::add(const std::vector<SliceRequest>& requests) {
  for (const SliceRequest& request : requests) {
    std::int64_t& bytes = bytes_[static_cast<std::size_t>(request.id)];
    bytes = std::max(bytes, request.bytes);
  }
}

std::vector<WorkspaceSlice> WorkspaceNeeds::layout() const {
  std::vector<WorkspaceSlice> slices;
  std::int64_t offset = 0;
  for (const base::Named<SliceId>& slice : kSlices) {
    const std::int64_t bytes = bytes_[static_cast<std::size_t>(slice.value)];
    if (bytes > 0) {
      slices.push_back({std::string(slice.name), offset, bytes});
      offset += device::round_up(bytes, kAlignment);
    }
  }
  return slices;
}

std::int64_t WorkspaceNeeds::total_bytes() const {
  std::int64_t total = 0;
  for (const std::int64_t bytes : bytes_) {
    total += device::round_up(bytes, kAlignment);
  }
  return total;
}

}  // namespace moekit::plan
