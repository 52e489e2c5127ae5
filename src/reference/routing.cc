// SPDX-License-Identifier: Apache-2.0
#include "reference/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "reference/small_floats.h"

namespace moekit::reference {
namespace {

using base::cat;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRenormalizeGuard = 1e-20;  // spec section 4

// A value and how far an f32 evaluation of it may be off.
struct Bounded {
  double value = 0.0;
  double error = 0.0;
};

bool surely_above(const Bounded& a, const Bounded& b) {
  return a.value - a.error > b.value + b.error;
}

// Unbiased scores of all experts. exp and sigmoid in f32 are good to a few ulp; l - max rounds
// once, which moves exp by |l - max| epsilon; a sum of E positive terms is off by at most 4 sqrt(E)
// epsilon (the form of spec section 2).
std::vector<Bounded> scores_of(const Routing& routing, std::span<const double> logits) {
  std::vector<Bounded> scores(logits.size());
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const double logit : logits) {
    sum += logit == -kInfinity ? 0.0 : std::exp(logit - highest);
  }
  const double sum_error = 4.0 * std::sqrt(static_cast<double>(logits.size()));
  for (std::size_t e = 0; e < logits.size(); ++e) {
    const double logit = logits[e];
    if (logit == -kInfinity) {
      scores[e] = {-kInfinity, 0.0};
      continue;
    }
    switch (routing.scoring) {
      case Scoring::kSoftmax: {
        const double score = std::exp(logit - highest) / sum;
        const double rounded = std::min(highest - logit, 200.0);
        scores[e] = {score, kEpsilon * (16.0 + rounded + sum_error) * score + kSmallest};
        break;
      }
      case Scoring::kSigmoid: {
        const double score = logit < 0.0 ? std::exp(logit) / (1.0 + std::exp(logit))
                                         : 1.0 / (1.0 + std::exp(-logit));
        scores[e] = {score, 16.0 * kEpsilon * score + kSmallest};
        break;
      }
      case Scoring::kSqrtSoftplus: {
        const double softplus = std::max(logit, 0.0) + std::log1p(std::exp(-std::fabs(logit)));
        const double score = std::sqrt(softplus);
        // Below e^-80 an f32 exponential turns subnormal, and its root keeps half as many digits.
        scores[e] = {score, 16.0 * kEpsilon * score + (logit < -80.0 ? power_of_two(-57) : 0.0)};
        break;
      }
      case Scoring::kSoftmaxSelected:
      case Scoring::kNone:
        scores[e] = {logit, 0.0};
        break;
    }
  }
  return scores;
}

// What selection compares: score + correction bias, the sum rounded once.
std::vector<Bounded> keys_of(const std::vector<Bounded>& scores, const float* bias) {
  std::vector<Bounded> keys = scores;
  if (bias == nullptr) {
    return keys;
  }
  for (std::size_t e = 0; e < keys.size(); ++e) {
    keys[e].value += static_cast<double>(bias[e]);
    if (std::isfinite(keys[e].value)) {
      keys[e].error += 2.0 * kEpsilon * std::fabs(keys[e].value);
    }
  }
  return keys;
}

std::size_t group_size_of(const Routing& routing) {
  return static_cast<std::size_t>(routing.num_experts / routing.num_groups);
}

// Sum of each group's best two keys (its only one where groups hold one expert).
std::vector<Bounded> group_scores(const Routing& routing, const std::vector<Bounded>& keys) {
  const std::size_t size = group_size_of(routing);
  std::vector<Bounded> groups(static_cast<std::size_t>(routing.num_groups));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<Bounded> members(keys.begin() + static_cast<std::ptrdiff_t>(g * size),
                                 keys.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::sort(members.begin(), members.end(), [](const Bounded& a, const Bounded& b) {
      return a.value > b.value;
    });
    groups[g] = members[0];
    if (size > 1) {
      groups[g].value += members[1].value;
      groups[g].error = std::max(members[0].error, members[1].error) * 2.0;
    }
    if (std::isfinite(groups[g].value)) {
      groups[g].error += kEpsilon * std::fabs(groups[g].value);
    }
  }
  return groups;
}

// Whether group g can, and whether it must, be among the eligible ones.
struct Eligibility {
  bool possible = true;
  bool certain = true;
};

std::vector<Eligibility> eligible_groups(const Routing& routing,
                                         const std::vector<Bounded>& groups) {
  std::vector<Eligibility> eligible(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::int64_t surely_better = 0;
    std::int64_t maybe_better = 0;
    for (std::size_t other = 0; other < groups.size(); ++other) {
      surely_better += surely_above(groups[other], groups[g]) ? 1 : 0;
      maybe_better += other != g && !surely_above(groups[g], groups[other]) ? 1 : 0;
    }
    eligible[g] = {surely_better < routing.top_groups, maybe_better < routing.top_groups};
  }
  return eligible;
}

// Unscaled and scaled weights of the chosen ids, with errors; -1 gets 0.
std::vector<Bounded> weights_of(const Routing& routing,
                                std::span<const double> logits,
                                std::span<const std::int32_t> ids) {
  const std::vector<Bounded> scores = scores_of(routing, logits);
  std::vector<Bounded> weights;
  double highest = -kInfinity;
  for (const std::int32_t id : ids) {
    highest = id < 0 ? highest : std::max(highest, logits[static_cast<std::size_t>(id)]);
  }
  for (const std::int32_t id : ids) {
    if (id < 0) {
      weights.push_back({});
    } else if (routing.scoring == Scoring::kSoftmaxSelected) {
      const double below = logits[static_cast<std::size_t>(id)] - highest;
      const double value = std::exp(below);
      weights.push_back({value, kEpsilon * (16.0 + std::min(-below, 200.0)) * value + kSmallest});
    } else {
      weights.push_back(scores[static_cast<std::size_t>(id)]);
    }
  }
  const bool normalize = routing.renormalize || routing.scoring == Scoring::kSoftmaxSelected;
  Bounded sum{routing.renormalize ? kRenormalizeGuard : 0.0, 0.0};
  double magnitude = 0.0;
  for (const Bounded& weight : weights) {
    sum.value += weight.value;
    sum.error += weight.error;
    magnitude += std::fabs(weight.value);
  }
  sum.error += kEpsilon * magnitude * static_cast<double>(weights.size());
  const double scale = static_cast<double>(routing.scale);
  for (Bounded& weight : weights) {
    if (normalize) {
      const bool zero = magnitude == 0.0;
      const double relative = zero ? 0.0 : sum.error / std::fabs(sum.value);
      weight = zero ? Bounded{}
                    : Bounded{weight.value / sum.value,
                              weight.error / std::fabs(sum.value) +
                                  relative * std::fabs(weight.value / sum.value)};
    }
    weight.value *= scale;
    weight.error = weight.error * std::fabs(scale) + 4.0 * kEpsilon * std::fabs(weight.value);
  }
  return weights;
}

}  // namespace

