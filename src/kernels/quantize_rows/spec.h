// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the planner and the compiler agree on for one quantiser kernel.

#include "device/portable.h"

namespace moekit::kernels::quantize_rows {

enum class Rule : int { kQ4 = 0, kQ8 = 1, kQ8b = 2 };

struct Spec {
  Rule rule;
  int num_threads;
};

// Eight values a lane: one 16-byte load of BF16, and K is a multiple of 8, so a lane is either all
// in or all out of a row.
constexpr int kLaneElems = 8;

constexpr int group_size(Rule rule) {
  return rule == Rule::kQ4 ? 16 : rule == Rule::kQ8 ? 32 : 128;
}

constexpr int lanes_per_group(Rule rule) {
  return group_size(rule) / kLaneElems;
}

/// Bytes of one packed element row of eight: 4-bit codes or 8-bit payloads.
constexpr int lane_code_bytes(Rule rule) {
  return rule == Rule::kQ4 ? 4 : 8;
}

/// One byte of E4M3 or E8M0, or an f32.
constexpr int scale_bytes(Rule rule) {
  return rule == Rule::kQ8b ? 4 : 1;
}

constexpr const char* why_invalid(const Spec& spec) {
  if (spec.num_threads < 32 || spec.num_threads > 1024 || spec.num_threads % 32 != 0) {
    return "num_threads is not a multiple of 32 within 32 to 1024";
  }
  return nullptr;
}

}  // namespace moekit::kernels::quantize_rows
