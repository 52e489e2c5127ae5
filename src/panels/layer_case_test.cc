// SPDX-License-Identifier: Apache-2.0

// The bodies of panels/layer_case.h.

#include "panels/layer_case.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "panels/test_bodies.h"

namespace moekit::panels {

namespace {

constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

double e2m1(unsigned code) {
  return (code & 8U) != 0 ? -kE2m1[code & 7U] : kE2m1[code & 7U];
}

double scale_value(Format format, unsigned byte) {
  if (format == Format::kMxfp4) {
    return std::ldexp(1.0, static_cast<int>(byte) - 127);
  }
  const int exponent = static_cast<int>(byte >> 3);
  const int mantissa = static_cast<int>(byte & 7U);
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

double gelu_tanh(double g) {
  constexpr double kTwoOverPi = 0.63661977236758134;
  return 0.5 * g * (1.0 + std::tanh(std::sqrt(kTwoOverPi) * (g + 0.044715 * g * g * g)));
}

double activated(const Activation& activation, double g, double u) {
  const double limit =
      activation.limit.value_or(activation.kind == ActivationKind::kSwigluOai ? 7.0F : INFINITY);
  switch (activation.kind) {
    case ActivationKind::kSilu:
      g = std::min(g, limit);
      return g * sigmoid(g) * std::clamp(u, -limit, limit);
    case ActivationKind::kSwigluOai:
      g = std::min(g, limit);
      return g * sigmoid(static_cast<double>(activation.alpha.value_or(1.702F)) * g) *
             (std::clamp(u, -limit, limit) + static_cast<double>(activation.beta.value_or(1.0F)));
    case ActivationKind::kSitu:
      return 4.0 * std::tanh(g / 4.0) * sigmoid(g) * (25.0 * std::tanh(u / 25.0));
    case ActivationKind::kGeluTanh:
      return gelu_tanh(g) * u;
    case ActivationKind::kRelu2:
      return g > 0 ? g * g : 0;
  }
  return NAN;
}

struct Dot {
  double sum = 0;
  double magnitude = 0;  // Σ |terms|
};

template <typename Value>
Dot dot(const std::vector<double>& matrix, std::int64_t row, std::int64_t cols, Value value) {
  Dot out;
  for (std::int64_t k = 0; k < cols; ++k) {
    const double term = matrix[static_cast<std::size_t>(row * cols + k)] * value(k);
    out.sum += term;
    out.magnitude += std::abs(term);
  }
  return out;
}

}  // namespace

LayerCase::Matrix LayerCase::random_matrix(std::int64_t rows, std::int64_t cols) {
  const Format format = recipe_info(problem_.recipe).weights;
  const FormatInfo& info = format_info(format);
  Matrix matrix;
  matrix.values.resize(static_cast<std::size_t>(rows * cols));
  const std::int64_t row_bytes = code_row_bytes(format, cols);
  matrix.codes.resize(static_cast<std::size_t>(rows * row_bytes));
  matrix.view = {.format = format, .rows = rows, .cols = cols, .row_stride_bytes = row_bytes};
  if (format == Format::kBf16) {
    for (std::size_t i = 0; i < matrix.values.size(); ++i) {
      const std::uint16_t bits = device::bf16_from_f32(uniform(-0.3F, 0.3F));
      std::memcpy(matrix.codes.data() + i * 2, &bits, 2);
      matrix.values[i] = static_cast<double>(device::bf16_to_f32(bits));
    }
    return matrix;
  }
  const std::int64_t groups = (cols + info.group_size - 1) / info.group_size;
  matrix.scales.resize(static_cast<std::size_t>(rows * groups));
  matrix.view.scale_row_stride_bytes = groups;
  for (std::uint8_t& byte : matrix.codes) {
    byte = static_cast<std::uint8_t>(random_());
  }
  for (std::uint8_t& byte : matrix.scales) {
    // Zeros and subnormals of E4M3 included.
    byte = static_cast<std::uint8_t>(format == Format::kNvfp4 ? random_() % 0x48U
                                                              : 118U + random_() % 8U);
  }
  matrix.view.global_scale = info.has_global_scale ? uniform(0.05F, 0.2F) : 1.0F;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t k = 0; k < cols; ++k) {
      const unsigned byte = matrix.codes[static_cast<std::size_t>(row * row_bytes + k / 2)];
      const unsigned scale =
          matrix.scales[static_cast<std::size_t>(row * groups + k / info.group_size)];
      matrix.values[static_cast<std::size_t>(row * cols + k)] =
          e2m1((byte >> (k % 2 * 4)) & 15U) * scale_value(format, scale);
    }
  }
  return matrix;
}

