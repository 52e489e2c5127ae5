// SPDX-License-Identifier: Apache-2.0
#include "plan/tuning/table.h"

#include <algorithm>

#include "device/portable.h"

namespace moekit::plan {
namespace {

constexpr const TuningTable* kTables[] = {&kCpuTable,
                                          &kSm80Table,
                                          &kSm86Table,
                                          &kSm89Table,
                                          &kSm90aTable,
                                          &kSm100aTable,
                                          &kSm120aTable,
                                          &kSm121aTable};

bool holds(ActivationSet set, ActivationKind kind) {
  switch (set) {
    case ActivationSet::kSilu:
      return kind == ActivationKind::kSilu;
    case ActivationSet::kNotSitu:
      return kind != ActivationKind::kSitu;
    case ActivationSet::kGated:
      return activation_is_gated(kind);
    case ActivationSet::kNotGated:
      return !activation_is_gated(kind);
    case ActivationSet::kAny:
      break;
  }
  return true;
}

bool holds(const BlockRow& row, const Problem& problem, std::int64_t routes) {
  const std::int64_t experts = num_router_experts(problem);
  const std::int64_t tenths = 10 * routes;
  const bool dense_enough =
      row.tenths_per_expert == kNoLimit || (row.below ? tenths < row.tenths_per_expert * experts
                                                      : tenths <= row.tenths_per_expert * experts);
  return plan::holds(row.filter, problem) && routes >= row.min_routes && routes <= row.max_routes &&
         dense_enough;
}

// Last M of which M * top_k <= routes.
std::int64_t last_tokens(std::int64_t routes, std::int64_t top_k) {
  return routes < 0 ? -1 : routes / top_k;
}

/// Sums in no order are nobody's own: batch_invariant takes none, whatever is allowed.
bool takes_atomics(const Problem& problem) {
  return problem.allow_atomics && !problem.batch_invariant;
}

}  // namespace

const TuningTable* tuning_table(Arch arch) noexcept {
  for (const TuningTable* table : kTables) {
    if (table->arch == arch) {
      return table;
    }
  }
  return nullptr;
}

bool holds(const RowFilter& filter, const Problem& problem) noexcept {
  const std::int64_t hidden = problem.hidden_size;
  const std::int64_t inner = problem.intermediate_size;
  return recipe_info(problem.recipe).name.starts_with(filter.recipe) &&
         holds(filter.activations, problem.activation.kind) &&
         hidden % filter.hidden_multiple == 0 && hidden <= filter.max_hidden &&
         inner % filter.intermediate_multiple == 0 && inner <= filter.max_intermediate &&
         (filter.experts == 0 || num_router_experts(problem) == filter.experts) &&
         (filter.padded_intermediate == 0 ||
          device::round_up(inner, std::int64_t{128}) == filter.padded_intermediate) &&
         filter.expert_map.value_or(problem.expert_map) == problem.expert_map &&
         filter.weight_on_input.value_or(problem.router_weight_on_input) ==
             problem.router_weight_on_input &&
         filter.bf16_io.value_or(problem.io_dtype == DType::kBf16) ==
             (problem.io_dtype == DType::kBf16);
}

const DirectRow* direct_row(const TuningTable& table, const Problem& problem) noexcept {
  for (const DirectRow& row : table.direct) {
    if ((!row.atomic || takes_atomics(problem)) && holds(row.filter, problem)) {
      return &row;
    }
  }
  return nullptr;
}

std::int64_t last_direct(const DirectRow* row, const Problem& problem) noexcept {
  if (row == nullptr) {
    return -1;
  }
  const std::int64_t routes =
      row->tenths_per_expert == kNoLimit
          ? row->max_routes
          : std::min(row->max_routes, row->tenths_per_expert * num_router_experts(problem) / 10);
  return std::min(row->max_tokens, last_tokens(routes, problem.top_k));
}

std::int64_t route_block_rows(const TuningTable& table,
                              const Problem& problem,
                              std::int64_t num_tokens) noexcept {
  for (const BlockRow& row : table.blocks) {
    if (holds(row, problem, num_tokens * problem.top_k)) {
      return row.rows;
    }
  }
  return 0;
}

std::vector<std::int64_t> block_ends(const TuningTable& table,
                                     const Problem& problem,
                                     std::int64_t last) {
  const std::int64_t experts = num_router_experts(problem);
  std::vector<std::int64_t> ends;
  for (const BlockRow& row : table.blocks) {
    if (!holds(row.filter, problem)) {
      continue;
    }
    ends.push_back(last_tokens(row.min_routes - 1, problem.top_k));
    ends.push_back(last_tokens(std::min(row.max_routes, kNoLimit), problem.top_k));
    if (row.tenths_per_expert != kNoLimit) {
      ends.push_back(
          last_tokens((row.tenths_per_expert * experts - (row.below ? 1 : 0)) / 10, problem.top_k));
    }
  }
  std::erase_if(ends, [last](std::int64_t end) { return end < 0 || end >= last; });
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  std::erase_if(ends, [&](std::int64_t end) {
    return route_block_rows(table, problem, end) == route_block_rows(table, problem, end + 1);
  });
  return ends;
}

const GridRow* grid_row(const TuningTable& table,
                        ExecutionFamily family,
                        std::int64_t num_routes) noexcept {
  for (const GridRow& row : table.grids) {
    if (row.family == family && num_routes <= row.max_routes) {
      return &row;
    }
  }
  return nullptr;
}

bool may_combine_by_atomics(const TuningTable& table, const Problem& problem) noexcept {
  return takes_atomics(problem) &&
         std::any_of(table.atomics.begin(), table.atomics.end(), [&](const AtomicRow& row) {
           return holds(row.filter, problem);
         });
}

}  // namespace moekit::plan
