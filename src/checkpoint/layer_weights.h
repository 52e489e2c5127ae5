// SPDX-License-Identifier: Apache-2.0
#pragma once

// The weights of one MoE layer as views, however the producer named and stacked them.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/experts.h"
#include "moekit/problem.h"

#include "checkpoint/state.h"

namespace moekit::checkpoint {

/// Bytes that views of a layer point into where the file's own order is another than moekit's.
class LayerStorage {
 public:
  /// `bytes` zero bytes, aligned for every element.
  [[nodiscard]] std::byte* take(std::int64_t bytes) {
    blocks_.push_back(std::make_unique<std::byte[]>(static_cast<std::size_t>(bytes)));
    return blocks_.back().get();
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

struct LayerWeights {
  std::string_view scheme;
  std::string prefix{};
  Format format = Format::kBf16;
  RowOrder row_order = RowOrder::kGateUp;
  bool gated = true;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  bool gate_up_bias = false;
  bool down_bias = false;
  std::vector<ExpertWeights> experts{};
  std::shared_ptr<LayerStorage> storage{};  // null where everything is viewed in the file
  std::vector<float> input_scales_gate{};
  std::vector<float> input_scales_up{};
  std::vector<float> input_scales_down{};
};

/// Looks tensors up and checks them; every message names the tensor and both values.
class TensorReader {
 public:
  explicit TensorReader(const Checkpoint::State& state) noexcept : state_(&state) {}

  [[nodiscard]] const NamedTensor* find(std::string_view name) const;
  [[nodiscard]] bool has_prefix(std::string_view prefix) const;

  /// Errors  kInvalidArgument  missing, of a dtype without a view, or of more than four dimensions
  [[nodiscard]] Result<const NamedTensor*> require(std::string_view name) const;

  /// The same with exact dtype and shape. E8M0 scales may be stored as U8.
  [[nodiscard]] Result<const NamedTensor*> require(std::string_view name,
                                                   DType dtype,
                                                   std::initializer_list<std::int64_t> shape) const;

 private:
  const Checkpoint::State* state_;
};

/// `bf16`, or what the file calls a dtype that moekit has no name for: `F64`.
[[nodiscard]] std::string_view dtype_text(const NamedTensor& tensor);

/// Of a dtype that moekit can read, and that dtype.
[[nodiscard]] bool has_dtype(const NamedTensor& tensor, DType dtype);

/// A tensor of f32, bf16 or f16 without gaps that holds no NaN and no infinity.
///
/// Errors  kInvalidArgument  the first such element: tensor, index, value
[[nodiscard]] Status check_finite(std::string_view name, const TensorView& view);

/// A bias of f32, bf16 or f16 and exact shape; null where the files hold none.
///
/// Errors  kInvalidArgument  another dtype or shape, an element that is not finite
[[nodiscard]] Result<const NamedTensor*> find_bias(const TensorReader& tensors,
                                                   const std::string& name,
                                                   std::initializer_list<std::int64_t> shape);

/// `[3, 4]`
[[nodiscard]] std::string shape_text(const TensorView& view);

/// Errors  kInvalidArgument  a tensor missing or misshapen, mixed formats, a reciprocal global of 0
///         kUnsupported      more than 1024 experts, a quantisation without a format
[[nodiscard]] Result<LayerWeights> read_linear_experts(const TensorReader& tensors,
                                                       const ModelConfig& config,
                                                       const std::string& prefix,
                                                       std::int64_t num_experts);

[[nodiscard]] Result<LayerWeights> read_stacked_experts(const TensorReader& tensors,
                                                        const std::string& prefix,
                                                        const ModelConfig& config);

[[nodiscard]] bool has_gguf_experts(const TensorReader& tensors, const std::string& prefix);

[[nodiscard]] Result<LayerWeights> read_gguf_experts(const Checkpoint::State& state,
                                                     const std::string& prefix);

}  // namespace moekit::checkpoint