void LayerCase::make_experts() {
  const bool gated = activation_is_gated(problem_.activation.kind);
  const std::int64_t inner = problem_.intermediate_size;
  experts_.resize(static_cast<std::size_t>(problem_.num_experts));
  source_.experts.resize(experts_.size());
  const auto bias = [this](std::int64_t size) {
    std::vector<float> values(static_cast<std::size_t>(size));
    std::generate(values.begin(), values.end(), [this] { return uniform(-1.0F, 1.0F); });
    return values;
  };
  const auto bias_view = [](const std::vector<float>& values) {
    return BiasView{values.data(), DType::kF32, static_cast<std::int64_t>(values.size()), 1};
  };
  for (std::size_t e = 0; e < experts_.size(); ++e) {
    ExpertData& expert = experts_[e];
    ExpertWeights& view = source_.experts[e];
    const auto fill = [](Matrix& matrix, Matrix made, WeightMatrix& out) {
      matrix = std::move(made);
      matrix.view.codes = matrix.codes.data();
      matrix.view.scales = matrix.scales.empty() ? nullptr : matrix.scales.data();
      out = matrix.view;
    };
    if (gated) {
      fill(expert.gate, random_matrix(inner, problem_.hidden_size), view.gate);
    }
    fill(expert.up, random_matrix(inner, problem_.hidden_size), view.up);
    fill(expert.down, random_matrix(problem_.hidden_size, inner), view.down);
    if (problem_.gate_up_bias) {
      expert.gate_bias = bias(inner);
      expert.up_bias = bias(inner);
      view.up_bias = bias_view(expert.up_bias);
      if (gated) {
        view.gate_bias = bias_view(expert.gate_bias);
      }
    }
    if (problem_.down_bias) {
      expert.down_bias = bias(problem_.hidden_size);
      view.down_bias = bias_view(expert.down_bias);
    }
  }
}

void LayerCase::make_inputs() {
  const auto elems = static_cast<std::size_t>(tokens_ * problem_.hidden_size);
  x.resize(elems);
  shared.resize(elems);
  for (std::size_t i = 0; i < elems; ++i) {
    x[i] = round_io(uniform(-1.0F, 1.0F));
    shared[i] = uniform(-1.0F, 1.0F);
    shared[i] = problem_.shared == SharedInput::kIo ? round_io(shared[i]) : shared[i];
  }
  for (std::int64_t i = 0; i < tokens_ * problem_.top_k; ++i) {
    ids.push_back(static_cast<std::int64_t>(random_()) % num_router_experts(problem_));
    weights.push_back(uniform(0.0F, 1.0F));
  }
  map.assign(static_cast<std::size_t>(num_router_experts(problem_)), -1);
  for (std::int64_t e = 0; e < problem_.num_experts; ++e) {
    // Reversed, and spread over the namespace.
    map[static_cast<std::size_t>(num_router_experts(problem_) - 1 - e)] =
        static_cast<std::int32_t>(e);
  }
}

namespace {

std::vector<std::byte> io_bytes(const std::vector<float>& values, DType dtype) {
  const auto width = static_cast<std::size_t>(dtype_bits(dtype) / 8);
  std::vector<std::byte> bytes(values.size() * width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half =
        dtype == DType::kBf16 ? device::bf16_from_f32(values[i]) : device::f16_from_f32(values[i]);
    std::memcpy(bytes.data() + i * width,
                dtype == DType::kF32 ? static_cast<const void*>(&values[i]) : &half,
                width);
  }
  return bytes;
}

float io_value(const std::byte* bytes, DType dtype, std::size_t index) {
  if (dtype == DType::kF32) {
    return reinterpret_cast<const float*>(bytes)[index];
  }
  const std::uint16_t half = reinterpret_cast<const std::uint16_t*>(bytes)[index];
  return dtype == DType::kBf16 ? device::bf16_to_f32(half) : device::f16_to_f32(half);
}

struct Workspace {
  explicit Workspace(std::int64_t bytes, unsigned char poison)
      : storage(static_cast<std::size_t>(bytes) + 2 * kWorkspaceAlignment,
                static_cast<std::byte>(poison)) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage.data());
    const std::size_t skip = (kWorkspaceAlignment - address % kWorkspaceAlignment);
    span = std::span(storage).subspan(skip, static_cast<std::size_t>(bytes));
  }

  std::vector<std::byte> storage;
  std::span<std::byte> span;
};

}  // namespace

