// SPDX-License-Identifier: Apache-2.0
#include "panels/shares.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace moekit::panels {
namespace {

void count_part(const Share& part, std::vector<std::atomic<int>>& seen) {
  for (std::int64_t i = part.begin; i < part.end; ++i) {
    seen[static_cast<std::size_t>(i)].fetch_add(1);
  }
}

TEST(Deal, HandsOutEverythingOnce) {
  for (const std::int64_t workers : {1, 2, 3, 4, 64}) {
    for (const std::int64_t count : {0, 1, 2, 7, 8, 60, 128, 384, 5000}) {
      for (const std::int64_t least : {0, 1, 8, 500}) {
        std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
        Deal deal(count, workers, least);
        {
          std::vector<std::jthread> threads;
          for (std::int64_t worker = 0; worker < std::min<std::int64_t>(workers, 4); ++worker) {
            threads.emplace_back([&, worker] {
              for (std::int64_t own = worker; own < workers; own += 4) {
                count_part(deal.own_share(own), seen);
              }
              for (Share part = deal.claim(); part.begin < part.end; part = deal.claim()) {
                count_part(part, seen);
              }
            });
          }
        }
        for (std::int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(seen[static_cast<std::size_t>(i)].load(), 1)
              << i << " of " << count << ", " << workers << " workers, pieces of " << least;
        }
      }
    }
  }
}

TEST(Deal, OneWorkerOwnsEverything) {
  Deal deal(100, 1, 8);
  EXPECT_EQ(deal.own_share(0).begin, 0);
  EXPECT_EQ(deal.own_share(0).end, 100);
  const Share rest = deal.claim();
  EXPECT_EQ(rest.begin, rest.end);
}

// Where workers own fewer than a least piece, a piece is no larger than what each has left.
TEST(Deal, ManyWorkersGetSmallPieces) {
  Deal deal(384, 64, 8);
  std::int64_t pieces = 0;
  for (Share part = deal.claim(); part.begin < part.end; part = deal.claim()) {
    EXPECT_EQ(part.end - part.begin, 1);
    ++pieces;
  }
  EXPECT_EQ(pieces, 48);
}

TEST(Deal, PiecesBecomeSmaller) {
  Deal deal(3200, 2, 8);
  std::int64_t last = 400;
  std::int64_t pieces = 0;
  for (Share part = deal.claim(); part.begin < part.end; part = deal.claim()) {
    EXPECT_LE(part.end - part.begin, last);
    last = part.end - part.begin;
    ++pieces;
  }
  EXPECT_GE(pieces, 8);
  EXPECT_LE(last, 8);
}

// Every panel of every active expert lies in exactly one part, however the line is cut.
TEST(ExpertShares, PartsHoldEveryPanelOnce) {
  const std::vector<std::int32_t> offsets = {0, 3, 3, 4, 20, 20, 22};
  constexpr std::int64_t kPanels = 5;
  Routes routes;
  routes.num_experts = static_cast<std::int64_t>(offsets.size()) - 1;
  routes.offsets = offsets.data();
  const ExpertLine line(routes, body_for(Isa::kPortable), kPanels);
  const std::int64_t base = body_for(Isa::kPortable).panel_cost;
  EXPECT_EQ(line.length(), kPanels * (22 + 4 * base));
  EXPECT_EQ(line.mean_panel_cost(), line.length() / (4 * kPanels));
  for (const std::int64_t piece : {1, 2, 7, 30, 1000}) {
    std::vector<int> seen(static_cast<std::size_t>(routes.num_experts * kPanels));
    for (std::int64_t begin = 0; begin < line.length(); begin += piece) {
      ExpertShares shares(line, {begin, std::min(begin + piece, line.length())});
      for (std::int64_t expert = 0; expert < routes.num_experts; ++expert) {
        const bool is_past = shares.is_past();
        const auto at = static_cast<std::size_t>(expert);
        const Share panels = shares.next(offsets[at + 1] - offsets[at]);
        EXPECT_TRUE(!is_past || panels.begin >= panels.end);
        for (std::int64_t panel = panels.begin; panel < panels.end; ++panel) {
          ++seen[static_cast<std::size_t>(expert * kPanels + panel)];
        }
      }
    }
    for (std::int64_t expert = 0; expert < routes.num_experts; ++expert) {
      const auto at = static_cast<std::size_t>(expert);
      const int expected = offsets[at] == offsets[at + 1] ? 0 : 1;
      for (std::int64_t panel = 0; panel < kPanels; ++panel) {
        EXPECT_EQ(seen[static_cast<std::size_t>(expert * kPanels + panel)], expected)
            << expert << ", " << panel << ", pieces of " << piece;
      }
    }
  }
}

}  // namespace
}  // namespace moekit::panels
