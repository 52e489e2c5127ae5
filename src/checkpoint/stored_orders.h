// SPDX-License-Identifier: Apache-2.0
#pragma once

// Linear layers whose bytes do not lie as WeightMatrix wants them: one function for each stored
// order. What can be viewed is viewed; the rest is undone into the layer's storage.

#include <string>

#include "checkpoint/layer_weights.h"
#include "checkpoint/schemes.h"

namespace moekit::checkpoint {

/// Where a linear layer is read from and what its configuration says.
struct LinearSource {
  const TensorReader* tensors = nullptr;
  const ModelConfig* config = nullptr;
  LayerStorage* storage = nullptr;
  std::string base{};  // `<module>experts.<e>.<projection>.`
};

/// Codes in rows, one scale byte per group along K; f32 scales of MXFP4 must be powers of two.
[[nodiscard]] Result<WeightMatrix> read_rows(const LinearSource& source,
                                             const LinearScheme& scheme);

/// E4M3 [N, K] and one multiplier per 128 x 128, f32, bf16, f16 or E8M0.
[[nodiscard]] Result<WeightMatrix> read_fp8_blocks(const LinearSource& source,
                                                   const LinearScheme& scheme);

/// compressed-tensors pack-quantized: i32 [N, K / 8], low bits first, codes offset by 8.
[[nodiscard]] Result<WeightMatrix> read_pack_quantized(const LinearSource& source,
                                                       const LinearScheme& scheme);

/// AWQ: i32 [K, N / 8], nibble i of a word is column 0, 2, 4, 6, 1, 3, 5, 7 of eight.
[[nodiscard]] Result<WeightMatrix> read_awq(const LinearSource& source, const LinearScheme& scheme);

/// GPTQ: i32 [K / 8, N], low bits first; zero points are stored less one, but for gptq_v2.
///
/// Errors  kUnsupported  a g_idx that permutes the groups
[[nodiscard]] Result<WeightMatrix> read_gptq(const LinearSource& source,
                                             const LinearScheme& scheme);

/// AWQ and GPTQ share their names: whether the shapes are those of `scheme`.
[[nodiscard]] bool order_matches(const TensorReader& tensors,
                                 const std::string& base,
                                 const LinearScheme& scheme);

}  // namespace moekit::checkpoint