LayerCase::Output LayerCase::run(const std::string& isa,
                                 int threads,
                                 ExecutionFamily family,
                                 unsigned char poison) const {
  auto device = device_from_name(select_body(isa));
  EXPECT_TRUE(device.has_value());
  device.value().num_threads = threads;
  PlanOverrides overrides;
  overrides.family = family;
  const auto plan = make_plan(problem_, *device, overrides);
  EXPECT_TRUE(plan.has_value()) << plan.status().to_string();
  const auto packed = prepare(*plan, source_, {.num_threads = 1});
  EXPECT_TRUE(packed.has_value()) << packed.status().to_string();
  const auto runtime = Runtime::create({.num_threads = threads});
  EXPECT_TRUE(runtime.has_value());
  return execute(*plan, *packed, *runtime, poison);
}

LayerCase::Output LayerCase::execute(const Plan& plan,
                                     const PackedExperts& packed,
                                     const Runtime& runtime,
                                     unsigned char poison) const {
  const DType io = problem_.io_dtype;
  const std::vector<std::byte> x_bytes = io_bytes(x, io);
  const DType shared_dtype = problem_.shared == SharedInput::kF32 ? DType::kF32 : io;
  const std::vector<std::byte> shared_bytes = io_bytes(shared, shared_dtype);
  std::vector<std::byte> out(x_bytes.size(), static_cast<std::byte>(poison));
  const std::vector<std::int32_t> ids32(ids.begin(), ids.end());
  RunArguments arguments;
  arguments.x = matrix_view(x_bytes.data(), io, tokens_, problem_.hidden_size);
  if (problem_.routing.has_value()) {
    arguments.router_logits =
        matrix_view(logits.data(), DType::kF32, tokens_, num_router_experts(problem_));
  }
  arguments.topk_ids = narrow_ids ? matrix_view(ids32.data(), DType::kI32, tokens_, problem_.top_k)
                                  : matrix_view(ids.data(), DType::kI64, tokens_, problem_.top_k);
  arguments.topk_weights = matrix_view(weights.data(), DType::kF32, tokens_, problem_.top_k);
  arguments.expert_map = problem_.expert_map ? map.data() : nullptr;
  if (problem_.shared != SharedInput::kNone) {
    arguments.shared =
        matrix_view(shared_bytes.data(), shared_dtype, tokens_, problem_.hidden_size);
  }
  arguments.out = matrix_view(out.data(), io, tokens_, problem_.hidden_size);
  Workspace workspace(plan.workspace_bytes(), poison);
  const auto binding = moekit::bind(runtime, plan, packed, workspace.span, arguments);
  EXPECT_TRUE(binding.has_value()) << binding.status().to_string();
  EXPECT_TRUE(moekit::run(runtime, *binding).ok());
  // What lies beyond the workspace is untouched.
  for (const std::byte* at = workspace.span.data() + workspace.span.size();
       at != workspace.storage.data() + workspace.storage.size();
       ++at) {
    EXPECT_EQ(*at, static_cast<std::byte>(poison));
  }
  Output output;
  for (std::size_t i = 0; i < x.size(); ++i) {
    output.out.push_back(io_value(out.data(), io, i));
  }
  for (const WorkspaceSlice& slice : plan->workspace) {
    if (slice.name == "intermediate") {
      output.intermediate.resize(ids.size() * static_cast<std::size_t>(problem_.intermediate_size));
      if (!output.intermediate.empty()) {  // an empty vector has no address to copy to
        std::memcpy(output.intermediate.data(),
                    workspace.span.data() + slice.offset,
                    output.intermediate.size() * 2);
      }
    }
  }
  return output;
}

