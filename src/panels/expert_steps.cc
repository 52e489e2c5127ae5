// SPDX-License-Identifier: Apache-2.0
#include "panels/expert_steps.h"

#include <algorithm>
#include <limits>

#include "device/numerics/bf16.h"
#include "formats/packing_panel16.h"
#include "panels/combine.h"
#include "panels/routes.h"
#include "panels/shares.h"
#include "recipes/activation_params.h"

namespace moekit::panels {

namespace {

using device::Panel16Shape;
using plan::CpuCall;
using plan::SliceId;

constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kPairsOfStep = device::kPanel16StepCols / 2;
// Neighbouring down panels of one dot call: what a call costs before its first and behind its last
// products is paid once. Fewer where their sums would take more than those of gate and up for the
// largest tile.
constexpr std::int64_t kMostPanelsOfDot = 8;
constexpr std::int64_t kPanelsOfLargestTile = 2;
constexpr std::int64_t kSumsOfDot = kPanelsOfLargestTile * kMaxTileTokens * kPanelRows;
constexpr std::int64_t kKib = 1024;

// Operands of one expert's tokens stay in half an L2, the other half is for panels passing by; on
// machines of many threads all of them together in 8 MiB of workspace. Without a known L2: that of
// the smallest server cores. More rows than the most save nothing: at 64 a weight read again from
// memory costs a hundredth of its dot products.
constexpr std::int64_t kOperandBytesUnknownL2 = 256 * kKib;
constexpr std::int64_t kOperandBytesOfAll = 8 * kKib * kKib;
constexpr std::int64_t kMostOperandRows = 64;
// Sums of the down step: one block of output rows for every route. Each block loads every route's
// row again, which costs about what one or two panels of dot products do (README, 8): 128 panels
// over all workers where 32 MiB hold them, and never less than fits 4 MiB. Sums are written and
// read once, so that they need no L2.
constexpr std::int64_t kRouteSumsBytes = 8 * kKib * kKib;
constexpr std::int64_t kBlockPanelsOfAll = 128;
constexpr std::int64_t kLeastRouteSumsBytesOfAll = 4 * kKib * kKib;
constexpr std::int64_t kMostRouteSumsBytesOfAll = 32 * kKib * kKib;

std::int64_t operand_bytes(std::int64_t cols, std::int64_t element_bytes = kMostOperandBytes) {
  // A step of lead columns at most in front, a step of padding behind.
  const std::int64_t elems = device::round_up(cols, std::int64_t{8}) + 8;
  return device::round_up(elems * element_bytes, kLineBytes);
}

// Behind the operands of a tile come their scales, where the recipe's have any.
std::int64_t operand_row_bytes(std::int64_t cols, Recipe recipe) {
  const bool scaled = recipe_info(recipe).quantizer == Quantizer::kQ8b;
  const std::int64_t groups = scaled ? device::ceil_div(cols, kOperandGroupCols) : 0;
  return operand_bytes(cols) + device::round_up(groups * 4, kLineBytes);
}

// Neighbouring panels of one expert that a worker reads in one go, and what it reads then.
struct PanelRun {
  std::int64_t expert = 0;
  Share panels;
  const std::byte* bytes = nullptr;  // the expert's panel 0
  const std::byte* after = nullptr;  // null: nothing
};

// What both steps need of a call, resolved once.
struct StepContext {
  const CpuCall& call;
  const Body& body;
  Routes routes;
  ScratchLayout scratch;
  Panel16Shape shape;
  Quantizer quantizer;

  StepContext(const CpuCall& step_call,
              const Body& step_body,
              const Routes& step_routes,
              const plan::PackedRegion& region)
      : call(step_call),
        body(body_of(step_body, formats::panel16_shape(region.shape).element)),
        routes(step_routes),
        scratch(
            scratch_layout(step_call.plan->problem, step_call.plan->device, step_call.num_tokens)),
        shape(formats::panel16_shape(region.shape)),
        quantizer(recipe_info(step_call.plan->problem.recipe).quantizer) {}

