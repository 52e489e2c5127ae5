// SPDX-License-Identifier: Apache-2.0
#include "panels/expert_steps.h"

#include <algorithm>
#include <limits>
#include <span>

#include "device/numerics/bf16.h"
#include "formats/packing_panel16.h"
#include "panels/combine.h"
#include "panels/expert_shares.h"
#include "panels/routes.h"
#include "recipes/activation_params.h"

namespace moekit::panels {

namespace {

using device::Panel16Shape;
using plan::CpuCall;
using plan::SliceId;

constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kPairsOfStep = device::kPanel16StepCols / 2;
// Neighbouring panels of one dot call: what a call costs before its first and behind its last
// products is paid once, and bodies go over several panels for a block of operands. Fewer where
// their sums would take more than those of gate and up for the largest tile.
constexpr std::int64_t kMostPanelsOfDot = 32;
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

std::int64_t operand_bytes(std::int64_t cols, std::int64_t element_bytes) {
  // A step of lead columns at most in front, a step of padding behind.
  const std::int64_t elems = device::round_up(cols, std::int64_t{8}) + 8;
  return device::round_up(elems * element_bytes, kLineBytes);
}

// Behind the operands of a tile come their scales, where the recipe's have any.
std::int64_t operand_row_bytes(std::int64_t cols, std::int64_t element_bytes, Recipe recipe) {
  const bool scaled = recipe_info(recipe).quantizer == Quantizer::kQ8b;
  const std::int64_t groups = scaled ? device::ceil_div(cols, kOperandGroupCols) : 0;
  return operand_bytes(cols, element_bytes) + device::round_up(groups * 4, kLineBytes);
}

// Neighbouring panels of one expert that a worker reads in one go, and what it reads then.
struct PanelRun {
  std::int64_t expert = 0;
  Share panels;
  const std::byte* after = nullptr;  // null: nothing
};

// Where rows are loaded to.
struct OperandRoom {
  std::byte* operands = nullptr;
  std::byte* spare = nullptr;  // rows of a tile before they are interleaved
  LoadedRow* rows = nullptr;
};

// What both steps need of a call, resolved once.
struct StepContext {
  const CpuCall& call;
  const Body& body;
  Routes routes;
  ScratchLayout scratch;
  Panel16Shape shape;
  Quantizer quantizer;
  std::int64_t row_bytes = 0;  // of an operand of this step, its scales included

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
        quantizer(recipe_info(step_call.plan->problem.recipe).quantizer),
        row_bytes(panels::operand_row_bytes(
            shape.cols, body.operand_bytes, step_call.plan->problem.recipe)) {}

