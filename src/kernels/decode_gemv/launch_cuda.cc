// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode_gemv/launch_cuda.h"

#include <set>

#include "base/text.h"
#include "kernels/decode_gemv/args.h"
#include "kernels/decode_gemv/geometry.h"
#include "kernels/decode_gemv/known_answer.h"
#include "kernels/decode_gemv/variants.h"
#include "recipes/activation_params.h"

namespace moekit::kernels::decode_gemv {
namespace {

using base::cat;
using plan::SliceId;

// sm_90a: what one block may have, static shared memory included.
constexpr std::int32_t kSm90SmemBytes = 227 * 1024;

std::string spec_text(const Spec& spec) {
  return cat("{.role = Role::",
             spec.role == Role::kDown ? "kDown" : "kGateUp",
             ", .group_size = ",
             spec.group_size,
             ", .warps = ",
             spec.warps,
             ", .row_tiles = ",
             spec.row_tiles,
             ", .k_tiles = ",
             spec.k_tiles,
             ", .lookahead = ",
             spec.lookahead,
             ", .max_columns = ",
             spec.max_columns,
             ", .whole_items = ",
             spec.whole_items,
             ", .blocks_per_sm = ",
             spec.blocks_per_sm,
             "}");
}

std::string prelude(const Variant& variant, const std::string& entry) {
  return cat(
      "#include \"kernels/decode_gemv/device/kernel.cuh\"\n"
      "using namespace moekit::kernels::decode_gemv;\n"
      "constexpr Spec kSpec",
      spec_text(variant.spec),
      ";\n"
      "extern \"C\" __global__ void __launch_bounds__(num_threads(kSpec), "
      "kSpec.blocks_per_sm)\n",
      entry,
      "(const __grid_constant__ Args args) {\n"
      "  decode<kSpec>(args);\n"
      "}\n");
}

std::string prelude(const ResidentVariant& variant, const std::string& entry) {
  return cat(
      "#include \"kernels/decode_gemv/device/resident.cuh\"\n"
      "using namespace moekit::kernels::decode_gemv;\n"
      "constexpr ResidentSpec kSpec{.gate_up = ",
      spec_text(variant.gate_up.spec),
      ", .down = ",
      spec_text(variant.down.spec),
      "};\n"
      "extern \"C\" __global__ void __launch_bounds__(num_threads(kSpec), 1)\n",
      entry,
      "(const __grid_constant__ ResidentArgs args) {\n"
      "  decode_resident<kSpec>(args);\n"
      "}\n");
}

plan::KernelSource cast_source() {
  plan::KernelSource made;
  made.arch = Arch::kSm90a;
  made.kernel = kCastKernel;
  made.entry = plan::entry_symbol(kCastKernel);
  made.num_threads = kCastThreads;
  made.prelude =
      cat("#include \"kernels/decode_gemv/device/cast.cuh\"\n"
          "using namespace moekit::kernels::decode_gemv;\n"
          "extern \"C\" __global__ void __launch_bounds__(kCastThreads)\n",
          made.entry,
          "(const __grid_constant__ CastArgs args) {\n"
          "  cast(args);\n"
          "}\n");
  return made;
}

Result<plan::KernelSource> source(std::string_view kernel) {
  if (kernel == kCastKernel) {
    return cast_source();
  }
  const std::optional<Variant> variant = variant_from_name(kernel);
  const std::optional<ResidentVariant> resident = resident_from_name(kernel);
  if (!variant.has_value() && !resident.has_value()) {
    return invalid_argument(cat("'", kernel, "' is no kernel of decode_gemv"));
  }
  plan::KernelSource made;
  made.arch = Arch::kSm90a;
  made.kernel = kernel;
  made.entry = plan::entry_symbol(kernel);
  made.num_threads = resident ? num_threads(resident->spec()) : num_threads(variant->spec);
  made.smem_bytes = (resident ? launch_smem_limit(kSm90SmemBytes, 1)
                              : largest_smem_limit(variant->spec, kSm90SmemBytes)) +
                    kStaticSmemBytes;
  made.shares_sm = !resident && takes_routes(variant->spec);
  made.prelude = resident ? prelude(*resident, made.entry) : prelude(*variant, made.entry);
  return made;
}

/// Compiled variants of a role, each kernel once.
std::vector<Variant> variants_of(Role role, std::int32_t group_size) {
  std::vector<Variant> variants;
  std::set<std::string> names;
  for (const VariantRow& row : variant_rows(role)) {
    Variant variant = row.variant;
    variant.spec.group_size = group_size;
    if (compiled_for(row, group_size) && names.insert(tile_name(variant)).second) {
      variants.push_back(variant);
    }
  }
  return variants;
}

std::vector<plan::KernelSource> catalog(Arch arch) {
  std::vector<plan::KernelSource> sources;
  if (arch != Arch::kSm90a) {
    return sources;
  }
  sources.push_back(cast_source());
  for (const std::int32_t group_size : {16, 32}) {
    const std::vector<Variant> gate_ups = variants_of(Role::kGateUp, group_size);
    const std::vector<Variant> downs = variants_of(Role::kDown, group_size);
    for (const std::vector<Variant>& variants : {gate_ups, downs}) {
      for (const Variant& variant : variants) {
        sources.push_back(*source(kernel_name(variant)));
      }
    }
    for (const Variant& gate_up : gate_ups) {
      for (const Variant& down : downs) {
        if (pairs_with(gate_up, down)) {
          sources.push_back(*source(kernel_name(ResidentVariant{gate_up, down})));
        }
      }
    }
  }
  return sources;
}

IoType io_type(DType dtype) {
  return dtype == DType::kBf16 ? IoType::kBf16 : dtype == DType::kF16 ? IoType::kF16 : IoType::kF32;
}

template <typename View>
auto* row_of(const View& view, std::int64_t token) {
  const std::int64_t bytes = token * view.strides[0] * dtype_bits(view.dtype) / 8;
  if constexpr (std::is_const_v<std::remove_pointer_t<decltype(view.data)>>) {
    return static_cast<const std::byte*>(view.data) + bytes;
  } else {
    return static_cast<std::byte*>(view.data) + bytes;
  }
}

void set_routes(const plan::CudaCall& call, Args& args) {
  const Problem& problem = call.plan->problem;
  if (problem.routing.has_value()) {
    args.ids = call.slice<std::int32_t>(SliceId::kTopkIds);
    args.ids_stride = problem.top_k;
    args.route_weights = call.slice<float>(SliceId::kTopkWeights);
    args.route_weights_stride = problem.top_k;
  } else {
    const TensorView& ids = call.arguments->topk_ids;
    const TensorView& weights = call.arguments->topk_weights;
    args.ids = row_of(ids, call.token_begin);
    args.ids_stride = ids.strides[0];
    args.ids_are_i64 = ids.dtype == DType::kI64 ? 1 : 0;
    args.route_weights = reinterpret_cast<const float*>(row_of(weights, call.token_begin));
    args.route_weights_stride = weights.strides[0];
  }
  args.expert_map = problem.expert_map ? call.arguments->expert_map : nullptr;
  args.router_experts = static_cast<std::int32_t>(num_router_experts(problem));
  args.num_tokens = static_cast<std::int32_t>(call.num_tokens);
  args.top_k = static_cast<std::int32_t>(problem.top_k);
}

void set_weights(const plan::CudaCall& call, Role role, Args& args) {
  const plan::PackedRegion& region =
      role == Role::kDown ? call.weights.layout->down : call.weights.layout->gate_up;
  args.weights = reinterpret_cast<const device::u8*>(call.weights.base + region.offset);
  args.expert_stride_bytes = region.expert_stride_bytes;
  args.globals = call.weights.globals(0);
  args.gate_bias = call.weights.gate_bias(0);
  args.up_bias = call.weights.up_bias(0);
  args.down_bias = call.weights.down_bias(0);
  args.num_experts = static_cast<std::int32_t>(call.weights.layout->num_experts);
  args.num_parts = call.weights.layout->gate_up.shape.num_parts;
  args.down_group_offset = static_cast<std::int32_t>(call.weights.layout->down.shape.group_offset);
}

void set_tensors(const plan::CudaCall& call, Args& args) {
  const RunArguments& arguments = *call.arguments;
  if (arguments.x.dtype == DType::kBf16) {
    args.x = reinterpret_cast<const device::u16*>(row_of(arguments.x, call.token_begin));
    args.x_stride = arguments.x.strides[0];
  } else {
    args.x = call.slice<device::u16>(SliceId::kXOperand);
    args.x_stride = call.plan->problem.hidden_size;
  }
  args.intermediate = call.slice<device::u16>(SliceId::kIntermediate);
  args.spill = call.slice<float>(SliceId::kScratch);
  args.arrivals = call.slice<device::u32>(SliceId::kGridBarrier);
  args.out = row_of(arguments.out, call.token_begin);
  args.out_stride = arguments.out.strides[0];
  args.out_type = io_type(arguments.out.dtype);
  if (call.plan->problem.shared != SharedInput::kNone) {
    args.shared_input = row_of(arguments.shared, call.token_begin);
    args.shared_stride = arguments.shared.strides[0];
    args.shared_type = io_type(arguments.shared.dtype);
  }
}

void set_semantics(const Problem& problem, Args& args) {
  const bool on_weights = problem.routed_scaling_place == ScalingPlace::kWeights;
  args.hidden = static_cast<std::int32_t>(problem.hidden_size);
  args.intermediate_size = static_cast<std::int32_t>(problem.intermediate_size);
  args.weight_on_input = problem.router_weight_on_input ? 1 : 0;
  args.expert_order = problem.combine_order == CombineOrder::kExpert ? 1 : 0;
  args.weight_scale = on_weights ? problem.routed_scaling : 1.0F;
  args.sum_scale = on_weights ? 1.0F : problem.routed_scaling;
  args.activation = recipes::activation_params(problem.activation);
}

/// What a plan fixes of one role's launch.
struct PlannedLaunch {
  std::int64_t grid;
  std::int64_t max_clusters;
  std::int64_t smem_bytes;
};

/// The planned grid, for as many tokens as the call has: shared memory is laid out anew.
Geometry geometry_for(const Variant& variant, const PlannedLaunch& planned, const Args& args) {
  LaunchShape shape;
  shape.num_tokens = args.num_tokens;
  shape.top_k = args.top_k;
  shape.num_experts = args.num_experts;
  shape.hidden = args.hidden;
  shape.intermediate = args.intermediate_size;
  shape.down_group_offset = args.down_group_offset;
  shape.smem_bytes = static_cast<std::int32_t>(planned.smem_bytes);
  shape.cluster = variant.cluster;
  shape.num_sms = static_cast<std::int32_t>(planned.grid);
  shape.max_clusters = static_cast<std::int32_t>(planned.max_clusters);
  return variant.spec.role == Role::kDown ? down_geometry(variant.spec, shape)
                                          : gate_up_geometry(variant.spec, shape);
}

/// Everything a role receives, and its shared memory.
Result<Geometry> set_role(const plan::CudaCall& call,
                          const Variant& variant,
                          const PlannedLaunch& planned,
                          Args& args) {
  set_weights(call, variant.spec.role, args);
  set_routes(call, args);
  set_tensors(call, args);
  set_semantics(call.plan->problem, args);
  const Geometry geometry = geometry_for(variant, planned, args);
  if (!geometry.fits || geometry.grid > planned.grid) {
    return internal_error(cat("step ",
                              call.step->kernel,
                              ": ",
                              call.num_tokens,
                              " tokens take ",
                              geometry.grid,
                              " blocks of ",
                              geometry.smem_bytes,
                              " bytes, the plan has ",
                              planned.grid,
                              " of ",
                              planned.smem_bytes));
  }
  args.ring_bytes = geometry.ring_bytes;
  args.result_rows = geometry.result_rows;
  args.blocks = geometry.grid;
  return geometry;
}

Status launch_role(const plan::CudaCall& call, const Variant& variant, plan::Launch& out) {
  const Step& step = *call.step;
  Args args{};
  MOEKIT_ASSIGN_OR_RETURN(
      const Geometry geometry,
      set_role(call, variant, {step.grid.x, step.grid.x / variant.cluster, step.smem_bytes}, args));
  out.geometry.grid.x = geometry.grid;
  out.geometry.smem_bytes = geometry.smem_bytes;
  out.geometry.cluster.x = variant.cluster;
  out.arguments.set(args);
  return {};
}

/// The word of the barrier is cleared before each launch: the workspace may hold anything between
/// calls, and a graph that is replayed has no other launch's count to go on from.
Status launch_resident(const plan::CudaCall& call,
                       const ResidentVariant& variant,
                       plan::Launch& out) {
  const Step& step = *call.step;
  const auto blocks = static_cast<std::int32_t>(step.grid.x);
  const std::int32_t clusters = resident_clusters(blocks, 1, variant.down.cluster);
  ResidentArgs args{};
  MOEKIT_RETURN_IF_ERROR(
      set_role(call, variant.gate_up, {blocks, blocks, step.smem_bytes}, args.gate_up).status());
  MOEKIT_RETURN_IF_ERROR(
      set_role(call, variant.down, {blocks, clusters, step.smem_bytes}, args.down).status());
  args.arrivals = call.slice<device::u32>(SliceId::kGridBarrier);
  out.cleared = {args.arrivals, sizeof(*args.arrivals)};
  out.geometry.cluster.x = variant.down.cluster;
  out.arguments.set(args);
  return {};
}

Status launch_cast(const plan::CudaCall& call, plan::Launch& out) {
  CastArgs args{};
  args.x = row_of(call.arguments->x, call.token_begin);
  args.x_stride = call.arguments->x.strides[0];
  args.operand = call.slice<device::u16>(SliceId::kXOperand);
  args.num_tokens = static_cast<std::int32_t>(call.num_tokens);
  args.hidden = static_cast<std::int32_t>(call.plan->problem.hidden_size);
  args.type = io_type(call.arguments->x.dtype);
  out.geometry.grid.y = call.num_tokens;
  out.arguments.set(args);
  return {};
}

Status launch(const plan::CudaCall& call, plan::Launch& out) {
  if (call.step->kernel == kCastKernel) {
    return launch_cast(call, out);
  }
  if (const std::optional<Variant> variant = variant_from_name(call.step->kernel)) {
    return launch_role(call, *variant, out);
  }
  if (const std::optional<ResidentVariant> variant = resident_from_name(call.step->kernel)) {
    return launch_resident(call, *variant, out);
  }
  return internal_error(cat("step ", call.step->kernel, " is no kernel of decode_gemv"));
}

/// Rows of x are copied 16 bytes at a time.
Status check_call(const plan::CudaCall& call) {
  constexpr std::int64_t kRowBytes = 16;
  const TensorView& x = call.arguments->x;
  if (x.shape[0] == 0 || x.dtype != DType::kBf16) {
    return {};  // the step that casts x reads element by element
  }
  const std::int64_t stride_bytes = x.strides[0] * dtype_bits(x.dtype) / 8;
  if (reinterpret_cast<std::uintptr_t>(x.data) % kRowBytes != 0 ||
      (x.shape[0] > 1 && stride_bytes % kRowBytes != 0)) {
    return invalid_argument(cat("x begins at an address that is ",
                                reinterpret_cast<std::uintptr_t>(x.data) % kRowBytes,
                                " modulo 16 and has rows ",
                                stride_bytes,
                                " bytes apart, expected multiples of 16"));
  }
  return {};
}

}  // namespace

const plan::CudaFamily kCuda{.catalog = catalog,
                             .source = source,
                             .launch = launch,
                             .self_test = known_answer,
                             .check_call = check_call};

}  // namespace moekit::kernels::decode_gemv
