// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode_gemv/known_answer.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/text.h"
#include "device/numerics/activation.h"
#include "device/numerics/bf16.h"
#include "formats/packing.h"
#include "kernels/decode_gemv/args.h"
#include "kernels/decode_gemv/geometry.h"
#include "kernels/decode_gemv/variants.h"

namespace moekit::kernels::decode_gemv {
namespace {

using base::cat;

// Two tiles of K and a short one, rows that do not fill a tile, an expert without routes, one with
// two, an inactive id.
constexpr std::int64_t kTokens = 3;
constexpr std::int64_t kTopK = 2;
constexpr std::int64_t kExperts = 4;
constexpr std::int64_t kHidden = 136;
constexpr std::int64_t kInner = 136;
constexpr std::array<std::int32_t, kTokens* kTopK> kIds = {2, 0, 2, -1, 3, 0};
constexpr std::array<float, kTokens* kTopK> kRouteWeights = {0.5F, 0.25F, 1.0F, 8.0F, 2.0F, 0.5F};
constexpr float kGlobal = 0.0625F;

std::uint32_t next(std::uint32_t& state) {
  state = state * 1664525U + 1013904223U;
  return state >> 16U;
}

/// Codes of -2 … 2 in halves, scales 1, 2 and 4.
struct Matrix {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  WeightMatrix view{};

  Matrix(Format format, std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
    const std::int64_t group = format_info(format).group_size;
    const std::int64_t groups = (cols + group - 1) / group;
    std::uint32_t state = seed;
    codes.resize(static_cast<std::size_t>(rows * cols / 2));
    for (std::uint8_t& pair : codes) {
      const std::uint32_t bits = next(state);
      const auto nibble = [](std::uint32_t four) { return (four % 5U) | (four & 8U); };
      pair = static_cast<std::uint8_t>(nibble(bits & 15U) | nibble((bits >> 4U) & 15U) << 4U);
    }
    scales.resize(static_cast<std::size_t>(rows * groups));
    for (std::uint8_t& scale : scales) {
      const std::uint32_t power = next(state) % 3U;
      scale =
          static_cast<std::uint8_t>(format == Format::kNvfp4 ? 0x38U + power * 8U : 127U + power);
    }
    view.format = format;
    view.rows = rows;
    view.cols = cols;
    view.codes = codes.data();
    view.row_stride_bytes = cols / 2;
    view.scales = scales.data();
    view.scale_row_stride_bytes = groups;
  }
};

struct Layer {
  std::vector<std::byte> packed{};
  std::int64_t stride_bytes = 0;
  std::vector<std::vector<std::vector<float>>> values{};  // [expert * parts][row][col]
};

/// `parts`: 2 for gate and up, 1 for up alone; down has one.
Result<Layer> make_layer(const Spec& spec, int parts) {
  const bool is_down = spec.role == Role::kDown;
  const Format format = spec.group_size == 16 ? Format::kNvfp4 : Format::kMxfp4;
  const std::int64_t rows = is_down ? kHidden : kInner;
  const std::int64_t cols = is_down ? kInner : kHidden;
  const formats::PackingShape shape{format, rows, cols, parts, 0};
  const formats::Packing* packing = formats::packing_for(format, formats::ArchClass::kSm90);
  if (packing == nullptr) {
    return internal_error(cat("no packing of ", format_info(format).name, " for sm_90a"));
  }
  Layer layer;
  layer.stride_bytes = packing->packed_bytes(shape);
  layer.packed.resize(static_cast<std::size_t>(layer.stride_bytes * kExperts));
  for (std::int64_t expert = 0; expert < kExperts; ++expert) {
    std::vector<Matrix> matrices;
    std::vector<WeightMatrix> views;
    for (int part = 0; part < parts; ++part) {
      matrices.emplace_back(format, rows, cols, static_cast<std::uint32_t>(expert * 2 + part + 7));
      views.push_back(matrices.back().view);
      std::vector<std::vector<float>> decoded(static_cast<std::size_t>(rows));
      for (std::int64_t row = 0; row < rows; ++row) {
        std::vector<float>& values = decoded[static_cast<std::size_t>(row)];
        values.resize(static_cast<std::size_t>(cols));
        MOEKIT_RETURN_IF_ERROR(decode_row(views.back(), row, values));
      }
      layer.values.push_back(std::move(decoded));
    }
    for (std::size_t part = 0; part < views.size(); ++part) {
      // Moved with its vector; the bytes stay where they are.
      views[part].codes = matrices[part].codes.data();
      views[part].scales = matrices[part].scales.data();
    }
    packing->pack(views,
                  shape,
                  0,
                  (rows + packing->panel_rows - 1) / packing->panel_rows,
                  layer.packed.data() + expert * layer.stride_bytes);
  }
  return layer;
}

/// Integers from -4 to 4, as BF16.
std::vector<std::uint16_t> small_integers(std::int64_t count) {
  std::vector<std::uint16_t> values;
  std::uint32_t state = 31;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(device::bf16_from_f32(static_cast<float>(next(state) % 9U) - 4.0F));
  }
  return values;
}

float dot(const std::vector<float>& weights, const std::uint16_t* operand) {
  float sum = 0.0F;  // integers below 2^24: exact
  for (std::size_t k = 0; k < weights.size(); ++k) {
    sum += weights[k] * device::bf16_to_f32(operand[k]);
  }
  return sum;
}

constexpr device::ActivationParams kActivation{
    device::ActivationKind::kSilu, __builtin_inff(), 1.702F, 1.0F, 4.0F, 25.0F};

constexpr device::ActivationParams kNotGated{
    device::ActivationKind::kRelu2, __builtin_inff(), 1.702F, 1.0F, 4.0F, 25.0F};

constexpr std::uint16_t kUntouched = 0x7FFF;

/// [kTokens * kTopK, kInner]; a row of an inactive route stays as it was.
std::vector<std::uint16_t> expected_intermediate(const Layer& layer,
                                                 const std::vector<std::uint16_t>& x,
                                                 const Args& args) {
  const auto parts = static_cast<std::size_t>(args.num_parts);
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(kTokens * kTopK * kInner), kUntouched);
  for (std::size_t route = 0; route < kIds.size(); ++route) {
    if (kIds[route] < 0) {
      continue;
    }
    const auto expert = static_cast<std::size_t>(kIds[route]);
    const std::uint16_t* operand = x.data() + route / kTopK * kHidden;
    for (std::size_t row = 0; row < static_cast<std::size_t>(kInner); ++row) {
      const float gate = dot(layer.values[expert * parts][row], operand) * kGlobal;
      const float up = dot(layer.values[expert * parts + parts - 1][row], operand) * kGlobal;
      rows[route * kInner + row] =
          device::bf16_from_f32(device::activate(args.activation, gate, up));
    }
  }
  return rows;
}