  /// Scales of the first row of a tile of `num_tokens` at `tile`; null where operands have none.
  [[nodiscard]] float* operand_scales(const std::byte* tile, std::int64_t num_tokens) const {
    const std::int64_t offset = num_tokens * operand_row_bytes();
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

  [[nodiscard]] OperandRoom operand_room(std::int64_t worker, LoadedRow* rows) const {
    std::byte* operands = call.slice<std::byte>(SliceId::kScratch) + worker * scratch.worker_bytes;
    return {operands, operands + scratch.operand_rows * scratch.operand_row_bytes, rows};
  }

  [[nodiscard]] float* route_sums(std::int64_t worker) const {
    return reinterpret_cast<float*>(operand_room(worker, nullptr).spare +
                                    scratch.spare_rows * scratch.operand_row_bytes);
  }

  /// Rows of this step that have room at a time: more than the plan counts where they are shorter
  /// than its longest or their elements smaller.
  [[nodiscard]] std::int64_t most_rows() const {
    const std::int64_t rows = scratch.operand_rows * scratch.operand_row_bytes / row_bytes;
    // Without spare rows nothing can be interleaved.
    return scratch.spare_rows == 0 ? 1 : std::min(rows, kMostOperandRows);
  }
};

// The routes of one expert that are worked on together, with their operands loaded.
struct LoadedRoutes {
  const std::int32_t* routes = nullptr;
  std::int64_t count = 0;
  const std::byte* operands = nullptr;
  const LoadedRow* rows = nullptr;
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
LoadedRoutes load_routes(const StepContext& context,
                         const OperandRoom& room,
                         std::span<const std::int32_t> routes,
                         RowOf row_of) {
  const std::int64_t row_bytes = context.row_bytes;
  const auto count = static_cast<std::int64_t>(routes.size());
  const auto row_at = [&](std::int64_t i) {
    return row_of(std::int64_t{routes[static_cast<std::size_t>(i)]});
  };
  // The row at hand, and asks for the one behind it.
  const auto next_row = [&](std::int64_t i) {
    if (i + 1 < count) {
      prefetch_row(row_at(i + 1));
    }
    OperandRow row = row_at(i);
    row.quantizer = context.quantizer;
    return row;
  };
  const auto load_row = [&](std::int64_t i, std::byte* operand, float* scales) {
    OperandRow row = next_row(i);
    row.scales = scales;
    room.rows[i] = context.body.load_operand(row, context.shape, operand);
  };
  // Whether all rows of the tile can be interleaved from where they lie.
  const auto are_operands = [&](const Tiles& tile, const std::byte** rows) {
    for (std::int64_t i = 0; context.body.is_operand != nullptr && i < tile.num_tokens; ++i) {
      const OperandRow row = next_row(tile.first + i);
      if (!context.body.is_operand(row, context.shape, room.rows + tile.first + i)) {
        return false;
      }
      rows[i] = static_cast<const std::byte*>(row.source);
    }
    return context.body.is_operand != nullptr;
  };
  for (Tiles tile(count, context.body.max_tokens); tile.next();) {
    std::byte* at = room.operands + tile.first * row_bytes;
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
    const std::byte* rows[kMaxTileTokens];
    const std::int64_t pairs = device::panel16_num_steps(context.shape) * kPairsOfStep;
    if (are_operands(tile, rows)) {
      context.body.interleave({rows, tile.num_tokens, pairs, at, 0, tile.num_tokens});
      continue;
    }
    for (std::int64_t first = 0; first < tile.num_tokens; first += context.scratch.spare_rows) {
      const std::int64_t num_rows = std::min(context.scratch.spare_rows, tile.num_tokens - first);
      for (std::int64_t i = 0; i < num_rows; ++i) {
        std::byte* row = room.spare + i * row_bytes;
        load_row(
            tile.first + first + i,
            row,
            scales == nullptr ? nullptr : scales + (first + i) * context.operand_scale_stride());
        rows[i] = row;
      }
      context.body.interleave({rows, num_rows, pairs, at, first, tile.num_tokens});
    }
  }
  return {routes.data(), count, room.operands, room.rows};
}

// The panels of one dot call and of the one after it.
struct DotPanels {
  const std::byte* bytes = nullptr;
  std::int64_t count = 1;
  const std::byte* next = nullptr;
};

// Sums [panels, num_tokens, 16] of the loaded routes from `first` on.
struct TileSums {
  std::int64_t first = 0;
  std::int64_t num_tokens = 0;
  const float* sums = nullptr;
};

// Calls sink with the sums of every tile of tokens.
template <typename Sink>
void dot_tiles(const StepContext& context,
               const LoadedRoutes& loaded,
               const DotPanels& panels,
               Sink sink) {
  alignas(kLineBytes) float sums[kSumsOfDot];
  for (Tiles tile(loaded.count, context.body.max_tokens); tile.next();) {
    const std::byte* operand = loaded.operands + tile.first * context.row_bytes;
    context.body.dot({panels.bytes,
                      panels.count,
                      &context.shape,
                      operand,
                      tile.num_tokens,
                      sums,
                      context.operand_scales(operand, tile.num_tokens),
                      context.operand_scale_stride(),
                      context.operand_row_bytes(),
                      panels.next});
    sink(TileSums{tile.first, tile.num_tokens, sums});
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

// Rows of x in calls of few tokens: a worker loads each of them once, and not once for every expert
// that it goes to.
class TokenRows {
 public:
  TokenRows(const StepContext& context, const OperandRoom& room)
      : context_(context), room_(room), tile_room_(room) {
    tile_room_.operands += context.routes.num_tokens * context.row_bytes;
    tile_room_.rows += context.routes.num_tokens;
  }

  /// Whether all tokens have room, and the rows of any one expert behind: a token may name an
  /// expert more than once.
  static bool fit(const StepContext& context) {
    const std::int64_t most = context.most_rows() - context.routes.num_tokens;
    if (context.routes.num_tokens > most) {
      return false;
    }
    const std::int32_t* offsets = context.routes.offsets;
    for (std::int64_t expert = 0; expert < context.routes.num_experts; ++expert) {
      if (offsets[expert + 1] - offsets[expert] > most) {
        return false;
      }
    }
    return true;
  }

  LoadedRoutes load(std::int64_t expert, std::span<const std::int32_t> routes) {
    for (const std::int32_t route : routes) {
      load_token(expert, route);
    }
    const auto count = static_cast<std::int64_t>(routes.size());
    if (count == 1) {
      return {routes.data(), 1, row(routes[0]), room_.rows + token(routes[0])};
    }
    for (Tiles tile(count, context_.body.max_tokens); tile.next();) {
      for (std::int64_t i = 0; i < tile.num_tokens; ++i) {
        put_in_tile(routes[static_cast<std::size_t>(tile.first + i)], tile, i);
      }
    }
    return {routes.data(), count, tile_room_.operands, tile_room_.rows};
  }

 private:
  [[nodiscard]] std::int64_t token(std::int64_t route) const {
    return route / context_.routes.top_k;
  }

  [[nodiscard]] std::byte* row(std::int64_t route) const {
    return room_.operands + token(route) * context_.row_bytes;
  }

  // Experts may differ in what they divide a token by.
  void load_token(std::int64_t expert, std::int64_t route) {
    OperandRow source = x_row(context_.call, expert, route);
    Held& held = held_[token(route)];
    if (held.loaded && held.global == source.global) {
      return;
    }
    held = {true, source.global};
    source.quantizer = context_.quantizer;
    source.scales = context_.operand_scales(row(route), 1);
    room_.rows[token(route)] = context_.body.load_operand(source, context_.shape, row(route));
  }

  void put_in_tile(std::int64_t route, const Tiles& tile, std::int64_t i) {
    tile_room_.rows[tile.first + i] = room_.rows[token(route)];
    std::byte* at = tile_room_.operands + tile.first * context_.row_bytes;
    if (context_.body.interleave == nullptr) {
      std::copy_n(row(route), context_.operand_row_bytes(), at + i * context_.operand_row_bytes());
      return;
    }
    const std::int64_t pairs = device::panel16_num_steps(context_.shape) * kPairsOfStep;
    const std::byte* from = row(route);
    context_.body.interleave({&from, 1, pairs, at, i, tile.num_tokens});
    if (float* scales = context_.operand_scales(at, tile.num_tokens); scales != nullptr) {
      const std::int64_t stride = context_.operand_scale_stride();
      std::copy_n(context_.operand_scales(row(route), 1), stride, scales + i * stride);
    }
  }

  struct Held {
    bool loaded = false;
    float global = 1.0F;
  };

  const StepContext& context_;
  OperandRoom room_;
  OperandRoom tile_room_;
  Held held_[kMostOperandRows];
};

// Panels of one dot call over the loaded routes.
std::int64_t most_panels_of_dot(const StepContext& context, const LoadedRoutes& loaded) {
  const std::int64_t tile_tokens = std::min(loaded.count, context.body.max_tokens);
  return std::min(kMostPanelsOfDot, kSumsOfDot / (tile_tokens * kPanelRows));
}

// The intermediate of one panel pair (gate and up), from the pair's sums [parts, tokens, 16] for
// `tokens` of the loaded routes from `first` on.
void activate_pair(const StepContext& context,
                   const LoadedRoutes& loaded,
                   std::int64_t expert,
                   std::int64_t pair,
                   const TileSums& tile,
                   ActivateCall& activate) {
  const plan::PackedView& weights = context.call.weights;
  const Problem& problem = context.call.plan->problem;
  const std::int64_t parts = context.shape.num_parts;
  const std::int64_t first_row = pair * kPanelRows;
  const float* gate_bias = weights.gate_bias(expert);
  const float* up_bias = weights.up_bias(expert);
  activate.up_bias = up_bias == nullptr ? nullptr : up_bias + first_row;
  // Without a gate the one operand goes where activations read theirs.
  activate.gate_bias = parts != 2             ? activate.up_bias
                       : gate_bias == nullptr ? nullptr
                                              : gate_bias + first_row;
  activate.rows = std::min(kPanelRows, problem.intermediate_size - first_row);
  auto* intermediate = context.call.slice<std::uint16_t>(SliceId::kIntermediate);
  for (std::int64_t t = 0; t < tile.num_tokens; ++t) {
    const std::int64_t route = loaded.routes[tile.first + t];
    const LoadedRow& row = loaded.rows[tile.first + t];
    activate.out = intermediate + route * problem.intermediate_size + first_row;
    if (!row.finite) {
      std::fill_n(activate.out, activate.rows, std::uint16_t{0x7FC0});
      continue;
    }
    activate.x_factor = row.factor;
    activate.gate_sums = tile.sums + t * kPanelRows;
    activate.up_sums = tile.sums + ((parts - 1) * tile.num_tokens + t) * kPanelRows;
    activate.input_weight = problem.router_weight_on_input ? context.routes.weight(route) : 1.0F;
    context.body.activate(activate);
  }
}

// The panel pairs of a run for a set of loaded routes.
void gate_up_panels(const StepContext& context,
                    const LoadedRoutes& loaded,
                    const PanelRun& run,
                    ActivateCall activate) {
  const plan::PackedView& weights = context.call.weights;
  const std::int64_t parts = context.shape.num_parts;
  const float* globals = weights.globals(run.expert);
  activate.up_global = globals[1];
  activate.gate_global = parts == 2 ? globals[0] : globals[1];
  const auto at = [&](std::int64_t pair) {
    return weights.gate_up(run.expert) + device::panel16_panel_offset(context.shape, pair, 0);
  };
  const std::int64_t pairs_of_dot = most_panels_of_dot(context, loaded) / parts;
  for (std::int64_t pair = run.panels.begin; pair < run.panels.end; pair += pairs_of_dot) {
    const std::int64_t next = std::min(pair + pairs_of_dot, run.panels.end);
    const DotPanels panels{
        at(pair), (next - pair) * parts, next < run.panels.end ? at(next) : run.after};
    dot_tiles(context, loaded, panels, [&](TileSums tile) {
      for (std::int64_t at_pair = pair; at_pair < next; ++at_pair) {
        activate_pair(context, loaded, run.expert, at_pair, tile, activate);
        tile.sums += parts * tile.num_tokens * kPanelRows;
      }
    });
  }
}

void gate_up_worker(const StepContext& context, std::int64_t worker, std::int64_t num_workers) {
  const Routes& routes = context.routes;
  ActivateCall activate;
  activate.params = recipes::activation_params(context.call.plan->problem.activation);
  ExpertShares shares(
      routes, context.body, device::panel16_num_panels(context.shape), worker, num_workers);
  LoadedRow rows[kMostOperandRows];
  const OperandRoom room = context.operand_room(worker, rows);
  TokenRows few_tokens(context, room);
  const bool few = TokenRows::fit(context);
  const auto first_panel = [&](const ExpertOrder::Item& item) {
    return context.call.weights.gate_up(item.expert) +
           device::panel16_panel_offset(context.shape, item.panels_begin, 0);
  };
  ExpertOrder order;
  for (std::int64_t expert = 0; expert < routes.num_experts; ++expert) {
    const std::int64_t num_tokens = routes.offsets[expert + 1] - routes.offsets[expert];
    order.add(expert, num_tokens, shares.next(num_tokens));
  }
  const std::span<const ExpertOrder::Item> items = order.sorted(worker);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::int64_t expert = items[i].expert;
    const std::int64_t begin = routes.offsets[expert];
    const std::int64_t end = routes.offsets[expert + 1];
    const PanelRun run{expert,
                       {items[i].panels_begin, items[i].panels_end},
                       i + 1 < items.size() ? first_panel(items[i + 1]) : nullptr};
    for (Tiles pass(end - begin, context.most_rows()); pass.next();) {
      const auto some = routes.ordered(begin + pass.first, pass.num_tokens);
      const LoadedRoutes loaded = few ? few_tokens.load(expert, some)
                                      : load_routes(context, room, some, [&](std::int64_t route) {
                                          return x_row(context.call, expert, route);
                                        });
      gate_up_panels(context, loaded, run, activate);
    }
  }
}

// Asks for the lines that a scale call writes: sums are written once and are in no near cache, and
// where stores wait for their lines, so does whatever loads behind them (tiles: README, 8). Inlined
// early: g++ 12 takes a function that only asks for memory for a pure one and drops its calls.
[[gnu::always_inline]] inline void prefetch_sums(const ScaleCall& scale,
                                                 const LoadedRoutes& loaded) {
  for (std::int64_t i = 0; i < loaded.count; ++i) {
    const float* sums = scale.out + loaded.routes[i] * scale.out_stride;
    for (std::int64_t panel = 0; panel < scale.num_panels; ++panel) {
      __builtin_prefetch(sums + panel * kPanelRows, 1);
    }
  }
}

// Sums of the loaded routes for the panels of a run, scaled by the global, bias added, into
// route_sums [num_routes, block_stride].
void down_panels(const StepContext& context,
                 const LoadedRoutes& loaded,
                 const PanelRun& run,
                 float* route_sums,
                 std::int64_t block_stride) {
  const plan::PackedView& weights = context.call.weights;
  const Share& block = run.panels;
  const float global = weights.globals(run.expert)[2];
  const float* bias = weights.down_bias(run.expert);
  const std::int64_t hidden = context.call.plan->problem.hidden_size;
  const std::int64_t panels_of_dot = most_panels_of_dot(context, loaded);
  for (std::int64_t panel = block.begin; panel < block.end; panel += panels_of_dot) {
    const std::int64_t num_panels = std::min(panels_of_dot, block.end - panel);
    const std::int64_t first_row = panel * kPanelRows;
    const std::int64_t next = panel + num_panels;
    float padded[kMostPanelsOfDot * kPanelRows];
    const auto at = [&](std::int64_t index) {
      return weights.down(run.expert) + device::panel16_panel_offset(context.shape, index, 0);
    };
    ScaleCall scale{.num_panels = num_panels,
                    .global = global,
                    .bias = bias == nullptr ? nullptr : bias + first_row,
                    .out = route_sums + (panel - block.begin) * kPanelRows,
                    .out_stride = block_stride};
    if (bias != nullptr && (first_row + num_panels * kPanelRows) > hidden) {
      std::fill(std::copy(scale.bias, bias + hidden, padded), std::end(padded), 0.0F);
      scale.bias = padded;
    }
    prefetch_sums(scale, loaded);
    dot_tiles(context,
              loaded,
              {at(panel), num_panels, next < block.end ? at(next) : run.after},
              [&](const TileSums& tile) {
                scale.sums = tile.sums;
                scale.num_tokens = tile.num_tokens;
                scale.rows = loaded.rows + tile.first;
                scale.routes = loaded.routes + tile.first;
                context.body.scale(scale);
              });
  }
}

// Operands of `count` routes of an expert from `first` on in the order of routes.
LoadedRoutes load_intermediate(const StepContext& context,
                               const OperandRoom& room,
                               std::int64_t expert,
                               std::int64_t first,
                               std::int64_t count) {
  const CpuCall& call = context.call;
  const std::int64_t inner = call.plan->problem.intermediate_size;
  const auto* intermediate = call.slice<std::uint16_t>(SliceId::kIntermediate);
  const float* scales = call.weights.input_scales(expert);
  return load_routes(context, room, context.routes.ordered(first, count), [&](std::int64_t route) {
    OperandRow row{intermediate + route * inner, DType::kBf16, inner};
    row.global = scales == nullptr ? 1.0F : scales[1];
    return row;
  });
}

// The down step of one worker: its panels in blocks, of each block the sums of all routes and then
// the output.
class DownWork {
 public:
  DownWork(const StepContext& context, std::int64_t worker, std::int64_t num_workers)
      : context_(context),
        room_(context.operand_room(worker, rows_)),
        route_sums_(context.route_sums(worker)),
        mine_(share_of(device::panel16_num_panels(context.shape), worker, num_workers)) {
    const Routes& routes = context.routes;
    for (std::int64_t expert = 0; expert < routes.num_experts; ++expert) {
      order_.add(expert, routes.offsets[expert + 1] - routes.offsets[expert], mine_);
    }
    experts_ = order_.sorted(worker);
  }

  void run() {
    constexpr std::int64_t kSumBytes = kPanelRows * 4;
    const std::int64_t panels_that_fit =
        context_.scratch.route_sums_bytes / (context_.routes.num_routes() * kSumBytes);
    const bool held = context_.routes.num_routes() <= context_.most_rows();
    if (held) {
      hold_all();
    }
    block_panels_ = held ? std::min(panels_that_fit, kPanelsOfHeldBlock) : panels_that_fit;
    for (std::int64_t begin = mine_.begin; begin < mine_.end; begin += block_panels_) {
      const Share block{begin, std::min(begin + block_panels_, mine_.end)};
      sum_block(block, held);
      combine_rows(context_.call,
                   context_.body,
                   context_.routes,
                   {route_sums_,
                    block_panels_ * kPanelRows,
                    block.begin * kPanelRows,
                    std::min(block.end * kPanelRows, context_.call.plan->problem.hidden_size)});
    }
  }

 private:
  // Few routes: their operands are loaded once, and the sums of a block are still in the caches
  // when they are combined. One chunk of combine_rows.
  static constexpr std::int64_t kPanelsOfHeldBlock = 16;

  void hold_all() {
    OperandRoom room = room_;
    std::size_t held = 0;
    for (const ExpertOrder::Item& item : experts_) {
      held_[held++] =
          load_intermediate(context_, room, item.expert, first_route(item), item.num_tokens);
      room.operands += item.num_tokens * context_.row_bytes;
      room.rows += item.num_tokens;
    }
  }

  // Operands are held, or loaded anew for every block.
  void sum_block(const Share& block, bool held) {
    for (std::size_t i = 0; i < experts_.size(); ++i) {
      const ExpertOrder::Item& item = experts_[i];
      const std::byte* after = i + 1 < experts_.size()
                                   ? first_panel(experts_[i + 1].expert, block.begin)
                               : block.end < mine_.end ? first_panel(experts_[0].expert, block.end)
                                                       : nullptr;
      const PanelRun run{item.expert, block, after};
      if (held) {
        sum_panels(held_[i], run);
        continue;
      }
      for (Tiles pass(item.num_tokens, context_.most_rows()); pass.next();) {
        const std::int64_t first = first_route(item) + pass.first;
        sum_panels(load_intermediate(context_, room_, item.expert, first, pass.num_tokens), run);
      }
    }
  }

  [[nodiscard]] std::int64_t first_route(const ExpertOrder::Item& item) const {
    return context_.routes.offsets[item.expert];
  }

  void sum_panels(const LoadedRoutes& loaded, const PanelRun& run) {
    down_panels(context_, loaded, run, route_sums_, block_panels_ * kPanelRows);
  }

  [[nodiscard]] const std::byte* first_panel(std::int64_t expert, std::int64_t panel) const {
    return context_.call.weights.down(expert) +
           device::panel16_panel_offset(context_.shape, panel, 0);
  }

  const StepContext& context_;
  LoadedRow rows_[kMostOperandRows];
  OperandRoom room_;
  float* route_sums_;
  Share mine_;
  std::int64_t block_panels_ = 0;
  ExpertOrder order_;
  std::span<const ExpertOrder::Item> experts_;
  LoadedRoutes held_[kMostOperandRows];  // of experts_, where they have room
};

// Runs work(worker, workers) on as many threads as the plan has room for.
template <typename Work>
void on_planned_workers(base::ThreadPool& pool, const StepContext& context, Work work) {
  const std::int64_t planned = context.scratch.num_workers;
  pool.parallel([&](int worker, int num_workers) {
    const std::int64_t workers = std::min<std::int64_t>(num_workers, planned);
    if (worker < workers) {
      work(worker, workers);
      if (context.body.finish != nullptr) {
        context.body.finish();
      }
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
  layout.operand_row_bytes = operand_row_bytes(
      std::max(problem.hidden_size, problem.intermediate_size), kMostOperandBytes, problem.recipe);
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
  on_planned_workers(pool, context, [&](std::int64_t worker, std::int64_t num_workers) {
    gate_up_worker(context, worker, num_workers);
  });
}

void down_step(const CpuCall& call, base::ThreadPool& pool, const Body& body) noexcept {
  const StepContext context(call, body, resolved_routes(call), call.weights.layout->down);
  on_planned_workers(pool, context, [&](std::int64_t worker, std::int64_t num_workers) {
    DownWork(context, worker, num_workers).run();
  });
}

}  // namespace moekit::panels
