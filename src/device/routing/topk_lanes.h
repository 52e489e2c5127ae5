// SPDX-License-Identifier: Apache-2.0
#pragma once

// route_token of topk.h for 32 lanes that share memory: the same ids and the same bits of the
// weights. Written as phases: within one, lanes touch different words; between two lies a barrier.
// A warp runs a phase at once, a test on the host runs it lane by lane.

#include "device/routing/topk.h"

namespace moekit::device {

/// Shared memory of one token. `Words` below counts it.
struct RoutingRoom {
  float* logits;    // [num_experts], as router_logit gives them; overwritten
  float* values;    // [num_experts]
  float* scores;    // [num_groups]
  float* fold;      // [32] one value a lane
  i32* fold_ids;    // [32]
  float* selected;  // [32] logits of the selected
  float* stats;     // [2] softmax maximum and sum
  float* weights;   // [32] result
  i32* ids;         // [32] result, -1 beyond the selectable
};

inline namespace MOEKIT_ISA {

constexpr i32 kRoutingLanes = 32;
static_assert(kRoutingLanes == kSoftmaxLanes && kRoutingLanes == kMaxRouterTopK);

/// Four-byte words of one token's room.
constexpr i32 routing_room_words(i32 num_experts, i32 num_groups) {
  return 2 * num_experts + num_groups + 5 * kRoutingLanes + 2;
}

constexpr RoutingRoom routing_room(float* words, i32* id_words, i32 num_experts, i32 num_groups) {
  RoutingRoom room{};
  room.logits = words;
  room.values = room.logits + num_experts;
  room.scores = room.values + num_experts;
  room.fold = room.scores + num_groups;
  room.selected = room.fold + kRoutingLanes;
  room.weights = room.selected + kRoutingLanes;
  room.stats = room.weights + kRoutingLanes;
  room.fold_ids = id_words;
  room.ids = room.fold_ids + kRoutingLanes;
  return room;
}

/// Words of the room that hold floats; the ids follow.
constexpr i32 routing_room_floats(i32 num_experts, i32 num_groups) {
  return routing_room_words(num_experts, num_groups) - 2 * kRoutingLanes;
}

/// Folds by halves, in the order that softmax_stats folds its lanes.
template <typename Lanes, typename Join>
constexpr void fold_lanes(const Lanes& lanes, const Join& join) {
  for (i32 width = kRoutingLanes / 2; width > 0; width /= 2) {
    lanes.each([&](i32 lane) {
      if (lane < width) {
        join(lane, lane + width);
      }
    });
  }
}

template <typename Lanes>
constexpr void softmax_stats_lanes(const Lanes& lanes, i32 experts, const RoutingRoom& room) {
  lanes.each([&](i32 lane) {
    float max = kMinusInfinity;
    for (i32 i = lane; i < experts; i += kRoutingLanes) {
      max = room.logits[i] > max ? room.logits[i] : max;
    }
    room.fold[lane] = max;
  });
  fold_lanes(lanes, [&](i32 to, i32 from) {
    room.fold[to] = room.fold[from] > room.fold[to] ? room.fold[from] : room.fold[to];
  });
  lanes.each([&](i32 lane) {
    if (lane == 0) {
      room.stats[0] = room.fold[0];
    }
  });
  lanes.each([&](i32 lane) {
    float sum = 0.0F;
    for (i32 i = lane; i < experts; i += kRoutingLanes) {
      sum += is_selectable(room.logits[i]) ? exp_f32(room.logits[i] - room.stats[0]) : 0.0F;
    }
    room.fold[lane] = sum;
  });
  fold_lanes(lanes, [&](i32 to, i32 from) { room.fold[to] += room.fold[from]; });
  lanes.each([&](i32 lane) {
    if (lane == 0) {
      room.stats[1] = room.fold[0];
    }
  });
}

template <typename Lanes>
constexpr void mask_groups_lanes(const Lanes& lanes,
                                 const RoutingParams& params,
                                 const RoutingRoom& room) {
  const i32 group_size = params.num_experts / params.num_groups;
  lanes.each([&](i32 lane) {
    for (i32 group = lane; group < params.num_groups; group += kRoutingLanes) {
      const i64 begin = static_cast<i64>(group) * group_size;
      room.scores[group] = group_score(room.values + begin, room.logits + begin, group_size);
    }
  });
  lanes.each([&](i32 lane) {
    for (i32 group = lane; group < params.num_groups; group += kRoutingLanes) {
      i32 better = 0;
      for (i32 other = 0; other < params.num_groups; ++other) {
        better += room.scores[other] > room.scores[group] ||
                          (room.scores[other] == room.scores[group] && other < group)
                      ? 1
                      : 0;
      }
      for (i32 i = 0; better >= params.top_groups && i < group_size; ++i) {
        room.logits[group * group_size + i] = kMinusInfinity;
      }
    }
  });
}

/// The best expert that is left, into ids[slot] and selected[slot]; -1 when none is.
template <typename Lanes>
constexpr void select_one_lanes(
    const Lanes& lanes, i32 experts, bool by_value, i32 slot, const RoutingRoom& room) {
  lanes.each([&](i32 lane) {
    float best = kMinusInfinity;
    i32 best_id = -1;
    for (i32 i = lane; i < experts; i += kRoutingLanes) {
      const float key = by_value ? room.values[i] : room.logits[i];
      // Ascending ids: a tie keeps the lower one.
      if (is_selectable(room.logits[i]) && is_selectable(key) && (best_id < 0 || key > best)) {
        best = key;
        best_id = i;
      }
    }
    room.fold[lane] = best;
    room.fold_ids[lane] = best_id;
  });
  fold_lanes(lanes, [&](i32 to, i32 from) {
    const bool better =
        room.fold_ids[from] >= 0 &&
        (room.fold_ids[to] < 0 || room.fold[from] > room.fold[to] ||
         (room.fold[from] == room.fold[to] && room.fold_ids[from] < room.fold_ids[to]));
    if (better) {
      room.fold[to] = room.fold[from];
      room.fold_ids[to] = room.fold_ids[from];
    }
  });
  lanes.each([&](i32 lane) {
    if (lane == 0) {
      const i32 id = room.fold_ids[0];
      room.ids[slot] = id;
      if (id >= 0) {
        room.selected[slot] = room.logits[id];
        room.logits[id] = kMinusInfinity;  // taken
      }
    }
  });
}

/// ids and weights of one token, best first, in room.ids and room.weights.
///
/// Shapes   room.logits [num_experts] filled; bias [num_experts] or null
/// Numerics bit for bit those of route_token
template <typename Lanes>
constexpr void route_token_lanes(const Lanes& lanes,
                                 const RoutingParams& params,
                                 const float* bias,
                                 const RoutingRoom& room) {
  const i32 experts = params.num_experts;
  if (params.scoring == ScoringKind::kSoftmax) {
    softmax_stats_lanes(lanes, experts, room);
  }
  if (bias != nullptr || params.num_groups > 1) {
    lanes.each([&](i32 lane) {
      const SoftmaxStats stats{room.stats[0], room.stats[1]};
      for (i32 i = lane; i < experts; i += kRoutingLanes) {
        const float score = router_score(params.scoring, room.logits[i], stats);
        room.values[i] = bias != nullptr ? score + bias[i] : score;
      }
    });
  }
  if (params.top_groups < params.num_groups) {
    mask_groups_lanes(lanes, params, room);
  }
  for (i32 slot = 0; slot < params.top_k; ++slot) {
    select_one_lanes(lanes, experts, bias != nullptr, slot, room);
  }
  lanes.each([&](i32 lane) {
    if (lane == 0) {
      i32 count = 0;
      while (count < params.top_k && room.ids[count] >= 0) {
        ++count;
      }
      const SoftmaxStats stats{room.stats[0], room.stats[1]};
      selected_weights(params, stats, room.selected, count, room.weights);
      for (i32 slot = count; slot < params.top_k; ++slot) {
        room.weights[slot] = 0.0F;
      }
    }
  });
}

}  // namespace MOEKIT_ISA
}  // namespace moekit::device