std::vector<double> read_logits(const TensorView& logits, std::int64_t token) {
  std::vector<double> values;
  for (std::int64_t e = 0; e < logits.shape[1]; ++e) {
    const double value =
        load_value(logits.data, logits.dtype, token * logits.strides[0] + e * logits.strides[1]);
    values.push_back(std::isnan(value) ? -kInfinity : std::min(value, kF32Shape.largest));
  }
  return values;
}

Selection select_experts(const Routing& routing,
                         std::span<const double> logits,
                         const float* bias) {
  const std::vector<Bounded> keys = keys_of(scores_of(routing, logits), bias);
  const std::vector<Bounded> groups = group_scores(routing, keys);
  std::vector<std::size_t> group_order(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    group_order[g] = g;
  }
  std::stable_sort(group_order.begin(), group_order.end(), [&](std::size_t a, std::size_t b) {
    return groups[a].value > groups[b].value;
  });
  std::vector<std::size_t> order;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(routing.top_groups); ++rank) {
    for (std::size_t i = 0; i < group_size_of(routing); ++i) {
      const std::size_t e = group_order[rank] * group_size_of(routing) + i;
      if (logits[e] != -kInfinity) {
        order.push_back(e);
      }
    }
  }
  std::sort(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return keys[a].value > keys[b].value;
  });
  Selection selection;
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(routing.top_k); ++slot) {
    selection.ids.push_back(slot < order.size() ? static_cast<std::int32_t>(order[slot]) : -1);
  }
  for (const Bounded& weight : weights_of(routing, logits, selection.ids)) {
    selection.weights.push_back(weight.value);
  }
  return selection;
}

namespace {

// The token under judgement.
struct Judged {
  const Routing& routing;
  std::span<const double> logits;
  const float* bias;
  const Selection& selection;
  std::vector<Bounded> keys{};
  std::vector<Eligibility> eligible{};

  [[nodiscard]] std::size_t group_of(std::size_t expert) const {
    return expert / group_size_of(routing);
  }

