// SPDX-License-Identifier: Apache-2.0
#pragma once

// Who computes what: panels of all experts cut into shares of equal cost.

#include <algorithm>
#include <cstdint>
#include <span>

#include "moekit/routing.h"

#include "panels/body.h"
#include "panels/routes.h"

namespace moekit::panels {

/// A contiguous share of [0, count).
struct Share {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

inline Share share_of(std::int64_t count, std::int64_t worker, std::int64_t num_workers) {
  return {count * worker / num_workers, count * (worker + 1) / num_workers};
}

/// What a worker owns of every expert: panels laid end to end, each expert's weighted with what a
/// panel costs, and the line cut into equal parts.
class ExpertShares {
 public:
  ExpertShares(const Routes& routes,
               const Body& body,
               std::int64_t panels,
               std::int64_t worker,
               std::int64_t workers)
      : panels_(panels), base_cost_(body.panel_cost), least_cost_(body.least_panel_cost) {
    std::int64_t total = 0;
    for (std::int64_t expert = 0; expert < routes.num_experts; ++expert) {
      total += panels * panel_cost(routes.offsets[expert + 1] - routes.offsets[expert]);
    }
    line_ = share_of(total, worker, workers);
  }

  /// Call for each expert in ascending order.
  Share next(std::int64_t num_tokens) {
    const std::int64_t cost = panel_cost(num_tokens);
    if (cost == 0) {
      return {};
    }
    const Share share{first_panel_at(line_.begin, cost), first_panel_at(line_.end, cost)};
    position_ += panels_ * cost;
    return share;
  }

 private:
  [[nodiscard]] std::int64_t panel_cost(std::int64_t num_tokens) const {
    return num_tokens == 0 ? 0 : std::max(num_tokens + base_cost_, least_cost_);
  }

  // Panels belong to the worker in whose part of the line they begin.
  [[nodiscard]] std::int64_t first_panel_at(std::int64_t mark, std::int64_t cost) const {
    return std::clamp<std::int64_t>((mark - position_ + cost - 1) / cost, 0, panels_);
  }

  std::int64_t panels_;
  std::int64_t base_cost_;
  std::int64_t least_cost_;
  std::int64_t position_ = 0;
  Share line_;
};

/// The experts of a worker in the order in which it goes through them: even workers from the fewest
/// tokens to the most, odd ones from the most to the fewest. Weights of few tokens are wanted as
/// fast as memory gives them and those of many leave it idle, so that one thread's wait is
/// another's share of the memory; among equals the index decides.
class ExpertOrder {
 public:
  // Without initial values: most calls have few experts, and zeros for all cost half of the first
  // level of cache.
  struct Item {
    std::int32_t expert;
    std::int32_t num_tokens;
    std::int32_t panels_begin;  // of this worker
    std::int32_t panels_end;
  };

  /// Experts without tokens or panels are left out.
  void add(std::int64_t expert, std::int64_t num_tokens, const Share& panels) {
    if (num_tokens > 0 && panels.begin < panels.end) {
      items_[count_++] = {static_cast<std::int32_t>(expert),
                          static_cast<std::int32_t>(num_tokens),
                          static_cast<std::int32_t>(panels.begin),
                          static_cast<std::int32_t>(panels.end)};
    }
  }

  std::span<const Item> sorted(std::int64_t worker) {
    const bool fewest_first = worker % 2 == 0;
    std::sort(items_, items_ + count_, [=](const Item& a, const Item& b) {
      return a.num_tokens != b.num_tokens ? (a.num_tokens < b.num_tokens) == fewest_first
                                          : a.expert < b.expert;
    });
    return {items_, static_cast<std::size_t>(count_)};
  }

 private:
  Item items_[kMaxExperts];
  std::int64_t count_ = 0;
};

}  // namespace moekit::panels
