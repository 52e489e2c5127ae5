// SPDX-License-Identifier: Apache-2.0
#pragma once

// Expert weights of a verify case, generated from its seed.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "moekit/experts.h"
#include "moekit/verify.h"

#include "runtime/verify_quirks.h"

namespace moekit::verify {

struct CaseWeights {
  /// What the oracle reads: one expert at a time, gate and up apart.
  ExpertsSource source{};
  /// What prepare is given: the same bytes, fused in the problem's row order and split by
  /// split_fused where the layer is small enough to be held twice.
  ExpertsSource prepared{};
  std::deque<std::vector<std::byte>> storage{};

  [[nodiscard]] std::uint64_t hash() const noexcept;
};

/// Large layers share the bytes of thirteen experts; globals and biases stay each expert's own.
///
/// Errors  whatever split_fused and encode_weights refuse
[[nodiscard]] Result<CaseWeights> make_weights(const VerifyCase& verify_case, const Quirks& quirks);

}  // namespace moekit::verify