  [[nodiscard]] bool same_key(std::size_t a, std::size_t b) const {
    return logits[a] == logits[b] && (bias == nullptr || bias[a] == bias[b]);
  }
};

std::string judge_ids(const Judged& judged, std::vector<bool>& chosen) {
  bool ended = false;
  for (std::size_t slot = 0; slot < judged.selection.ids.size(); ++slot) {
    const std::int32_t id = judged.selection.ids[slot];
    if (id == -1) {
      ended = true;
      continue;
    }
    if (ended) {
      return cat("slot ", slot, " has id ", id, " after a slot without one");
    }
    if (id < 0 || static_cast<std::size_t>(id) >= judged.logits.size()) {
      return cat("slot ", slot, " has id ", id, ", expected -1 or below ", judged.logits.size());
    }
    const auto expert = static_cast<std::size_t>(id);
    if (chosen[expert]) {
      return cat("expert ", id, " is chosen twice");
    }
    chosen[expert] = true;
    if (judged.logits[expert] == -kInfinity) {
      return cat("expert ", id, " is chosen though its logit is not finite");
    }
    if (!judged.eligible[judged.group_of(expert)].possible) {
      return cat("expert ", id, " is chosen from a group that is not eligible");
    }
  }
  return {};
}

std::string judge_order(const Judged& judged) {
  for (std::size_t slot = 1; slot < judged.selection.ids.size(); ++slot) {
    if (judged.selection.ids[slot] < 0) {
      break;
    }
    const auto left = static_cast<std::size_t>(judged.selection.ids[slot - 1]);
    const auto right = static_cast<std::size_t>(judged.selection.ids[slot]);
    if (surely_above(judged.keys[right], judged.keys[left]) ||
        (judged.same_key(left, right) && left > right)) {
      return cat("experts ", left, " and ", right, " stand in the wrong order");
    }
  }
  return {};
}

// Every finite expert of a certainly eligible group is chosen, or is not better than the last one.
std::string judge_omissions(const Judged& judged, const std::vector<bool>& chosen) {
  std::ptrdiff_t last = -1;
  for (const std::int32_t id : judged.selection.ids) {
    last = id < 0 ? last : id;
  }
  const bool full = judged.selection.ids.back() >= 0;
  for (std::size_t e = 0; e < judged.logits.size(); ++e) {
    if (chosen[e] || judged.logits[e] == -kInfinity ||
        !judged.eligible[judged.group_of(e)].certain) {
      continue;
    }
    if (!full) {
      return cat("expert ", e, " is omitted though slots are free");
    }
    const auto worst = static_cast<std::size_t>(last);
    if (surely_above(judged.keys[e], judged.keys[worst])) {
      return cat("expert ", e, " is omitted though it is better than expert ", worst);
    }
    if (judged.same_key(e, worst) && e < worst) {
      return cat("expert ", e, " ties with expert ", worst, " and has the lower id");
    }
  }
  return {};
}

// Ids that a table names stand where they are; the ones that it may not name are -1.
std::string judge_hashed_ids(const Judged& judged, const std::int32_t* hashed_ids) {
  for (std::size_t slot = 0; slot < judged.selection.ids.size(); ++slot) {
    const std::int32_t named = hashed_ids[slot];
    const bool legal = named >= 0 && static_cast<std::size_t>(named) < judged.logits.size() &&
                       judged.logits[static_cast<std::size_t>(named)] != -kInfinity;
    if (judged.selection.ids[slot] != (legal ? named : -1)) {
      return cat("slot ", slot, " has id ", judged.selection.ids[slot], ", the table says ", named);
    }
  }
  return {};
}

std::string judge_weights(const Judged& judged, const float* expert_scale) {
  std::vector<Bounded> weights = weights_of(judged.routing, judged.logits, judged.selection.ids);
  for (std::size_t slot = 0; expert_scale != nullptr && slot < weights.size(); ++slot) {
    const std::int32_t id = judged.selection.ids[slot];
    const double scale =
        id < 0 ? 0.0 : static_cast<double>(expert_scale[static_cast<std::size_t>(id)]);
    weights[slot].value *= scale;
    weights[slot].error =
        weights[slot].error * std::fabs(scale) + 2.0 * kEpsilon * std::fabs(weights[slot].value);
  }
  for (std::size_t slot = 0; slot < weights.size(); ++slot) {
    const double actual = judged.selection.weights[slot];
    if (!(std::fabs(actual - weights[slot].value) <= weights[slot].error)) {
      return cat("weight of slot ",
                 slot,
                 " is ",
                 actual,
                 ", expected ",
                 weights[slot].value,
                 " within ",
                 weights[slot].error);
    }
  }
  return {};
}

}  // namespace

std::string judge_selection(const Routing& routing,
                            std::span<const double> logits,
                            const float* bias,
                            const Selection& selection,
                            const RoutingExtras& extras) {
  Judged judged{routing, logits, bias, selection};
  if (extras.hashed_ids != nullptr) {
    const std::string wrong = judge_hashed_ids(judged, extras.hashed_ids);
    return wrong.empty() ? judge_weights(judged, extras.expert_scale) : wrong;
  }
  judged.keys = keys_of(scores_of(routing, logits), bias);
  judged.eligible = eligible_groups(routing, group_scores(routing, judged.keys));
  std::vector<bool> chosen(logits.size(), false);
  std::string failure = judge_ids(judged, chosen);
  if (failure.empty()) {
    failure = judge_order(judged);
  }
  if (failure.empty()) {
    failure = judge_omissions(judged, chosen);
  }
  return failure.empty() ? judge_weights(judged, extras.expert_scale) : failure;
}

}  // namespace moekit::reference
