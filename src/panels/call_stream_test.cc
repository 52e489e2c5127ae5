// SPDX-License-Identifier: Apache-2.0
#include "panels/call_stream.h"

#include <map>
#include <vector>

#include <gtest/gtest.h>

namespace moekit::panels {
namespace {

using device::Panel16Element;
using device::Panel16Shape;

// Runs of panels of one shape as a thread reads them: `calls` dot calls of a run, then a jump.
class Walk {
 public:
  Walk(const Panel16Shape& shape, std::int64_t panels_of_call, std::int64_t calls)
      : shape_(shape), panels_of_call_(panels_of_call), calls_(calls) {
    const std::int64_t run_bytes = call_bytes() * calls;
    memory_.resize(static_cast<std::size_t>(kRuns * (run_bytes + kGapBytes)));
    for (std::int64_t run = 0; run < kRuns; ++run) {
      // The last run lies in front of the others.
      starts_.push_back((run + 1) % kRuns * (run_bytes + kGapBytes));
    }
  }

  [[nodiscard]] std::int64_t num_lines() const {
    return kRuns * calls_ * call_bytes() / device::kPanel16LineBytes;
  }

  // Calls sink(line read, line asked for far, line asked for near) in the order of reading.
  template <typename Sink>
  void follow(Sink sink) const {
    const std::int64_t block_bytes = stream_block_bytes(shape_);
    for (std::int64_t run = 0; run < kRuns; ++run) {
      for (std::int64_t i = 0; i < calls_; ++i) {
        const DotCall call = call_at(run, i);
        const CallStream stream(call, block_bytes);
        for (std::int64_t block = 0; block < call_bytes(); block += block_bytes) {
          const Ahead ahead = stream.from(call.panels + block);
          for (std::int64_t at = block; at < std::min(block + block_bytes, call_bytes());
               at += device::kPanel16LineBytes) {
            const std::byte* line = call.panels + at;
            sink(line - memory_.data(),
                 line + ahead.far - memory_.data(),
                 line + ahead.near - memory_.data());
          }
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kRuns = 3;
  static constexpr std::int64_t kGapBytes = 1 << 20;

  [[nodiscard]] std::int64_t call_bytes() const {
    return panels_of_call_ * device::panel16_panel_bytes(shape_);
  }

  [[nodiscard]] DotCall call_at(std::int64_t run, std::int64_t i) const {
    const auto at = static_cast<std::size_t>(run);
    DotCall call;
    call.shape = &shape_;
    call.num_panels = panels_of_call_;
    call.panels = memory_.data() + starts_[at] + i * call_bytes();
    call.next_panels = i + 1 < calls_    ? call.panels + call_bytes()
                       : run + 1 < kRuns ? memory_.data() + starts_[at + 1]
                                         : nullptr;
    return call;
  }

  Panel16Shape shape_;
  std::int64_t panels_of_call_;
  std::int64_t calls_;
  std::vector<std::byte> memory_;
  std::vector<std::int64_t> starts_;
};

// Panels of whole blocks, calls no shorter than the far distance: what is asked for is read later
// or now, never twice, and all is asked for but what the first lines were too late for.
TEST(CallStream, AsksForLinesOnceAndInTheOrderOfReading) {
  std::int64_t walks = 0;
  for (const Panel16Element element : {Panel16Element::kNvfp4,
                                       Panel16Element::kMxfp4,
                                       Panel16Element::kBf16,
                                       Panel16Element::kInt4,
                                       Panel16Element::kE4m3}) {
    for (const auto& [cols, panels] :
         {std::pair<std::int64_t, std::int64_t>{6144, 2}, {2048, 8}, {512, 8}}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(element) << ", " << cols << " columns");
      const Walk walk({element, kPanelRows, cols, 1, 0}, panels, 3);
      std::map<std::int64_t, std::int64_t> order;
      walk.follow([&](std::int64_t line, std::int64_t, std::int64_t) {
        order.emplace(line, static_cast<std::int64_t>(order.size()));
      });
      ASSERT_EQ(static_cast<std::int64_t>(order.size()), walk.num_lines());
      std::map<std::int64_t, int> far_asked;
      std::map<std::int64_t, int> near_asked;
      std::int64_t behind = 0;
      walk.follow([&](std::int64_t line, std::int64_t far, std::int64_t near) {
        ASSERT_EQ(order.count(far), 1U) << line << " asks for " << far;
        ASSERT_EQ(order.count(near), 1U) << line << " asks for " << near;
        behind += order.at(far) < order.at(line) || order.at(near) < order.at(line) ? 1 : 0;
        if (far != line) {
          ++far_asked[far];
        }
        if (near != line) {
          ++near_asked[near];
        }
      });
      EXPECT_EQ(behind, 0);
      for (const auto* asked : {&far_asked, &near_asked}) {
        for (const auto& [line, times] : *asked) {
          EXPECT_EQ(times, 1) << line;
        }
      }
      // All but the first lines, whose far distance nobody was in front of.
      const std::int64_t most_missed =
          (kFarBytes + stream_block_bytes({element, kPanelRows, cols, 1, 0})) /
          device::kPanel16LineBytes;
      EXPECT_GE(static_cast<std::int64_t>(far_asked.size()), walk.num_lines() - most_missed);
      EXPECT_GE(static_cast<std::int64_t>(near_asked.size()), walk.num_lines() - most_missed);
      ++walks;
    }
  }
  EXPECT_EQ(walks, 15);
}

TEST(CallStream, BehindTheLastCallALineAsksForItself) {
  const Panel16Shape shape{Panel16Element::kMxfp4, kPanelRows, 6144, 1, 0};
  std::vector<std::byte> panel(static_cast<std::size_t>(device::panel16_panel_bytes(shape)));
  DotCall call;
  call.shape = &shape;
  call.panels = panel.data();
  const CallStream stream(call, stream_block_bytes(shape));
  const Ahead begin = stream.from(panel.data());
  EXPECT_GE(begin.far, kFarBytes);
  EXPECT_GE(begin.near, kNearBytes);
  const Ahead end = stream.from(panel.data() + panel.size() - stream_block_bytes(shape));
  EXPECT_EQ(end.far, 0);
  EXPECT_EQ(end.near, 0);
}

}  // namespace
}  // namespace moekit::panels
