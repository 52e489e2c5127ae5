// SPDX-License-Identifier: Apache-2.0
#include "reference/layer.h"

#include <algorithm>
#include <cmath>

#include "reference/dot.h"
#include "reference/quantize.h"
#include "reference/small_floats.h"
#include "reference/weights.h"

namespace moekit::reference {
namespace {

// Sums whose terms stay below this cannot overflow f32 whatever the order; a quarter of the range.
constexpr double kRange = power_of_two(126);

// Where a router weight stands: on FC1's sum or on the route's output.
struct RouteFactors {
  double input = 1.0;
  double output = 1.0;
};

RouteFactors route_factors(const Problem& problem, double weight) {
  const double scaling = static_cast<double>(problem.routed_scaling);
  const bool on_weights = problem.routed_scaling_place == ScalingPlace::kWeights;
  if (problem.router_weight_on_input) {
    return on_weights ? RouteFactors{weight * scaling, 1.0} : RouteFactors{weight, scaling};
  }
  return {1.0, weight * scaling};
}

void load_operands(const LayerCall& call, BatchToken& token) {
  const TensorView& x = call.arguments.x;
  token.x.resize(index_of(call.problem.hidden_size));
  for (std::int64_t k = 0; k < call.problem.hidden_size; ++k) {
    const double value = load_value(x.data, x.dtype, token.token * x.strides[0] + k * x.strides[1]);
    const double operand = round_to(kBf16Shape, value);
    token.finite = token.finite && std::isfinite(operand);
    token.x[index_of(k)] = operand;
  }
}

// One projection of FC1 at one row: h and the bound on its error.
struct Projection {
  double value = 0.0;
  double error = 0.0;
  bool in_range = true;
};

struct ProjectionRow {
  const double* weights = nullptr;  // [hidden]
  double magnitude = 0.0;           // sum of |w|
  double global = 1.0;              // of the weights, times the activations'
  double widest = 1.0;              // largest factor that a partial product may carry
  double bias = 0.0;
};

// h = p (sum x w) G + bias. The accumulator is off by at most 4 eps sqrt(K) sum|x w| (the form of
// spec section 2) plus what flushed operands lose; each of the two products and the addition of the
// bias rounds once more, relatively to what it returns.
Projection project(const LayerCall& call,
                   const BatchRoute& route,
                   const ProjectionRow& row,
                   double input_factor) {
  const std::int64_t size = call.problem.hidden_size;
  const DotSums sums = dot(route.operand.data(), row.weights, size);
  const double factor = input_factor * row.global;
  const double scaled = sums.sum * factor;
  const double accumulated =
      4.0 * call.accumulator_epsilon * std::sqrt(static_cast<double>(size)) * sums.magnitude +
      kSmallest * (route.operand_magnitude + row.magnitude);
  Projection result;
  result.value = scaled + row.bias;
  result.error = std::fabs(factor) * accumulated +
                 3.0 * kEpsilon * (std::fabs(scaled) + std::fabs(row.bias)) + kSmallest;
  result.in_range =
      sums.magnitude * row.widest * std::max(1.0, std::fabs(input_factor)) + std::fabs(row.bias) <
      kRange;
  return result;
}

// Routes [begin, end) of the batch go to one expert.
struct ExpertRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

std::vector<ExpertRange> expert_ranges(const Batch& batch) {
  std::vector<ExpertRange> ranges;
  for (std::size_t i = 0; i < batch.routes.size(); ++i) {
    if (ranges.empty() ||
        batch.routes[ranges.back().begin].route.expert != batch.routes[i].route.expert) {
      ranges.push_back({i, i});
    }
    ranges.back().end = i + 1;
  }
  return ranges;
}

ProjectionRow projection_row(const WeightMatrix& matrix,
                             const BiasView& bias,
                             std::int64_t row,
                             double input_global,
                             std::vector<double>& storage) {
  if (matrix.global_scale == 0.0F) {
    // Dormant experts exist: a global of 0 makes the matrix 0, and nothing is said of its scales.
    std::fill_n(storage.begin(), matrix.cols, 0.0);
  } else {
    decode_weight_row(matrix, row, storage.data());
  }
  const double global = static_cast<double>(matrix.global_scale);
  return {storage.data(),
          sum_of_magnitudes(storage.data(), matrix.cols),
          global * input_global,
          std::max({1.0, global, input_global, global * input_global}),
          bias_value(bias, row)};
}

bool has_input_scales(const LayerCall& call) {
  return quantizer_info(recipe_info(call.problem.recipe).quantizer).needs_input_scale;
}

// The dequant-side global of x; gate and up share x, which takes the larger of theirs.
double x_global(const LayerCall& call, const ExpertWeights& expert) {
  if (!has_input_scales(call)) {
    return 1.0;
  }
  const double up = static_cast<double>(expert.up.input_scale.value_or(0.0F));
  const bool gated = activation_is_gated(call.problem.activation.kind);
  return gated ? std::max(up, static_cast<double>(expert.gate.input_scale.value_or(0.0F))) : up;
}

double down_global(const LayerCall& call, const ExpertWeights& expert) {
  return has_input_scales(call) ? static_cast<double>(expert.down.input_scale.value_or(0.0F)) : 1.0;
}

// What the recipe's quantiser makes of `row`, as the route's operand.
void set_operand(const LayerCall& call,
                 double global,
                 const std::vector<double>& row,
                 BatchRoute& route) {
  route.operand.resize(row.size());
  quantize_row(recipe_info(call.problem.recipe).quantizer, global, row, route.operand);
  route.operand_magnitude =
      sum_of_magnitudes(route.operand.data(), static_cast<std::int64_t>(row.size()));
}

// Scratch of one thread: decoded rows, and which tokens of the batch left f32's range.
struct RowScratch {
  std::vector<double> gate{};
  std::vector<double> up{};
  std::vector<char> out_of_range{};
};

std::vector<RowScratch> make_scratches(const LayerCall& call, const Batch& batch) {
  const int num_threads = call.pool == nullptr ? 1 : call.pool->num_threads();
  const std::size_t width =
      index_of(std::max(call.problem.hidden_size, call.problem.intermediate_size));
  std::vector<RowScratch> scratches(static_cast<std::size_t>(num_threads));
  for (RowScratch& scratch : scratches) {
    scratch.gate.resize(width);
    scratch.up.resize(width);
    scratch.out_of_range.assign(batch.tokens.size(), 0);
  }
  return scratches;
}

void mark_out_of_range(const std::vector<RowScratch>& scratches, Batch& batch) {
  for (const RowScratch& scratch : scratches) {
    for (std::size_t t = 0; t < batch.tokens.size(); ++t) {
      batch.tokens[t].in_range = batch.tokens[t].in_range && scratch.out_of_range[t] == 0;
    }
  }
}

// Calls body(range, row, scratch) for each of `rows` rows of every expert. Threads share rows, not
// experts: each decodes its rows once and writes no value that another thread writes.
template <typename Body>
void for_expert_rows(const LayerCall& call, Batch& batch, std::int64_t rows, const Body& body) {
  const std::vector<ExpertRange> ranges = expert_ranges(batch);
  std::vector<RowScratch> scratches = make_scratches(call, batch);
  const auto parts = static_cast<std::int64_t>(scratches.size());
  for_row_ranges(call.pool, parts, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      for (const ExpertRange& range : ranges) {
        for (std::int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row) {
          body(range, row, scratches[index_of(part)]);
        }
      }
    }
  });
  mark_out_of_range(scratches, batch);
}

