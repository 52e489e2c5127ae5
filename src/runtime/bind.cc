// SPDX-License-Identifier: Apache-2.0

// bind: every tensor checked against the plan once, so that run need not look again.

#include <algorithm>
#include <bitset>
#include <limits>

#include "moekit/runtime.h"

#include "base/border.h"
#include "base/text.h"
#include "kernels/catalog.h"
#include "runtime/binding.h"
#include "runtime/state.h"

namespace moekit {
namespace {

using base::cat;

struct Extent {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};

template <typename View>
Extent extent_of(const View& view) {
  if (view.data == nullptr || view.shape[0] == 0 || view.shape[1] == 0) {
    return {};
  }
  const auto* begin = static_cast<const std::byte*>(static_cast<const void*>(view.data));
  const std::int64_t elems = (view.shape[0] - 1) * view.strides[0] + view.shape[1];
  return {begin, begin + elems * dtype_bits(view.dtype) / 8};
}

template <typename Element>
Extent extent_of(const Element* data, std::int64_t count) {
  const auto* begin = static_cast<const std::byte*>(static_cast<const void*>(data));
  return data == nullptr
             ? Extent()
             : Extent{begin, begin + count * static_cast<std::int64_t>(sizeof(Element))};
}

bool overlap(const Extent& a, const Extent& b) {
  return a.begin < b.end && b.begin < a.end;
}

constexpr std::int64_t kMostElements = std::numeric_limits<std::int64_t>::max() / 16;

struct Expected {
  std::string_view name;
  std::int64_t rows;
  std::int64_t cols;
};

// rank 2, shape, last stride 1, row stride at least cols, aligned, non-null unless empty.
template <typename View>
Status check_matrix(const View& view, const Expected& want) {
  if (view.rank != 2 || view.shape[0] != want.rows || view.shape[1] != want.cols) {
    std::string shape;
    for (int i = 0; i < std::clamp(view.rank, 0, 4); ++i) {
      shape += cat(i == 0 ? "" : ", ", view.shape[static_cast<std::size_t>(i)]);
    }
    return invalid_argument(
        cat(want.name, " has shape [", shape, "], expected [", want.rows, ", ", want.cols, "]"));
  }
  // Offsets in bytes must fit 64 bits.
  const std::int64_t largest = kMostElements / std::max<std::int64_t>(1, want.rows);
  if (view.strides[1] != 1 ||
      (want.rows > 1 && (view.strides[0] < want.cols || view.strides[0] > largest))) {
    return invalid_argument(cat(want.name,
                                " has strides [",
                                view.strides[0],
                                ", ",
                                view.strides[1],
                                "], expected a last stride of 1 and rows at least ",
                                want.cols,
                                " and at most ",
                                largest,
                                " apart"));
  }
  if (want.rows == 0) {
    return {};
  }
  if (view.data == nullptr) {
    return invalid_argument(cat(want.name, " is null"));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  const auto alignment = static_cast<std::uintptr_t>(std::max(1, dtype_bits(view.dtype) / 8));
  if (address % alignment != 0) {
    return invalid_argument(cat(want.name,
                                " is not aligned to ",
                                static_cast<std::int64_t>(alignment),
                                " bytes (",
                                dtype_name(view.dtype),
                                ")"));
  }
  return {};
}

Status check_dtype(DType have, DType want, std::string_view name) {
  if (have != want) {
    return invalid_argument(
        cat(name, " has dtype ", dtype_name(have), ", expected ", dtype_name(want)));
  }
  return {};
}

// Given where the routing asks for it and nowhere else: nothing is dropped silently.
Status check_presence(std::string_view name, const void* data, bool wanted) {
  if ((data != nullptr) == wanted) {
    return {};
  }
  return invalid_argument(cat(
      name,
      wanted ? " is null, but the routing asks for one" : " given, but the routing asks for none"));
}

Status check_router_tensors(const Routing& routing,
                            const RunArguments& arguments,
                            std::int64_t tokens) {
  const HashTable& table = arguments.router_hash_table;
  MOEKIT_RETURN_IF_ERROR(
      check_presence("correction_bias", arguments.correction_bias, routing.correction_bias));
  MOEKIT_RETURN_IF_ERROR(
      check_presence("router_expert_scale", arguments.router_expert_scale, routing.expert_scale));
  MOEKIT_RETURN_IF_ERROR(check_presence("router_hash_table", table.expert_ids, routing.hash_table));
  if (!routing.hash_table) {
    return {};
  }
  const TensorView& ids = table.token_ids;
  if (table.num_rows < 1 || table.num_rows > kMostElements / routing.top_k || ids.rank != 1 ||
      ids.shape[0] != tokens || (ids.dtype != DType::kI32 && ids.dtype != DType::kI64)) {
    return invalid_argument(cat("router_hash_table has ",
                                table.num_rows,
                                " rows and token_ids of ",
                                dtype_name(ids.dtype),
                                " with rank ",
                                ids.rank,
                                " and ",
                                ids.shape[0],
                                " elements, expected a table and i32 or i64 [",
                                tokens,
                                "]"));
  }
  // As one column: rows may stand apart.
  TensorView column = ids;
  column.rank = 2;
  column.shape[1] = 1;
  column.strides[1] = 1;
  return check_matrix(column, {"token_ids", tokens, 1});
}

Status check_routes(const Problem& problem, const RunArguments& arguments, std::int64_t tokens) {
  if (problem.routing.has_value()) {
    const DType dtype = arguments.router_logits.dtype;
    if (dtype != DType::kF32 && dtype != DType::kBf16 && dtype != DType::kF16) {
      return invalid_argument(
          cat("router_logits have dtype ", dtype_name(dtype), ", expected f32, bf16 or f16"));
    }
    MOEKIT_RETURN_IF_ERROR(check_router_tensors(*problem.routing, arguments, tokens));
    return check_matrix(arguments.router_logits,
                        {"router_logits", tokens, num_router_experts(problem)});
  }
  if (arguments.router_logits.data != nullptr || arguments.correction_bias != nullptr ||
      arguments.router_expert_scale != nullptr ||
      arguments.router_hash_table.expert_ids != nullptr) {
    return invalid_argument(
        "router_logits or correction_bias given (or router_expert_scale, router_hash_table), but "
        "the problem has no routing");
  }
  if (arguments.topk_ids.rank == 0) {
    return invalid_argument("topk_ids are missing, and the problem has no routing");
  }
  const DType id_dtype = arguments.topk_ids.dtype;
  if (id_dtype != DType::kI32 && id_dtype != DType::kI64) {
    return invalid_argument(
        cat("topk_ids have dtype ", dtype_name(id_dtype), ", expected i32 or i64"));
  }
  MOEKIT_RETURN_IF_ERROR(check_matrix(arguments.topk_ids, {"topk_ids", tokens, problem.top_k}));
  MOEKIT_RETURN_IF_ERROR(check_dtype(arguments.topk_weights.dtype, DType::kF32, "topk_weights"));
  return check_matrix(arguments.topk_weights, {"topk_weights", tokens, problem.top_k});
}

// A bijection onto the local experts: every local id exactly once, everything else -1.
Status check_expert_map(const Problem& problem, const std::int32_t* map) {
  if (!problem.expert_map) {
    return map == nullptr ? Status()
                          : invalid_argument("expert_map given, but the problem names none");
  }
  if (map == nullptr) {
    return invalid_argument("expert_map is null, but the problem names one");
  }
  std::bitset<kMaxExperts> seen;
  for (std::int64_t id = 0; id < num_router_experts(problem); ++id) {
    const std::int32_t local = map[id];
    if (local == -1) {
      continue;
    }
    if (local < 0 || local >= problem.num_experts) {
      return invalid_argument(cat("expert_map[",
                                  id,
                                  "] is ",
                                  local,
                                  ", expected -1 or a local id below ",
                                  problem.num_experts));
    }
    if (seen.test(static_cast<std::size_t>(local))) {
      return invalid_argument(
          cat("expert_map[", id, "] is ", local, ", a local id that an earlier entry has"));
    }
    seen.set(static_cast<std::size_t>(local));
  }
  if (static_cast<std::int64_t>(seen.count()) != problem.num_experts) {
    return invalid_argument(cat("expert_map reaches ",
                                static_cast<std::int64_t>(seen.count()),
                                " of ",
                                problem.num_experts,
                                " local experts, expected each exactly once"));
  }
  return {};
}

Status check_shared(const Problem& problem, const RunArguments& arguments, std::int64_t tokens) {
  if (problem.shared == SharedInput::kNone) {
    return arguments.shared.data == nullptr
               ? Status()
               : invalid_argument("shared given, but the problem names none");
  }
  const DType want = problem.shared == SharedInput::kF32 ? DType::kF32 : problem.io_dtype;
  MOEKIT_RETURN_IF_ERROR(check_dtype(arguments.shared.dtype, want, "shared"));
  return check_matrix(arguments.shared, {"shared", tokens, problem.hidden_size});
}

// What is written, out and workspace, overlaps nothing that is read and not each other.
Status check_aliasing(const Problem& problem,
                      const PackedExperts& experts,
                      const RunArguments& arguments,
                      std::span<std::byte> workspace) {
  const Extent out = extent_of(arguments.out);
  const Extent scratch{workspace.data(), workspace.data() + workspace.size()};
  TensorView token_ids = arguments.router_hash_table.token_ids;
  token_ids.shape[1] = token_ids.rank;  // one element a row; none where there are no ids
  const std::int64_t routed = num_router_experts(problem);
  const HashTable& table = arguments.router_hash_table;
  const std::span<const std::byte> packed = experts.bytes();
  const std::pair<std::string_view, Extent> others[] = {
      {"x", extent_of(arguments.x)},
      {"topk_ids", extent_of(arguments.topk_ids)},
      {"topk_weights", extent_of(arguments.topk_weights)},
      {"router_logits", extent_of(arguments.router_logits)},
      {"shared", extent_of(arguments.shared)},
      {"token_ids", extent_of(token_ids)},
      {"router_hash_table", extent_of(table.expert_ids, table.num_rows * problem.top_k)},
      {"correction_bias", extent_of(arguments.correction_bias, routed)},
      {"router_expert_scale", extent_of(arguments.router_expert_scale, routed)},
      {"expert_map", extent_of(arguments.expert_map, routed)},
      {"the packed experts", extent_of(packed.data(), static_cast<std::int64_t>(packed.size()))},
  };
  for (const auto& [name, extent] : others) {
    if (overlap(out, extent)) {
      return invalid_argument(cat("out overlaps ", name));
    }
    if (overlap(scratch, extent)) {
      return invalid_argument(cat("workspace overlaps ", name));
    }
  }
  return overlap(out, scratch) ? invalid_argument("out overlaps workspace") : Status();
}

// A plan may be made for any CPU; running AVX-512 bodies where there are none would be a fault.
Status check_host(const Plan& plan, Isa host) {
  if (plan->device.arch == Arch::kCpu && plan->device.isa > host) {
    return unsupported(cat("plan is for cpu:",
                           isa_name(plan->device.isa),
                           ", this machine offers ",
                           isa_name(host),
                           "; nearest: cpu:",
                           isa_name(host)));
  }
  return {};
}

Status check_workspace(const Plan& plan, std::span<std::byte> workspace) {
  if (workspace.data() == nullptr && plan.workspace_bytes() != 0) {
    return invalid_argument(
        cat("workspace is null, the plan needs ", plan.workspace_bytes(), " bytes"));
  }
  const auto have = static_cast<std::int64_t>(workspace.size());
  if (have < plan.workspace_bytes()) {
    return invalid_argument(
        cat("workspace has ", have, " bytes, the plan needs ", plan.workspace_bytes()));
  }
  if (reinterpret_cast<std::uintptr_t>(workspace.data()) % kWorkspaceAlignment != 0) {
    return invalid_argument(cat("workspace is not aligned to ", kWorkspaceAlignment, " bytes"));
  }
  return {};
}

Status check_experts(const Plan& plan, const PackedExperts& experts) {
  if (experts.state() == nullptr) {
    return invalid_argument("experts were not prepared");
  }
  const PackedExperts::State& state = *experts.state();
  if (state.layout_id != plan->layout_id) {
    return invalid_argument(
        cat("experts are packed as ", state.layout_id, ", the plan needs ", plan->layout_id));
  }
  const bool on_device = plan->device.arch != Arch::kCpu;
  if (state.on_device != on_device) {
    return invalid_argument(on_device ? "experts are in host memory, the plan is for a GPU: upload"
                                      : "experts are on a GPU, the plan is for the cpu");
  }
  if (state.problem.num_experts != plan.problem().num_experts) {
    return invalid_argument(cat("experts hold ",
                                state.problem.num_experts,
                                " experts, the plan needs ",
                                plan.problem().num_experts));
  }
  const RecipeInfo& recipe = recipe_info(plan.problem().recipe);
  if (quantizer_info(recipe.quantizer).needs_input_scale && state.expert_without_input_scale >= 0) {
    return invalid_argument(
        cat("experts hold no input scales of expert ",
            state.expert_without_input_scale,
            ", recipe ",
            recipe.name,
            " needs those of x and of the intermediate: prepare from a source that has them "
            "(nearest: ",
            recipe_info(default_recipe(recipe.weights)).name,
            ")"));
  }
  return {};
}

Status check_tensors(const Problem& problem, const RunArguments& arguments, std::int64_t tokens) {
  MOEKIT_RETURN_IF_ERROR(check_dtype(arguments.x.dtype, problem.io_dtype, "x"));
  MOEKIT_RETURN_IF_ERROR(check_matrix(arguments.x, {"x", tokens, problem.hidden_size}));
  MOEKIT_RETURN_IF_ERROR(check_dtype(arguments.out.dtype, output_dtype(problem), "out"));
  MOEKIT_RETURN_IF_ERROR(check_matrix(arguments.out, {"out", tokens, problem.hidden_size}));
  MOEKIT_RETURN_IF_ERROR(check_routes(problem, arguments, tokens));
  MOEKIT_RETURN_IF_ERROR(check_shared(problem, arguments, tokens));
  return {};
}

const plan::KernelFamily* find_family(std::string_view name) {
  for (const plan::KernelFamily* family : kernels::catalog()) {
    if (family->name == name) {
      return family;
    }
  }
  return nullptr;
}

}  // namespace

Status BindingAccess::resolve_slices(Binding& binding, std::span<std::byte> workspace) {
  static_assert(plan::kNumSlices <= Binding::kMaxSlices);
  for (const WorkspaceSlice& slice : binding.plan_->workspace) {
    const std::optional<plan::SliceId> id = plan::slice_from_name(slice.name);
    if (!id.has_value()) {
      return invalid_argument(cat("plan names an unknown workspace slice '", slice.name, "'"));
    }
    binding.slices_[static_cast<std::size_t>(*id)] = workspace.data() + slice.offset;
  }
  const std::size_t steps = binding.rung_->steps.size();
  return steps > Binding::kMaxSteps
             ? internal_error(cat("a rung of ", steps, " steps exceeds ", Binding::kMaxSteps))
             : Status();
}

Status BindingAccess::resolve(Binding& binding, std::span<std::byte> workspace) {
  MOEKIT_RETURN_IF_ERROR(resolve_slices(binding, workspace));
  const std::vector<Step>& steps = binding.rung_->steps;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const plan::KernelFamily* family = find_family(steps[i].family);
    const plan::CpuKernel kernel =
        family == nullptr || family->cpu_kernel == nullptr ? nullptr : family->cpu_kernel(steps[i]);
    if (kernel == nullptr) {
      return unsupported(cat("step ", steps[i].kernel, " has no body in this library"));
    }
    binding.kernels_[i] = reinterpret_cast<void (*)()>(kernel);
  }
  return {};
}

Result<Binding> bind(const Runtime& runtime,
                     const Plan& plan,
                     const PackedExperts& experts,
                     std::span<std::byte> workspace,
                     const RunArguments& arguments) noexcept {
  return base::at_border([&]() -> Result<Binding> {
    if (runtime.state() == nullptr) {
      return invalid_argument("runtime was not created");
    }
    const Problem& problem = plan.problem();
    const std::int64_t tokens = arguments.x.rank == 2 ? arguments.x.shape[0] : -1;
    const Rung* rung = plan.rung(tokens);
    if (rung == nullptr) {
      return invalid_argument(
          cat("x has ", tokens, " tokens, the plan's capacity is ", problem.num_tokens));
    }
    MOEKIT_RETURN_IF_ERROR(check_host(plan, runtime.state()->host_isa));
    MOEKIT_RETURN_IF_ERROR(check_experts(plan, experts));
    MOEKIT_RETURN_IF_ERROR(check_tensors(problem, arguments, tokens));
    if (plan->device.arch == Arch::kCpu) {
      MOEKIT_RETURN_IF_ERROR(check_expert_map(problem, arguments.expert_map));
    } else if (problem.expert_map != (arguments.expert_map != nullptr)) {
      return invalid_argument(cat("expert_map is ",
                                  problem.expert_map ? "null" : "given",
                                  ", but the problem names ",
                                  problem.expert_map ? "one" : "none"));
    }
    MOEKIT_RETURN_IF_ERROR(check_workspace(plan, workspace));
    MOEKIT_RETURN_IF_ERROR(check_aliasing(problem, experts, arguments, workspace));
    Binding binding = BindingAccess::make(plan, experts, arguments, rung);
    if (plan->device.arch == Arch::kCpu) {
      MOEKIT_RETURN_IF_ERROR(BindingAccess::resolve(binding, workspace));
      return binding;
    }
    MOEKIT_ASSIGN_OR_RETURN(CudaRuntime* const cuda, runtime.state()->cuda_runtime());
    MOEKIT_RETURN_IF_ERROR(BindingAccess::resolve_cuda(binding, *cuda, workspace));
    return binding;
  });
}

Status run(const Runtime& runtime, const Binding& binding, Stream stream) noexcept {
  if (runtime.state() == nullptr) {
    return base::at_border([] { return invalid_argument("runtime was moved from"); });
  }
  if (stream.handle != nullptr && binding.plan()->device.arch == Arch::kCpu) {
    return base::at_border([&] {
      return invalid_argument(cat("stream ",
                                  reinterpret_cast<std::uintptr_t>(stream.handle),
                                  " is given, but a plan for cpu runs on none"));
    });
  }
  return BindingAccess::run(runtime, binding, stream);
}

}  // namespace moekit
