// SPDX-License-Identifier: Apache-2.0
#include "cli/random_inputs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace moekit::cli {
namespace {

/// The upper half of an f32 is the bf16; exact for the values made here.
std::uint16_t exact_bf16(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U);
}

/// Exact for zero and for normal f16 values with at most 11 significant bits.
std::uint16_t exact_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  if ((bits & 0x7FFFFFFFU) == 0) {
    return static_cast<std::uint16_t>(sign);
  }
  const std::uint32_t exponent = ((bits >> 23U) & 0xFFU) - 127U + 15U;
  return static_cast<std::uint16_t>(sign | (exponent << 10U) | ((bits >> 13U) & 0x3FFU));
}

void store_exact(float value, DType dtype, std::byte* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, &value, sizeof value);
    return;
  }
  const std::uint16_t half = dtype == DType::kBf16 ? exact_bf16(value) : exact_f16(value);
  std::memcpy(out, &half, sizeof half);
}

/// bytes[i] = (random & mask) | base, eight at a time.
void fill_bytes(std::vector<std::byte>& bytes,
                std::uint64_t mask,
                std::uint64_t base,
                RandomBits& random) {
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = (random.next_bits() & mask) | base;
    std::memcpy(bytes.data() + i, &word, std::min(sizeof word, bytes.size() - i));
  }
}

struct MatrixBytes {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
};

/// What fill_bytes writes for elements or scales of a dtype: weights of about 1/64 to 1/16 in
/// magnitude times the global, whatever the format. Every code of e2m1 and i4 is legal.
struct Fill {
  DType dtype;
  std::uint64_t mask;
  std::uint64_t base;
};

constexpr Fill kElementFills[] = {
    {DType::kBf16, 0x81FF81FF81FF81FFULL, 0x3C003C003C003C00ULL},  // 2^-7 to 2^-4
    {DType::kE4m3, 0x8787878787878787ULL, 0x2828282828282828ULL},  // 2^-2 to 0.47
    {DType::kE2m1, ~0ULL, 0},
    {DType::kI4, ~0ULL, 0},
};
constexpr Fill kScaleFills[] = {
    {DType::kE8m0, 0x0303030303030303ULL, 0x7474747474747474ULL},  // 2^-11 to 2^-8
    {DType::kE4m3, 0x1F1F1F1F1F1F1F1FULL, 0x2020202020202020ULL},  // 2^-3 to 1.875
    {DType::kF32, 0x007FFFFF007FFFFFULL, 0x3D8000003D800000ULL},   // 2^-4 to 2^-3
    {DType::kBf16, 0x007F007F007F007FULL, 0x3C003C003C003C00ULL},  // 2^-7 to 2^-6
};

template <std::size_t kSize>
void fill_as(const Fill (&fills)[kSize],
             DType dtype,
             std::vector<std::byte>& bytes,
             RandomBits& random) {
  for (const Fill& fill : fills) {
    if (fill.dtype == dtype) {
      fill_bytes(bytes, fill.mask, fill.base, random);
    }
  }
}

/// Bytes for a matrix of which the shape alone is known yet.
MatrixBytes random_matrix(const WeightMatrix& shape, RandomBits& random) {
  const FormatInfo& info = format_info(shape.format);
  MatrixBytes bytes;
  bytes.codes.resize(
      static_cast<std::size_t>(shape.rows * code_row_bytes(shape.format, shape.cols)));
  fill_as(kElementFills, info.element, bytes.codes, random);
  if (info.scale.has_value()) {
    bytes.scales.resize(static_cast<std::size_t>(num_scale_rows(shape) * num_scale_cols(shape) *
                                                 scale_elem_bytes(shape)));
    fill_as(kScaleFills, *info.scale, bytes.scales, random);
  }
  return bytes;
}

WeightMatrix view_of(const MatrixBytes& bytes, const WeightMatrix& shape) {
  WeightMatrix matrix = shape;
  matrix.codes = bytes.codes.data();
  matrix.row_stride_bytes = code_row_bytes(shape.format, shape.cols);
  if (!bytes.scales.empty()) {
    matrix.scales = bytes.scales.data();
    matrix.scale_row_stride_bytes = num_scale_cols(shape) * scale_elem_bytes(shape);
  }
  return matrix;
}

}  // namespace

std::uint64_t RandomBits::next_bits() noexcept {
  state_ += 0x9E3779B97F4A7C15ULL;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

std::int64_t RandomBits::below(std::int64_t bound) noexcept {
  return static_cast<std::int64_t>(next_bits() % static_cast<std::uint64_t>(bound));
}

float RandomBits::unit() noexcept {
  return static_cast<float>(next_bits() >> 40U) * 0x1p-24F;
}

std::vector<std::byte> random_hidden_states(const Problem& problem,
                                            std::int64_t num_tokens,
                                            RandomBits& random) {
  const auto width = static_cast<std::size_t>(dtype_bits(problem.io_dtype) / 8);
  const auto count = static_cast<std::size_t>(num_tokens * problem.hidden_size);
  std::vector<std::byte> bytes(count * width);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(random.below(511) - 255) / 128.0F;
    store_exact(value, problem.io_dtype, bytes.data() + i * width);
  }
  return bytes;
}