// Row i of gate and up for every route of one expert.
void evaluate_gate_up_row(const LayerCall& call,
                          const ResolvedActivation& activation,
                          Batch& batch,
                          const ExpertRange& range,
                          std::int64_t row,
                          RowScratch& scratch) {
  const bool gated = activation_is_gated(activation.kind);
  const ExpertWeights& expert =
      call.source.experts[index_of(batch.routes[range.begin].route.expert)];
  const double global = x_global(call, expert);
  const ProjectionRow up = projection_row(expert.up, expert.up_bias, row, global, scratch.up);
  ProjectionRow gate{};
  if (gated) {
    gate = projection_row(expert.gate, expert.gate_bias, row, global, scratch.gate);
  }
  for (std::size_t i = range.begin; i < range.end; ++i) {
    BatchRoute& route = batch.routes[i];
    const BatchToken& token = batch.tokens[index_of(route.token_idx)];
    if (!token.finite) {
      continue;
    }
    const double factor = route_factors(call.problem, route.route.weight).input;
    const Projection u = project(call, route, up, factor);
    const Projection g = gated ? project(call, route, gate, factor) : Projection{};
    const double a = activate(activation, g.value, u.value);
    route.exact[index_of(row)] = a;
    route.error[index_of(row)] = activation_error(activation, g.value, u.value, g.error, u.error);
    route.a[index_of(row)] = round_to(kBf16Shape, a);
    if (!u.in_range || !g.in_range || !(std::fabs(a) < kRange)) {
      scratch.out_of_range[index_of(route.token_idx)] = 1;
    }
  }
}