std::vector<float> expected_out(const Layer& layer, const std::vector<std::uint16_t>& operand) {
  std::vector<float> out(static_cast<std::size_t>(kTokens * kHidden), 0.0F);
  for (std::size_t route = 0; route < kIds.size(); ++route) {
    if (kIds[route] < 0) {
      continue;
    }
    const auto expert = static_cast<std::size_t>(kIds[route]);
    for (std::size_t row = 0; row < static_cast<std::size_t>(kHidden); ++row) {
      out[route / kTopK * kHidden + row] +=
          kRouteWeights[route] *
          (dot(layer.values[expert][row], operand.data() + route * kInner) * kGlobal);
    }
  }
  return out;
}

template <typename T>
std::vector<std::byte> bytes_of(const T& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

Args common_args(const Layer& layer) {
  Args args{};
  args.expert_stride_bytes = layer.stride_bytes;
  args.ids_stride = kTopK;
  args.route_weights_stride = kTopK;
  args.x_stride = kHidden;
  args.out_stride = kHidden;
  args.num_tokens = kTokens;
  args.top_k = kTopK;
  args.router_experts = kExperts;
  args.num_experts = kExperts;
  args.hidden = kHidden;
  args.intermediate_size = kInner;
  args.num_parts = 2;
  args.out_type = IoType::kF32;
  args.weight_scale = 1.0F;
  args.sum_scale = 1.0F;
  args.activation = kActivation;
  return args;
}

/// A few blocks: more than one share of the work, fewer than shares.
Geometry role_geometry(const Variant& variant) {
  constexpr std::int32_t kSm90SmemBytes = 227 * 1024;
  LaunchShape shape;
  shape.num_tokens = kTokens;
  shape.top_k = kTopK;
  shape.num_experts = kExperts;
  shape.hidden = kHidden;
  shape.intermediate = kInner;
  shape.num_sms = 3;
  shape.smem_bytes =
      launch_smem_limit(variant.spec, kSm90SmemBytes, static_cast<std::int32_t>(kTokens * kTopK));
  shape.cluster = variant.cluster;
  shape.max_clusters = 2;
  return variant.spec.role == Role::kDown ? down_geometry(variant.spec, shape)
                                          : gate_up_geometry(variant.spec, shape);
}

plan::LaunchGeometry launch_geometry(const Variant& variant, Args& args) {
  const Geometry geometry = role_geometry(variant);
  args.ring_bytes = geometry.ring_bytes;
  args.result_rows = geometry.result_rows;
  args.blocks = geometry.grid;
  plan::LaunchGeometry launch;
  launch.grid.x = geometry.grid;
  launch.block.x = num_threads(variant.spec);
  launch.cluster.x = variant.cluster;
  launch.smem_bytes = geometry.smem_bytes;
  return launch;
}

std::vector<std::byte> poison(std::size_t bytes) {
  return std::vector<std::byte>(bytes, std::byte{0xFF});
}

/// What every launch reads: buffers 1 to 3, behind the weights.
std::vector<plan::SelfTestBuffer> call_buffers(const Layer& layer) {
  return {{.before = layer.packed},
          {.before = bytes_of(std::vector<float>(static_cast<std::size_t>(kExperts * 4), kGlobal))},
          {.before = bytes_of(kIds)},
          {.before = bytes_of(kRouteWeights)}};
}

/// Of the Args that stand at `at` in the argument block.
std::vector<plan::SelfTestPointer> call_pointers(std::size_t at, std::size_t weights) {
  return {{at + offsetof(Args, weights), weights, 0},
          {at + offsetof(Args, globals), 1, 0},
          {at + offsetof(Args, ids), 2, 0},
          {at + offsetof(Args, route_weights), 3, 0}};
}

Result<plan::SelfTest> role_answer(const Variant& variant) {
  const bool is_down = variant.spec.role == Role::kDown;
  MOEKIT_ASSIGN_OR_RETURN(const Layer layer, make_layer(variant.spec, is_down ? 1 : 2));
  Args args = common_args(layer);
  plan::SelfTest test;
  test.buffers = call_buffers(layer);
  test.pointers = call_pointers(0, 0);
  if (is_down) {
    const std::vector<std::uint16_t> operand = small_integers(kTokens * kTopK * kInner);
    const std::vector<float> out = expected_out(layer, operand);
    test.buffers.push_back({.before = bytes_of(operand)});
    test.buffers.push_back({.before = poison(out.size() * 4), .after = bytes_of(out)});
    test.pointers.push_back({offsetof(Args, intermediate), 4, 0});
    test.pointers.push_back({offsetof(Args, out), 5, 0});
    if (splits_steps(variant.spec)) {
      // gate_up would have cleared the counters.
      const auto arrivals = static_cast<std::size_t>(arrival_bytes(variant.spec, kHidden));
      test.buffers.push_back({.before = std::vector<std::byte>(arrivals)});
      test.buffers.push_back(
          {.before = poison(static_cast<std::size_t>(role_geometry(variant).spill_bytes))});
      test.pointers.push_back({offsetof(Args, arrivals), 6, 0});
      test.pointers.push_back({offsetof(Args, spill), 7, 0});
    }
  } else {
    const std::vector<std::uint16_t> x = small_integers(kTokens * kHidden);
    const std::vector<std::uint16_t> rows = expected_intermediate(layer, x, args);
    test.buffers.push_back({.before = bytes_of(x)});
    test.buffers.push_back({.before = bytes_of(std::vector<std::uint16_t>(rows.size(), kUntouched)),
                            .after = bytes_of(rows)});
    test.pointers.push_back({offsetof(Args, x), 4, 0});
    test.pointers.push_back({offsetof(Args, intermediate), 5, 0});
  }
  test.geometry = launch_geometry(variant, args);
  test.arguments = bytes_of(std::array<Args, 1>{args});
  return test;
}

/// Values on both sides of ties, a tie to either neighbour, infinity, and one that rounds to it.
Result<plan::SelfTest> cast_answer() {
  std::vector<std::uint32_t> x;
  for (std::uint32_t i = 0; i < 300; ++i) {
    x.push_back(0x3F800000U + (i << 14U) + i % 3U);
  }
  x[7] = 0x7F800000U;
  x[299] = 0x7F7FFFFFU;
  std::vector<std::uint16_t> rounded;
  for (const std::uint32_t bits : x) {
    rounded.push_back(device::bf16_from_f32(device::float_of(bits)));
  }
  std::array<CastArgs, 1> args{};
  args[0].num_tokens = 2;
  args[0].hidden = 150;
  args[0].x_stride = 150;
  args[0].type = IoType::kF32;
  plan::SelfTest test;
  test.buffers = {{.before = bytes_of(x)},
                  {.before = poison(rounded.size() * 2), .after = bytes_of(rounded)}};
  test.pointers = {{offsetof(CastArgs, x), 0, 0}, {offsetof(CastArgs, operand), 1, 0}};
  test.geometry.grid.y = 2;
  test.geometry.block.x = kCastThreads;
  test.arguments = bytes_of(args);
  return test;
}

/// Four columns of x are 1 or -1: |h| <= 2 in units of 2^-5, so intermediates of relu2 are at most
/// 4 in units of 2^-10, and down's sums below 2^12 in units of 2^-11. Exact in f32, in any order.
std::vector<std::uint16_t> few_signs() {
  std::vector<std::uint16_t> x(static_cast<std::size_t>(kTokens * kHidden), 0);
  for (std::size_t token = 0; token < static_cast<std::size_t>(kTokens); ++token) {
    for (const std::size_t column : {3U, 40U, 100U, 130U}) {
      const bool negative = (column >> token & 1U) != 0U;
      x[token * kHidden + column] = device::bf16_from_f32(negative ? -1.0F : 1.0F);
    }
  }
  return x;
}

/// The only launch with both roles, so the only one whose answer needs the barrier of the grid.
Result<plan::SelfTest> resident_answer(const ResidentVariant& variant) {
  MOEKIT_ASSIGN_OR_RETURN(const Layer gate_up, make_layer(variant.gate_up.spec, 1));
  MOEKIT_ASSIGN_OR_RETURN(const Layer down, make_layer(variant.down.spec, 1));
  const std::vector<std::uint16_t> x = few_signs();
  std::array<ResidentArgs, 1> args{};
  for (Args* const role : {&args[0].gate_up, &args[0].down}) {
    *role = common_args(role == &args[0].down ? down : gate_up);
    role->num_parts = 1;
    role->activation = kNotGated;
  }
  const std::vector<std::uint16_t> rows = expected_intermediate(gate_up, x, args[0].gate_up);
  const std::vector<float> out = expected_out(down, rows);
  plan::SelfTest test;
  test.buffers = call_buffers(gate_up);
  test.buffers.push_back({.before = down.packed});
  test.buffers.push_back({.before = bytes_of(x)});
  test.buffers.push_back({.before = bytes_of(std::vector<std::uint16_t>(rows.size(), kUntouched)),
                          .after = bytes_of(rows)});
  test.buffers.push_back({.before = poison(out.size() * 4), .after = bytes_of(out)});
  test.buffers.push_back({.before = std::vector<std::byte>(sizeof(device::u32))});
  constexpr std::size_t kDownAt = offsetof(ResidentArgs, down);
  test.pointers = call_pointers(0, 0);
  for (const plan::SelfTestPointer& pointer : call_pointers(kDownAt, 4)) {
    test.pointers.push_back(pointer);
  }
  for (const plan::SelfTestPointer& pointer :
       {plan::SelfTestPointer{offsetof(Args, x), 5, 0},
        plan::SelfTestPointer{offsetof(Args, intermediate), 6, 0},
        plan::SelfTestPointer{kDownAt + offsetof(Args, intermediate), 6, 0},
        plan::SelfTestPointer{kDownAt + offsetof(Args, out), 7, 0},
        plan::SelfTestPointer{offsetof(ResidentArgs, arrivals), 8, 0}}) {
    test.pointers.push_back(pointer);
  }
  const plan::LaunchGeometry first = launch_geometry(variant.gate_up, args[0].gate_up);
  test.geometry = launch_geometry(variant.down, args[0].down);
  // Whole clusters, and at least the blocks of either role.
  args[0].gate_up.blocks = static_cast<std::int32_t>(
      device::round_up(std::max(first.grid.x, test.geometry.grid.x), test.geometry.cluster.x));
  test.geometry.grid.x = args[0].gate_up.blocks;
  test.geometry.block.x = num_threads(variant.spec());
  test.geometry.smem_bytes = std::max(first.smem_bytes, test.geometry.smem_bytes);
  test.geometry.cooperative = true;
  test.arguments = bytes_of(args);
  return test;
}

}  // namespace

Result<plan::SelfTest> known_answer(std::string_view kernel) {
  if (kernel == kCastKernel) {
    return cast_answer();
  }
  if (const std::optional<Variant> variant = variant_from_name(kernel)) {
    return role_answer(*variant);
  }
  if (const std::optional<ResidentVariant> variant = resident_from_name(kernel)) {
    return resident_answer(*variant);
  }
  return invalid_argument(cat("'", kernel, "' is no kernel of decode_gemv"));
}

}  // namespace moekit::kernels::decode_gemv
