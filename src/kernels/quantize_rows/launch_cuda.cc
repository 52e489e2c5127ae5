// SPDX-License-Identifier: Apache-2.0

// quantize_rows as launches, sources and known answers.

#include <array>
#include <cstddef>
#include <optional>

#include "base/text.h"
#include "kernels/quantize_rows/quantize.h"

namespace moekit::kernels::quantize_rows {
namespace {

using base::cat;

// 256 lanes: 2048 columns a block; one warp more or less changes nothing in a kernel that is bound
// by loads and stores (README §2).
constexpr int kNumThreads = 256;
constexpr std::int64_t kMaxGridY = 65535;

struct RuleRow {
  Rule rule;
  std::string_view name;
  std::string_view enumerator;
};

constexpr std::array<RuleRow, 3> kRules = {RuleRow{Rule::kQ4, "q4", "kQ4"},
                                           RuleRow{Rule::kQ8, "q8", "kQ8"},
                                           RuleRow{Rule::kQ8b, "q8b", "kQ8b"}};

const RuleRow& row_of(Rule rule) {
  return kRules[static_cast<std::size_t>(rule)];
}

Result<Rule> rule_of(std::string_view kernel) {
  MOEKIT_ASSIGN_OR_RETURN(const plan::KernelName name, plan::parse_kernel_name(kernel));
  for (const RuleRow& row : kRules) {
    MOEKIT_ASSIGN_OR_RETURN(const Arch arch, plan::arch_from_suffix(name.arch));
    if (kernel == kernel_name(row.rule, arch)) {
      return row.rule;
    }
  }
  return invalid_argument(cat("'", kernel, "' is no kernel of quantize_rows"));
}

Result<plan::KernelSource> source(std::string_view kernel) {
  MOEKIT_ASSIGN_OR_RETURN(const Rule rule, rule_of(kernel));
  MOEKIT_ASSIGN_OR_RETURN(const plan::KernelName name, plan::parse_kernel_name(kernel));
  plan::KernelSource made;
  MOEKIT_ASSIGN_OR_RETURN(made.arch, plan::arch_from_suffix(name.arch));
  made.kernel = kernel;
  made.entry = plan::entry_symbol(kernel);
  made.num_threads = kNumThreads;
  made.prelude =
      cat("#include \"kernels/quantize_rows/device/kernel.cuh\"\n"
          "using namespace moekit::kernels::quantize_rows;\n"
          "constexpr Spec kSpec{.rule = Rule::",
          row_of(rule).enumerator,
          ", .num_threads = ",
          kNumThreads,
          "};\n"
          "extern \"C\" __global__ void __launch_bounds__(kSpec.num_threads)\n",
          made.entry,
          "(const __grid_constant__ Args args) {\n"
          "  quantize_rows<kSpec>(args);\n"
          "}\n");
  return made;
}

std::vector<plan::KernelSource> catalog(Arch arch) {
  std::vector<plan::KernelSource> sources;
  for (const RuleRow& row : kRules) {
    sources.push_back(*source(kernel_name(row.rule, arch)));
  }
  return sources;
}

Status launch(const plan::CudaCall& call, plan::Launch&) {
  // No plan lowers to a quantiser yet: recipes with quantised activations have no CUDA path.
  return internal_error(cat("step ", call.step->kernel, " is not part of any plan"));
}

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// Finite BF16 of every size from subnormals up, both signs, and short last groups.
std::vector<std::uint16_t> known_inputs(std::size_t count) {
  std::vector<std::uint16_t> values;
  std::uint32_t state = 12345;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    // Exponents near 127 for most, all of them for every fifth.
    const std::uint32_t exponent = i % 5 == 0 ? (state >> 8U) % 255U : 120U + (state >> 8U) % 12U;
    values.push_back(static_cast<std::uint16_t>(((state >> 31U) << 15U) | (exponent << 7U) |
                                                ((state >> 20U) & 0x7FU)));
  }
  return values;
}

Result<plan::SelfTest> self_test(std::string_view kernel) {
  MOEKIT_ASSIGN_OR_RETURN(const Rule rule, rule_of(kernel));
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kCols = 152;  // a short last group under every rule
  const std::vector<std::uint16_t> x = known_inputs(kRows * kCols);
  const std::vector<float> global = {0.0078125F};
  const std::int64_t groups = (kCols + group_size(rule) - 1) / group_size(rule);
  std::vector<std::uint8_t> codes(
      static_cast<std::size_t>(kRows * kCols / kLaneElems * lane_code_bytes(rule)));
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(kRows * groups * scale_bytes(rule)));
  std::vector<std::uint16_t> operand(x.size());
  plan::SelfTest test;
  test.buffers = {{.before = bytes_of(x)},
                  {.before = bytes_of(global)},
                  {.before = bytes_of(codes)},
                  {.before = bytes_of(scales)},
                  {.before = bytes_of(operand)}};
  Args args = {
      x.data(), codes.data(), scales.data(), operand.data(), global.data(), kRows, kCols, kCols};
  quantize_on_host(rule, args);
  test.buffers[2].after = bytes_of(codes);
  test.buffers[3].after = bytes_of(scales);
  test.buffers[4].after = bytes_of(operand);
  test.pointers = {{offsetof(Args, x), 0, 0},
                   {offsetof(Args, global), 1, 0},
                   {offsetof(Args, codes), 2, 0},
                   {offsetof(Args, scales), 3, 0},
                   {offsetof(Args, operand), 4, 0}};
  plan::Launch described;
  MOEKIT_RETURN_IF_ERROR(describe_launch(rule, args, described));
  test.geometry = described.geometry;
  test.arguments.assign(described.arguments.bytes().begin(), described.arguments.bytes().end());
  return test;
}

bool is_aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

}  // namespace

std::string kernel_name(Rule rule, Arch arch) {
  return plan::make_kernel_name({"quantize_rows",
                                 std::string(row_of(rule).name),
                                 cat("rows_t", kNumThreads),
                                 plan::arch_suffix(arch)});
}

Status describe_launch(Rule rule, const Args& args, plan::Launch& out) {
  if (args.num_cols % kLaneElems != 0 || args.x_stride % kLaneElems != 0) {
    return invalid_argument(cat("num_cols ",
                                args.num_cols,
                                " and row stride ",
                                args.x_stride,
                                " of x, expected multiples of ",
                                kLaneElems));
  }
  if (!is_aligned(args.x, 16) || !is_aligned(args.operand, 16) || !is_aligned(args.codes, 4) ||
      !is_aligned(args.scales, static_cast<std::uintptr_t>(scale_bytes(rule)))) {
    return invalid_argument("x and operand must be 16-byte aligned, codes and f32 scales 4-byte");
  }
  if (rule == Rule::kQ4 && args.global == nullptr) {
    return invalid_argument("rule q4 needs the input's global scale");
  }
  const std::int64_t lanes = args.num_cols / kLaneElems;
  out.geometry.block = {kNumThreads, 1, 1};
  out.geometry.grid = {(lanes + kNumThreads - 1) / kNumThreads,
                       args.num_rows < kMaxGridY ? args.num_rows : kMaxGridY,
                       (args.num_rows + kMaxGridY - 1) / kMaxGridY};
  out.arguments.set(args);
  return {};
}

const plan::CudaFamily kCuda{
    .catalog = catalog, .source = source, .launch = launch, .self_test = self_test};

}  // namespace moekit::kernels::quantize_rows
