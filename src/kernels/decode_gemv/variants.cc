// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode_gemv/variants.h"

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "kernels/decode_gemv/geometry.h"
#include "plan/family.h"

namespace moekit::kernels::decode_gemv {
namespace {

using base::cat;

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();

/// How the registers of an SM are divided, and the steps of a warp.
struct Warps {
  std::int32_t warps;
  std::int32_t row_tiles;
  std::int32_t k_tiles;
  std::int32_t lookahead;
};

constexpr Spec spec_of(Role role,
                       Warps shape,
                       std::int32_t max_columns,
                       std::int32_t deal,
                       std::int32_t blocks_per_sm) {
  return {.role = role,
          .warps = shape.warps,
          .row_tiles = shape.row_tiles,
          .k_tiles = shape.k_tiles,
          .lookahead = shape.lookahead,
          .max_columns = max_columns,
          .whole_items = deal,
          .blocks_per_sm = blocks_per_sm};
}

constexpr Variant gate_up(Warps shape,
                          std::int32_t max_columns,
                          std::int32_t deal,
                          std::int32_t blocks_per_sm) {
  return {spec_of(Role::kGateUp, shape, max_columns, deal, blocks_per_sm)};
}

constexpr Variant down(Warps shape,
                       std::int32_t max_columns,
                       std::int32_t deal,
                       std::int32_t blocks_per_sm,
                       std::int32_t cluster) {
  return {spec_of(Role::kDown, shape, max_columns, deal, blocks_per_sm), cluster};
}

constexpr std::string_view kSource = "bench/results/h200-decode-gemv-0002.jsonl";

// 80 registers a thread suffice for nvfp4 only: mxfp4's exponents take two more and a step of three
// tiles, of which 2880 columns have a whole number.
constexpr bool kNvfp4 = true;
constexpr bool kMxfp4 = true;

// Columns of a row: routes, mean routes per expert, K tiles, row tiles, MB, blocks per SM.
// Few bytes: half of each SM stays free, so that down starts beside gate_up.
// w16..i3 (routes by themselves): h200-decode-gemv-0004.jsonl; w20r16 (WGMMA) of both roles: 0005.
// A WGMMA item is 16 row tiles, so layers of few bytes keep the warps of their own. Its 16 columns
// in mxfp4 spill.
constexpr VariantRow kGateUpRows[] = {
    {gate_up({16, 2, 4, 1}, 8, kRouteItems, 2), 32, 1, kAny, kAny, 40, 1, kNvfp4, !kMxfp4},
    {gate_up({24, 1, 4, 2}, 8, kSplitItems, 1), kAny, 4, kAny, kAny, kAny, 1, kNvfp4, !kMxfp4},
    {gate_up({20, 1, 3, 3}, 8, kSplitItems, 1), kAny, 4, kAny, kAny, kAny, 1, !kNvfp4, kMxfp4},
    {gate_up({16, 2, 4, 1}, 16, kWholeItems, 1), kAny, 8, kAny, kAny, 200, 1},
    {gate_up({20, 16, 4, 1}, 16, kSharedItems, 1), kAny, 8, kAny, kAny, kAny, 1, kNvfp4, !kMxfp4},
    {gate_up({16, 2, 4, 1}, 16, kWholeItems, 1), kAny, 8, kAny, kAny, kAny, 1, !kNvfp4, kMxfp4},
    {gate_up({12, 2, 2, 1}, 24, kWholeItems, 1), kAny, kAny, 64, kAny, 200, 1},
    {gate_up({12, 2, 3, 1}, 24, kWholeItems, 1), kAny, kAny, kAny, kAny, 200, 1},
    {gate_up({20, 16, 4, 1}, 24, kSharedItems, 1), kAny, kAny, kAny, kAny, kAny, 1},
};

// Output rows are dealt in tiles, so blocks of their own leave SMs idle where the tiles of one
// (at most 3 here) are few: clusters of two share them more evenly, at the price of reading each
// other's results, which more routes than 128 are worth.
constexpr VariantRow kDownRows[] = {
    {down({16, 1, 3, 0}, 8, kRouteItems, 2, 1), 32, 1, kAny, 132, 40, 1, kNvfp4, !kMxfp4},
    {down({16, 2, 2, 0}, 8, kRouteItems, 2, 1), 32, 1, kAny, 264, 40, 1, kNvfp4, !kMxfp4},
    {down({16, 3, 2, 0}, 8, kRouteItems, 2, 1), 32, 1, kAny, 396, 40, 1, kNvfp4, !kMxfp4},
    {down({16, 4, 2, 0}, 8, kRouteItems, 2, 1), 32, 1, kAny, 528, 40, 1, kNvfp4, !kMxfp4},
    {down({12, 1, 4, 2}, 8, kSplitItems, 2, 1), 16, 4, kAny, kAny, 40, 1, kNvfp4, !kMxfp4},
    {down({24, 1, 4, 2}, 8, kSplitItems, 1, 1), kAny, 4, kAny, 132, kAny, 1, kNvfp4, !kMxfp4},
    {down({24, 1, 4, 2}, 8, kSplitItems, 1, 2), kAny, 4, kAny, 198, kAny, 1, kNvfp4, !kMxfp4},
    {down({24, 1, 4, 2}, 8, kSplitItems, 1, 1), kAny, 4, kAny, 396, kAny, 1, kNvfp4, !kMxfp4},
    {down({24, 1, 4, 2}, 8, kSplitItems, 1, 1), 128, 4, kAny, kAny, kAny, 1, kNvfp4, !kMxfp4},
    {down({24, 1, 4, 2}, 8, kSplitItems, 1, 2), kAny, 4, kAny, kAny, kAny, 1, kNvfp4, !kMxfp4},
    {down({20, 1, 3, 3}, 8, kSplitItems, 1, 1), kAny, 4, kAny, 132, kAny, 1, !kNvfp4, kMxfp4},
    {down({20, 1, 3, 3}, 8, kSplitItems, 1, 2), kAny, 4, kAny, 198, kAny, 1, !kNvfp4, kMxfp4},
    {down({20, 1, 3, 3}, 8, kSplitItems, 1, 1), kAny, 4, kAny, 396, kAny, 1, !kNvfp4, kMxfp4},
    {down({20, 1, 3, 3}, 8, kSplitItems, 1, 2), kAny, 4, kAny, kAny, kAny, 1, !kNvfp4, kMxfp4},
    {down({16, 3, 2, 1}, 16, kWholeItems, 1, 1), kAny, 8, 64, kAny, 200, 1, kNvfp4, !kMxfp4},
    {down({16, 2, 4, 1}, 16, kSplitItems, 1, 1), kAny, 8, kAny, kAny, 200, 1},
    {down({20, 16, 4, 1}, 16, kSharedItems, 1, 1), kAny, 8, kAny, kAny, kAny, 1, kNvfp4, !kMxfp4},
    {down({16, 2, 4, 1}, 16, kSplitItems, 1, 1), kAny, 8, kAny, kAny, kAny, 1, !kNvfp4, kMxfp4},
    {down({12, 3, 2, 1}, 24, kWholeItems, 1, 1), kAny, kAny, 64, kAny, 200, 1},
    {down({12, 2, 4, 1}, 24, kSplitItems, 1, 1), kAny, kAny, kAny, kAny, 200, 1},
    {down({20, 16, 4, 1}, 24, kSharedItems, 1, 1), kAny, kAny, kAny, kAny, kAny, 1},
};

struct Letter {
  char letter;
  std::int32_t Spec::*field;
};

constexpr Letter kLetters[] = {{'w', &Spec::warps},
                               {'r', &Spec::row_tiles},
                               {'k', &Spec::k_tiles},
                               {'a', &Spec::lookahead},
                               {'c', &Spec::max_columns},
                               {'i', &Spec::whole_items},
                               {'b', &Spec::blocks_per_sm}};

std::string_view recipe_name(const Spec& spec) {
  return recipe_info(spec.group_size == 16 ? Recipe::kW4a16Nvfp4 : Recipe::kW4a16Mxfp4).name;
}

/// Consumes `prefix` from the front of `text`.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) {
    return false;
  }
  text.remove_prefix(prefix.size());
  return true;
}

