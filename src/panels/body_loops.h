// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loops of every body, written once over a policy that knows one instruction set. Included by
// the body_*.cc files alone; everything lives in the ISA's inline namespace so that no instance is
// shared between files with different -m flags.
//
// A policy `Simd` provides
//   Operand                       element type of operands (u16 bits of bf16, or float)
//   Sums                          partial sums of one part of a panel
//   kParts                        parts that a panel's 16 rows are cut into
//   kPartsTogether<T>             parts whose sums fit the registers at once for T tokens
//   Constants                     tables and masks, made once per panel
//   kMaxTokens
//   kGroupsTogether<T>            scale groups of a whole block of codes that are summed side by
//                                 side; 0: one part of one group after the other, by add_codes
//   add_groups<C, G, T>(constants, line, x, sums[G * kParts][T])   += 8 columns of codes of all
//                                 parts of G groups of C columns, the first group's given
//   zero()                        Sums
//   add_codes<P, T>(constants, line, x, sums[P][T])   += 8 columns of codes of P parts
//   add_bf16<T>(lines, part, x, sums[T])              += 8 columns of bf16
//   scale<Element>(bytes, part)   a Scale from 16 stored scale bytes
//   zero_points<Element>(words, part), wide_scale<Element>(words, part)   from 16 stored f32 words
//   add_int4<T>(lines, part, zeros, x, sums[T]), add_e4m3<T>(...)   += 8 columns, in the
//                                 order of sums that wide_scale<Element> knows
//   scaled(sums, factor)          sums * factor
//   multiply_add(sums, scale, total)  total + sums * scale
//   store_codes, store_bf16, store_wide<Element>(sums, part, out)   the 16 / kParts row sums of
//                                 this part, at its rows
//   load_codes(out, part)         what store_codes stored; where kGroupsTogether is not 0

#include <cstring>
#include <utility>

#include "device/numerics/bf16.h"
#include "panels/body.h"
#include "panels/call_stream.h"
#include "panels/operand_rows.h"

