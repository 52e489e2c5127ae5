// SPDX-License-Identifier: Apache-2.0
#pragma once

// The order in which a dot call may walk its panels where operands are long: a segment of columns
// of each of some panels in turn, so that the operands of a segment stay in the first-level cache
// while those panels pass by. An operand that comes from the second level for every panel takes
// turns with the weights that are on their way (README, 8).

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/layout/panel16.h"
#include "panels/body.h"
#include "panels/call_stream.h"

namespace moekit::panels {
inline namespace MOEKIT_ISA {

/// How the panels of a call are cut. Units are what a body reads at a time, columns of all rows.
struct PanelCut {
  device::i64 num_panels = 1;
  device::i64 panels_of_pass = 1;  // walked side by side
  device::i64 panel_bytes = 0;
  device::i64 units = 1;             // of a panel
  device::i64 units_of_segment = 1;  // the last segment has the rest too
  device::i64 segment_bytes = 0;     // of all but the last

  /// Segments of a panel.
  [[nodiscard]] device::i64 segments() const {
    return std::max<device::i64>(1, units / units_of_segment);
  }
};

/// Visits the segments of a call: for each pass of panels the first segment of every panel, then
/// the second. Behind the last it goes on in the next call's panels, as if they were as many.
class SegmentWalk {
 public:
  explicit SegmentWalk(const PanelCut& cut)
      : cut_(&cut),
        segments_(cut.segments()),
        pass_end_(std::min(cut.num_panels, cut.panels_of_pass)) {}

  void next() {
    if (++panel_ < pass_end_) {
      offset_ += cut_->panel_bytes;
      return;
    }
    if (++segment_ < segments_) {
      panel_ = first_panel_;
      offset_ = pass_offset_ + segment_ * cut_->segment_bytes;
      return;
    }
    begin_pass();
  }

  /// Behind the last segment: offsets count from the next call's first panel.
  [[nodiscard]] bool done() const { return done_; }

  [[nodiscard]] device::i64 panel() const { return panel_; }

  /// Panels of this pass in front of the one at hand.
  [[nodiscard]] device::i64 panel_of_pass() const { return panel_ - first_panel_; }

  [[nodiscard]] bool ends_pass() const {
    return panel_ + 1 == pass_end_ && segment_ + 1 == segments_;
  }

  /// Within the call's panels.
  [[nodiscard]] device::i64 offset() const { return offset_; }

  /// Of the segment.
  [[nodiscard]] device::i64 bytes() const {
    return segment_ + 1 < segments_ ? cut_->segment_bytes
                                    : cut_->panel_bytes - segment_ * cut_->segment_bytes;
  }

  [[nodiscard]] device::i64 first_unit() const { return segment_ * cut_->units_of_segment; }

  [[nodiscard]] device::i64 units() const {
    return segment_ + 1 < segments_ ? cut_->units_of_segment : cut_->units - first_unit();
  }

 private:
  void begin_pass() {
    segment_ = 0;
    if (panel_ == cut_->num_panels) {
      done_ = true;
      panel_ = 0;
    }
    first_panel_ = panel_;
    pass_end_ = std::min(cut_->num_panels, first_panel_ + cut_->panels_of_pass);
    pass_offset_ = first_panel_ * cut_->panel_bytes;
    offset_ = pass_offset_;
  }

  const PanelCut* cut_;
  device::i64 segments_;
  device::i64 first_panel_ = 0;
  device::i64 pass_end_;
  device::i64 pass_offset_ = 0;
  device::i64 panel_ = 0;
  device::i64 segment_ = 0;
  device::i64 offset_ = 0;
  bool done_ = false;
};

/// Where a walk asks for memory: some segments further on, and behind the call's last in the panels
/// of the thread's next call.
class AheadOfSegments {
 public:
  AheadOfSegments(const DotCall& call, const PanelCut& cut)
      : next_(call.next_panels == nullptr
                  ? 0
                  : static_cast<device::i64>(address(call.next_panels) - address(call.panels))),
        whole_panels_(cut.segments() == 1 && cut.panel_bytes > kFarBytes),
        near_(cut),
        far_(cut) {
    const device::i64 bytes = cut.segments() > 1 ? cut.segment_bytes : cut.panel_bytes;
    step(near_, device::ceil_div(kNearBytes, bytes));
    step(far_, device::ceil_div(kFarBytes, bytes));
  }

  void next() {
    near_.next();
    far_.next();
  }

  /// Distances from the lines of the segment at hand.
  [[nodiscard]] Ahead from(const SegmentWalk& here) const {
    if (whole_panels_) {
      return {kFarBytes, kNearBytes};
    }
    return {distance(here, far_), distance(here, near_)};
  }

 private:
  static void step(SegmentWalk& walk, device::i64 count) {
    for (; count > 0; --count) {
      walk.next();
    }
  }

  // Behind the last call: the line itself, which costs nothing.
  [[nodiscard]] device::i64 distance(const SegmentWalk& here, const SegmentWalk& there) const {
    const device::i64 offset = there.offset() - here.offset();
    return !there.done() ? offset : next_ == 0 ? 0 : next_ + offset;
  }

  device::i64 next_;  // from this call's panels to the next call's; 0: none
  // Long panels that cannot be cut, such as those of a shard that begins inside a block: segments
  // further on would be too far.
  bool whole_panels_;
  SegmentWalk near_;
  SegmentWalk far_;
};

}  // namespace MOEKIT_ISA
}  // namespace moekit::panels