  /// Scales of the first row of a tile of `num_tokens` at `tile`; null where operands have none.
  [[nodiscard]] float* operand_scales(const std::byte* tile, std::int64_t num_tokens) const {
    const std::int64_t offset = num_tokens * operand_bytes(shape.cols);
    return quantizer != Quantizer::kQ8b
               ? nullptr
               : reinterpret_cast<float*>(const_cast<std::byte*>(tile) + offset);
  }

  /// From one row's scales to the next one's.
  [[nodiscard]] std::int64_t operand_scale_stride() const {
    return device::ceil_div(shape.cols, kOperandGroupCols);
  }

  /// From one row to the next where tiles are rows. An odd number of lines where the columns are a
  /// multiple of 64, so that a tile's rows fall into different sets of L1.
  [[nodiscard]] std::int64_t operand_row_bytes() const {
    return operand_bytes(shape.cols, body.operand_bytes);
  }

  /// The expert at or behind `expert` that has routes; num_experts where none has.
  [[nodiscard]] std::int64_t active_expert(std::int64_t expert) const {
    while (expert < routes.num_experts && routes.offsets[expert] == routes.offsets[expert + 1]) {
      ++expert;
    }
    return expert;
  }

  [[nodiscard]] std::byte* worker_scratch(std::int64_t worker) const {
    return call.slice<std::byte>(SliceId::kScratch) + worker * scratch.worker_bytes;
  }

  /// Rows of one tile before they are interleaved.
  [[nodiscard]] std::byte* spare_rows(std::int64_t worker) const {
    return worker_scratch(worker) + scratch.operand_rows * scratch.operand_row_bytes;
  }

  [[nodiscard]] float* route_sums(std::int64_t worker) const {
    return reinterpret_cast<float*>(spare_rows(worker) +
                                    scratch.spare_rows * scratch.operand_row_bytes);
  }
};

// The routes of one expert that are worked on together, with their operands loaded.
struct LoadedRoutes {
  const std::int32_t* routes = nullptr;
  std::int64_t count = 0;
  const std::byte* operands = nullptr;
  LoadedRow rows[kMostOperandRows] = {};
  // Of a row that was loaded alone: at one token all experts multiply the same one.
  const void* only_source = nullptr;
  float only_global = 1.0F;
};

// A thread of a region.
struct Worker {
  std::int64_t index = 0;
  LoadedRoutes loaded;
};

// Asks for the first lines of a row that is loaded next: rows of one expert lie anywhere, and the
// hardware follows a row only after its first misses.
void prefetch_row(const OperandRow& row) {
  constexpr std::int64_t kMostBytes = 2 * kKib;
  const std::int64_t bytes = std::min(kMostBytes, row.cols * dtype_bits(row.dtype) / 8);
  for (std::int64_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(static_cast<const std::byte*>(row.source) + at);
  }
}

// Tiles of one size, give or take a token: 9 and 8 cost less than 16 and a 1 that decodes all.
class Tiles {
 public:
  Tiles(std::int64_t count, std::int64_t most_tokens)
      : count_(count), left_(device::ceil_div(count, most_tokens)) {}

  /// False behind the last tile.
  bool next() {
    first += num_tokens;
    if (left_ == 0) {
      return false;
    }
    num_tokens = device::ceil_div(count_ - first, left_--);
    return true;
  }

  std::int64_t first = 0;
  std::int64_t num_tokens = 0;

