// SPDX-License-Identifier: Apache-2.0
#include "plan/packed_layout.h"

#include <cmath>
#include <vector>

#include "base/text.h"
#include "device/portable.h"

namespace moekit::plan {
namespace {

using base::cat;

// Every part begins on a boundary that suits bulk copies and huge pages alike.
constexpr std::int64_t kRegionAlignment = 256;

// What a layout id begins with, and the packing that the class reads. The 16 x 64 tile is in the
// register order of m16n8k16, which every GPU here has; only sm_90a has kernels that read it, so an
// arch class that finds a better order may still have one of its own, under its own prefix.
struct LayoutClass {
  Arch arch;
  std::string_view prefix;
  formats::ArchClass packing;
};

constexpr LayoutClass kLayoutClasses[] = {
    {Arch::kCpu, "cpu", formats::ArchClass::kCpu},
    {Arch::kSm80, "sm80", formats::ArchClass::kSm90},
    {Arch::kSm86, "sm80", formats::ArchClass::kSm90},
    {Arch::kSm89, "sm80", formats::ArchClass::kSm90},
    {Arch::kSm90a, "sm90", formats::ArchClass::kSm90},
    {Arch::kSm100a, "sm100", formats::ArchClass::kSm90},
    {Arch::kSm120a, "sm120", formats::ArchClass::kSm90},
    {Arch::kSm121a, "sm120", formats::ArchClass::kSm90},
};

const LayoutClass* layout_class_of(Arch arch) {
  for (const LayoutClass& row : kLayoutClasses) {
    if (row.arch == arch) {
      return &row;
    }
  }
  return nullptr;
}

std::string formats_packed_for(formats::ArchClass arch_class) {
  std::vector<std::string_view> names;
  for (const FormatInfo& info : kFormats) {
    if (formats::packing_for(info.format, arch_class) != nullptr) {
      names.push_back(info.name);
    }
  }
  return base::join(names);
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

std::string layout_id(const Problem& problem,
                      std::string_view prefix,
                      const formats::Packing& packing) {
  const bool gated = activation_is_gated(problem.activation.kind);
  return cat(prefix,
             ".",
             packing.name,
             ".",
             format_info(recipe_info(problem.recipe).weights).name,
             problem.weight_group_size != 0 ? cat(".g", problem.weight_group_size) : "",
             ".h",
             problem.hidden_size,
             ".i",
             problem.intermediate_size,
             problem.down_group_offset != 0 ? cat(".o", problem.down_group_offset) : "",
             problem.gate_up_row_offset != 0 ? cat(".r", problem.gate_up_row_offset) : "",
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
  const LayoutClass* layout_class = layout_class_of(device.arch);
  if (layout_class == nullptr) {
    return unsupported(cat("no packed layout for ", arch_name(device.arch), "; nearest: cpu"));
  }
  const Format format = recipe_info(problem.recipe).weights;
  const formats::Packing* packing = formats::packing_for(format, layout_class->packing);
  if (packing == nullptr) {
    return unsupported(cat("no packed layout of ",
                           format_info(format).name,
                           " (recipe ",
                           recipe_info(problem.recipe).name,
                           ") for ",
                           arch_name(device.arch),
                           ", which has ",
                           formats_packed_for(layout_class->packing),
                           formats::packing_for(format, formats::ArchClass::kCpu) != nullptr
                               ? "; nearest: device cpu"
                               : "; nearest: recipe w4a16_nvfp4"));
  }
  const bool gated = activation_is_gated(problem.activation.kind);
  const std::int64_t experts = problem.num_experts;
  PackedLayout layout;
  layout.id = layout_id(problem, layout_class->prefix, *packing);
  layout.packing = packing;
  layout.num_experts = experts;
  Cursor cursor;
  layout.gate_up = take_region(cursor,
                               *packing,
                               {format,
                                problem.intermediate_size,
                                problem.hidden_size,
                                gated ? 2 : 1,
                                0,
                                problem.weight_group_size,
                                problem.gate_up_row_offset},
                               experts);
  layout.down = take_region(cursor,
                            *packing,
                            {format,
                             problem.hidden_size,
                             problem.intermediate_size,
                             1,
                             problem.down_group_offset,
                             problem.weight_group_size},
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
  if (format_info(format).has_global_scale) {
    layout.input_scales_offset = cursor.take(experts * 2 * kFloatBytes);
  }
  layout.total_bytes = cursor.end();
  return layout;
}

std::int64_t PackedView::first_without_input_scales() const noexcept {
  for (std::int64_t expert = 0; expert < layout->num_experts; ++expert) {
    const float* scales = input_scales(expert);
    if (scales == nullptr || std::isnan(scales[0]) || std::isnan(scales[1])) {
      return expert;
    }
  }
  return -1;
}

}  // namespace moekit::plan
