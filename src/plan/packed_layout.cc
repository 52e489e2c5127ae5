// SPDX-License-Identifier: Apache-2.0
#include "plan/packed_layout.h"

#include "base/text.h"
#include "device/portable.h"

namespace moekit::plan {
namespace {

using base::cat;

// Every part begins on a boundary that suits bulk copies and huge pages alike.
constexpr std::int64_t kRegionAlignment = 256;

Result<formats::ArchClass> arch_class_of(Arch arch) {
  switch (arch) {
    case Arch::kCpu:
      return formats::ArchClass::kCpu;
    case Arch::kSm90a:
      return formats::ArchClass::kSm90;
    default:
      return unsupported(cat("no packed layout for ", arch_name(arch), "; nearest: sm_90a, cpu"));
  }
}

class Cursor {
 public:
  std::int64_t take(std::int64_t bytes) {
    const std::int64_t offset = end_;
    end_ = device::round_up(end_ + bytes, kRegionAlignment);
    return offset;
  }

  [[nodiscard]] std::int64_t end() const { return end_; }

 private:
  std::int64_t end_ = 0;
};

std::string layout_id(const Problem& problem, const formats::Packing& packing) {
  const bool gated = activation_is_gated(problem.activation.kind);
  return cat(packing.arch_class == formats::ArchClass::kCpu ? "cpu" : "sm90",
             ".",
             packing.name,
             ".",
             format_info(recipe_info(problem.recipe).weights).name,
             ".h",
             problem.hidden_size,
             ".i",
             problem.intermediate_size,
             problem.down_group_offset != 0 ? cat(".o", problem.down_group_offset) : "",
             gated ? ".gated" : ".plain",
             problem.gate_up_bias ? ".bias13" : "",
             problem.down_bias ? ".bias2" : "");
}

PackedRegion take_region(Cursor& cursor,
                         const formats::Packing& packing,
                         const formats::PackingShape& shape,
                         std::int64_t num_experts) {
  PackedRegion region;
  region.shape = shape;
  region.expert_stride_bytes = packing.packed_bytes(shape);
  region.offset = cursor.take(region.expert_stride_bytes * num_experts);
  return region;
}

}  // namespace

Result<PackedLayout> packed_layout(const Problem& problem, const DeviceDescriptor& device) {
  MOEKIT_ASSIGN_OR_RETURN(const formats::ArchClass arch_class, arch_class_of(device.arch));
  const Format format = recipe_info(problem.recipe).weights;
  const formats::Packing* packing = formats::packing_for(format, arch_class);
  if (packing == nullptr) {
    return unsupported(
        cat("no packed layout of ", format_info(format).name, " for ", arch_name(device.arch)));
  }
  const bool gated = activation_is_gated(problem.activation.kind);
  const std::int64_t experts = problem.num_experts;
  PackedLayout layout;
  layout.id = layout_id(problem, *packing);
  layout.packing = packing;
  layout.num_experts = experts;
  Cursor cursor;
  layout.gate_up =
      take_region(cursor,
                  *packing,
                  {format, problem.intermediate_size, problem.hidden_size, gated ? 2 : 1, 0},
                  experts);
  layout.down = take_region(
      cursor,
      *packing,
      {format, problem.hidden_size, problem.intermediate_size, 1, problem.down_group_offset},
      experts);
  constexpr std::int64_t kFloatBytes = 4;
  layout.globals_offset = cursor.take(experts * 4 * kFloatBytes);
  if (problem.gate_up_bias) {
    const std::int64_t bytes = experts * problem.intermediate_size * kFloatBytes;
    layout.gate_bias_offset = gated ? cursor.take(bytes) : -1;
    layout.up_bias_offset = cursor.take(bytes);
  }
  if (problem.down_bias) {
    layout.down_bias_offset = cursor.take(experts * problem.hidden_size * kFloatBytes);
  }
  layout.total_bytes = cursor.end();
  return layout;
}

}  // namespace moekit::plan