/// `m12` and the like, at most three digits.
bool take_number(std::string_view& text, char letter, std::int32_t& value) {
  if (text.empty() || text.front() != letter) {
    return false;
  }
  text.remove_prefix(1);
  value = 0;
  std::size_t digits = 0;
  while (digits < text.size() && digits < 3 && text[digits] >= '0' && text[digits] <= '9') {
    value = value * 10 + (text[digits] - '0');
    ++digits;
  }
  text.remove_prefix(digits);
  return digits > 0;
}

/// `decode_gemv.RECIPE.`: the recipe's group size.
std::optional<std::int32_t> take_family(std::string_view& kernel) {
  if (!take(kernel, "decode_gemv.")) {
    return std::nullopt;
  }
  if (take(kernel, recipe_info(Recipe::kW4a16Nvfp4).name)) {
    return take(kernel, ".") ? std::optional(16) : std::nullopt;
  }
  return take(kernel, recipe_info(Recipe::kW4a16Mxfp4).name) && take(kernel, ".")
             ? std::optional(32)
             : std::nullopt;
}

/// What tile_name writes of a variant of the same role.
bool take_tile(std::string_view& kernel, Variant& variant) {
  const bool numbers = std::all_of(
      std::begin(kLetters), std::end(kLetters), [&kernel, &variant](const Letter& part) {
        return take_number(kernel, part.letter, variant.spec.*part.field);
      });
  return numbers && (variant.spec.role == Role::kGateUp ||
                     (take_number(kernel, 'x', variant.cluster) && variant.cluster >= 1 &&
                      variant.cluster <= kMaxCluster));
}