 private:
  std::int64_t count_;
  std::int64_t left_;
};

// Loads the operands of `count` routes, tile by tile and as many rows at a time as there is room
// for; `row_of` names the source row of a route.
template <typename RowOf>
void load_routes(const StepContext& context,
                 std::int64_t worker,
                 const std::int32_t* routes,
                 std::int64_t count,
                 RowOf row_of,
                 LoadedRoutes& loaded) {
  const std::int64_t row_bytes = context.scratch.operand_row_bytes;
  std::byte* operands = context.worker_scratch(worker);
  const OperandRow first_row = row_of(std::int64_t{routes[0]});
  loaded.routes = routes;
  if (count == 1 && loaded.only_source == first_row.source &&
      loaded.only_global == first_row.global) {
    return;
  }
  loaded.only_source = count == 1 ? first_row.source : nullptr;
  loaded.only_global = first_row.global;
  loaded.count = count;
  loaded.operands = operands;
  const auto load_row = [&](std::int64_t i, std::byte* operand, float* scales) {
    if (i + 1 < count) {
      prefetch_row(row_of(std::int64_t{routes[i + 1]}));
    }
    OperandRow row = row_of(std::int64_t{routes[i]});
    row.quantizer = context.quantizer;
    row.scales = scales;
    loaded.rows[i] = context.body.load_operand(row, context.shape, operand);
  };
  for (Tiles tile(count, context.body.max_tokens); tile.next();) {
    std::byte* at = operands + tile.first * row_bytes;
    float* scales = context.operand_scales(at, tile.num_tokens);
    if (tile.num_tokens == 1) {
      load_row(tile.first, at, scales);
      continue;
    }
    if (context.body.interleave == nullptr) {
      for (std::int64_t i = 0; i < tile.num_tokens; ++i) {
        load_row(tile.first + i, at + i * context.operand_row_bytes(), nullptr);
      }
      continue;
    }
    std::byte* rows = context.spare_rows(worker);
    for (std::int64_t first = 0; first < tile.num_tokens; first += context.scratch.spare_rows) {
      const std::int64_t num_rows = std::min(context.scratch.spare_rows, tile.num_tokens - first);
      for (std::int64_t i = 0; i < num_rows; ++i) {
        load_row(
            tile.first + first + i,
            rows + i * row_bytes,
            scales == nullptr ? nullptr : scales + (first + i) * context.operand_scale_stride());
      }
      const std::int64_t pairs = device::panel16_num_steps(context.shape) * kPairsOfStep;
      context.body.interleave({rows, row_bytes, num_rows, pairs, at, first, tile.num_tokens});
    }
  }
}

// What a dot call left: sums of a tile of tokens over panels.
struct DotSums {
  Share panels;
  std::int64_t first_token = 0;  // among the loaded routes
  std::int64_t num_tokens = 0;
  const float* sums = nullptr;  // [panels * parts, num_tokens, 16]
};

// Calls sink(DotSums) for every tile of tokens over every `panels_of_dot` panels of the run. A sink
// gets its sums when the next dot call has been made: the first products of that one need not wait
// for the last of this one to arrive.
template <typename Sink>
void dot_run(const StepContext& context,
             const LoadedRoutes& loaded,
             const PanelRun& run,
             std::int64_t panels_of_dot,
             Sink sink) {
  alignas(kLineBytes) float sums[2][kSumsOfDot];
  DotSums done[2];
  std::int64_t turn = 0;
  const auto at = [&](std::int64_t panel) {
    return run.bytes + device::panel16_panel_offset(context.shape, panel, 0);
  };
  for (std::int64_t panel = run.panels.begin; panel < run.panels.end; panel += panels_of_dot) {
    const std::int64_t end = std::min(panel + panels_of_dot, run.panels.end);
    for (Tiles tile(loaded.count, context.body.max_tokens); tile.next();) {
      const std::byte* operand = loaded.operands + tile.first * context.scratch.operand_row_bytes;
      DotSums& now = done[turn % 2];
      now = {{panel, end}, tile.first, tile.num_tokens, sums[turn % 2]};
      context.body.dot({at(panel),
                        (end - panel) * context.shape.num_parts,
                        &context.shape,
                        operand,
                        tile.num_tokens,
                        sums[turn % 2],
                        context.operand_scales(operand, tile.num_tokens),
                        context.operand_scale_stride(),
                        context.operand_row_bytes(),
                        end < run.panels.end ? at(end) : run.after});
      if (++turn > 1) {
        sink(done[turn % 2]);
      }
    }
  }
  if (turn > 0) {
    sink(done[(turn - 1) % 2]);
  }
}

OperandRow x_row(const CpuCall& call, std::int64_t expert, std::int64_t route) {
  const TensorView& x = call.arguments->x;
  const std::int64_t token = call.token_begin + route / call.plan->problem.top_k;
  const std::int64_t bytes = token * x.strides[0] * dtype_bits(x.dtype) / 8;
  OperandRow row{
      static_cast<const std::byte*>(x.data) + bytes, x.dtype, call.plan->problem.hidden_size};
  const float* scales = call.weights.input_scales(expert);
  row.global = scales == nullptr ? 1.0F : scales[0];
  return row;
}

// The activation of one gate and up panel for a tile of the loaded routes.
void activate_tile(const StepContext& context,
                   const LoadedRoutes& loaded,
                   std::int64_t expert,
                   const DotSums& done,
                   ActivateCall activate) {
  const CpuCall& call = context.call;
  const plan::PackedView& weights = call.weights;
  const Problem& problem = call.plan->problem;
  const std::int64_t parts = context.shape.num_parts;
  const std::int64_t first_row = done.panels.begin * kPanelRows;
  const float* gate_bias = weights.gate_bias(expert);
  const float* up_bias = weights.up_bias(expert);
  const float* globals = weights.globals(expert);
  activate.up_global = globals[1];
  activate.up_bias = up_bias == nullptr ? nullptr : up_bias + first_row;
  // Without a gate the one operand goes where activations read theirs.
  activate.gate_global = parts == 2 ? globals[0] : globals[1];
  activate.gate_bias = parts != 2             ? activate.up_bias
                       : gate_bias == nullptr ? nullptr
                                              : gate_bias + first_row;
  activate.rows = std::min(kPanelRows, problem.intermediate_size - first_row);
  auto* intermediate = call.slice<std::uint16_t>(SliceId::kIntermediate);
  for (std::int64_t t = 0; t < done.num_tokens; ++t) {
    const std::int64_t route = loaded.routes[done.first_token + t];
    const LoadedRow& row = loaded.rows[done.first_token + t];
    activate.out = intermediate + route * problem.intermediate_size + first_row;
    if (!row.finite) {
      std::fill_n(activate.out, activate.rows, std::uint16_t{0x7FC0});
      continue;
    }
    activate.x_factor = row.factor;
    activate.gate_sums = done.sums + t * kPanelRows;
    activate.up_sums = done.sums + ((parts - 1) * done.num_tokens + t) * kPanelRows;
    activate.input_weight = problem.router_weight_on_input ? context.routes.weight(route) : 1.0F;
    context.body.activate(activate);
  }
}

void gate_up_part(const StepContext& context,
                  const ExpertLine& line,
                  Worker& worker,
                  const Share& part) {
  const Routes& routes = context.routes;
  const plan::PackedView& weights = context.call.weights;
  ActivateCall activate;
  activate.params = recipes::activation_params(context.call.plan->problem.activation);
  ExpertShares shares(line, part);
  LoadedRoutes& loaded = worker.loaded;
  for (std::int64_t expert = 0; expert < routes.num_experts && !shares.is_past(); ++expert) {
    const std::int64_t begin = routes.offsets[expert];
    const std::int64_t end = routes.offsets[expert + 1];
    const Share panels = shares.next(end - begin);
    if (panels.begin >= panels.end) {
      continue;
    }
    const std::int64_t next =
        shares.is_past() ? routes.num_experts : context.active_expert(expert + 1);
    const PanelRun run{expert,
                       panels,
                       weights.gate_up(expert),
                       next < routes.num_experts ? weights.gate_up(next) : nullptr};
    for (std::int64_t first = begin; first < end; first += context.scratch.operand_rows) {
      load_routes(
          context,
          worker.index,
          routes.order + first,
          std::min(context.scratch.operand_rows, end - first),
          [&](std::int64_t route) { return x_row(context.call, expert, route); },
          loaded);
      dot_run(context, loaded, run, 1, [&](const DotSums& done) {
        activate_tile(context, loaded, expert, done, activate);
      });
    }
  }
}

// A block of output rows and where the sums of all routes over it stand.
struct DownBlock {
  Share panels;
  float* route_sums = nullptr;  // [num_routes, panels * 16]

