// SPDX-License-Identifier: Apache-2.0

// One rank of a layer: which columns and experts it holds, and the problem that it plans.

#include <algorithm>
#include <bitset>

#include "moekit/problem.h"

#include "base/border.h"
#include "base/text.h"

namespace moekit {
namespace {

using base::cat;

Status check_rank(std::string_view name, std::int64_t rank, std::int64_t size) {
  if (size < 1 || rank < 0 || rank >= size) {
    return invalid_argument(cat(name, " rank ", rank, " of ", size, ", expected 0 <= rank < size"));
  }
  return {};
}

// Sizes 1..most leave no rank empty; those that give every rank the same share come first to mind.
std::string legal_sizes(std::int64_t most) {
  std::vector<std::int64_t> even;
  for (std::int64_t size = 1; size <= most; ++size) {
    if (most % size == 0) {
      even.push_back(size);
    }
  }
  return cat("legal sizes are 1..", most, ", even shares at ", base::join(even));
}

Status check_columns(const Problem& layer, const ColumnRange& columns) {
  if (columns.begin < 0 || columns.end > layer.intermediate_size ||
      columns.begin % kExtentMultiple != 0 || columns.end % kExtentMultiple != 0) {
    return invalid_argument(cat("shard columns ",
                                columns.begin,
                                "..",
                                columns.end,
                                ", expected multiples of ",
                                kExtentMultiple,
                                " within 0..",
                                layer.intermediate_size));
  }
  if (columns.end <= columns.begin) {
    return unsupported(cat("shard columns ",
                           columns.begin,
                           "..",
                           columns.end,
                           " are empty; at least ",
                           kExtentMultiple,
                           " columns are needed"));
  }
  return {};
}

Status check_experts(const Problem& layer, const std::vector<std::int64_t>& experts) {
  std::bitset<kMaxExperts> seen;
  for (const std::int64_t id : experts) {
    if (id < 0 || id >= layer.num_experts) {
      return invalid_argument(cat("shard expert ", id, ", the layer has ", layer.num_experts));
    }
    if (seen.test(static_cast<std::size_t>(id))) {
      return invalid_argument(cat("shard expert ", id, " is named twice"));
    }
    seen.set(static_cast<std::size_t>(id));
  }
  return {};
}

// A part cannot be cut again: its map and offset speak of the layer that it was cut from.
Status check_whole(const Problem& layer) {
  if (layer.expert_map || num_router_experts(layer) != layer.num_experts) {
    return invalid_argument("a layer with an expert_map is already one rank's part");
  }
  if (layer.down_group_offset != 0) {
    return invalid_argument(cat(
        "a layer with down_group_offset ", layer.down_group_offset, " is already one rank's part"));
  }
  return validate_problem(layer);
}

}  // namespace

Result<ColumnRange> shard_columns(const Problem& layer, const Shard& shard) noexcept {
  return base::at_border([&]() -> Result<ColumnRange> {
    MOEKIT_RETURN_IF_ERROR(check_rank("tp", shard.tp_rank, shard.tp_size));
    if (shard.columns.has_value()) {
      MOEKIT_RETURN_IF_ERROR(check_columns(layer, *shard.columns));
      return *shard.columns;
    }
    const std::int64_t units = layer.intermediate_size / kExtentMultiple;
    if (shard.tp_size > units) {
      return unsupported(cat("tp size ",
                             shard.tp_size,
                             " leaves ranks without columns: intermediate_size ",
                             layer.intermediate_size,
                             " has ",
                             units,
                             " units of ",
                             kExtentMultiple,
                             "; ",
                             legal_sizes(units)));
    }
    return ColumnRange{units * shard.tp_rank / shard.tp_size * kExtentMultiple,
                       units * (shard.tp_rank + 1) / shard.tp_size * kExtentMultiple};
  });
}

Result<std::vector<std::int64_t>> shard_experts(const Problem& layer, const Shard& shard) noexcept {
  return base::at_border([&]() -> Result<std::vector<std::int64_t>> {
    MOEKIT_RETURN_IF_ERROR(check_rank("ep", shard.ep_rank, shard.ep_size));
    if (!shard.experts.empty()) {
      MOEKIT_RETURN_IF_ERROR(check_experts(layer, shard.experts));
      return shard.experts;
    }
    const std::int64_t count = layer.num_experts;
    if (shard.ep_size > count) {
      return unsupported(cat("ep size ",
                             shard.ep_size,
                             " leaves ranks without experts: num_experts ",
                             count,
                             "; ",
                             legal_sizes(count)));
    }
    std::vector<std::int64_t> experts;
    if (shard.placement == ExpertPlacement::kRoundRobin) {
      for (std::int64_t id = shard.ep_rank; id < count; id += shard.ep_size) {
        experts.push_back(id);
      }
      return experts;
    }
    const std::int64_t end = count * (shard.ep_rank + 1) / shard.ep_size;
    for (std::int64_t id = count * shard.ep_rank / shard.ep_size; id < end; ++id) {
      experts.push_back(id);
    }
    return experts;
  });
}

Result<std::vector<std::int32_t>> shard_expert_map(const Problem& layer,
                                                   const Shard& shard) noexcept {
  return base::at_border([&]() -> Result<std::vector<std::int32_t>> {
    MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::int64_t> experts, shard_experts(layer, shard));
    std::vector<std::int32_t> map(static_cast<std::size_t>(layer.num_experts), -1);
    for (std::size_t local = 0; local < experts.size(); ++local) {
      map[static_cast<std::size_t>(experts[local])] = static_cast<std::int32_t>(local);
    }
    return map;
  });
}

Result<Problem> local_problem(const Problem& layer, const Shard& shard) noexcept {
  return base::at_border([&]() -> Result<Problem> {
    MOEKIT_RETURN_IF_ERROR(check_whole(layer));
    MOEKIT_ASSIGN_OR_RETURN(const ColumnRange columns, shard_columns(layer, shard));
    MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::int64_t> experts, shard_experts(layer, shard));
    Problem local = layer;
    local.intermediate_size = columns.end - columns.begin;
    const FormatInfo& format = format_info(recipe_info(layer.recipe).weights);
    const std::int64_t group =
        layer.weight_group_size != 0 ? layer.weight_group_size : format.group_size;
    local.down_group_offset = group == 0 ? 0 : columns.begin % group;
    local.gate_up_row_offset = columns.begin % format.group_rows;
    local.num_experts = static_cast<std::int64_t>(experts.size());
    local.router_experts = layer.num_experts;
    // Whoever holds every expert under its own id needs no map.
    local.expert_map = false;
    for (std::size_t i = 0; i < experts.size(); ++i) {
      local.expert_map |= experts[i] != static_cast<std::int64_t>(i);
    }
    local.expert_map |= local.num_experts != layer.num_experts;
    local.down_bias = layer.down_bias && shard.tp_rank == 0;
    local.shared = shard.tp_rank == 0 && shard.ep_rank == 0 ? layer.shared : SharedInput::kNone;
    local.out_dtype = shard.out_dtype;
    MOEKIT_RETURN_IF_ERROR(validate_problem(local));
    return local;
  });
}

}  // namespace moekit