std::string kernel_named(const Spec& spec, std::string role_tile) {
  return plan::make_kernel_name(
      {"decode_gemv", std::string(recipe_name(spec)), std::move(role_tile), "sm90a"});
}

LaunchShape launch_shape(const Variant& variant, const CallShape& shape) {
  LaunchShape launch;
  launch.num_tokens = std::max(shape.num_tokens, 1);
  launch.top_k = shape.top_k;
  launch.num_experts = shape.num_experts;
  launch.hidden = shape.hidden;
  launch.intermediate = shape.intermediate;
  launch.down_group_offset = shape.down_group_offset;
  launch.num_sms = shape.num_sms;
  launch.smem_bytes =
      launch_smem_limit(variant.spec, shape.smem_per_block_bytes, launch.num_tokens * launch.top_k);
  launch.cluster = variant.cluster;
  return launch;
}

std::optional<RoleChoice> sized(const VariantRow& row,
                                const Variant& variant,
                                const CallShape& shape) {
  LaunchShape launch = launch_shape(variant, shape);
  launch.blocks_per_sm = row.grid_blocks_per_sm;
  launch.max_clusters = resident_clusters(shape.num_sms, row.grid_blocks_per_sm, variant.cluster);
  const Geometry geometry = variant.spec.role == Role::kDown
                                ? down_geometry(variant.spec, launch)
                                : gate_up_geometry(variant.spec, launch);
  if (!geometry.fits) {
    return std::nullopt;
  }
  return RoleChoice{variant, geometry.grid, geometry.smem_bytes, false};
}

bool serves(const VariantRow& row, const CallShape& shape) {
  const std::int64_t routes = std::int64_t{shape.num_tokens} * shape.top_k;
  const bool is_down = row.variant.spec.role == Role::kDown;
  const std::int64_t k = is_down ? shape.intermediate + shape.down_group_offset : shape.hidden;
  const std::int64_t k_tiles = device::fp4_k_tiles(k, 0);
  const std::int64_t row_tiles = device::fp4_row_tiles(shape.hidden, 1);
  const std::int64_t unit_bytes = device::fp4_row_tiles(shape.intermediate, shape.num_parts) *
                                  device::fp4_k_tiles(shape.hidden, 0) *
                                  device::fp4_tile_bytes(shape.group_size);
  const std::int64_t active = std::min<std::int64_t>(routes, shape.num_experts);
  return routes <= row.max_routes &&
         (row.max_mean_routes == kAny || routes <= row.max_mean_routes * shape.num_experts) &&
         k_tiles <= row.max_k_tiles &&
         (row.max_row_tiles == kAny || row_tiles * 132 <= row.max_row_tiles * shape.num_sms) &&
         (row.max_megabytes == kAny || active * unit_bytes <= row.max_megabytes * 1'000'000);
}

Variant with_group(Variant variant, std::int32_t group_size) {
  variant.spec.group_size = group_size;
  return variant;
}

}  // namespace

std::string tile_name(const Variant& variant) {
  std::string name;
  for (const Letter& part : kLetters) {
    name += cat(part.letter, variant.spec.*part.field);
  }
  return variant.spec.role == Role::kDown ? cat(name, "x", variant.cluster) : name;
}

std::string kernel_name(const Variant& variant) {
  const bool is_down = variant.spec.role == Role::kDown;
  return kernel_named(variant.spec, cat(is_down ? "down_" : "gate_up_", tile_name(variant)));
}

std::string kernel_name(const ResidentVariant& variant) {
  return kernel_named(variant.gate_up.spec,
                      cat("resident_", tile_name(variant.gate_up), "_", tile_name(variant.down)));
}

