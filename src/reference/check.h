// SPDX-License-Identifier: Apache-2.0
#pragma once

// The two-stage check of spec section 2: is what an implementation left in its intermediate and in
// its output what the recipe says, within bounds that follow from the arithmetic alone?

#include <cstdint>

#include "moekit/verify.h"

#include "reference/layer.h"

namespace moekit::reference {

/// What an implementation left behind. `arguments` of the call carry topk_ids and topk_weights.
struct Evidence {
  std::int64_t num_tokens = 0;
  MutableTensorView out{};
  /// bf16 [.., intermediate] by route, row (token - first_token) * top_k + slot; null where nothing
  /// is materialised.
  const void* intermediate = nullptr;
  std::int64_t first_token = 0;  // tokens before it have left the slice (chunked plans)
};

/// Tokens that are looked at: all up to this many, else this many.
inline constexpr std::int64_t kSampledTokens = 64;

/// Stage 1 limits the share of differing intermediates only where at least this many were checked:
/// 0.5 % of them is then 20, far above the 0.005 % that f32 sums flip in the verify suites. Values
/// whose f32 rounding is itself a tie do not count towards the share: one-hot inputs and tiny gates
/// (sigmoid exactly 1/2) put whole layers there, and each is still held to its own bound.
inline constexpr std::int64_t kShareMinimum = 4096;
inline constexpr double kShareLimit = 0.005;
inline constexpr double kQuantizedShareLimit = 0.01;

/// Which tokens of [0, num_tokens) to check, ascending: all where they are few; else first, last
/// and evenly between, half of them from [first_token, num_tokens) where stage 1 can look.
[[nodiscard]] std::vector<std::int64_t> sample_tokens(std::int64_t num_tokens,
                                                      std::int64_t first_token);

/// Judges. The report's `passed` is the verdict; first_failure has values and place.
///
/// Numerics  derivations stand at each bound in check.cc
[[nodiscard]] VerifyReport check_layer(const LayerCall& call, const Evidence& evidence);

}  // namespace moekit::reference
