// SPDX-License-Identifier: Apache-2.0
#include "reference/layer_fixture.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "moekit/format.h"

namespace moekit::reference {
namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

std::uint16_t bf16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {
    return 0x7FC0;
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

float bf16_float(std::uint16_t code) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
}

struct Random {
  std::mt19937 engine;

  float normal(float deviation) { return std::normal_distribution<float>(0.0F, deviation)(engine); }

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(engine() % bound); }
};

WeightMatrix random_matrix(
    LayerFixture& layer, Format format, std::int64_t rows, std::int64_t cols, Random& random) {
  WeightMatrix matrix;
  matrix.format = format;
  matrix.rows = rows;
  matrix.cols = cols;
  const std::int64_t group = format == Format::kNvfp4 ? 16 : 32;
  matrix.row_stride_bytes = format == Format::kBf16 ? cols * 2 : cols / 2;
  std::vector<unsigned char> codes(at(rows * matrix.row_stride_bytes));
  std::vector<unsigned char> scales;
  if (format == Format::kBf16) {
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const std::uint16_t code = bf16_bits(random.normal(0.1F));
      std::memcpy(codes.data() + i * 2, &code, 2);
    }
  } else {
    matrix.scale_row_stride_bytes = (cols + group - 1) / group;
    scales.resize(at(rows * matrix.scale_row_stride_bytes));
    for (auto& code : codes) {
      code = static_cast<unsigned char>(random.below(256));
    }
    for (auto& scale : scales) {
      scale = static_cast<unsigned char>(format == Format::kNvfp4 ? random.below(0x50)
                                                                  : 120 + random.below(6));
    }
    matrix.global_scale = format == Format::kNvfp4 ? 0.05F + 0.1F * random.normal(0.1F) : 1.0F;
    matrix.global_scale = std::fabs(matrix.global_scale);
  }
  layer.storage.push_back(std::move(codes));
  matrix.codes = layer.storage.back().data();
  if (!scales.empty()) {
    scales.push_back(scales.back());  // a mutation of check_test.cc shifts the grid by one scale
  }
  layer.storage.push_back(std::move(scales));
  matrix.scales = layer.storage.back().empty() ? nullptr : layer.storage.back().data();
  return matrix;
}

BiasView random_bias(LayerFixture& layer, std::int64_t size, Random& random) {
  std::vector<unsigned char> bytes(at(size * 2 * 3));
  for (std::int64_t i = 0; i < size; ++i) {
    const std::uint16_t code = bf16_bits(random.normal(0.3F));
    std::memcpy(bytes.data() + i * 6, &code, 2);
  }
  layer.storage.push_back(std::move(bytes));
  return {layer.storage.back().data(), DType::kBf16, size, 3};
}

// Decodes one element by the definition of the formats.
float element(const WeightMatrix& matrix, std::int64_t row, std::int64_t k) {
  const auto* codes =
      static_cast<const unsigned char*>(matrix.codes) + row * matrix.row_stride_bytes;
  if (matrix.format == Format::kBf16) {
    std::uint16_t code = 0;
    std::memcpy(&code, codes + k * 2, 2);
    return bf16_float(code);
  }
  static constexpr float kMagnitudes[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  const unsigned code = k % 2 == 0 ? codes[k / 2] & 15U : codes[k / 2] >> 4U;
  const float value = (code & 8U) != 0 ? -kMagnitudes[code & 7U] : kMagnitudes[code & 7U];
  const auto* scales =
      static_cast<const unsigned char*>(matrix.scales) + row * matrix.scale_row_stride_bytes;
  if (matrix.format == Format::kMxfp4) {
    return value * std::ldexp(1.0F, scales[k / 32] - 127);
  }
  const unsigned scale = scales[k / 16];
  return value * ((scale >> 3U) == 0 ? std::ldexp(static_cast<float>(scale), -9)
                                     : std::ldexp(static_cast<float>(8U + (scale & 7U)),
                                                  static_cast<int>(scale >> 3U) - 10));
}

float bias_at(const BiasView& bias, std::int64_t index) {
  if (bias.data == nullptr) {
    return 0.0F;
  }
  std::uint16_t code = 0;
  std::memcpy(&code, static_cast<const unsigned char*>(bias.data) + index * bias.stride * 2, 2);
  return bf16_float(code);
}

float sum(const WeightMatrix& matrix, std::int64_t row, const std::vector<float>& operand) {
  float total = 0.0F;
  for (std::int64_t k = 0; k < matrix.cols; ++k) {
    total += operand[at(k)] * element(matrix, row, k);
  }
  return total * matrix.global_scale;
}

float plain_activation(const Activation& activation, float g, float u) {
  const float limit =
      activation.limit.value_or(activation.kind == ActivationKind::kSwigluOai ? 7.0F : HUGE_VALF);
  const float gl = std::fmin(g, limit);
  const float ul = std::fmax(std::fmin(u, limit), -limit);
  switch (activation.kind) {
    case ActivationKind::kSilu:
      return gl / (1.0F + std::exp(-gl)) * ul;
    case ActivationKind::kSwigluOai:
      return gl / (1.0F + std::exp(-activation.alpha.value_or(1.702F) * gl)) *
             (ul + activation.beta.value_or(1.0F));
    case ActivationKind::kSitu:
      return 4.0F * std::tanh(g / 4.0F) / (1.0F + std::exp(-g)) * 25.0F * std::tanh(u / 25.0F);
    case ActivationKind::kGeluTanh:
      return 0.5F * g * (1.0F + std::tanh(0.7978845608F * (g + 0.044715F * g * g * g))) * u;
    case ActivationKind::kRelu2:
      return u > 0.0F ? u * u : 0.0F;
  }
  return 0.0F;
}

}  // namespace

