// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expert selection for one token, from logits to ids and weights, with every rounding and every sum
// order fixed, so that bodies for different backends give the same bits. Rules: spec section 4.

#include "device/numerics/elementary.h"

namespace moekit::device {

enum class ScoringKind : i32 {
  kSoftmax = 0,
  kSigmoid = 1,
  kSoftmaxSelected = 2,
  kNone = 3,
  kSqrtSoftplus = 4
};

struct RoutingParams {
  ScoringKind scoring;
  i32 num_experts;
  i32 top_k;
  i32 num_groups;
  i32 top_groups;
  i32 renormalize;
  float scale;
};

inline namespace MOEKIT_ISA {

constexpr i32 kMaxRouterExperts = 1024;
constexpr i32 kMaxRouterTopK = 32;
constexpr float kLargestF32 = __builtin_bit_cast(float, 0x7F7FFFFFU);
constexpr float kMinusInfinity = __builtin_bit_cast(float, 0xFF800000U);
// Partial sums of the softmax denominator: lane l adds experts l, l + 32, ... in ascending order,
// then the lanes fold by halves. A warp does the same with shuffles.
constexpr i32 kSoftmaxLanes = 32;

/// A logit as the rules read it: NaN is -infinity, +infinity the largest finite value.
constexpr float router_logit(float raw) {
  if (is_nan(raw)) {
    return kMinusInfinity;
  }
  return raw > kLargestF32 ? kLargestF32 : raw;
}

constexpr bool is_selectable(float logit) {
  return logit > kMinusInfinity;
}

struct SoftmaxStats {
  float max;  // largest logit
  float sum;  // of exp(logit - max)
};

constexpr SoftmaxStats softmax_stats(const float* logits, i32 count) {
  float max = kMinusInfinity;
  for (i32 i = 0; i < count; ++i) {
    max = logits[i] > max ? logits[i] : max;
  }
  float lanes[kSoftmaxLanes] = {};
  for (i32 i = 0; i < count; ++i) {
    lanes[i % kSoftmaxLanes] += is_selectable(logits[i]) ? exp_f32(logits[i] - max) : 0.0F;
  }
  for (i32 width = kSoftmaxLanes / 2; width > 0; width /= 2) {
    for (i32 lane = 0; lane < width; ++lane) {
      lanes[lane] += lanes[lane + width];
    }
  }
  return {max, lanes[0]};
}

/// The unbiased score of one logit. `stats` serves kSoftmax alone.
constexpr float router_score(ScoringKind scoring, float logit, const SoftmaxStats& stats) {
  switch (scoring) {
    case ScoringKind::kSoftmax:
      return is_selectable(logit) ? exp_f32(logit - stats.max) / stats.sum : 0.0F;
    case ScoringKind::kSigmoid:
      return sigmoid_f32(logit);
    case ScoringKind::kSqrtSoftplus:
      return sqrt_f32(softplus_f32(logit));
    case ScoringKind::kSoftmaxSelected:
    case ScoringKind::kNone:
      break;
  }
  return logit;
}

/// Puts `id` into the list of the best so far: descending by key, the lower id first among equals
/// as long as ids come in ascending order.
constexpr void insert_best(float key, i32 id, i32 capacity, float* keys, i32* ids, i32& count) {
  if (count == capacity && !(key > keys[count - 1])) {
    return;
  }
  i32 at = count < capacity ? count++ : capacity - 1;
  for (; at > 0 && key > keys[at - 1]; --at) {
    keys[at] = keys[at - 1];
    ids[at] = ids[at - 1];
  }
  keys[at] = key;
  ids[at] = id;
}

/// Group score: the sum of its best two selection values; of its only one where it has no second.
constexpr float group_score(const float* values, const float* logits, i32 count) {
  float best = kMinusInfinity;
  float second = kMinusInfinity;
  for (i32 i = 0; i < count; ++i) {
    const float value = is_selectable(logits[i]) ? values[i] : kMinusInfinity;
    second = value > best ? best : value > second ? value : second;
    best = value > best ? value : best;
  }
  return second > kMinusInfinity ? best + second : best;
}

/// Makes every expert outside the best `top_groups` groups unselectable (logit -infinity). Lower
/// group ids win ties.
constexpr void mask_groups(const RoutingParams& params, const float* values, float* logits) {
  const i32 group_size = params.num_experts / params.num_groups;
  // The number of groups that beat group g decides; no list is kept, so any backend can do it in
  // parallel. At most 1024 groups of at least one expert: the quadratic loop is 1 M comparisons
  // there and 64 for the eight groups that models have.
  float scores[kMaxRouterExperts] = {};
  for (i32 group = 0; group < params.num_groups; ++group) {
    const i64 first = static_cast<i64>(group) * group_size;
    scores[group] = group_score(values + first, logits + first, group_size);
  }
  for (i32 group = 0; group < params.num_groups; ++group) {
    i32 better = 0;
    for (i32 other = 0; other < params.num_groups; ++other) {
      better += scores[other] > scores[group] || (scores[other] == scores[group] && other < group)
                    ? 1
                    : 0;
    }
    for (i32 i = 0; better >= params.top_groups && i < group_size; ++i) {
      logits[group * group_size + i] = kMinusInfinity;
    }
  }
}

/// Weights of the selected ids: unbiased scores, softmax over the selected, renormalised, scaled.
constexpr void selected_weights(const RoutingParams& params,
                                const SoftmaxStats& stats,
                                const float* selected_logits,
                                i32 count,
                                float* weights) {
  const bool over_selected = params.scoring == ScoringKind::kSoftmaxSelected;
  float largest = kMinusInfinity;
  for (i32 slot = 0; slot < count; ++slot) {
    largest = selected_logits[slot] > largest ? selected_logits[slot] : largest;
  }
  float sum = 0.0F;
  for (i32 slot = 0; slot < count; ++slot) {
    weights[slot] = over_selected ? exp_f32(selected_logits[slot] - largest)
                                  : router_score(params.scoring, selected_logits[slot], stats);
    sum += weights[slot];
  }
  if (over_selected) {
    for (i32 slot = 0; slot < count; ++slot) {
      weights[slot] = weights[slot] / sum;
    }
    sum = 0.0F;
    for (i32 slot = 0; slot < count; ++slot) {
      sum += weights[slot];
    }
  }
  for (i32 slot = 0; slot < count; ++slot) {
    if (params.renormalize != 0) {
      weights[slot] = sum == 0.0F ? 0.0F : weights[slot] / (sum + 1e-20F);
    }
    weights[slot] *= params.scale;
  }
}

/// ids and weights of one token, best first.
///
/// Shapes   logits [num_experts] as router_logit gives them, overwritten; values [num_experts]
///          scratch; bias [num_experts] or null; ids and weights [top_k]
/// Numerics f32. Selection by score + bias; without a bias by the logit itself, which every score
///          is monotone in, so that scores that underflow to equal values stay apart
/// Order    lowest id wins ties; unfilled slots get id -1, weight 0
constexpr void route_token(const RoutingParams& params,
                           const float* bias,
                           float* logits,
                           float* values,
                           i32* ids,
                           float* weights) {
  const i32 experts = params.num_experts;
  const SoftmaxStats stats = params.scoring == ScoringKind::kSoftmax
                                 ? softmax_stats(logits, experts)
                                 : SoftmaxStats{0.0F, 1.0F};
  const bool needs_scores = bias != nullptr || params.num_groups > 1;
  for (i32 i = 0; needs_scores && i < experts; ++i) {
    const float score = router_score(params.scoring, logits[i], stats);
    values[i] = bias != nullptr ? score + bias[i] : score;
  }
  if (params.top_groups < params.num_groups) {
    mask_groups(params, values, logits);
  }
  float best[kMaxRouterTopK] = {};
  i32 count = 0;
  for (i32 i = 0; i < experts; ++i) {
    const float key = bias != nullptr ? values[i] : logits[i];
    if (is_selectable(logits[i]) && is_selectable(key)) {
      insert_best(key, i, params.top_k, best, ids, count);
    }
  }
  for (i32 slot = 0; slot < count; ++slot) {
    best[slot] = logits[ids[slot]];
  }
  selected_weights(params, stats, best, count, weights);
  for (i32 slot = count; slot < params.top_k; ++slot) {
    ids[slot] = -1;
    weights[slot] = 0.0F;
  }
}

/// Weights of ids that a table names instead of a selection.
///
/// Shapes   logits [num_experts] as router_logit gives them; table_ids, ids and weights [top_k]
/// Order    slots as the table has them; an id outside the experts, or with a logit that is not
///          finite, becomes -1 with weight 0
constexpr void route_hashed_token(const RoutingParams& params,
                                  const float* logits,
                                  const i32* table_ids,
                                  i32* ids,
                                  float* weights) {
  SoftmaxStats stats{};
  if (params.scoring == ScoringKind::kSoftmax) {
    stats = softmax_stats(logits, params.num_experts);
  }
  float selected[kMaxRouterTopK] = {};
  float compact[kMaxRouterTopK] = {};
  i32 count = 0;
  for (i32 slot = 0; slot < params.top_k; ++slot) {
    const i32 id = table_ids[slot];
    const bool legal = id >= 0 && id < params.num_experts && is_selectable(logits[id]);
    ids[slot] = legal ? id : -1;
    if (legal) {
      selected[count++] = logits[id];
    }
  }
  selected_weights(params, stats, selected, count, compact);
  count = 0;
  for (i32 slot = 0; slot < params.top_k; ++slot) {
    weights[slot] = ids[slot] >= 0 ? compact[count++] : 0.0F;
  }
}

/// The learned factor of each expert, after everything else.
constexpr void scale_by_expert(const float* expert_scale,
                               i32 top_k,
                               const i32* ids,
                               float* weights) {
  for (i32 slot = 0; slot < top_k; ++slot) {
    weights[slot] = ids[slot] >= 0 ? weights[slot] * expert_scale[ids[slot]] : 0.0F;
  }
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
