// SPDX-License-Identifier: Apache-2.0
#pragma once

// What an instruction set contributes to the CPU's expert steps: dot products of packed panels
// with a tile of tokens, loading of their operands, and the activation. One table of functions per
// ISA, one file per table (body_portable.cc, body_avx2.cc, body_avx512.cc, body_amx.cc); everything
// else is written once in expert_steps.cc.

#include <cstddef>
#include <cstdint>

#include "moekit/device.h"
#include "moekit/dtype.h"
#include "moekit/plan.h"
#include "moekit/recipe.h"

#include "device/layout/panel16.h"
#include "device/numerics/activation.h"

namespace moekit::panels {

/// Tokens that one dot call takes at most, over all bodies.
inline constexpr std::int64_t kMaxTileTokens = 64;
inline constexpr std::int64_t kPanelRows = 16;

/// sums[panel][token][row] = Σ_k weight[row, k] * operand[token, k] in f32, block scales applied,
/// globals not.
///
/// Shapes   panels  num_panels consecutive panels of `shape`
///          operand [4 * num_steps, num_tokens, 2]  as interleave wrote it: for each pair of
///                  columns all tokens' pairs, so that the dot products of a tile read one stream
///                  at constant distances. Bodies without interleave: rows as load_operand wrote
///                  them, operand_row_bytes apart, whole lines
///          sums    [num_panels, num_tokens, 16]
/// Numerics k ascending; per scale group one partial sum, then one multiply-add with the scale, or
///          one sum over the exact products of codes and scales (body_amx.cc). The order depends on
///          neither num_tokens nor num_panels, so a token's bits do not depend on who shares its
///          tile
struct DotCall {
  const std::byte* panels = nullptr;
  std::int64_t num_panels = 1;
  const device::Panel16Shape* shape = nullptr;
  const std::byte* operand = nullptr;
  std::int64_t num_tokens = 1;  // 1 to max_tokens of the body
  float* sums = nullptr;
  const float* operand_scales = nullptr;  // [num_tokens, ceil(cols / 128)] or null
  std::int64_t operand_scale_stride = 0;
  std::int64_t operand_row_bytes = 0;  // read where tiles are rows
  /// The panels of this thread's next call, to ask memory for while these end: panel k goes on
  /// where panel k of them begins. Null where nobody knows.
  const std::byte* next_panels = nullptr;
};

/// Columns of activations that share a scale of their own where operands have scales (rule Q8b),
/// counted from the row's first.
inline constexpr std::int64_t kOperandGroupCols = 128;

/// One token's row of activations to round (RNE, to bf16), to quantise, and to lay out for dot
/// calls. Operands are bf16 values whatever the quantiser: code * scale is exact in bf16 for Q4 and
/// Q8, and the payload alone for Q8b.
struct OperandRow {
  const void* source = nullptr;  // [cols]
  DType dtype = DType::kBf16;    // bf16, f16 or f32
  std::int64_t cols = 0;
  Quantizer quantizer = Quantizer::kNone;
  float global = 1.0F;      // Q4: the dequant-side input scale
  float* scales = nullptr;  // Q8b: [ceil(cols / 128)], written
};

struct LoadedRow {
  bool finite = true;   // no element is NaN or infinite
  float factor = 1.0F;  // what sums over this row are to be multiplied with
};

/// intermediate[row] = bf16(activation(h[gate], h[up])),
/// h = input_weight * (sum * global * x_factor) + bias.
struct ActivateCall {
  device::ActivationParams params{};
  const float* gate_sums = nullptr;  // [16]
  const float* up_sums = nullptr;    // [16]; where there is no gate, gate_* carry the one operand
  float gate_global = 1.0F;
  float up_global = 1.0F;
  float x_factor = 1.0F;             // of the loaded row
  const float* gate_bias = nullptr;  // [rows] or null
  const float* up_bias = nullptr;
  float input_weight = 1.0F;
  std::int64_t rows = kPanelRows;  // live rows of this panel
  std::uint16_t* out = nullptr;    // [rows]
};

/// Rows of operands to their places in a tile.
///
/// Shapes   rows [num_rows] of [num_pairs, 2]
///          tile [num_pairs, num_tokens, 2], of which tokens first_token + [0, num_rows) are
///          written
struct InterleaveCall {
  const std::byte* const* rows = nullptr;
  std::int64_t num_rows = 1;
  std::int64_t num_pairs = 0;  // a multiple of 4: whole steps
  std::byte* tile = nullptr;
  std::int64_t first_token = 0;
  std::int64_t num_tokens = 1;
};

/// out[routes[t]][16 p + row] = sums[p][t][row] * global * rows[t].factor [+ bias[16 p + row]].
struct ScaleCall {
  const float* sums = nullptr;  // [num_panels, num_tokens, 16]
  std::int64_t num_panels = 1;
  std::int64_t num_tokens = 1;
  float global = 1.0F;
  const LoadedRow* rows = nullptr;       // [num_tokens]
  const float* bias = nullptr;           // [16 * num_panels] or null
  const std::int32_t* routes = nullptr;  // [num_tokens]
  float* out = nullptr;                  // 16 * num_panels of each route, out_stride apart
  std::int64_t out_stride = 0;
};

/// out[row] = Σ weights[i] * routes[i][row], i ascending from zero, each product rounded.
struct WeightedSumCall {
  const float* const* routes = nullptr;  // [num_routes] rows
  const float* weights = nullptr;        // [num_routes]
  std::int64_t num_routes = 0;
  std::int64_t rows = 0;  // a multiple of 16
  float* out = nullptr;   // [rows]
};

struct Body {
  Isa isa = Isa::kPortable;
  std::int64_t operand_bytes = 0;  // of one operand element
  std::int64_t max_tokens = 0;     // of one dot call
  /// Writes shape's leading zeros, the row, and zeros up to a whole step (a whole line where tiles
  /// are rows).
  LoadedRow (*load_operand)(const OperandRow& row,
                            const device::Panel16Shape& shape,
                            std::byte* operand) = nullptr;
  /// Whether the row as it lies is what load_operand would write; `loaded` is then what it would
  /// return. Null where no row is taken in place.
  bool (*is_operand)(const OperandRow& row,
                     const device::Panel16Shape& shape,
                     LoadedRow* loaded) = nullptr;
  void (*interleave)(const InterleaveCall& call) = nullptr;  // null: tiles are rows
  void (*dot)(const DotCall& call) = nullptr;
  void (*activate)(const ActivateCall& call) = nullptr;
  void (*scale)(const ScaleCall& call) = nullptr;
  void (*weighted_sum)(const WeightedSumCall& call) = nullptr;
  /// RNE, NaN stays NaN.
  void (*round_to_bf16)(const float* values, std::int64_t count, std::uint16_t* out) = nullptr;
  /// Gives back what dot calls hold of the thread's state; null where they hold nothing.
  void (*finish)() = nullptr;
  /// The body of elements with f32 scales; null: this one.
  const Body* wide_scales = nullptr;
  /// The body of 4-bit codes; null: this one.
  const Body* codes = nullptr;
  /// What decoding a panel costs, in tokens' dot products, and what a panel costs at least, since
  /// it has to be read.
  std::int64_t panel_cost = 2;
  std::int64_t least_panel_cost = 0;
};

/// Room for an operand element in every body's tiles: plans do not know which of two bodies of one
/// ISA a processor prefers.
inline constexpr std::int64_t kMostOperandBytes = 4;

extern const Body kPortableBody;
extern const Body kAvx2Body;  // only where the compiler targets x86-64
extern const Body kAvx2VnniBody;
extern const Body kAvx512Body;  // only where the compiler targets x86-64
extern const Body kAvx512DigitBody;
extern const Body kAmxBody;        // only where the compiler targets x86-64
extern const Body kAmxDirectBody;  // only where the compiler targets x86-64

/// What plans count with; tiles are the same for every body of an ISA.
[[nodiscard]] const Body& body_for(Isa isa) noexcept;

/// What this processor runs plans of `isa` with in an execution family.
[[nodiscard]] const Body& running_body(Isa isa, ExecutionFamily family) noexcept;

/// The body that serves panels of `element` where a step names `body`.
[[nodiscard]] inline const Body& body_of(const Body& body,
                                         device::Panel16Element element) noexcept {
  const Body* own = device::panel16_has_wide_scales(element)       ? body.wide_scales
                    : device::panel16_own_group_cols(element) != 0 ? body.codes
                                                                   : nullptr;
  return own != nullptr ? *own : body;
}

}  // namespace moekit::panels