LayerFixture LayerFixture::make(const Problem& problem,
                                std::int64_t num_tokens,
                                std::uint32_t seed) {
  LayerFixture layer;
  layer.problem = problem;
  layer.num_tokens = num_tokens;
  Random random{std::mt19937(seed)};
  const Format format = recipe_info(problem.recipe).weights;
  for (std::int64_t e = 0; e < problem.num_experts; ++e) {
    ExpertWeights expert;
    const std::int64_t rows = problem.intermediate_size;
    expert.gate = random_matrix(layer, format, rows, problem.hidden_size, random);
    expert.up = random_matrix(layer, format, rows, problem.hidden_size, random);
    expert.down = random_matrix(layer, format, problem.hidden_size, rows, random);
    if (problem.gate_up_bias) {
      expert.gate_bias = random_bias(layer, rows, random);
      expert.up_bias = random_bias(layer, rows, random);
    }
    if (problem.down_bias) {
      expert.down_bias = random_bias(layer, problem.hidden_size, random);
    }
    layer.source.experts.push_back(expert);
  }
  layer.x.resize(at(num_tokens * problem.hidden_size * dtype_bits(problem.io_dtype) / 8));
  for (std::int64_t i = 0; i < num_tokens * problem.hidden_size; ++i) {
    const float value = random.normal(1.0F);
    if (problem.io_dtype == DType::kF32) {
      std::memcpy(layer.x.data() + i * 4, &value, 4);
    } else {
      const std::uint16_t code = bf16_bits(value);
      std::memcpy(layer.x.data() + i * 2, &code, 2);
    }
  }
  for (std::int64_t i = 0; i < num_tokens * problem.top_k; ++i) {
    layer.ids.push_back(
        static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(problem.num_experts))));
    layer.weights.push_back(0.1F + 0.05F * std::fabs(random.normal(1.0F)));
  }
  layer.shared.resize(at(num_tokens * problem.hidden_size));
  for (float& value : layer.shared) {
    value = random.normal(0.5F);
  }
  layer.bind();
  return layer;
}

void LayerFixture::bind() {
  out.assign(at(num_tokens * problem.hidden_size * dtype_bits(problem.io_dtype) / 8), 0xFF);
  arguments.x = matrix_view(
      static_cast<const void*>(x.data()), problem.io_dtype, num_tokens, problem.hidden_size);
  arguments.topk_ids =
      matrix_view(static_cast<const void*>(ids.data()), DType::kI32, num_tokens, problem.top_k);
  arguments.topk_weights =
      matrix_view(static_cast<const void*>(weights.data()), DType::kF32, num_tokens, problem.top_k);
  arguments.shared = matrix_view(
      static_cast<const void*>(shared.data()), DType::kF32, num_tokens, problem.hidden_size);
  arguments.out = matrix_view(
      static_cast<void*>(out.data()), problem.io_dtype, num_tokens, problem.hidden_size);
}

void LayerFixture::run_plain() {
  intermediate.assign(at(num_tokens * problem.top_k * problem.intermediate_size), 0xFFFF);
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    std::vector<float> operand(at(problem.hidden_size));
    for (std::int64_t k = 0; k < problem.hidden_size; ++k) {
      const std::int64_t index = token * problem.hidden_size + k;
      if (problem.io_dtype == DType::kF32) {
        float value = 0.0F;
        std::memcpy(&value, x.data() + index * 4, 4);
        operand[at(k)] = bf16_float(bf16_bits(value));
      } else {
        std::uint16_t code = 0;
        std::memcpy(&code, x.data() + index * 2, 2);
        operand[at(k)] = bf16_float(code);
      }
    }
    std::vector<float> y(at(problem.hidden_size), 0.0F);
    for (std::int64_t slot = 0; slot < problem.top_k; ++slot) {
      const std::int64_t route = token * problem.top_k + slot;
      const std::int32_t id = ids[at(route)];
      if (id < 0 || id >= problem.num_experts) {
        continue;
      }
      const ExpertWeights& expert = source.experts[at(id)];
      const bool on_weights = problem.routed_scaling_place == ScalingPlace::kWeights;
      const float p = weights[at(route)] * (on_weights ? problem.routed_scaling : 1.0F);
      const float p_in = problem.router_weight_on_input ? p : 1.0F;
      const float p_out = (problem.router_weight_on_input ? 1.0F : p) *
                          (on_weights ? 1.0F : problem.routed_scaling);
      std::vector<float> a(at(problem.intermediate_size));
      for (std::int64_t i = 0; i < problem.intermediate_size; ++i) {
        const float g = p_in * sum(expert.gate, i, operand) + bias_at(expert.gate_bias, i);
        const float u = p_in * sum(expert.up, i, operand) + bias_at(expert.up_bias, i);
        const std::uint16_t code = bf16_bits(plain_activation(problem.activation, g, u));
        intermediate[at(route * problem.intermediate_size + i)] = code;
        a[at(i)] = bf16_float(code);
      }
      for (std::int64_t n = 0; n < problem.hidden_size; ++n) {
        y[at(n)] += p_out * (sum(expert.down, n, a) + bias_at(expert.down_bias, n));
      }
    }
    for (std::int64_t n = 0; n < problem.hidden_size; ++n) {
      const std::int64_t index = token * problem.hidden_size + n;
      const float value =
          y[at(n)] + (problem.shared == SharedInput::kNone ? 0.0F : shared[at(index)]);
      if (problem.io_dtype == DType::kF32) {
        std::memcpy(out.data() + index * 4, &value, 4);
      } else {
        const std::uint16_t code = bf16_bits(value);
        std::memcpy(out.data() + index * 2, &code, 2);
      }
    }
  }
}

}  // namespace moekit::reference