// One output column of one route.
void add_route(const LayerCall& call,
               const BatchRoute& route,
               const ProjectionRow& row,
               std::int64_t column,
               RowScratch& scratch,
               Outputs& outputs) {
  const std::int64_t size = call.problem.intermediate_size;
  const DotSums sums = dot(route.operand.data(), row.weights, size);
  const double weight = route_factors(call.problem, route.route.weight).output;
  const double factor = weight * row.global;
  const std::size_t at = index_of(route.token_idx * call.problem.hidden_size + column);
  outputs.value[at] += sums.sum * factor + weight * row.bias;
  outputs.magnitude[at] += sums.magnitude * std::fabs(factor) + std::fabs(weight * row.bias);
  // An operand below 2^-126 may count as 0, and so may a product or a partial sum: 2^-126 of the
  // other operand, scaled as the sum is scaled.
  outputs.flush[at] += std::max(1.0, std::fabs(factor)) * kSmallest *
                       (route.operand_magnitude + row.magnitude + 1.0);
  for (const SparseDelta& delta : route.deltas) {
    const double moved = delta.delta * row.weights[delta.index] * factor;
    outputs.delta[at] += moved;
    outputs.delta_magnitude[at] += std::fabs(moved);
  }
  const double widest = std::max(1.0, std::fabs(weight)) * row.widest;
  if (!(sums.magnitude * widest + std::fabs(weight * row.bias) < kRange)) {
    scratch.out_of_range[index_of(route.token_idx)] = 1;
  }
}

// Output column `column` for every route of one expert.
void evaluate_down_row(const LayerCall& call,
                       const Batch& batch,
                       const ExpertRange& range,
                       std::int64_t column,
                       RowScratch& scratch,
                       Outputs& outputs) {
  const ExpertWeights& expert =
      call.source.experts[index_of(batch.routes[range.begin].route.expert)];
  const ProjectionRow row =
      projection_row(expert.down, expert.down_bias, column, down_global(call, expert), scratch.up);
  for (std::size_t i = range.begin; i < range.end; ++i) {
    if (batch.tokens[index_of(batch.routes[i].token_idx)].finite) {
      add_route(call, batch.routes[i], row, column, scratch, outputs);
    }
  }
}