RandomRoutes random_routes(const Problem& problem, std::int64_t num_tokens, RandomBits& random) {
  RandomRoutes routes;
  const std::int64_t num_ids = num_router_experts(problem);
  std::vector<std::int32_t> deck(static_cast<std::size_t>(num_ids));
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    for (std::size_t i = 0; i < deck.size(); ++i) {
      deck[i] = static_cast<std::int32_t>(i);
    }
    for (std::int64_t slot = 0; slot < problem.top_k; ++slot) {
      // Fisher-Yates on the first top_k cards: distinct and uniform.
      std::swap(deck[static_cast<std::size_t>(slot)],
                deck[static_cast<std::size_t>(slot + random.below(num_ids - slot))]);
      routes.ids.push_back(deck[static_cast<std::size_t>(slot)]);
      routes.weights.push_back((0.5F + random.unit()) / static_cast<float>(problem.top_k));
    }
  }
  return routes;
}

Result<RandomCall> random_call(const Problem& problem,
                               std::int64_t num_tokens,
                               RandomBits& random) {
  RandomCall call;
  call.hidden_states = random_hidden_states(problem, num_tokens, random);
  call.routes = random_routes(problem, num_tokens, random);
  MOEKIT_ASSIGN_OR_RETURN(
      call.out, AlignedBuffer::allocate(static_cast<std::int64_t>(call.hidden_states.size())));
  const auto in = [num_tokens](const void* data, DType dtype, std::int64_t cols) {
    return matrix_view(data, dtype, num_tokens, cols);
  };
  RunArguments& arguments = call.arguments;
  arguments.x = in(call.hidden_states.data(), problem.io_dtype, problem.hidden_size);
  arguments.topk_ids = in(call.routes.ids.data(), DType::kI32, problem.top_k);
  arguments.topk_weights = in(call.routes.weights.data(), DType::kF32, problem.top_k);
  arguments.out = matrix_view(
      static_cast<void*>(call.out.begin()), problem.io_dtype, num_tokens, problem.hidden_size);
  return call;
}

struct RandomExperts::Storage {
  struct CodeSet {
    MatrixBytes gate;
    MatrixBytes up;
    MatrixBytes down;
  };

  std::vector<CodeSet> code_sets;
  std::vector<float> biases;  // [E, 2 * intermediate + hidden]
};

Result<RandomExperts> RandomExperts::make(const Problem& problem, RandomBits& random) {
  MOEKIT_RETURN_IF_ERROR(validate_problem(problem));
  constexpr std::int64_t kMaxCodeSets = 4;
  const RecipeInfo& recipe = recipe_info(problem.recipe);
  const bool gated = activation_is_gated(problem.activation.kind);
  const std::int64_t hidden = problem.hidden_size;
  const std::int64_t inner = problem.intermediate_size;
  WeightMatrix gate_up{.format = recipe.weights,
                       .rows = inner,
                       .cols = hidden,
                       .group_size = problem.weight_group_size};
  if (quantizer_info(recipe.quantizer).needs_input_scale) {
    gate_up.input_scale = 0x1p-10F;  // inputs are below 2, 6 * 448 * 2^-10 is 2.6
  }
  WeightMatrix down = gate_up;
  down.rows = hidden;
  down.cols = inner;

  auto storage = std::make_shared<Storage>();
  for (std::int64_t i = 0; i < std::min(kMaxCodeSets, problem.num_experts); ++i) {
    storage->code_sets.push_back({gated ? random_matrix(gate_up, random) : MatrixBytes{},
                                  random_matrix(gate_up, random),
                                  random_matrix(down, random)});
  }
  const std::int64_t bias_elems = 2 * inner + hidden;
  storage->biases.resize(static_cast<std::size_t>(problem.num_experts * bias_elems));
  for (float& bias : storage->biases) {
    bias = random.unit() - 0.5F;
  }

  RandomExperts result;
  for (std::int64_t e = 0; e < problem.num_experts; ++e) {
    const Storage::CodeSet& set =
        storage->code_sets[static_cast<std::size_t>(e) % storage->code_sets.size()];
    const float* biases = storage->biases.data() + e * bias_elems;
    ExpertWeights expert;
    if (gated) {
      expert.gate = view_of(set.gate, gate_up);
    }
    expert.up = view_of(set.up, gate_up);
    expert.down = view_of(set.down, down);
    if (format_info(recipe.weights).has_global_scale) {
      for (WeightMatrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
        matrix->global_scale = (1.0F + random.unit()) / 256.0F;
      }
    }
    if (problem.gate_up_bias) {
      expert.gate_bias = gated ? BiasView{biases, DType::kF32, inner, 1} : BiasView{};
      expert.up_bias = {biases + inner, DType::kF32, inner, 1};
    }
    if (problem.down_bias) {
      expert.down_bias = {biases + 2 * inner, DType::kF32, hidden, 1};
    }
    result.source_.experts.push_back(expert);
  }
  result.storage_ = std::move(storage);
  return result;
}

}  // namespace moekit::cli
