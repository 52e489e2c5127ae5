// SPDX-License-Identifier: Apache-2.0
#include "panels/expert_shares.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace moekit::panels {
namespace {

using std::int64_t;

int64_t cost_of(const Body& body, int64_t tokens) {
  return tokens == 0 ? 0 : std::max(tokens + body.panel_cost, body.least_panel_cost);
}

// Every panel of an expert with routes has one owner, and owners differ by less than two panels.
// Returns how many panels had one.
int64_t expect_one_owner(const Body& body,
                         const std::vector<int64_t>& tokens,
                         int64_t panels,
                         int64_t workers) {
  std::vector<std::int32_t> offsets{0};
  int64_t total = 0;
  int64_t most = 0;
  for (const int64_t count : tokens) {
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(count));
    total += panels * cost_of(body, count);
    most = std::max(most, cost_of(body, count));
  }
  Routes routes;
  routes.num_experts = static_cast<int64_t>(tokens.size());
  routes.offsets = offsets.data();
  std::vector<int> owners(tokens.size() * static_cast<std::size_t>(panels));
  for (int64_t worker = 0; worker < workers; ++worker) {
    ExpertShares shares(routes, body, panels, worker, workers);
    int64_t cost = 0;
    for (std::size_t expert = 0; expert < tokens.size(); ++expert) {
      const Share share = shares.next(tokens[expert]);
      EXPECT_LE(share.begin, share.end);
      for (int64_t panel = share.begin; panel < share.end; ++panel) {
        ++owners.at(expert * static_cast<std::size_t>(panels) + static_cast<std::size_t>(panel));
        cost += cost_of(body, tokens[expert]);
      }
    }
    EXPECT_LT(std::abs(cost - total / workers), 2 * std::max<int64_t>(1, most)) << worker;
  }
  int64_t owned = 0;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const int wanted = tokens[i / static_cast<std::size_t>(panels)] == 0 ? 0 : 1;
    EXPECT_EQ(owners[i], wanted) << "panel " << i;
    owned += wanted;
  }
  return owned;
}

TEST(ExpertShares, EveryPanelHasOneOwner) {
  std::mt19937 random(17);
  int64_t owned = 0;
  for (const auto& [panel_cost, least] : {std::pair{2, 0}, {1, 3}, {1, 40}}) {
    Body body;
    body.panel_cost = panel_cost;
    body.least_panel_cost = least;
    for (int64_t round = 0; round < 200; ++round) {
      std::vector<int64_t> tokens(std::size_t{1} + random() % 9);
      for (int64_t& count : tokens) {
        // Experts without routes, with one token, with some and with many.
        constexpr int64_t kCounts[] = {0, 1, 1, 2, 3, 17, 70};
        count = kCounts[random() % std::size(kCounts)];
      }
      const auto panels = static_cast<int64_t>(1 + random() % 12);
      for (int64_t workers = 1; workers <= 7; ++workers) {
        SCOPED_TRACE(testing::Message() << "round " << round << " workers " << workers);
        owned += expect_one_owner(body, tokens, panels, workers);
      }
      if (testing::Test::HasFailure()) {
        return;
      }
    }
  }
  EXPECT_GE(owned, 3 * 200 * 7);
}

// What a panel costs at least counts: one token and two wait for memory alike.
TEST(ExpertShares, FewTokensCostWhatReadingTakes) {
  Body body;
  body.panel_cost = 1;
  body.least_panel_cost = 3;
  const std::int32_t offsets[] = {0, 1, 3, 3, 8};
  Routes routes;
  routes.num_experts = 4;
  routes.offsets = offsets;
  // 12 panels of 3, 3, 0 and 6: 144, halved at the end of the second expert.
  ExpertShares first(routes, body, 12, 0, 2);
  ExpertShares second(routes, body, 12, 1, 2);
  const int64_t firsts[] = {12, 12, 0, 0};
  for (std::size_t expert = 0; expert < 4; ++expert) {
    const int64_t tokens = offsets[expert + 1] - offsets[expert];
    const Share mine = first.next(tokens);
    const Share others = second.next(tokens);
    EXPECT_EQ(mine.end - mine.begin, firsts[expert]) << expert;
    EXPECT_EQ(others.end - others.begin, tokens == 0 ? 0 : 12 - firsts[expert]) << expert;
  }
}

// Neighbouring workers meet in the middle: while one has the fewest tokens the other has the most.
TEST(ExpertOrder, WorkersGoOppositeWays) {
  const int64_t tokens[] = {3, 0, 7, 1, 3, 1, 9};
  const auto order_of = [&](int64_t worker) {
    ExpertOrder order;
    for (int64_t expert = 0; expert < 7; ++expert) {
      order.add(expert, tokens[expert], {expert, expert == 5 ? expert : expert + 2});
    }
    std::vector<int> experts;
    for (const ExpertOrder::Item& item : order.sorted(worker)) {
      experts.push_back(item.expert);
      EXPECT_EQ(item.num_tokens, tokens[item.expert]);
      EXPECT_EQ(item.panels_begin, item.expert);
      EXPECT_EQ(item.panels_end, item.expert + 2);
    }
    return experts;
  };
  // Expert 1 has no tokens and expert 5 no panel of this worker; 0 and 4 have as many tokens.
  EXPECT_EQ(order_of(0), (std::vector<int>{3, 0, 4, 2, 6}));
  EXPECT_EQ(order_of(1), (std::vector<int>{6, 2, 0, 4, 3}));
  EXPECT_EQ(order_of(2), order_of(0));
}

TEST(ExpertOrder, HoldsAllExpertsOfAProblem) {
  ExpertOrder order;
  for (int64_t expert = 0; expert < kMaxExperts; ++expert) {
    order.add(expert, 1, {0, 1});
  }
  for (const int64_t worker : {1, 0}) {
    const std::span<const ExpertOrder::Item> all = order.sorted(worker);
    ASSERT_EQ(all.size(), std::size_t{kMaxExperts});
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].expert, static_cast<std::int32_t>(i));  // equal tokens: ascending for both
    }
  }
}

}  // namespace
}  // namespace moekit::panels
