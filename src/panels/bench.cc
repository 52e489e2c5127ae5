// SPDX-License-Identifier: Apache-2.0

// dot/*: one dot call of each body on a panel in the first-level cache: what the instructions allow
// when memory does not matter. layer/*: whole layers with weights from memory; GB/s are weight
// bytes of active experts over time, to be read beside a probe of the machine's read bandwidth.

#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "base/cpu_info.h"
#include "panels/bench_layer.h"
#include "panels/body.h"

namespace moekit::panels {
namespace {

// The same values for every token, all of one magnitude: values cost nothing.
void load_tile(const Body& body,
               const device::Panel16Shape& shape,
               std::int64_t tokens,
               std::int64_t row_bytes,
               std::byte* operand) {
  std::vector<float> values(static_cast<std::size_t>(shape.cols));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = i % 2 == 0 ? 1.0F : -1.25F;
  }
  const OperandRow row{values.data(), DType::kF32, shape.cols};
  std::vector<std::byte> loaded(static_cast<std::size_t>(row_bytes));
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (body.interleave == nullptr) {
      body.load_operand(row, shape, operand + t * row_bytes);
      continue;
    }
    body.load_operand(row, shape, loaded.data());
    const std::byte* from = loaded.data();
    body.interleave({&from, 1, shape.cols / 2, operand, t, tokens});
  }
}

// Codes at random without E4M3's NaN. Scales as the layout has them: bytes beside the codes, or f32
// (with int4's zero point in the low bits) of 1.
std::vector<std::byte> random_panel(const device::Panel16Shape& shape) {
  std::vector<std::byte> panel(static_cast<std::size_t>(device::panel16_panel_bytes(shape)));
  const unsigned least = shape.element == device::Panel16Element::kE4m3 ? 0x30U : 0x70U;
  std::mt19937 random(3);
  for (std::byte& byte : panel) {
    byte = static_cast<std::byte>(least + random() % 16U);
  }
  if (device::panel16_has_wide_scales(shape.element)) {
    const std::uint32_t word = shape.element == device::Panel16Element::kInt4
                                   ? device::panel16_int4_word(1.0F, 8)
                                   : std::bit_cast<std::uint32_t>(1.0F);
    const std::int64_t group_cols = device::panel16_own_group_cols(shape.element);
    for (std::int64_t group = 0; group < shape.cols / group_cols; ++group) {
      for (std::int64_t row = 0; row < kPanelRows; ++row) {
        std::memcpy(panel.data() + device::panel16_scale_position(shape, row, group), &word, 4);
      }
    }
  }
  return panel;
}

bool runs_here(const Body& body) {
  const base::CpuInfo cpu = base::detect_cpu();
#if defined(__x86_64__)
  if (&body == &kAvx2VnniBody && !cpu.avx_vnni) {
    return false;
  }
#endif
  return static_cast<int>(body.isa) <= static_cast<int>(cpu.isa);
}

void dot_in_cache(benchmark::State& state, const Body& named, device::Panel16Element element) {
  const Body& body = body_of(named, element);
  if (!runs_here(named)) {
    state.SkipWithError("this processor or system lacks the instruction set");
    return;
  }
  const std::int64_t tokens = state.range(0);
  const std::int64_t cols = element == device::Panel16Element::kBf16 ? 256 : 1024;
  const device::Panel16Shape shape{element, kPanelRows, cols, 1, 0};
  const std::vector<std::byte> panel = random_panel(shape);
  // Rows with the room that expert_steps.cc sets aside.
  const std::int64_t row_bytes = cols * body.operand_bytes + 64;
  std::vector<std::byte> operand(static_cast<std::size_t>(tokens * row_bytes));
  load_tile(body, shape, tokens, row_bytes, operand.data());
  std::vector<float> sums(static_cast<std::size_t>(tokens * kPanelRows));
  // E4M3 comes with activations that have scales of their own.
  const std::int64_t scale_stride =
      element == device::Panel16Element::kE4m3 ? cols / kOperandGroupCols : 0;
  const std::vector<float> scales(static_cast<std::size_t>(tokens * scale_stride), 1.0F);
  const DotCall call{.panels = panel.data(),
                     .shape = &shape,
                     .operand = operand.data(),
                     .num_tokens = tokens,
                     .sums = sums.data(),
                     .operand_scales = scales.empty() ? nullptr : scales.data(),
                     .operand_scale_stride = scale_stride,
                     .operand_row_bytes = row_bytes};
  for (auto _ : state) {
    body.dot(call);
    benchmark::DoNotOptimize(sums.data());
    benchmark::ClobberMemory();
  }
  const double products = static_cast<double>(kPanelRows * cols * tokens);
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * products, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = benchmark::Counter(1e-9 * static_cast<double>(panel.size()),
                                              benchmark::Counter::kIsIterationInvariantRate);
}

