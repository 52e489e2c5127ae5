// SPDX-License-Identifier: Apache-2.0
#include "device/routing/topk_lanes.h"

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace moekit::device {
namespace {

/// Lane by lane, in the order that is least kind to a hidden dependence between lanes.
struct ReversedLanes {
  template <typename Phase>
  void each(const Phase& phase) const {
    for (i32 lane = kRoutingLanes - 1; lane >= 0; --lane) {
      phase(lane);
    }
  }
};

struct Routed {
  std::vector<i32> ids;
  std::vector<u32> weights;

  friend bool operator==(const Routed&, const Routed&) = default;
};

Routed by_token(const RoutingParams& params, const float* bias, std::vector<float> logits) {
  std::vector<float> values(logits.size());
  std::vector<float> weights(static_cast<std::size_t>(params.top_k));
  Routed routed;
  routed.ids.resize(weights.size());
  route_token(params, bias, logits.data(), values.data(), routed.ids.data(), weights.data());
  for (const float weight : weights) {
    routed.weights.push_back(bits_of(weight));
  }
  return routed;
}

Routed by_lanes(const RoutingParams& params, const float* bias, const std::vector<float>& logits) {
  // NaN everywhere: what is not written must not be read.
  std::vector<float> words(
      static_cast<std::size_t>(routing_room_floats(params.num_experts, params.num_groups)),
      kQuietNan);
  std::vector<i32> id_words(std::size_t{2} * kRoutingLanes, -7777);
  const RoutingRoom room =
      routing_room(words.data(), id_words.data(), params.num_experts, params.num_groups);
  std::memcpy(room.logits, logits.data(), logits.size() * sizeof(float));
  route_token_lanes(ReversedLanes{}, params, bias, room);
  Routed routed;
  for (i32 slot = 0; slot < params.top_k; ++slot) {
    routed.ids.push_back(room.ids[slot]);
    routed.weights.push_back(bits_of(room.weights[slot]));
  }
  return routed;
}

TEST(TopkLanes, AgreesBitForBitWithTheTokenLoop) {
  std::mt19937 generator(7);
  std::uniform_int_distribution<int> die(0, 99);
  std::normal_distribution<float> normal(0.0F, 4.0F);
  const std::vector<i32> sizes = {1, 2, 8, 31, 32, 33, 64, 128, 256, 320, 512, 1024};
  std::size_t checked = 0;
  std::size_t short_rows = 0;
  for (int round = 0; round < 4000; ++round) {
    RoutingParams params{};
    params.num_experts = sizes[static_cast<std::size_t>(die(generator)) % sizes.size()];
    params.scoring = static_cast<ScoringKind>(die(generator) % 4);
    params.num_groups = params.num_experts % 8 == 0 && die(generator) < 40 ? 8 : 1;
    params.top_groups = params.num_groups == 1 ? 1 : 1 + die(generator) % 8;
    const i32 eligible = params.num_experts / params.num_groups * params.top_groups;
    params.top_k = 1 + die(generator) % std::min(eligible, kMaxRouterTopK);
    params.renormalize = die(generator) % 2;
    params.scale = die(generator) < 50 ? 1.0F : 2.5F;
    std::vector<float> logits(static_cast<std::size_t>(params.num_experts));
    std::vector<float> bias(logits.size());
    const bool ties = die(generator) < 30;
    const int specials = die(generator) < 20 ? 60 : 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      float logit = ties ? static_cast<float>(die(generator) % 3) : normal(generator);
      if (die(generator) < specials) {
        constexpr float kInfinity = std::numeric_limits<float>::infinity();
        const float special[] = {kQuietNan, kInfinity, -kInfinity, -0.0F};
        logit = special[die(generator) % 4];
      }
      logits[i] = router_logit(logit);
      bias[i] = ties ? 0.0F : normal(generator) * 0.1F;
    }
    const float* const with_bias = die(generator) < 40 ? bias.data() : nullptr;
    const Routed expected = by_token(params, with_bias, logits);
    ASSERT_EQ(by_lanes(params, with_bias, logits), expected)
        << "round " << round << " experts " << params.num_experts << " top_k " << params.top_k
        << " scoring " << static_cast<int>(params.scoring) << " groups " << params.num_groups;
    short_rows += expected.ids.back() < 0 ? 1 : 0;
    ++checked;
  }
  EXPECT_EQ(checked, 4000U);
  EXPECT_GE(short_rows, 20U);
}

TEST(TopkLanes, RoomHoldsEveryPartOnce) {
  std::vector<float> words(static_cast<std::size_t>(routing_room_floats(40, 8)));
  std::vector<i32> ids(std::size_t{2} * kRoutingLanes);
  const RoutingRoom room = routing_room(words.data(), ids.data(), 40, 8);
  EXPECT_EQ(room.stats + 2, words.data() + words.size());
  EXPECT_EQ(room.ids + kRoutingLanes, ids.data() + ids.size());
}

}  // namespace
}  // namespace moekit::device
