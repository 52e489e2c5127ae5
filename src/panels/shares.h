// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the work of a step is divided over the workers of a region. Which worker computes an element
// decides no bit of it.

#include <algorithm>
#include <atomic>
#include <cstdint>

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

/// Deals out [0, count): seven eighths in equal parts, one a worker, then what is left in pieces
/// that become smaller, to whoever is done. Equal parts alone let a region wait for the worker
/// whose core was disturbed: 3 to 9 % of it on a shared machine, another worker every time (README,
/// 8).
class Deal {
 public:
  /// Pieces are no smaller than `least_piece` where every worker can have one of that size.
  Deal(std::int64_t count, std::int64_t num_workers, std::int64_t least_piece)
      : count_(count),
        num_workers_(num_workers),
        least_piece_(
            std::max<std::int64_t>(1, std::min(least_piece, count / (kClaimedPart * num_workers)))),
        owned_(num_workers == 1 ? count : count - count / kClaimedPart),
        claimed_(owned_) {}

  [[nodiscard]] Share own_share(std::int64_t worker) const {
    return share_of(owned_, worker, num_workers_);
  }

  /// Takes the next piece; an empty share when nothing is left.
  Share claim() {
    std::int64_t begin = claimed_.load(std::memory_order_relaxed);
    std::int64_t end = 0;
    do {
      // Half of an equal part of the rest, so that two workers end within a piece of each other.
      const std::int64_t piece = (count_ - begin) / (2 * num_workers_);
      end = std::min(count_, begin + std::max(least_piece_, piece));
    } while (begin < end && !claimed_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
    return {begin, end};
  }

 private:
  static constexpr std::int64_t kClaimedPart = 8;

  std::int64_t count_;
  std::int64_t num_workers_;
  std::int64_t least_piece_;
  std::int64_t owned_;
  std::atomic<std::int64_t> claimed_;
};

/// The panels of all active experts laid end to end, each expert's weighted with what a panel
/// costs.
class ExpertLine {
 public:
  ExpertLine(const Routes& routes, const Body& body, std::int64_t panels)
      : panels_(panels), base_cost_(body.panel_cost) {
    for (std::int64_t expert = 0; expert < routes.num_experts; ++expert) {
      const std::int64_t cost = panel_cost(routes.offsets[expert + 1] - routes.offsets[expert]);
      length_ += panels * cost;
      active_panels_ += cost == 0 ? 0 : panels;
    }
  }

  [[nodiscard]] std::int64_t length() const { return length_; }

  [[nodiscard]] std::int64_t mean_panel_cost() const {
    return length_ / std::max<std::int64_t>(1, active_panels_);
  }

  /// A panel of an expert with so many tokens.
  [[nodiscard]] std::int64_t panel_cost(std::int64_t num_tokens) const {
    return num_tokens == 0 ? 0 : num_tokens + base_cost_;
  }

  [[nodiscard]] std::int64_t panels() const { return panels_; }

 private:
  std::int64_t panels_;
  std::int64_t base_cost_;
  std::int64_t length_ = 0;
  std::int64_t active_panels_ = 0;
};

/// What a part of the line holds of every expert.
class ExpertShares {
 public:
  ExpertShares(const ExpertLine& line, const Share& part) : line_(line), part_(part) {}

  /// Call for each expert in ascending order.
  Share next(std::int64_t num_tokens) {
    const std::int64_t cost = line_.panel_cost(num_tokens);
    if (cost == 0) {
      return {};
    }
    const Share share{first_panel_at(part_.begin, cost), first_panel_at(part_.end, cost)};
    position_ += line_.panels() * cost;
    return share;
  }

  /// That no later expert has a share.
  [[nodiscard]] bool is_past() const { return position_ >= part_.end; }

 private:
  // A panel belongs to the part in which it begins.
  [[nodiscard]] std::int64_t first_panel_at(std::int64_t mark, std::int64_t cost) const {
    return std::clamp<std::int64_t>((mark - position_ + cost - 1) / cost, 0, line_.panels());
  }

  const ExpertLine& line_;
  Share part_;
  std::int64_t position_ = 0;
};

}  // namespace moekit::panels