struct Shape {
  const char* name;
  std::int64_t hidden;
  std::int64_t inner;
  std::int64_t experts;  // enough for the calls of a case not to live in a cache
  std::int64_t top_k;
};

constexpr Shape kShapes[] = {{"qwen3_30b", 2048, 768, 64, 8},
                             {"glm_tp8", 6144, 256, 64, 8},
                             {"gpt_oss_20b", 2880, 2880, 16, 4},
                             {"mixtral_tp4", 4096, 3584, 8, 2}};

void layer(benchmark::State& state, const Shape& shape, Recipe recipe, Isa isa) {
  if (static_cast<int>(isa) > static_cast<int>(base::detect_cpu().isa)) {
    state.SkipWithError("this processor or system lacks the instruction set");
    return;
  }
  Problem problem;
  problem.num_tokens = state.range(0);
  problem.num_experts = shape.experts;
  problem.top_k = shape.top_k;
  problem.hidden_size = shape.hidden;
  problem.intermediate_size = shape.inner;
  problem.recipe = recipe;
  auto made = BenchLayer::make(problem, isa_name(isa), base::detect_cpu().threads);
  if (!made.has_value()) {
    state.SkipWithError(made.status().to_string().c_str());
    return;
  }
  BenchLayer& bench = **made;
  for (auto _ : state) {
    if (!bench.run().ok()) {
      state.SkipWithError("run failed");
      return;
    }
  }
  state.counters["GB/s"] = benchmark::Counter(1e-9 * bench.active_bytes(),
                                              benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] =
      benchmark::Counter(1e-9 * bench.flops(), benchmark::Counter::kIsIterationInvariantRate);
}

void register_dots() {
  using Element = device::Panel16Element;

  struct NamedBody {
    const char* name;
    const Body& body;
  };

  for (const auto& [name, body] : {
         NamedBody{"portable", body_for(Isa::kPortable)},
#if defined(__x86_64__)
             NamedBody{"avx512_digits", kAvx512DigitBody}, NamedBody{"amx", kAmxBody},
             NamedBody{"avx2_vnni", kAvx2VnniBody},
#endif
             NamedBody{"avx2", body_for(Isa::kAvx2)}, NamedBody {
           "avx512", body_for(Isa::kAvx512)
         }
       }) {
    for (const auto& [element, format] : {std::pair{Element::kNvfp4, "nvfp4"},
                                          std::pair{Element::kMxfp4, "mxfp4"},
                                          std::pair{Element::kBf16, "bf16"},
                                          std::pair{Element::kInt4, "int4"},
                                          std::pair{Element::kE4m3, "e4m3"}}) {
      const std::string label = "dot/" + std::string(name) + "/" + format;
      const Body* const chosen = &body;
      auto* bench = benchmark::RegisterBenchmark(
          label.c_str(), [chosen, element = element](benchmark::State& state) {
            dot_in_cache(state, *chosen, element);
          });
      const std::int64_t most = body_of(body, element).max_tokens;
      for (std::int64_t tokens = 1; tokens <= most; tokens *= 2) {
        bench->Arg(tokens);
      }
    }
  }
}

void register_layers() {
  for (const Shape& shape : kShapes) {
    for (const Recipe recipe : {Recipe::kW4a16Nvfp4, Recipe::kW4a16Mxfp4}) {
      for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
        const std::string label = std::string("layer/") + shape.name + "/" +
                                  std::string(recipe_info(recipe).name) + "/" +
                                  std::string(isa_name(isa));
        auto* bench = benchmark::RegisterBenchmark(label.c_str(), layer, shape, recipe, isa);
        bench->UseRealTime()->Unit(benchmark::kMicrosecond);
        for (const std::int64_t tokens : {1, 4, 8, 128, 512}) {
          bench->Arg(tokens);
        }
      }
    }
  }
}

const bool kRegistered = (register_dots(), register_layers(), true);

}  // namespace
}  // namespace moekit::panels