LayerCase::Expected LayerCase::expected(const std::vector<std::uint16_t>& own) const {
  const std::int64_t hidden = problem_.hidden_size;
  const std::int64_t inner = problem_.intermediate_size;
  const bool gated = activation_is_gated(problem_.activation.kind);
  const bool scale_weights = problem_.routed_scaling_place == ScalingPlace::kWeights;
  const auto scaling = static_cast<double>(problem_.routed_scaling);
  Expected result;
  result.out.assign(static_cast<std::size_t>(tokens_ * hidden), 0.0);
  result.bound.assign(result.out.size(), 0.0);
  result.intermediate.assign(ids.size() * static_cast<std::size_t>(inner), NAN);
  result.intermediate_bound.assign(result.intermediate.size(), 0.0);
  for (std::int64_t route = 0; route < tokens_ * problem_.top_k; ++route) {
    const std::int64_t e = local_expert(route);
    if (e < 0) {
      continue;
    }
    const std::int64_t token = route / problem_.top_k;
    const ExpertData& expert = experts_[static_cast<std::size_t>(e)];
    const double weight = static_cast<double>(weights[static_cast<std::size_t>(route)]) *
                          (scale_weights ? scaling : 1.0);
    const double on_input = problem_.router_weight_on_input ? weight : 1.0;
    const auto x_at = [&](std::int64_t k) {
      return static_cast<double>(
          device::bf16_round(x[static_cast<std::size_t>(token * hidden + k)]));
    };
    const auto projected =
        [&](const Matrix& matrix, const std::vector<float>& bias, std::int64_t row, double& slack) {
          const Dot product = dot(matrix.values, row, hidden, x_at);
          const double global = static_cast<double>(matrix.view.global_scale) * on_input;
          const double extra =
              bias.empty() ? 0.0 : static_cast<double>(bias[static_cast<std::size_t>(row)]);
          slack += std::abs(global) * product.magnitude + std::abs(extra);
          return product.sum * global + extra;
        };
    for (std::int64_t row = 0; row < inner; ++row) {
      double slack = 0.0;
      const double u = projected(expert.up, expert.up_bias, row, slack);
      const double g = gated ? projected(expert.gate, expert.gate_bias, row, slack) : u;
      const auto at = static_cast<std::size_t>(route * inner + row);
      result.intermediate[at] = activated(problem_.activation, g, u);
      // Running error of the f32 sums through an activation of slope at most ~1.2 in g and |g| in
      // u.
      result.intermediate_bound[at] =
          std::ldexp(4.0 * std::sqrt(static_cast<double>(hidden)), -24) * slack * 1.2 *
          (1.0 + std::abs(u) + std::abs(g));
    }
    const double after = problem_.router_weight_on_input ? 1.0 : weight;
    const double on_sum = after * (scale_weights ? 1.0 : scaling);
    for (std::int64_t row = 0; row < hidden; ++row) {
      const Dot product = dot(expert.down.values, row, inner, [&](std::int64_t k) {
        return static_cast<double>(
            device::bf16_to_f32(own[static_cast<std::size_t>(route * inner + k)]));
      });
      const auto global = static_cast<double>(expert.down.view.global_scale);
      const double extra =
          expert.down_bias.empty()
              ? 0.0
              : static_cast<double>(expert.down_bias[static_cast<std::size_t>(row)]);
      const auto at = static_cast<std::size_t>(token * hidden + row);
      result.out[at] += on_sum * (product.sum * global + extra);
      // Spec section 2: 4 eps sqrt(I top_k) Σ |terms|.
      result.bound[at] +=
          std::ldexp(4.0 * std::sqrt(static_cast<double>(inner * problem_.top_k)), -24) *
          std::abs(on_sum) * (std::abs(global) * product.magnitude + std::abs(extra));
    }
  }
  for (std::size_t i = 0; problem_.shared != SharedInput::kNone && i < result.out.size(); ++i) {
    result.out[i] += static_cast<double>(shared[i]);
  }
  return result;
}

}  // namespace moekit::panels