namespace moekit::panels {
inline namespace MOEKIT_ISA {

using device::i64;
using device::kPanel16LineBytes;
using device::kPanel16StepCols;
using device::Panel16Element;
using device::Panel16Shape;
using device::u16;

/// Where the first operand of (pair of columns, token) lies in a tile: DotCall's order.
template <int kTokens>
constexpr i64 operand_at(i64 pair, int token) {
  return 2 * (pair * kTokens + token);
}

template <typename Simd, int kTokens>
struct TileSums {
  typename Simd::Sums at[kTokens];
};

template <typename Simd, int kTokens>
TileSums<Simd, kTokens> zero_tile() {
  TileSums<Simd, kTokens> tile;
  for (int t = 0; t < kTokens; ++t) {
    tile.at[t] = Simd::zero();
  }
  return tile;
}

/// One scale group, or what the shard holds of it, of the parts that are summed together.
template <typename Simd>
struct Group {
  const std::byte* lines;   // of its first step, at the first of the parts
  const std::byte* scales;  // of its first row
  i64 steps;
  const typename Simd::Operand* x;
  bool is_first_part;  // the one that asks for memory
  Ahead ahead;
};

/// Sums the group from zero, scales, and adds to the totals.
template <typename Simd, Panel16Element kElement, int kTokens>
void add_group(const typename Simd::Constants& constants,
               const Group<Simd>& group,
               TileSums<Simd, kTokens>* total) {
  constexpr int kTogether = Simd::template kPartsTogether<kTokens>;
  TileSums<Simd, kTokens> sums[kTogether];
  for (int part = 0; part < kTogether; ++part) {
    sums[part] = zero_tile<Simd, kTokens>();
  }
  for (i64 step = 0; step < group.steps; ++step) {
    if (group.is_first_part) {
      prefetch(group.lines + step * kPanel16LineBytes, group.ahead);
    }
    Simd::template add_codes<kTogether, kTokens>(constants,
                                                 group.lines + step * kPanel16LineBytes,
                                                 group.x + step * kPanel16StepCols * kTokens,
                                                 sums);
  }
  for (int part = 0; part < kTogether; ++part) {
    const typename Simd::Scale scale = Simd::template scale<kElement>(group.scales, part);
    for (int t = 0; t < kTokens; ++t) {
      total[part].at[t] = Simd::multiply_add(sums[part].at[t], scale, total[part].at[t]);
    }
  }
}

/// A whole block of codes: `kPanel16BlockGroups` whole groups.
template <typename Simd>
struct Block {
  const std::byte* lines;   // of its first step
  const std::byte* scales;  // of its first group
  const typename Simd::Operand* x;
  Ahead ahead;
};

/// Sums several groups side by side. Each starts from zero and the totals take them in ascending
/// order, so that no bit differs from one group after the other.
template <typename Simd, Panel16Element kElement, int kTokens>
void add_block(const typename Simd::Constants& constants,
               const Block<Simd>& block,
               TileSums<Simd, kTokens>* total) {
  constexpr int kGroups = Simd::template kGroupsTogether<kTokens>;
  constexpr i64 kGroupCols = device::panel16_own_group_cols(kElement);
  constexpr i64 kGroupSteps = kGroupCols / kPanel16StepCols;
  constexpr i64 kPartRows = device::kPanel16Rows / Simd::kParts;
  for (i64 first = 0; first < device::kPanel16BlockGroups; first += kGroups) {
    TileSums<Simd, kTokens> sums[kGroups * Simd::kParts];
    for (TileSums<Simd, kTokens>& tile : sums) {
      tile = zero_tile<Simd, kTokens>();
    }
    const std::byte* lines = block.lines + first * kGroupSteps * kPanel16LineBytes;
    const typename Simd::Operand* x = block.x + first * kGroupCols * kTokens;
    for (i64 step = 0; step < kGroupSteps; ++step) {
      for (i64 group = 0; group < kGroups; ++group) {
        prefetch(lines + (group * kGroupSteps + step) * kPanel16LineBytes, block.ahead);
      }
      Simd::template add_groups<kGroupCols, kGroups, kTokens>(
          constants, lines + step * kPanel16LineBytes, x + step * kPanel16StepCols * kTokens, sums);
    }
    for (int i = 0; i < kGroups * Simd::kParts; ++i) {
      const i64 group = first + i / Simd::kParts;
      const int part = i % Simd::kParts;
      const typename Simd::Scale scale = Simd::template scale<kElement>(
          block.scales + group * device::kPanel16Rows + part * kPartRows, 0);
      for (int t = 0; t < kTokens; ++t) {
        total[part].at[t] = Simd::multiply_add(sums[i].at[t], scale, total[part].at[t]);
      }
    }
  }
}

/// The groups of one block that lie in [step, last), one after the other.
template <typename Simd, Panel16Element kElement, int kTokens>
void add_some_groups(const typename Simd::Constants& constants,
                     const Panel16Shape& shape,
                     Block<Simd> block,
                     i64 step,
                     i64 last,
                     TileSums<Simd, kTokens>* total) {
  constexpr i64 kOwnGroupSteps = device::panel16_own_group_cols(kElement) / kPanel16StepCols;
  constexpr int kTogether = Simd::template kPartsTogether<kTokens>;
  constexpr i64 kPartRows = device::kPanel16Rows / Simd::kParts;
  constexpr i64 kPartBytes = kPanel16LineBytes / Simd::kParts;
  const i64 group_steps = device::panel16_group_cols(shape) / kPanel16StepCols;
  while (step < last) {
    const i64 left = device::round_up(step + 1, group_steps) - step;
    const i64 steps = left < last - step ? left : last - step;
    for (i64 part = 0; part < Simd::kParts; part += kTogether) {
      Group<Simd> group{block.lines + part * kPartBytes,
                        block.scales + part * kPartRows,
                        steps,
                        block.x,
                        part == 0,
                        block.ahead};
      if (steps == kOwnGroupSteps) {
        group.steps = kOwnGroupSteps;  // the common case: a constant trip count unrolls
        add_group<Simd, kElement, kTokens>(constants, group, total + part);
      } else {
        add_group<Simd, kElement, kTokens>(constants, group, total + part);
      }
    }
    block.scales += device::kPanel16Rows;
    block.lines += steps * kPanel16LineBytes;
    block.x += steps * kPanel16StepCols * kTokens;
    step += steps;
  }
}

template <typename Simd, int kTokens>
void store_tile(const TileSums<Simd, kTokens>* total, float* sums) {
  for (int t = 0; t < kTokens; ++t) {
    for (i64 part = 0; part < Simd::kParts; ++part) {
      Simd::store_codes(total[part].at[t], part, sums + t * kPanelRows);
    }
  }
}

template <typename Simd, int kTokens>
void load_tile(const float* sums, TileSums<Simd, kTokens>* total) {
  for (int t = 0; t < kTokens; ++t) {
    for (i64 part = 0; part < Simd::kParts; ++part) {
      total[part].at[t] = Simd::load_codes(sums + t * kPanelRows, part);
    }
  }
}

template <Panel16Element kElement>
constexpr i64 kBlockSteps =
    device::kPanel16BlockGroups* device::panel16_own_group_cols(kElement) / kPanel16StepCols;

/// Whether a body sums whole blocks of an element's codes side by side.
template <typename Simd, Panel16Element kElement, int kTokens>
constexpr bool is_read_by_blocks() {
  if constexpr (kElement == Panel16Element::kBf16 || device::panel16_has_wide_scales(kElement)) {
    return false;
  } else {
    return Simd::template kGroupsTogether<kTokens> > 0;
  }
}

/// Whether a block of the element's own groups begins at a step of the panel.
template <Panel16Element kElement>
bool begins_block(const Panel16Shape& shape, i64 step) {
  return device::panel16_steps_per_block(shape) == kBlockSteps<kElement> &&
         step % kBlockSteps<kElement> == 0;
}

template <typename Simd>
struct BlockRun {
  const std::byte* panels;
  i64 num_panels;
  i64 panel_bytes;
  i64 num_blocks;  // whole ones, of each panel
  const typename Simd::Operand* x;
  bool more;  // to what stands in the sums
};

/// Whole blocks of neighbouring panels. A function of its own: beside the loop over groups of any
/// size g++ 12 keeps the totals in memory too and stores all of them for every group.
template <typename Simd, Panel16Element kElement, int kTokens>
[[gnu::noinline]] void dot_blocks(const BlockRun<Simd>& run,
                                  const CallStream& stream,
                                  float* sums) {
  const typename Simd::Constants constants = Simd::constants();
  for (i64 i = 0; i < run.num_panels; ++i, sums += kTokens * kPanelRows) {
    TileSums<Simd, kTokens> total[Simd::kParts];
    for (i64 part = 0; part < Simd::kParts; ++part) {
      total[part] = zero_tile<Simd, kTokens>();
    }
    if (run.more) {
      load_tile<Simd, kTokens>(sums, total);
    }
    const std::byte* panel = run.panels + i * run.panel_bytes;
    const typename Simd::Operand* x = run.x;
    for (i64 block = 0; block < run.num_blocks; ++block) {
      const Ahead ahead = stream.from(panel);
      prefetch(panel, ahead);
      add_block<Simd, kElement, kTokens>(
          constants, {panel + kPanel16LineBytes, panel, x, ahead}, total);
      panel += (1 + kBlockSteps<kElement>)*kPanel16LineBytes;
      x += kBlockSteps<kElement> * kPanel16StepCols * kTokens;
    }
    store_tile<Simd, kTokens>(total, sums);
  }
}

template <typename Simd, Panel16Element kElement, int kTokens>
void dot_code_panel(const std::byte* panel,
                    const Panel16Shape& shape,
                    const CallStream& stream,
                    const typename Simd::Operand* x,
                    float* sums) {
  const i64 group_steps = device::panel16_group_cols(shape) / kPanel16StepCols;
  const i64 block_steps = device::panel16_steps_per_block(shape);
  const typename Simd::Constants constants = Simd::constants();
  TileSums<Simd, kTokens> total[Simd::kParts];
  for (i64 part = 0; part < Simd::kParts; ++part) {
    total[part] = zero_tile<Simd, kTokens>();
  }
  i64 step = device::panel16_first_step(shape);
  const i64 end = step + device::panel16_num_steps(shape);
  while (step < end) {
    if constexpr (is_read_by_blocks<Simd, kElement, kTokens>()) {
      const i64 blocks = (end - step) / kBlockSteps<kElement>;
      if (begins_block<kElement>(shape, step) && blocks > 0) {
        store_tile<Simd, kTokens>(total, sums);
        dot_blocks<Simd, kElement, kTokens>({panel, 1, 0, blocks, x, true}, stream, sums);
        load_tile<Simd, kTokens>(sums, total);
        panel += blocks * (1 + block_steps) * kPanel16LineBytes;
        x += blocks * block_steps * kPanel16StepCols * kTokens;
        step += blocks * block_steps;
        continue;
      }
    }
    const std::byte* scales = panel + (step % block_steps) / group_steps * device::kPanel16Rows;
    const Ahead ahead = stream.from(panel);
    prefetch(panel, ahead);
    panel += kPanel16LineBytes;
    const i64 block_end = device::round_up(step + 1, block_steps);
    const i64 last = block_end < end ? block_end : end;
    const Block<Simd> block{panel, scales, x, ahead};
    add_some_groups<Simd, kElement, kTokens>(constants, shape, block, step, last, total);
    panel += (last - step) * kPanel16LineBytes;
    x += (last - step) * kPanel16StepCols * kTokens;
    step = last;
  }
  store_tile<Simd, kTokens>(total, sums);
}

// Scales of the activations' own groups: f32 [num_tokens, groups], null where they have none.
struct OperandScales {
  const float* values = nullptr;
  i64 stride = 0;
};

// Elements with f32 scales. Sums run to the end of the weights' group or of the activations',
// whichever comes first, since a shard's groups need not begin together.
template <typename Simd, Panel16Element kElement, int kTokens>
void dot_wide_panel(const std::byte* panel,
                    const Panel16Shape& shape,
                    const CallStream& stream,
                    const typename Simd::Operand* x,
                    const OperandScales& operand_scales,
                    float* sums) {
  constexpr i64 kStepBytes = device::panel16_step_bytes(kElement);
  constexpr i64 kOperandGroupSteps = kOperandGroupCols / kPanel16StepCols;
  const i64 group_steps = device::panel16_group_cols(shape) / kPanel16StepCols;
  TileSums<Simd, kTokens> total[Simd::kParts];
  for (i64 part = 0; part < Simd::kParts; ++part) {
    total[part] = zero_tile<Simd, kTokens>();
  }
  const i64 first = device::panel16_first_step(shape);
  const i64 end = first + device::panel16_num_steps(shape);
  const std::byte* scales = panel;
  for (i64 step = first; step < end;) {
    if (step == first || step % group_steps == 0) {
      scales = panel;
      panel += kPanel16LineBytes;
    }
    const i64 operand_group = (step - first) / kOperandGroupSteps;
    i64 last = device::round_up(step + 1, group_steps);
    last = last < end ? last : end;
    const i64 operand_end = first + (operand_group + 1) * kOperandGroupSteps;
    last = operand_scales.values != nullptr && operand_end < last ? operand_end : last;
    const i64 steps = last - step;
    const Ahead ahead = stream.from(panel);
    for (i64 part = 0; part < Simd::kParts; ++part) {
      const auto zeros = Simd::template zero_points<kElement>(scales, part);
      TileSums<Simd, kTokens> sum = zero_tile<Simd, kTokens>();
      for (i64 i = 0; i < steps; ++i) {
        const std::byte* lines = panel + i * kStepBytes;
        for (i64 at = 0; part == 0 && at < kStepBytes; at += kPanel16LineBytes) {
          prefetch(lines + at, ahead);
        }
        if constexpr (kElement == Panel16Element::kInt4) {
          Simd::template add_int4<kTokens>(
              lines, part, zeros, x + i * kPanel16StepCols * kTokens, sum.at);
        } else {
          Simd::template add_e4m3<kTokens>(lines, part, x + i * kPanel16StepCols * kTokens, sum.at);
        }
      }
      const typename Simd::Scale scale = Simd::template wide_scale<kElement>(scales, part);
      for (int t = 0; t < kTokens; ++t) {
        // The activations' scale first: a product of two small scales would leave f32's normal
        // range where the sum that they scale does not.
        const float* own = operand_scales.values;
        if (own != nullptr) {
          sum.at[t] = Simd::scaled(sum.at[t], own[t * operand_scales.stride + operand_group]);
        }
        total[part].at[t] = Simd::multiply_add(sum.at[t], scale, total[part].at[t]);
      }
    }
    panel += steps * kStepBytes;
    x += steps * kPanel16StepCols * kTokens;
    step = last;
  }
  for (int t = 0; t < kTokens; ++t) {
    for (i64 part = 0; part < Simd::kParts; ++part) {
      Simd::template store_wide<kElement>(total[part].at[t], part, sums + t * kPanelRows);
    }
  }
}

template <typename Simd, int kTokens>
void dot_bf16_panel(const std::byte* panel,
                    const Panel16Shape& shape,
                    const CallStream& stream,
                    const typename Simd::Operand* x,
                    float* sums) {
  TileSums<Simd, kTokens> total[Simd::kParts];
  for (i64 part = 0; part < Simd::kParts; ++part) {
    total[part] = zero_tile<Simd, kTokens>();
  }
  i64 left = device::panel16_num_steps(shape);
  while (left > 0) {
    const i64 steps = left < kChunkSteps ? left : kChunkSteps;
    const Ahead ahead = stream.from(panel);
    for (i64 part = 0; part < Simd::kParts; ++part) {
      TileSums<Simd, kTokens> sum = total[part];
      for (i64 step = 0; step < steps; ++step) {
        for (i64 line = 0; part == 0 && line < 4; ++line) {
          prefetch(panel + (step * 4 + line) * kPanel16LineBytes, ahead);
        }
        Simd::template add_bf16<kTokens>(panel + step * 4 * kPanel16LineBytes,
                                         part,
                                         x + step * kPanel16StepCols * kTokens,
                                         sum.at);
      }
      total[part] = sum;
    }
    panel += steps * 4 * kPanel16LineBytes;
    x += steps * kPanel16StepCols * kTokens;
    left -= steps;
  }
  for (int t = 0; t < kTokens; ++t) {
    for (i64 part = 0; part < Simd::kParts; ++part) {
      Simd::store_bf16(total[part].at[t], part, sums + t * kPanelRows);
    }
  }
}

template <typename Simd, Panel16Element kElement, int kTokens>
void dot_panels(const DotCall& call) {
  const auto* x = reinterpret_cast<const typename Simd::Operand*>(call.operand);
  const i64 panel_bytes = device::panel16_panel_bytes(*call.shape);
  const CallStream stream(call, stream_block_bytes(*call.shape));
  if constexpr (is_read_by_blocks<Simd, kElement, kTokens>()) {
    const i64 steps = device::panel16_num_steps(*call.shape);
    if (begins_block<kElement>(*call.shape, device::panel16_first_step(*call.shape)) &&
        steps % kBlockSteps<kElement> == 0) {
      const BlockRun<Simd> run{
          call.panels, call.num_panels, panel_bytes, steps / kBlockSteps<kElement>, x, false};
      return dot_blocks<Simd, kElement, kTokens>(run, stream, call.sums);
    }
  }
  for (i64 panel = 0; panel < call.num_panels; ++panel) {
    const std::byte* bytes = call.panels + panel * panel_bytes;
    float* sums = call.sums + panel * kTokens * kPanelRows;
    if constexpr (kElement == Panel16Element::kBf16) {
      dot_bf16_panel<Simd, kTokens>(bytes, *call.shape, stream, x, sums);
    } else if constexpr (device::panel16_has_wide_scales(kElement)) {
      dot_wide_panel<Simd, kElement, kTokens>(
          bytes, *call.shape, stream, x, {call.operand_scales, call.operand_scale_stride}, sums);
    } else {
      dot_code_panel<Simd, kElement, kTokens>(bytes, *call.shape, stream, x, sums);
    }
  }
}

template <typename Simd, Panel16Element kElement, int... kTokens>
void dot_tokens(const DotCall& call, std::integer_sequence<int, kTokens...> /*tokens less one*/) {
  using Function = void (*)(const DotCall&);
  static constexpr Function kByTokens[] = {dot_panels<Simd, kElement, kTokens + 1>...};
  kByTokens[call.num_tokens - 1](call);
}

template <typename Simd>
void dot(const DotCall& call) {
  constexpr auto kTokens = std::make_integer_sequence<int, Simd::kMaxTokens>();
  switch (call.shape->element) {
    case Panel16Element::kBf16:
      return dot_tokens<Simd, Panel16Element::kBf16>(call, kTokens);
    case Panel16Element::kNvfp4:
      return dot_tokens<Simd, Panel16Element::kNvfp4>(call, kTokens);
    case Panel16Element::kMxfp4:
      return dot_tokens<Simd, Panel16Element::kMxfp4>(call, kTokens);
    case Panel16Element::kInt4:
      return dot_tokens<Simd, Panel16Element::kInt4>(call, kTokens);
    case Panel16Element::kE4m3:
      return dot_tokens<Simd, Panel16Element::kE4m3>(call, kTokens);
  }
}

// Constant counts of 16 rows: the loops become vectors.
inline void scale(const ScaleCall& call) {
  for (i64 t = 0; t < call.num_tokens; ++t) {
    const float factor = call.rows[t].factor;
    const float* sums = call.sums + t * kPanelRows;
    float* out = call.out + call.routes[t] * call.out_stride;
    for (i64 first = 0; first < call.num_panels * kPanelRows; first += kPanelRows) {
      float values[kPanelRows];
      for (i64 row = 0; row < kPanelRows; ++row) {
        values[row] = sums[first * call.num_tokens + row] * call.global * factor;
      }
      for (i64 row = 0; call.bias != nullptr && row < kPanelRows; ++row) {
        values[row] += call.bias[first + row];
      }
      std::memcpy(out + first, values, sizeof(values));
    }
  }
}

inline void weighted_sum(const WeightedSumCall& call) {
  for (i64 first = 0; first < call.rows; first += kPanelRows) {
    float total[kPanelRows] = {};
    for (i64 i = 0; i < call.num_routes; ++i) {
      const float weight = call.weights[i];
      const float* route = call.routes[i] + first;
      for (i64 row = 0; row < kPanelRows; ++row) {
        total[row] += weight * route[row];
      }
    }
    std::memcpy(call.out + first, total, sizeof(total));
  }
}

inline void round_to_bf16(const float* values, i64 count, u16* out) {
  for (i64 i = 0; i < count; ++i) {
    out[i] = device::bf16_from_f32(values[i]);
  }
}

template <device::ActivationKind kKind>
void activate_rows(const ActivateCall& call) {
  device::ActivationParams params = call.params;
  params.kind = kKind;  // a constant: the switch inside activate() leaves the loop
  float gate[kPanelRows];
  float up[kPanelRows];
  for (i64 row = 0; row < kPanelRows; ++row) {
    gate[row] = call.input_weight * (call.gate_sums[row] * call.gate_global * call.x_factor);
    up[row] = call.input_weight * (call.up_sums[row] * call.up_global * call.x_factor);
  }
  for (i64 row = 0; call.gate_bias != nullptr && row < call.rows; ++row) {
    gate[row] += call.gate_bias[row];
  }
  for (i64 row = 0; call.up_bias != nullptr && row < call.rows; ++row) {
    up[row] += call.up_bias[row];
  }
  // Rounded in a loop of its own: next to 16-bit lanes g++ 12 gives up half of every f32 vector.
  float values[kPanelRows];
  for (i64 row = 0; row < kPanelRows; ++row) {
    values[row] = device::activate(params, gate[row], up[row]);
  }
  std::uint16_t out[kPanelRows];
  for (i64 row = 0; row < kPanelRows; ++row) {
    out[row] = device::bf16_from_f32(values[row]);
  }
  if (call.rows == kPanelRows) {
    std::memcpy(call.out, out, sizeof(out));  // of a size that is known: no call
  } else {
    std::memcpy(call.out, out, static_cast<std::size_t>(call.rows) * sizeof(std::uint16_t));
  }
}

inline void activate(const ActivateCall& call) {
  using Kind = device::ActivationKind;
  switch (call.params.kind) {
    case Kind::kSilu:
      return activate_rows<Kind::kSilu>(call);
    case Kind::kSwigluOai:
      return activate_rows<Kind::kSwigluOai>(call);
    case Kind::kSitu:
      return activate_rows<Kind::kSitu>(call);
    case Kind::kGeluTanh:
      return activate_rows<Kind::kGeluTanh>(call);
    case Kind::kRelu2:
      return activate_rows<Kind::kRelu2>(call);
  }
}

/// `load` and `dot_panels`: where a body has operands of its own for some elements.
template <typename Simd>
constexpr Body make_body(Isa isa,
                         decltype(Body::load_operand) load = load_operand<typename Simd::Operand>,
                         decltype(Body::dot) dot_panels = dot<Simd>) {
  static_assert(Simd::kMaxTokens <= kMaxTileTokens);
  static_assert(sizeof(typename Simd::Operand) <= kMostOperandBytes);
  return {isa,
          static_cast<i64>(sizeof(typename Simd::Operand)),
          Simd::kMaxTokens,
          load,
          sizeof(typename Simd::Operand) == sizeof(u16) ? is_bf16_operand : nullptr,
          interleave<typename Simd::Operand>,
          dot_panels,
          activate,
          scale,
          weighted_sum,
          round_to_bf16};
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::panels