void add_shared(const LayerCall& call, const Batch& batch, Outputs& outputs) {
  if (call.problem.shared == SharedInput::kNone) {
    return;
  }
  const TensorView& shared = call.arguments.shared;
  for (std::size_t t = 0; t < batch.tokens.size(); ++t) {
    for (std::int64_t n = 0; n < call.problem.hidden_size; ++n) {
      const double value =
          load_value(shared.data,
                     shared.dtype,
                     batch.tokens[t].token * shared.strides[0] + n * shared.strides[1]);
      const std::size_t at = t * index_of(call.problem.hidden_size) + index_of(n);
      outputs.value[at] += value;
      outputs.magnitude[at] += std::fabs(value);
    }
  }
}

}  // namespace

Batch make_batch(const LayerCall& call, const std::vector<std::int64_t>& tokens) {
  Batch batch;
  for (const std::int64_t token : tokens) {
    batch.tokens.push_back({});
    batch.tokens.back().token = token;
    load_operands(call, batch.tokens.back());
  }
  std::size_t token_idx = 0;
  for (const Route& route : active_routes(call.problem, call.arguments, tokens)) {
    while (tokens[token_idx] != route.token) {
      ++token_idx;
    }
    batch.tokens[token_idx].active = true;
    BatchRoute entry;
    entry.route = route;
    entry.token_idx = static_cast<std::int64_t>(token_idx);
    batch.routes.push_back(std::move(entry));
  }
  std::stable_sort(batch.routes.begin(), batch.routes.end(), [](const auto& l, const auto& r) {
    return l.route.expert < r.route.expert;
  });
  return batch;
}

void evaluate_gate_up(const LayerCall& call, Batch& batch) {
  const std::size_t rows = index_of(call.problem.intermediate_size);
  for (BatchRoute& route : batch.routes) {
    route.exact.assign(rows, 0.0);
    route.error.assign(rows, 0.0);
    route.a.assign(rows, 0.0);
  }
  for (BatchRoute& route : batch.routes) {
    const ExpertWeights& expert = call.source.experts[index_of(route.route.expert)];
    set_operand(call, x_global(call, expert), batch.tokens[index_of(route.token_idx)].x, route);
  }
  const ResolvedActivation activation = resolve(call.problem.activation);
  for_expert_rows(call,
                  batch,
                  call.problem.intermediate_size,
                  [&](const ExpertRange& range, std::int64_t row, RowScratch& scratch) {
                    evaluate_gate_up_row(call, activation, batch, range, row, scratch);
                  });
}

Outputs evaluate_down(const LayerCall& call, Batch& batch) {
  const std::size_t size = batch.tokens.size() * index_of(call.problem.hidden_size);
  Outputs outputs;
  for (auto* values : {&outputs.value,
                       &outputs.magnitude,
                       &outputs.flush,
                       &outputs.delta,
                       &outputs.delta_magnitude}) {
    values->assign(size, 0.0);
  }
  for (BatchRoute& route : batch.routes) {
    const ExpertWeights& expert = call.source.experts[index_of(route.route.expert)];
    set_operand(call, down_global(call, expert), route.a, route);
  }
  for_expert_rows(call,
                  batch,
                  call.problem.hidden_size,
                  [&](const ExpertRange& range, std::int64_t column, RowScratch& scratch) {
                    evaluate_down_row(call, batch, range, column, scratch, outputs);
                  });
  add_shared(call, batch, outputs);
  return outputs;
}

std::vector<double> evaluate_layer(const LayerCall& call, const std::vector<std::int64_t>& tokens) {
  Batch batch = make_batch(call, tokens);
  evaluate_gate_up(call, batch);
  Outputs outputs = evaluate_down(call, batch);
  const std::size_t hidden = index_of(call.problem.hidden_size);
  for (std::size_t t = 0; t < batch.tokens.size(); ++t) {
    if (batch.tokens[t].active && !batch.tokens[t].finite) {
      std::fill_n(
          outputs.value.begin() + static_cast<std::ptrdiff_t>(t * hidden), hidden, kNotANumber);
    }
  }
  return std::move(outputs.value);
}

}  // namespace moekit::reference
