// SPDX-License-Identifier: Apache-2.0
#pragma once

// What may be unusual about a verify case. A quirk string is `none` or names joined by `+`, at most
// one of each group.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/status.h"
#include "moekit/verify.h"

namespace moekit::verify {

enum class WeightQuirk : std::uint8_t {
  kEncoded,          // normal values through encode_weights, as a checkpoint holds them
  kRawCodes,         // every code equally likely, scales of moderate range
  kSubnormalScales,  // E4M3 scales below 2^-6; E8M0: the ten smallest bytes in one of four groups
  kZeroScales,       // a third of the groups has scale 0 (also written 0x80) or codes 0
  kWideScales,       // scales over the whole range of their type that f32 sums can hold
  kUnequalGlobals,   // gate, up and down globals up to 10 times apart
  kDormantExpert,    // every second expert multiplies by 0
  kTransposed,       // bf16 in column-major storage
};

enum class BiasQuirk : std::uint8_t { kBf16, kF32, kF16Strided };

enum class RouteQuirk : std::uint8_t {
  kUniform,
  kAllToOneExpert,
  kDuplicateIds,    // one expert in every slot of a token
  kInactiveIds,     // a third of the ids is -1
  kOutOfRangeIds,   // some ids are E, E + 7, INT_MAX or INT_MIN
  kInactiveTokens,  // every second token has no active route
  kAllInactive,
  kZeroWeights,   // every second router weight is 0
  kTiedLogits,    // three distinct values; needs a Routing
  kMaskedLogits,  // -infinity and NaN leave fewer than top_k finite logits; needs a Routing
};

enum class IdQuirk : std::uint8_t {
  kInt32,
  kInt64,
  kInt64Wide,  // some ids are 2^32 + e or -2^32 + e, which narrow to a legal id
};

enum class InputQuirk : std::uint8_t {
  kNormal,
  kZero,
  kNegativeZero,
  kLarge,      // one element in sixteen is 2^40 (f16: 2^12) times larger
  kSubnormal,  // every second token is below the smallest normal bf16 (f16: f16)
  kNanToken,   // one token holds a NaN
  kInfToken,   // one token holds an infinity
  kOneHot,     // one element of a token is not 0
};

enum class ViewQuirk : std::uint8_t {
  kContiguous,
  kStrided,  // rows of every tensor stand further apart than they are long
};

enum class PlanQuirk : std::uint8_t {
  kWhole,
  kChunked,  // max_workspace_bytes of a third of the tokens: the plan cuts the call
};

struct Quirks {
  WeightQuirk weights = WeightQuirk::kEncoded;
  BiasQuirk biases = BiasQuirk::kBf16;
  RouteQuirk routes = RouteQuirk::kUniform;
  IdQuirk ids = IdQuirk::kInt32;
  InputQuirk inputs = InputQuirk::kNormal;
  ViewQuirk views = ViewQuirk::kContiguous;
  PlanQuirk plan = PlanQuirk::kWhole;

  friend bool operator==(const Quirks&, const Quirks&) = default;
};

[[nodiscard]] std::string quirks_name(const Quirks& quirks);

/// Errors  kInvalidArgument  an unknown name (listing the known ones), two of one group
[[nodiscard]] Result<Quirks> quirks_from_name(std::string_view name);

/// Every name that is not a default.
[[nodiscard]] std::vector<std::string_view> quirk_names();

/// Do the quirks fit the problem?
///
/// Errors  kInvalidArgument  a quirk of logits without a Routing, of ids with one, of storage that
///                           the recipe's format does not have
[[nodiscard]] Status check_quirks(const Quirks& quirks, const Problem& problem);

}  // namespace moekit::verify
