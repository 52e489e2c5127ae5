// SPDX-License-Identifier: Apache-2.0
#include "panels/panel_segments.h"

#include <map>
#include <vector>

#include <gtest/gtest.h>

namespace moekit::panels {
namespace {

using device::i64;

constexpr i64 kLine = device::kPanel16LineBytes;

// Panels of `units` units of 64 bytes, of which `segment` make one segment.
PanelCut cut_of(i64 panels, i64 pass, i64 units, i64 segment) {
  return {panels, pass, units * kLine, units, segment, segment * kLine};
}

struct Line {
  i64 at = 0;  // in memory, in lines
  i64 far = 0;
  i64 near = 0;
};

// Calls of one cut whose panels lie apart in memory, as a thread reads them.
std::vector<Line> follow(const PanelCut& cut, i64 calls, i64 apart, const std::byte* memory) {
  std::vector<Line> lines;
  for (i64 i = 0; i < calls; ++i) {
    DotCall call;
    call.panels = memory + i * apart;
    call.num_panels = cut.num_panels;
    call.next_panels = i + 1 < calls ? call.panels + apart : nullptr;
    AheadOfSegments ahead(call, cut);
    for (SegmentWalk walk(cut); !walk.done(); walk.next(), ahead.next()) {
      const Ahead from = ahead.from(walk);
      for (i64 unit = 0; unit < walk.units(); ++unit) {
        const i64 at = i * apart + walk.offset() + unit * kLine;
        EXPECT_EQ(walk.offset(), walk.panel() * cut.panel_bytes + walk.first_unit() * kLine);
        lines.push_back({at / kLine, (at + from.far) / kLine, (at + from.near) / kLine});
      }
    }
  }
  return lines;
}

TEST(PanelSegments, EveryLineIsReadOnceAndAskedForBefore) {
  struct Case {
    PanelCut cut;
    bool even;  // whole segments and whole passes: nothing is asked for twice or left out
  };

  const std::vector<Case> cases = {
      {cut_of(8, 4, 768, 64), true},
      {cut_of(32, 4, 512, 64), true},
      {cut_of(2, 2, 768, 64), true},
      {cut_of(32, 1, 34, 34), true},
      {cut_of(8, 1, 96, 32), true},
      {cut_of(6, 4, 768, 64), false},  // a pass of two panels
      {cut_of(4, 4, 800, 64), false},  // a last segment of 96 lines
      {cut_of(1, 4, 130, 64), false},
      {cut_of(5, 4, 3, 3), false},
  };
  for (const Case& each : cases) {
    const PanelCut& cut = each.cut;
    SCOPED_TRACE(testing::Message() << cut.num_panels << " panels of " << cut.units << " lines");
    constexpr i64 kCalls = 3;
    const i64 call_lines = cut.num_panels * cut.units;
    const i64 apart = call_lines * kLine + (i64{1} << 16);
    const std::vector<std::byte> memory(static_cast<std::size_t>(kCalls * apart));
    const std::vector<Line> lines = follow(cut, kCalls, apart, memory.data());
    ASSERT_EQ(static_cast<i64>(lines.size()), kCalls * call_lines);
    std::map<i64, i64> order;
    for (const Line& line : lines) {
      EXPECT_TRUE(order.emplace(line.at, static_cast<i64>(order.size())).second) << line.at;
    }
    for (const auto& [wanted, target] :
         {std::pair{kFarBytes, &Line::far}, {kNearBytes, &Line::near}}) {
      std::map<i64, int> asked;
      i64 late = 0;
      i64 elsewhere = 0;
      for (const Line& line : lines) {
        const i64 there = line.*target;
        if (there == line.at) {
          continue;
        }
        const auto found = order.find(there);
        elsewhere += found == order.end() ? 1 : 0;
        late += found != order.end() && found->second < order.at(line.at) ? 1 : 0;
        ++asked[there];
      }
      const auto num_asked = static_cast<i64>(asked.size());
      const i64 most_missed = wanted / kLine + std::max(cut.units_of_segment, cut.units % 64);
      if (each.even) {
        EXPECT_EQ(late, 0);
        EXPECT_EQ(elsewhere, 0);
        for (const auto& [line, times] : asked) {
          EXPECT_EQ(times, 1) << line;
        }
        EXPECT_GE(num_asked, kCalls * call_lines - most_missed);
      } else {
        EXPECT_GE(num_asked, (kCalls * call_lines - most_missed) * 3 / 4);
      }
    }
  }
}

// Bodies that ask block by block: near lines are those of the same segment, and behind its last
// those of the next one's first.
TEST(PanelSegments, BlocksAskForLinesOnceAndInTheOrderOfReading) {
  constexpr i64 kBlock = 17 * kLine;
  const PanelCut cut{8, 4, 48 * kBlock, 48, 4, 4 * kBlock};
  const std::vector<std::byte> memory(static_cast<std::size_t>(cut.num_panels * cut.panel_bytes));
  DotCall call;
  call.panels = memory.data();
  call.num_panels = cut.num_panels;
  std::map<i64, i64> order;
  std::map<i64, std::vector<i64>> asked_near;
  std::map<i64, i64> asked_far;
  AheadOfSegments ahead(call, cut);
  for (SegmentWalk walk(cut); !walk.done(); walk.next(), ahead.next()) {
    const std::byte* lines = call.panels + walk.offset();
    const CallStream stream(ahead.from(walk), lines, walk.bytes(), kBlock);
    for (i64 at = walk.offset(); at < walk.offset() + walk.bytes(); at += kBlock) {
      const Ahead from = stream.from(call.panels + at);
      const auto place = static_cast<i64>(order.size());
      order.emplace(at, place);
      if (from.near != 0) {
        asked_near[at + from.near].push_back(place);
      }
      if (from.far != 0) {
        ++asked_far[at + from.far];
      }
    }
  }
  ASSERT_EQ(order.size(), 8U * 48U);
  constexpr i64 kBlocksAhead = 2;  // 2 KiB in whole blocks
  for (const auto& [at, place] : order) {
    if (place >= kBlocksAhead) {
      EXPECT_EQ(asked_near[at], std::vector<i64>{place - kBlocksAhead}) << at;
    }
  }
  constexpr std::size_t kFarBlocks = 16;  // four segments
  EXPECT_EQ(asked_far.size(), order.size() - kFarBlocks);
  for (const auto& [at, times] : asked_far) {
    EXPECT_EQ(order.count(at), 1U);
    EXPECT_EQ(times, 1) << at;
  }
}

TEST(PanelSegments, PassesStoreTheirOwnPanels) {
  const PanelCut cut = cut_of(6, 4, 8, 2);
  std::vector<i64> ends;
  std::vector<i64> panels;
  for (SegmentWalk walk(cut); !walk.done(); walk.next()) {
    panels.push_back(walk.panel());
    if (walk.ends_pass()) {
      ends.push_back(walk.panel_of_pass() + 1);
    }
  }
  EXPECT_EQ(ends, (std::vector<i64>{4, 2}));
  EXPECT_EQ(panels, (std::vector<i64>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3,
                                      0, 1, 2, 3, 4, 5, 4, 5, 4, 5, 4, 5}));
}

TEST(PanelSegments, LongPanelsInOnePieceAreAskedForAlongTheirLines) {
  const PanelCut cut = cut_of(4, 4, 800, 800);
  const std::vector<std::byte> memory(std::size_t{4} * 800 * kLine);
  const std::vector<Line> lines = follow(cut, 1, 0, memory.data());
  ASSERT_EQ(lines.size(), 3200U);
  for (const Line& line : lines) {
    EXPECT_EQ(line.far, line.at + kFarBytes / kLine);
    EXPECT_EQ(line.near, line.at + kNearBytes / kLine);
  }
}

TEST(PanelSegments, BehindTheLastCallALineAsksForItself) {
  const PanelCut cut = cut_of(2, 2, 16, 16);
  const std::vector<std::byte> memory(std::size_t{2} * 16 * kLine);
  const std::vector<Line> lines = follow(cut, 1, 0, memory.data());
  ASSERT_EQ(lines.size(), 32U);
  EXPECT_EQ(lines.back().far, lines.back().at);
  EXPECT_EQ(lines.back().near, lines.back().at);
}

}  // namespace
}  // namespace moekit::panels
