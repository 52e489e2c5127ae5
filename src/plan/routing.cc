// SPDX-License-Identifier: Apache-2.0
#include "moekit/routing.h"

#include <cmath>

#include "base/border.h"
#include "base/named.h"
#include "base/text.h"

namespace moekit {
namespace {

using base::cat;

constexpr base::Named<Scoring> kScorings[] = {{Scoring::kSoftmax, "softmax"},
                                              {Scoring::kSigmoid, "sigmoid"},
                                              {Scoring::kSoftmaxSelected, "softmax_selected"},
                                              {Scoring::kNone, "none"},
                                              {Scoring::kSqrtSoftplus, "sqrt_softplus"}};

Status check_groups(const Routing& routing) {
  if (routing.num_groups < 1 || routing.num_experts % routing.num_groups != 0) {
    return invalid_argument(cat("routing num_groups ",
                                routing.num_groups,
                                " does not divide num_experts ",
                                routing.num_experts));
  }
  if (routing.top_groups < 1 || routing.top_groups > routing.num_groups) {
    return invalid_argument(
        cat("routing top_groups ", routing.top_groups, ", expected 1..", routing.num_groups));
  }
  const std::int64_t eligible = routing.num_experts / routing.num_groups * routing.top_groups;
  if (routing.top_k > eligible) {
    return invalid_argument(cat("routing top_k ",
                                routing.top_k,
                                " exceeds the ",
                                eligible,
                                " experts of ",
                                routing.top_groups,
                                " groups"));
  }
  return {};
}

}  // namespace

std::string_view scoring_name(Scoring scoring) noexcept {
  return base::name_of(kScorings, scoring);
}

std::optional<Scoring> scoring_from_name(std::string_view name) noexcept {
  return base::value_of(kScorings, name);
}

namespace {

Status check_routing(const Routing& routing) {
  if (!scoring_from_name(scoring_name(routing.scoring)).has_value()) {
    return invalid_argument("routing scoring is not an enumerator");
  }
  if (routing.num_experts < 1) {
    return invalid_argument(
        cat("routing num_experts ", routing.num_experts, ", expected at least 1"));
  }
  if (routing.num_experts > kMaxExperts) {
    return unsupported(cat(
        "routing num_experts ", routing.num_experts, "; at most ", kMaxExperts, " are supported"));
  }
  if (routing.top_k > kMaxTopK) {
    return unsupported(
        cat("routing top_k ", routing.top_k, "; at most ", kMaxTopK, " is supported"));
  }
  if (routing.top_k < 1 || routing.top_k > routing.num_experts) {
    return invalid_argument(
        cat("routing top_k ", routing.top_k, ", expected 1..", routing.num_experts));
  }
  if (!std::isfinite(routing.scale)) {
    return invalid_argument(cat("routing scale ", routing.scale, ", expected finite"));
  }
  if (routing.hash_table && (routing.num_groups != 1 || routing.correction_bias)) {
    return invalid_argument(
        "routing by hash table selects nothing: groups and correction_bias "
        "have no meaning beside it");
  }
  return check_groups(routing);
}

}  // namespace

Status validate_routing(const Routing& routing) noexcept {
  return base::at_border([&] { return check_routing(routing); });
}

}  // namespace moekit