  [[nodiscard]] std::int64_t stride() const { return (panels.end - panels.begin) * kPanelRows; }
};

// Sums of a tile of the loaded routes, scaled by the global, bias added, into the block's.
void scale_tile(const StepContext& context,
                const LoadedRoutes& loaded,
                std::int64_t expert,
                const DotSums& done,
                const DownBlock& block) {
  const plan::PackedView& weights = context.call.weights;
  const float* bias = weights.down_bias(expert);
  ScaleCall scale{.global = weights.globals(expert)[2], .out_stride = block.stride()};
  scale.num_tokens = done.num_tokens;
  scale.rows = loaded.rows + done.first_token;
  scale.routes = loaded.routes + done.first_token;
  scale.sums = done.sums;
  for (std::int64_t panel = done.panels.begin; panel < done.panels.end; ++panel) {
    const std::int64_t first_row = panel * kPanelRows;
    float biases[kPanelRows] = {};
    if (bias != nullptr) {
      const std::int64_t hidden = context.call.plan->problem.hidden_size;
      std::copy_n(bias + first_row, std::min(kPanelRows, hidden - first_row), biases);
      scale.bias = biases;
    }
    scale.out = block.route_sums + (panel - block.panels.begin) * kPanelRows;
    context.body.scale(scale);
    scale.sums += done.num_tokens * kPanelRows;
  }
}

void down_block(const StepContext& context, Worker& worker, const DownBlock& block) {
  const CpuCall& call = context.call;
  const Routes& routes = context.routes;
  const std::int64_t inner = call.plan->problem.intermediate_size;
  const auto* intermediate = call.slice<std::uint16_t>(SliceId::kIntermediate);
  const std::int64_t first_panel =
      device::panel16_panel_offset(context.shape, block.panels.begin, 0);
  const auto row_of = [&](std::int64_t route) {
    return OperandRow{intermediate + route * inner, DType::kBf16, inner};
  };
  LoadedRoutes& loaded = worker.loaded;
  for (std::int64_t expert = context.active_expert(0); expert < routes.num_experts;) {
    const std::int64_t next = context.active_expert(expert + 1);
    const PanelRun run{expert,
                       block.panels,
                       call.weights.down(expert),
                       next < routes.num_experts ? call.weights.down(next) + first_panel : nullptr};
    const std::int64_t end = routes.offsets[expert + 1];
    const float* scales = call.weights.input_scales(expert);
    const std::int64_t most_tokens = std::min(
        {end - routes.offsets[expert], context.scratch.operand_rows, context.body.max_tokens});
    const std::int64_t panels_of_dot =
        std::min(kMostPanelsOfDot, kSumsOfDot / (most_tokens * kPanelRows));
    for (std::int64_t first = routes.offsets[expert]; first < end;
         first += context.scratch.operand_rows) {
      load_routes(
          context,
          worker.index,
          routes.order + first,
          std::min(context.scratch.operand_rows, end - first),
          [&](std::int64_t route) {
            OperandRow row = row_of(route);
            row.global = scales == nullptr ? 1.0F : scales[1];
            return row;
          },
          loaded);
      dot_run(context, loaded, run, panels_of_dot, [&](const DotSums& done) {
        scale_tile(context, loaded, expert, done, block);
      });
    }
    expert = next;
  }
  combine_rows(call,
               context.body,
               routes,
               {block.route_sums,
                block.stride(),
                block.panels.begin * kPanelRows,
                std::min(block.panels.end * kPanelRows, call.plan->problem.hidden_size)});
}

void down_part(const StepContext& context, Worker& worker, const Share& part) {
  constexpr std::int64_t kSumBytes = kPanelRows * 4;
  const std::int64_t panels_that_fit =
      context.scratch.route_sums_bytes / (context.routes.num_routes() * kSumBytes);
  for (std::int64_t begin = part.begin; begin < part.end; begin += panels_that_fit) {
    const std::int64_t end = std::min(begin + panels_that_fit, part.end);
    down_block(context, worker, {{begin, end}, context.route_sums(worker.index)});
  }
}

// Deals `count` out over as many threads as the plan has room for: work(worker, part).
template <typename Work>
void on_planned_workers(base::ThreadPool& pool,
                        const StepContext& context,
                        std::int64_t count,
                        std::int64_t least_piece,
                        Work work) {
  const std::int64_t workers =
      std::min<std::int64_t>(pool.num_threads(), context.scratch.num_workers);
  Deal deal(count, workers, least_piece);
  pool.parallel([&](std::int64_t index, int /*num_workers*/) {
    if (index >= workers) {
      return;
    }
    Worker worker{index, {}};
    work(worker, deal.own_share(index));
    for (Share part = deal.claim(); part.begin < part.end; part = deal.claim()) {
      work(worker, part);
    }
    if (context.body.finish != nullptr) {
      context.body.finish();
    }
  });
}

}  // namespace

ScratchLayout scratch_layout(const Problem& problem,
                             const DeviceDescriptor& device,
                             std::int64_t num_tokens) noexcept {
  const std::int64_t routes = std::max<std::int64_t>(1, num_tokens * problem.top_k);
  const std::int64_t hidden_panels = device::ceil_div(problem.hidden_size, kPanelRows);
  ScratchLayout layout;
  layout.num_workers = std::max<std::int64_t>(1, device.num_threads);
  layout.operand_row_bytes =
      operand_row_bytes(std::max(problem.hidden_size, problem.intermediate_size), problem.recipe);
  const std::int64_t operand_budget =
      std::min(device.l2_per_core_bytes > 0 ? device.l2_per_core_bytes / 2 : kOperandBytesUnknownL2,
               kOperandBytesOfAll / layout.num_workers);
  const std::int64_t rows_that_fit = operand_budget / layout.operand_row_bytes;
  // Where a single row fits there is nothing to interleave.
  layout.spare_rows =
      rows_that_fit < 2
          ? 0
          : std::min(
                routes,
                std::clamp(rows_that_fit / 4, std::int64_t{1}, body_for(device.isa).max_tokens));
  layout.operand_rows = std::min(
      routes, std::clamp(rows_that_fit - layout.spare_rows, std::int64_t{1}, kMostOperandRows));
  const std::int64_t panel_sums = routes * kPanelRows * 4;
  const std::int64_t sums_of_all = std::clamp(
      kBlockPanelsOfAll * panel_sums, kLeastRouteSumsBytesOfAll, kMostRouteSumsBytesOfAll);
  layout.route_sums_bytes =
      std::min(panel_sums * device::ceil_div(hidden_panels, layout.num_workers),
               std::max(panel_sums, std::min(kRouteSumsBytes, sums_of_all / layout.num_workers)));
  layout.worker_bytes =
      device::round_up((layout.operand_rows + layout.spare_rows) * layout.operand_row_bytes +
                           layout.route_sums_bytes,
                       2 * kLineBytes);
  return layout;
}

std::vector<plan::SliceRequest> step_slices(const plan::FamilyContext& context,
                                            std::int64_t num_tokens) {
  const Problem& problem = context.problem;
  const std::int64_t routes = num_tokens * problem.top_k;
  const ScratchLayout scratch = scratch_layout(problem, context.device, num_tokens);
  return {{SliceId::kRouteExperts, routes * 4},
          {SliceId::kExpertOffsets, (problem.num_experts + 1) * 4},
          {SliceId::kRouteOrder, routes * 4},
          {SliceId::kIntermediate, routes * problem.intermediate_size * 2},
          {SliceId::kScratch, num_tokens == 0 ? 0 : scratch.num_workers * scratch.worker_bytes}};
}

void gate_up_step(const CpuCall& call, base::ThreadPool& pool, const Body& body) noexcept {
  const StepContext context(call, body, resolve_routes(call), call.weights.layout->gate_up);
  const ExpertLine line(context.routes, context.body, device::panel16_num_panels(context.shape));
  on_planned_workers(
      pool, context, line.length(), line.mean_panel_cost(), [&](Worker& worker, const Share& part) {
        gate_up_part(context, line, worker, part);
      });
}

void down_step(const CpuCall& call, base::ThreadPool& pool, const Body& body) noexcept {
  const StepContext context(call, body, resolved_routes(call), call.weights.layout->down);
  on_planned_workers(pool,
                     context,
                     device::panel16_num_panels(context.shape),
                     kMostPanelsOfDot,
                     [&](Worker& worker, const Share& part) { down_part(context, worker, part); });
}

}  // namespace moekit::panels
