// SPDX-License-Identifier: Apache-2.0
// A layer in one page: a problem, random NVFP4 experts, plan, prepare, bind, run.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <span>
#include <vector>

#include "moekit/moekit.h"

namespace {

using namespace moekit;  // NOLINT(google-build-using-namespace): an example, not a header

/// Fused NVFP4 tensors as an engine would hold them: random codes, block scales of 1, a global per
/// expert and projection.
struct RandomWeights {
  explicit RandomWeights(const Problem& p)
      : gate_up_codes(static_cast<std::size_t>(p.num_experts * num_gate_up_rows(p) *
                                               code_row_bytes(Format::kNvfp4, p.hidden_size))),
        gate_up_scales(gate_up_codes.size() / 8, kOne),
        down_codes(static_cast<std::size_t>(p.num_experts * p.hidden_size *
                                            code_row_bytes(Format::kNvfp4, p.intermediate_size))),
        down_scales(down_codes.size() / 8, kOne),
        globals(static_cast<std::size_t>(p.num_experts), 0.01F) {
    std::minstd_rand random(1);
    for (std::vector<std::uint8_t>* codes : {&gate_up_codes, &down_codes}) {
      for (std::uint8_t& code : *codes) {
        code = static_cast<std::uint8_t>(random() >> 8U);
      }
    }
  }

  [[nodiscard]] FusedExperts fused() const {
    FusedExperts fused;
    fused.format = Format::kNvfp4;
    fused.gate_up_codes = gate_up_codes.data();
    fused.gate_up_scales = gate_up_scales.data();
    fused.down_codes = down_codes.data();
    fused.down_scales = down_scales.data();
    fused.gate_globals = fused.up_globals = fused.down_globals = globals;
    return fused;
  }

  static constexpr std::uint8_t kOne = 0x38;  // E4M3 1.0; 16 codes (8 bytes) share a scale
  std::vector<std::uint8_t> gate_up_codes;
  std::vector<std::uint8_t> gate_up_scales;
  std::vector<std::uint8_t> down_codes;
  std::vector<std::uint8_t> down_scales;
  std::vector<float> globals;
};

/// Hidden states, routes and the output of one call.
struct Call {
  Call(const Problem& p, std::int64_t num_tokens)
      : tokens(num_tokens),
        top_k(p.top_k),
        hidden(p.hidden_size),
        x(static_cast<std::size_t>(tokens * hidden), 0x3F80),  // bf16 1.0
        weights(static_cast<std::size_t>(tokens * top_k), 1.0F / static_cast<float>(top_k)),
        out(x.size()) {
    for (std::int64_t i = 0; i < tokens * top_k; ++i) {
      ids.push_back(static_cast<std::int32_t>((7 * i) % p.num_experts));
    }
  }

  [[nodiscard]] RunArguments tensors() {
    RunArguments arguments;
    arguments.x = matrix_view(static_cast<const void*>(x.data()), DType::kBf16, tokens, hidden);
    arguments.topk_ids =
        matrix_view(static_cast<const void*>(ids.data()), DType::kI32, tokens, top_k);
    arguments.topk_weights =
        matrix_view(static_cast<const void*>(weights.data()), DType::kF32, tokens, top_k);
    arguments.out = matrix_view(static_cast<void*>(out.data()), DType::kBf16, tokens, hidden);
    return arguments;
  }

  std::int64_t tokens;
  std::int64_t top_k;
  std::int64_t hidden;
  std::vector<std::uint16_t> x;
  std::vector<std::int32_t> ids{};
  std::vector<float> weights;
  std::vector<std::uint16_t> out;
};

/// Memory with the alignment that bind asks for.
struct Workspace {
  explicit Workspace(std::int64_t num_bytes)
      : bytes(static_cast<std::size_t>(num_bytes)), start(::operator new(bytes, kAlignment)) {}

  ~Workspace() { ::operator delete(start, kAlignment); }

  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  [[nodiscard]] std::span<std::byte> span() const {
    return {static_cast<std::byte*>(start), bytes};
  }

  operator std::span<std::byte>() const { return span(); }  // NOLINT(google-explicit-constructor)

  static constexpr std::align_val_t kAlignment{kWorkspaceAlignment};
  std::size_t bytes;
  void* start;
};

Status hello() {
  // [readme]
  Problem problem{.num_tokens = 64, .num_experts = 32, .top_k = 4, .hidden_size = 512};
  problem.intermediate_size = 256;
  problem.recipe = Recipe::kW4a16Nvfp4;
  MOEKIT_ASSIGN_OR_RETURN(const Plan plan, make_plan(problem, host_cpu()));
  const RandomWeights weights(problem);  // yours: an engine's fused tensors, or a checkpoint's
  MOEKIT_ASSIGN_OR_RETURN(const ExpertsSource source, split_fused(problem, weights.fused()));
  MOEKIT_ASSIGN_OR_RETURN(const PackedExperts experts, prepare(plan, source));
  MOEKIT_ASSIGN_OR_RETURN(const Runtime runtime, Runtime::create());
  const Workspace memory(plan.workspace_bytes());
  Call call(problem, 2);  // two of at most 64 tokens: x, expert ids, router weights, output
  MOEKIT_ASSIGN_OR_RETURN(auto layer, moekit::bind(runtime, plan, experts, memory, call.tensors()));
  MOEKIT_RETURN_IF_ERROR(run(runtime, layer));  // as often as you like
  // [readme]
  MOEKIT_ASSIGN_OR_RETURN(const std::string text, plan.to_text(call.tokens));
  std::fputs(text.c_str(), stdout);
  MOEKIT_ASSIGN_OR_RETURN(const VerifyReport report,
                          verify_call(plan, source, call.tensors(), memory.span()));
  std::printf("%lld outputs checked against the float64 oracle, largest error %.3g\n",
              static_cast<long long>(report.outputs_checked),
              report.max_abs_error);
  return report.passed ? Status() : internal_error(report.first_failure);
}

}  // namespace

int main() {
  const Status status = hello();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
  }
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
