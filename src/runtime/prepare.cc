// SPDX-License-Identifier: Apache-2.0

// prepare: validate every scale, pack some experts at a time straight from the source into the
// destination. Nothing is staged, so the memory beyond source and destination is a few hundred
// bytes per thread.

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "moekit/experts.h"

#include "base/border.h"
#include "base/cpu_info.h"
#include "base/huge_pages.h"
#include "base/text.h"
#include "device/numerics/bf16.h"
#include "formats/exact_range.h"
#include "runtime/state.h"

namespace moekit {
namespace {

using base::cat;

constexpr std::string_view kProjectionNames[] = {"gate", "up", "down"};

struct NamedMatrix {
  std::string_view name;
  const WeightMatrix* matrix;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t group_offset;
  std::int64_t row_offset;
};

float load_bias(const BiasView& bias, std::int64_t index) {
  const std::int64_t at = index * bias.stride;
  switch (bias.dtype) {
    case DType::kBf16:
      return device::bf16_to_f32(static_cast<const std::uint16_t*>(bias.data)[at]);
    case DType::kF16:
      return device::f16_to_f32(static_cast<const std::uint16_t*>(bias.data)[at]);
    default:
      return static_cast<const float*>(bias.data)[at];
  }
}

Status check_bias(const BiasView& bias, bool wanted, std::int64_t size, std::string_view name) {
  if (!wanted) {
    return bias.data == nullptr ? Status()
                                : invalid_argument(cat(name, " given, but the problem names none"));
  }
  if (bias.data == nullptr || bias.size != size) {
    return invalid_argument(
        cat(name, " has ", bias.data == nullptr ? 0 : bias.size, " elements, expected ", size));
  }
  if (bias.dtype != DType::kF32 && bias.dtype != DType::kBf16 && bias.dtype != DType::kF16) {
    return invalid_argument(
        cat(name, " has dtype ", dtype_name(bias.dtype), ", expected f32, bf16 or f16"));
  }
  return {};
}

Status check_matrix(const NamedMatrix& named, const Problem& problem) {
  const WeightMatrix& matrix = *named.matrix;
  const Format format = recipe_info(problem.recipe).weights;
  if (matrix.format != format) {
    return invalid_argument(cat(named.name,
                                " is ",
                                format_info(matrix.format).name,
                                ", recipe ",
                                recipe_info(problem.recipe).name,
                                " needs ",
                                format_info(format).name));
  }
  if (matrix.rows != named.rows || matrix.cols != named.cols) {
    return invalid_argument(cat(named.name,
                                " has shape [",
                                matrix.rows,
                                ", ",
                                matrix.cols,
                                "], expected [",
                                named.rows,
                                ", ",
                                named.cols,
                                "]"));
  }
  if (matrix.group_offset != named.group_offset) {
    return invalid_argument(cat(named.name,
                                " begins ",
                                matrix.group_offset,
                                " columns inside a scale group, the plan's ",
                                named.name,
                                " ",
                                named.group_offset,
                                named.name == kProjectionNames[2] ? " (down_group_offset)" : ""));
  }
  if (scale_group_size(matrix) !=
      scale_group_size({.format = format, .group_size = problem.weight_group_size})) {
    return invalid_argument(cat(named.name,
                                " has scale groups of ",
                                scale_group_size(matrix),
                                ", the plan's of ",
                                problem.weight_group_size,
                                " (weight_group_size, 0: the format's own)"));
  }
  if (matrix.group_row_offset != named.row_offset) {
    return invalid_argument(cat(named.name,
                                " begins ",
                                matrix.group_row_offset,
                                " rows inside a scale block, the plan's ",
                                named.row_offset,
                                " (gate_up_row_offset)"));
  }
  if (quantizer_info(recipe_info(problem.recipe).quantizer).needs_input_scale &&
      !matrix.input_scale.has_value()) {
    return invalid_argument(cat(named.name,
                                " has no input scale, recipe ",
                                recipe_info(problem.recipe).name,
                                " needs one (nearest: ",
                                recipe_info(default_recipe(format)).name,
                                ")"));
  }
  return validate_weights(matrix).with_context(named.name);
}

Status check_expert(const Problem& problem, const ExpertWeights& expert) {
  const bool gated = activation_is_gated(problem.activation.kind);
  const std::int64_t inner = problem.intermediate_size;
  const std::int64_t row_offset = problem.gate_up_row_offset;
  const NamedMatrix matrices[] = {
      {kProjectionNames[0], &expert.gate, inner, problem.hidden_size, 0, row_offset},
      {kProjectionNames[1], &expert.up, inner, problem.hidden_size, 0, row_offset},
      {kProjectionNames[2], &expert.down, problem.hidden_size, inner, problem.down_group_offset, 0},
  };
  for (const NamedMatrix& named : matrices) {
    if (named.matrix == &expert.gate && !gated) {
      continue;
    }
    MOEKIT_RETURN_IF_ERROR(check_matrix(named, problem));
  }
  MOEKIT_RETURN_IF_ERROR(
      check_bias(expert.gate_bias, problem.gate_up_bias && gated, inner, "gate bias"));
  MOEKIT_RETURN_IF_ERROR(check_bias(expert.up_bias, problem.gate_up_bias, inner, "up bias"));
  return check_bias(expert.down_bias, problem.down_bias, problem.hidden_size, "down bias");
}

// What the layout cannot hold is refused, never rounded.
Status check_exactness(const plan::PackedLayout& layout, const ExpertWeights& expert) {
  if (layout.gate_up.shape.num_parts == 2) {
    MOEKIT_RETURN_IF_ERROR(
        formats::check_exact_range(*layout.packing, expert.gate).with_context(kProjectionNames[0]));
  }
  MOEKIT_RETURN_IF_ERROR(
      formats::check_exact_range(*layout.packing, expert.up).with_context(kProjectionNames[1]));
  return formats::check_exact_range(*layout.packing, expert.down).with_context(kProjectionNames[2]);
}

void store_biases(const plan::PackedLayout& layout,
                  std::int64_t expert_idx,
                  const ExpertWeights& expert,
                  std::byte* base) {
  const std::pair<std::int64_t, const BiasView*> biases[] = {
      {layout.gate_bias_offset, &expert.gate_bias},
      {layout.up_bias_offset, &expert.up_bias},
      {layout.down_bias_offset, &expert.down_bias},
  };
  for (const auto& [offset, bias] : biases) {
    if (offset < 0) {
      continue;
    }
    auto* out = reinterpret_cast<float*>(base + offset) + expert_idx * bias->size;
    for (std::int64_t i = 0; i < bias->size; ++i) {
      out[i] = load_bias(*bias, i);
    }
  }
}

// gate and up share x, so x has one scale: the larger, which saturates neither.
std::optional<float> x_scale(const ExpertWeights& expert, bool gated) {
  if (!gated || !expert.gate.input_scale.has_value()) {
    return gated ? std::nullopt : expert.up.input_scale;
  }
  return expert.up.input_scale.has_value()
             ? std::optional(std::max(*expert.gate.input_scale, *expert.up.input_scale))
             : std::nullopt;
}

void store_input_scales(const plan::PackedLayout& layout,
                        std::int64_t expert_idx,
                        const ExpertWeights& expert,
                        std::byte* base) {
  if (layout.input_scales_offset < 0) {
    return;
  }
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  auto* scales = reinterpret_cast<float*>(base + layout.input_scales_offset) + expert_idx * 2;
  scales[0] = x_scale(expert, layout.gate_up.shape.num_parts == 2).value_or(kNone);
  scales[1] = expert.down.input_scale.value_or(kNone);
}

// A global of 0 makes a matrix 0 whatever its bytes hold, NaN scales included; what is packed is
// then zero codes and zero scales, a row of `zeros` read again and again.
WeightMatrix without_dormant(const WeightMatrix& matrix, std::span<const std::byte> zeros) {
  WeightMatrix packed = matrix;
  if (matrix.global_scale == 0.0F) {
    packed.codes = zeros.data();
    packed.row_stride_bytes = 0;
    packed.scales = zeros.data();
    packed.scale_row_stride_bytes = 0;
    packed.zero_points = nullptr;
  }
  return packed;
}

/// Where a layer goes, and the row that dormant experts are packed from.
struct Destination {
  std::byte* base;
  std::span<const std::byte> zeros;
};

std::int64_t num_panels(const plan::PackedLayout& layout, const plan::PackedRegion& region) {
  const std::int64_t rows = layout.packing->panel_rows;
  return (region.shape.rows + rows - 1) / rows;
}

/// The longest row of codes of a layer, as zeros.
std::vector<std::byte> zero_row(const plan::PackedLayout& layout) {
  const std::int64_t longest = std::max(layout.gate_up.shape.cols, layout.down.shape.cols);
  return std::vector<std::byte>(
      static_cast<std::size_t>(code_row_bytes(layout.gate_up.shape.format, longest)));
}

// Panels [begin, end) of one expert, gate_up's before down's.
void pack_panels(const plan::PackedLayout& layout,
                 std::int64_t expert_idx,
                 const ExpertWeights& expert,
                 std::pair<std::int64_t, std::int64_t> range,
                 const Destination& out) {
  const bool gated = layout.gate_up.shape.num_parts == 2;
  const std::int64_t gate_up_panels = num_panels(layout, layout.gate_up);
  const auto [begin, end] = range;
  if (begin < gate_up_panels) {
    const WeightMatrix parts[] = {without_dormant(gated ? expert.gate : expert.up, out.zeros),
                                  without_dormant(expert.up, out.zeros)};
    layout.packing->pack(
        std::span<const WeightMatrix>(parts, gated ? 2U : 1U),
        layout.gate_up.shape,
        begin,
        std::min(end, gate_up_panels),
        out.base + layout.gate_up.offset + expert_idx * layout.gate_up.expert_stride_bytes);
  }
  if (end > gate_up_panels) {
    const WeightMatrix down = without_dormant(expert.down, out.zeros);
    layout.packing->pack(
        std::span<const WeightMatrix>(&down, 1),
        layout.down.shape,
        std::max<std::int64_t>(begin - gate_up_panels, 0),
        end - gate_up_panels,
        out.base + layout.down.offset + expert_idx * layout.down.expert_stride_bytes);
  }
}

// Experts [first, last): their panels in one row, split evenly over the pool's threads. A region an
// expert would wait for every thread to be awake twice an expert, 2048 times for a large layer.
void pack_experts(PackedExperts::State& state,
                  const ExpertsSource& source,
                  std::pair<std::int64_t, std::int64_t> experts,
                  std::span<const std::byte> zeros,
                  base::ThreadPool& pool) {
  const plan::PackedLayout& layout = state.layout;
  const Destination out{state.base, zeros};
  const auto [first, last] = experts;
  const std::int64_t each = num_panels(layout, layout.gate_up) + num_panels(layout, layout.down);
  const std::int64_t panels = (last - first) * each;
  pool.parallel([&, first = first](int worker, int num_workers) {
    const std::int64_t end = panels * (worker + 1) / num_workers;
    for (std::int64_t at = panels * worker / num_workers; at < end;) {
      const std::int64_t expert = at / each;
      const std::int64_t stop = std::min(end, (expert + 1) * each);
      pack_panels(layout,
                  first + expert,
                  source.experts[static_cast<std::size_t>(first + expert)],
                  {at - expert * each, stop - expert * each},
                  out);
      at = stop;
    }
  });
}

void store_scalars(const plan::PackedLayout& layout,
                   std::int64_t expert_idx,
                   const ExpertWeights& expert,
                   std::byte* base) {
  const bool gated = layout.gate_up.shape.num_parts == 2;
  auto* globals = reinterpret_cast<float*>(base + layout.globals_offset) + expert_idx * 4;
  globals[0] = gated ? expert.gate.global_scale : 0.0F;
  globals[1] = expert.up.global_scale;
  globals[2] = expert.down.global_scale;
  globals[3] = 0.0F;
  store_input_scales(layout, expert_idx, expert, base);
  store_biases(layout, expert_idx, expert, base);
}

// Experts that one parallel region packs: enough bytes that waking the threads costs nothing beside
// them, few enough that progress is seen and a cancelled call ends soon.
std::int64_t experts_per_region(const plan::PackedLayout& layout) {
  constexpr std::int64_t kRegionBytes = std::int64_t{32} << 20;
  const std::int64_t expert_bytes =
      layout.gate_up.expert_stride_bytes + layout.down.expert_stride_bytes;
  return std::max<std::int64_t>(1, kRegionBytes / std::max<std::int64_t>(1, expert_bytes));
}

Status pack_layer(PackedExperts::State& state,
                  const ExpertsSource& source,
                  const PrepareOptions& options,
                  base::ThreadPool& pool) {
  const plan::PackedLayout& layout = state.layout;
  const std::vector<std::byte> zeros = zero_row(layout);
  state.peak_extra_bytes = static_cast<std::int64_t>(zeros.capacity());
  const auto num_experts = static_cast<std::int64_t>(source.experts.size());
  const std::int64_t step = experts_per_region(layout);
  for (std::int64_t first = 0; first < num_experts; first += step) {
    const std::int64_t last = std::min(num_experts, first + step);
    for (std::int64_t expert = first; expert < last; ++expert) {
      const ExpertWeights& weights = source.experts[static_cast<std::size_t>(expert)];
      MOEKIT_RETURN_IF_ERROR(
          check_expert(state.problem, weights).with_context(cat("expert ", expert)));
      MOEKIT_RETURN_IF_ERROR(check_exactness(layout, weights).with_context(cat("expert ", expert)));
      store_scalars(layout, expert, weights, state.base);
    }
    pack_experts(state, source, {first, last}, zeros, pool);
    for (std::int64_t done = first + 1; done <= last; ++done) {
      if (options.progress && !options.progress({done, num_experts})) {
        return failed_precondition(
            cat("prepare cancelled after ", done, " of ", num_experts, " experts"));
      }
    }
  }
  return {};
}

Status place(const plan::PackedLayout& layout,
             const PrepareOptions& options,
             PackedExperts::State& state) {
  state.bytes = layout.total_bytes;
  if (options.destination.empty()) {
    constexpr auto kAlignment = std::align_val_t{kPackedAlignment};
    auto* memory = static_cast<std::byte*>(
        ::operator new(static_cast<std::size_t>(state.bytes), kAlignment, std::nothrow));
    if (memory == nullptr) {
      return out_of_memory(cat("packed experts need ", state.bytes, " bytes"));
    }
    state.owned = std::shared_ptr<std::byte>(memory, [](std::byte* pointer) {
      ::operator delete (pointer, std::align_val_t{kPackedAlignment});
    });
    state.base = memory;
    base::wish_huge_pages({memory, static_cast<std::size_t>(state.bytes)});
    return {};
  }
  if (static_cast<std::int64_t>(options.destination.size()) < state.bytes) {
    return invalid_argument(cat("destination has ",
                                options.destination.size(),
                                " bytes, packed experts need ",
                                state.bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(options.destination.data()) % kPackedAlignment != 0) {
    return invalid_argument(cat("destination is not aligned to ", kPackedAlignment, " bytes"));
  }
  state.base = options.destination.data();
  return {};
}

}  // namespace

const std::string& PackedExperts::layout_id() const noexcept {
  static const std::string none;
  return state_ == nullptr ? none : state_->layout_id;
}

std::span<const std::byte> PackedExperts::bytes() const noexcept {
  return state_ == nullptr
             ? std::span<const std::byte>()
             : std::span<const std::byte>(state_->base, static_cast<std::size_t>(state_->bytes));
}

std::int64_t PackedExperts::peak_extra_bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->peak_extra_bytes;
}

Result<PackedExperts> prepare(const Plan& plan,
                              const ExpertsSource& source,
                              const PrepareOptions& options) noexcept {
  return base::at_border([&]() -> Result<PackedExperts> {
    const Problem& problem = plan.problem();
    const auto num_experts = static_cast<std::int64_t>(source.experts.size());
    if (num_experts != problem.num_experts) {
      return invalid_argument(
          cat("source has ", num_experts, " experts, the plan needs ", problem.num_experts));
    }
    auto state = std::make_shared<PackedExperts::State>();
    MOEKIT_ASSIGN_OR_RETURN(state->layout, plan::packed_layout(problem, plan->device));
    state->layout_id = state->layout.id;
    state->problem = problem;
    MOEKIT_RETURN_IF_ERROR(place(state->layout, options, *state));
    // Alignment gaps behind the regions get defined bytes, so that equal weights give equal
    // buffers.
    std::memset(state->base + state->layout.globals_offset,
                0,
                static_cast<std::size_t>(state->bytes - state->layout.globals_offset));
    const int threads = options.num_threads > 0 ? options.num_threads : base::detect_cpu().threads;
    MOEKIT_ASSIGN_OR_RETURN(const auto pool, base::ThreadPool::create(threads));
    MOEKIT_RETURN_IF_ERROR(pack_layer(*state, source, options, *pool));
    state->expert_without_input_scale =
        plan::PackedView{&state->layout, state->base}.first_without_input_scales();
    return PackedExperts(std::move(state));
  });
}

}  // namespace moekit