std::optional<Variant> variant_from_name(std::string_view kernel) noexcept {
  Variant variant;
  const std::optional<std::int32_t> group_size = take_family(kernel);
  if (!group_size.has_value()) {
    return std::nullopt;
  }
  variant.spec.group_size = *group_size;
  if (take(kernel, "gate_up_")) {
    variant.spec.role = Role::kGateUp;
  } else if (take(kernel, "down_")) {
    variant.spec.role = Role::kDown;
  } else {
    return std::nullopt;
  }
  if (!take_tile(kernel, variant) || kernel != ".sm90a" || why_invalid(variant.spec) != nullptr) {
    return std::nullopt;
  }
  return variant;
}

std::optional<ResidentVariant> resident_from_name(std::string_view kernel) noexcept {
  ResidentVariant variant;
  const std::optional<std::int32_t> group_size = take_family(kernel);
  if (!group_size.has_value() || !take(kernel, "resident_")) {
    return std::nullopt;
  }
  variant.gate_up.spec.group_size = variant.down.spec.group_size = *group_size;
  variant.down.spec.role = Role::kDown;
  if (!take_tile(kernel, variant.gate_up) || !take(kernel, "_") ||
      !take_tile(kernel, variant.down) || kernel != ".sm90a" ||
      why_invalid(variant.spec()) != nullptr) {
    return std::nullopt;
  }
  return variant;
}

std::span<const VariantRow> variant_rows(Role role) noexcept {
  return role == Role::kGateUp ? std::span<const VariantRow>(kGateUpRows)
                               : std::span<const VariantRow>(kDownRows);
}

std::string_view variant_source() noexcept {
  return kSource;
}

CallShape call_shape(const Problem& problem,
                     const DeviceDescriptor& device,
                     std::int64_t down_group_offset) {
  CallShape shape;
  shape.num_tokens = static_cast<std::int32_t>(problem.num_tokens);
  shape.top_k = static_cast<std::int32_t>(problem.top_k);
  shape.num_experts = static_cast<std::int32_t>(problem.num_experts);
  shape.hidden = static_cast<std::int32_t>(problem.hidden_size);
  shape.intermediate = static_cast<std::int32_t>(problem.intermediate_size);
  shape.num_parts = activation_is_gated(problem.activation.kind) ? 2 : 1;
  shape.group_size = problem.recipe == Recipe::kW4a16Mxfp4 ? 32 : 16;
  shape.down_group_offset = static_cast<std::int32_t>(down_group_offset);
  shape.num_sms = static_cast<std::int32_t>(device.num_sms);
  shape.smem_per_block_bytes = static_cast<std::int32_t>(device.smem_per_block_bytes);
  return shape;
}

bool same_launch(const RoleChoice& a, const RoleChoice& b) noexcept {
  const Spec& left = a.variant.spec;
  const Spec& right = b.variant.spec;
  return a.grid == b.grid && a.smem_bytes == b.smem_bytes &&
         a.variant.cluster == b.variant.cluster &&
         std::all_of(std::begin(kLetters), std::end(kLetters), [&](const Letter& part) {
           return left.*part.field == right.*part.field;
         });
}

std::optional<RoleChoice> choose_variant(Role role, const CallShape& shape, std::string_view tile) {
  std::optional<RoleChoice> fallback;
  for (const VariantRow& row : variant_rows(role)) {
    const Variant variant = with_group(row.variant, shape.group_size);
    if ((!tile.empty() && tile_name(variant) != tile) || !compiled_for(row, shape.group_size)) {
      continue;
    }
    const bool serving = serves(row, shape);
    if (!serving && fallback.has_value()) {
      continue;
    }
    std::optional<RoleChoice> choice = sized(row, variant, shape);
    if (choice.has_value() && serving) {
      choice->measured = true;
      return choice;
    }
    if (choice.has_value()) {
      fallback = choice;
    }
  }
  return fallback;
}

std::int64_t spill_bytes(const RoleChoice& choice,
                         const CallShape& shape,
                         std::int64_t num_tokens) {
  if (choice.variant.spec.role != Role::kDown) {
    return 0;
  }
  LaunchShape launch = launch_shape(choice.variant, shape);
  launch.num_tokens = static_cast<std::int32_t>(num_tokens);
  launch.max_clusters = choice.grid / choice.variant.cluster;
  return down_geometry(choice.variant.spec, launch).spill_bytes;
}

}  // namespace moekit::kernels::decode_gemv
