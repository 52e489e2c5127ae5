// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the planner and the compiler agree on for the CUDA routing kernel.

#include "device/portable.h"

namespace moekit::kernels::route_topk {

struct Spec {
  int tokens_per_block;  // one warp each
};

constexpr int kWarpLanes = 32;

constexpr int num_threads(const Spec& spec) {
  return spec.tokens_per_block * kWarpLanes;
}

constexpr const char* why_invalid(const Spec& spec) {
  if (spec.tokens_per_block < 1 || spec.tokens_per_block > 32) {
    return "tokens_per_block is not within 1 to 32";
  }
  return nullptr;
}

}  // namespace moekit::kernels::route_topk
