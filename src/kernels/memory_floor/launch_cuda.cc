// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <optional>

#include "base/text.h"
#include "kernels/memory_floor/floor.h"
#include "kernels/memory_floor/spec.h"

namespace moekit::kernels::memory_floor {
namespace {

using base::cat;

// The two ring shapes that came out fastest on an H200 (performance notes of decode_gemv's README).
constexpr std::array<Spec, 2> kSpecs = {Spec{16384, 12, 1}, Spec{8192, 12, 2}};

std::string kernel_name(const Spec& spec) {
  return plan::make_kernel_name(
      {"memory_floor",
       "any",
       cat("read_k", spec.stage_bytes / 1024, "s", spec.num_stages, "b", spec.blocks_per_sm),
       "sm90a"});
}

std::optional<Spec> spec_of(std::string_view kernel) {
  for (const Spec& spec : kSpecs) {
    if (kernel == kernel_name(spec)) {
      return spec;
    }
  }
  return std::nullopt;
}

Result<plan::KernelSource> source(std::string_view kernel) {
  const std::optional<Spec> spec = spec_of(kernel);
  if (!spec.has_value()) {
    return invalid_argument(cat("'", kernel, "' is no kernel of memory_floor"));
  }
  plan::KernelSource made;
  made.kernel = kernel;
  made.entry = plan::entry_symbol(kernel);
  made.arch = Arch::kSm90a;
  made.num_threads = num_threads(*spec);
  constexpr std::int64_t kStaticBytes = 8192;  // barriers and the list of experts
  made.smem_bytes = smem_bytes(*spec) + kStaticBytes;
  made.prelude =
      cat("#include \"kernels/memory_floor/device/kernel.cuh\"\n"
          "using namespace moekit::kernels::memory_floor;\n"
          "constexpr Spec kSpec{.stage_bytes = ",
          spec->stage_bytes,
          ", .num_stages = ",
          spec->num_stages,
          ", .blocks_per_sm = ",
          spec->blocks_per_sm,
          "};\n"
          "extern \"C\" __global__ void __launch_bounds__(num_threads(kSpec), "
          "kSpec.blocks_per_sm)\n",
          made.entry,
          "(const __grid_constant__ Args args) {\n"
          "  memory_floor<kSpec>(args);\n"
          "}\n");
  return made;
}

std::vector<plan::KernelSource> catalog(Arch arch) {
  std::vector<plan::KernelSource> sources;
  for (const std::string& name : kernel_names(arch)) {
    sources.push_back(*source(name));
  }
  return sources;
}

Status launch(const plan::CudaCall& call, plan::Launch&) {
  return internal_error(cat("step ", call.step->kernel, " is not part of any plan"));
}

/// What is known of reading: nothing changes but the count of blocks that arrived.
Result<plan::SelfTest> self_test(std::string_view kernel) {
  constexpr std::int64_t kUnitBytes = 40'000;  // whole stages and a part of one
  constexpr std::int64_t kSms = 3;
  const auto word = [](std::uint32_t value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  plan::SelfTest test;
  const std::vector<std::byte> units(static_cast<std::size_t>(3 * kUnitBytes), std::byte{0x5A});
  std::vector<std::byte> experts = word(0);
  const std::vector<std::byte> second = word(2);
  experts.insert(experts.end(), second.begin(), second.end());
  Args args{};
  args.gate_up_stride_bytes = kUnitBytes;
  args.down_stride_bytes = kUnitBytes;
  args.num_active = 2;
  plan::Launch described;
  MOEKIT_RETURN_IF_ERROR(describe_launch(kernel, args, kSms, described));
  test.buffers = {
      {.before = units},
      {.before = units},
      {.before = experts},
      {.before = word(0), .after = word(static_cast<std::uint32_t>(described.geometry.grid.x))}};
  test.pointers = {{offsetof(Args, gate_up), 0, 0},
                   {offsetof(Args, down), 1, 0},
                   {offsetof(Args, experts), 2, 0},
                   {offsetof(Args, arrivals), 3, 0}};
  test.geometry = described.geometry;
  test.arguments.assign(described.arguments.bytes().begin(), described.arguments.bytes().end());
  return test;
}

}  // namespace

std::vector<std::string> kernel_names(Arch arch) {
  std::vector<std::string> names;
  if (arch == Arch::kSm90a) {
    for (const Spec& spec : kSpecs) {
      names.push_back(kernel_name(spec));
    }
  }
  return names;
}

Status describe_launch(std::string_view kernel,
                       const Args& args,
                       std::int64_t num_sms,
                       plan::Launch& out) {
  const std::optional<Spec> spec = spec_of(kernel);
  if (!spec.has_value()) {
    return invalid_argument(cat("'", kernel, "' is no kernel of memory_floor"));
  }
  if (args.num_active < 1 || args.num_active > kMaxUnits || args.gate_up_stride_bytes % 16 != 0 ||
      args.down_stride_bytes % 16 != 0) {
    return invalid_argument(cat("memory floor of ",
                                args.num_active,
                                " experts of ",
                                args.gate_up_stride_bytes,
                                " and ",
                                args.down_stride_bytes,
                                " bytes, expected 1..",
                                kMaxUnits,
                                " and multiples of 16"));
  }
  out.geometry.grid = {num_sms * spec->blocks_per_sm, 1, 1};
  out.geometry.block = {num_threads(*spec), 1, 1};
  out.geometry.smem_bytes = smem_bytes(*spec);
  out.geometry.cooperative = true;
  out.arguments.set(args);
  return {};
}

const plan::CudaFamily kCuda{
    .catalog = catalog, .source = source, .launch = launch, .self_test = self_test};

}  // namespace moekit::kernels::memory_floor
