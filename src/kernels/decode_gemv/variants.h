// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which compiled kernels the family has for sm_90a, how their names are written and read, and which
// of them serves what: tables whose rows name their source.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "moekit/device.h"
#include "moekit/problem.h"

#include "kernels/decode_gemv/spec.h"

namespace moekit::kernels::decode_gemv {

/// A Spec and the cluster it is launched in; the code does not depend on the latter.
struct Variant {
  Spec spec{};
  std::int32_t cluster = 1;  // blocks that share output rows of down
};

/// `w24r1k4a2c8i0b1`, and `x2` behind it for down: Spec's numbers in the order of its fields.
[[nodiscard]] std::string tile_name(const Variant& variant);

/// `decode_gemv.w4a16_nvfp4.down_w24r1k4a2c8i0b1x2.sm90a`
[[nodiscard]] std::string kernel_name(const Variant& variant);

/// The inverse of kernel_name; empty for any other text.
///
/// Effects  no allocation: launches call it
[[nodiscard]] std::optional<Variant> variant_from_name(std::string_view kernel) noexcept;

/// Both roles in one cooperative launch, in clusters where down's is. Bits are those of the two.
struct ResidentVariant {
  Variant gate_up{};
  Variant down{};

  [[nodiscard]] constexpr ResidentSpec spec() const { return {gate_up.spec, down.spec}; }
};

/// `decode_gemv.w4a16_nvfp4.resident_w24r1k4a2c8i0b1_w24r1k4a2c8i0b1x2.sm90a`, and its inverse.
[[nodiscard]] std::string kernel_name(const ResidentVariant& variant);
[[nodiscard]] std::optional<ResidentVariant> resident_from_name(std::string_view kernel) noexcept;

/// Makes x of another type BF16.
inline constexpr std::string_view kCastKernel = "decode_gemv.any.cast_t256.sm90a";

/// Pairs that kernels exist of: of few tokens, where a launch is a part of the time.
inline constexpr std::int32_t kResidentColumns = 8;

[[nodiscard]] constexpr bool pairs_with(const Variant& gate_up, const Variant& down) {
  // No row serves a call by routes in down alone.
  return gate_up.spec.max_columns == kResidentColumns &&
         down.spec.max_columns == kResidentColumns &&
         (takes_routes(gate_up.spec) || !takes_routes(down.spec));
}

/// A compiled variant and where it wins.
struct VariantRow {
  Variant variant;
  // Serves calls of at most this many routes, this many per expert in the mean, and layers of at
  // most this K (in tiles of 64) and this many output rows (in tiles of 16, at 132 SMs).
  std::int64_t max_routes;
  std::int64_t max_mean_routes;
  std::int64_t max_k_tiles;
  std::int64_t max_row_tiles;
  std::int64_t max_megabytes;       // gate_up: of the active experts' weights
  std::int32_t grid_blocks_per_sm;  // fewer than the registers allow leave room for the next launch
  bool nvfp4 = true;                // compiled for
  bool mxfp4 = true;
};

/// In order of preference. Specs are of nvfp4; mxfp4 has the same with its group size.
[[nodiscard]] std::span<const VariantRow> variant_rows(Role role) noexcept;

/// Whether the kernel of `row` is compiled for scales of groups of `group_size`.
[[nodiscard]] constexpr bool compiled_for(const VariantRow& row, std::int32_t group_size) {
  return group_size == 32 ? row.mxfp4 : row.nvfp4;
}

/// Where the rows of a role were measured.
[[nodiscard]] std::string_view variant_source() noexcept;

/// The kernels of one role that serve a call, and how they are launched.
struct RoleChoice {
  Variant variant{};
  std::int32_t grid = 0;
  std::int32_t smem_bytes = 0;
  bool measured = false;  // within the bounds of its row
};

/// The same kernel, launched the same way.
[[nodiscard]] bool same_launch(const RoleChoice& a, const RoleChoice& b) noexcept;

/// A call as the tables see it.
struct CallShape {
  std::int32_t num_tokens = 0;
  std::int32_t top_k = 0;
  std::int32_t num_experts = 0;
  std::int32_t hidden = 0;
  std::int32_t intermediate = 0;
  std::int32_t num_parts = 2;
  std::int32_t group_size = 16;
  std::int32_t down_group_offset = 0;
  std::int32_t num_sms = 0;
  std::int32_t smem_per_block_bytes = 0;
};

[[nodiscard]] CallShape call_shape(const Problem& problem,
                                   const DeviceDescriptor& device,
                                   std::int64_t down_group_offset);

/// The first row that serves the call and fits in shared memory, else the first that fits. `tile`
/// pins one by tile_name. Empty where nothing fits.
[[nodiscard]] std::optional<RoleChoice> choose_variant(Role role,
                                                       const CallShape& shape,
                                                       std::string_view tile = {});

/// Workspace that `choice` may write beyond shared memory in a call of `num_tokens`.
[[nodiscard]] std::int64_t spill_bytes(const RoleChoice& choice,
                                       const CallShape& shape,
                                       std::int64_t num_tokens);

}  // namespace moekit::kernels::decode_gemv
