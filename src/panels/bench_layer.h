// SPDX-License-Identifier: Apache-2.0
#pragma once

// Benchmark equipment: a layer of a model's shape with random weights, bound on one ISA, whose
// every run takes other experts than the runs before, so that weights come from memory and not from
// a cache. Public API alone.

#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moekit/experts.h"
#include "moekit/plan.h"
#include "moekit/runtime.h"

namespace moekit::panels {

class BenchLayer {
 public:
  /// Ids are drawn for `kCalls` calls; each call is bound once.
  static constexpr int kCalls = 16;

  [[nodiscard]] static Result<std::unique_ptr<BenchLayer>> make(const Problem& problem,
                                                                std::string_view isa,
                                                                int threads) {
    auto layer = std::unique_ptr<BenchLayer>(new BenchLayer(problem));
    MOEKIT_ASSIGN_OR_RETURN(DeviceDescriptor device, device_from_name("cpu:" + std::string(isa)));
    device.num_threads = threads;
    MOEKIT_ASSIGN_OR_RETURN(const Runtime runtime, Runtime::create({.num_threads = threads}));
    MOEKIT_ASSIGN_OR_RETURN(const Plan plan, make_plan(problem, device));
    MOEKIT_ASSIGN_OR_RETURN(const PackedExperts packed, prepare(plan, layer->source()));
    layer->runtime_.push_back(runtime);
    MOEKIT_RETURN_IF_ERROR(layer->bind_calls(plan, packed));
    return layer;
  }

  [[nodiscard]] Status run() {
    return moekit::run(runtime_.front(), bindings_[next_++ % bindings_.size()]);
  }

  /// Weight bytes that a call reads, averaged over the calls: distinct experts times their packed
  /// bytes.
  [[nodiscard]] double active_bytes() const { return active_bytes_; }

  /// Multiply-adds of one call, both counted.
  [[nodiscard]] double flops() const {
    const double products =
        static_cast<double>(num_gate_up_rows(problem_) + problem_.intermediate_size) *
        static_cast<double>(problem_.hidden_size);
    return 2.0 * products * static_cast<double>(tokens_ * problem_.top_k);
  }

 private:
  explicit BenchLayer(const Problem& problem) : problem_(problem), tokens_(problem.num_tokens) {}

  // All experts view the same random bytes; packing gives each its own copy.
  ExpertsSource source() {
    const Format format = recipe_info(problem_.recipe).weights;
    const std::int64_t elems = problem_.hidden_size * problem_.intermediate_size;
    codes_.resize(static_cast<std::size_t>(elems * (format == Format::kBf16 ? 2 : 1)));
    scales_.resize(static_cast<std::size_t>(elems / 8));
    std::mt19937 random(1);
    for (auto& byte : codes_) {
      // BF16: exponents near 1, so that no sum overflows.
      byte = static_cast<std::uint8_t>(format == Format::kBf16 ? 0x3CU + random() % 2U : random());
    }
    for (auto& byte : scales_) {
      byte = static_cast<std::uint8_t>(format == Format::kMxfp4 ? 120U + random() % 4U
                                                                : 0x20U + random() % 16U);
    }
    const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
      const std::int64_t group = format_info(format).group_size;
      return WeightMatrix{.format = format,
                          .rows = rows,
                          .cols = cols,
                          .codes = codes_.data(),
                          .row_stride_bytes = code_row_bytes(format, cols),
                          .scales = group == 0 ? nullptr : scales_.data(),
                          .scale_row_stride_bytes = group == 0 ? 0 : (cols + group - 1) / group,
                          .global_scale = format_info(format).has_global_scale ? 0.01F : 1.0F};
    };
    const WeightMatrix gate_up = matrix(problem_.intermediate_size, problem_.hidden_size);
    const WeightMatrix down = matrix(problem_.hidden_size, problem_.intermediate_size);
    ExpertsSource source;
    source.experts.assign(static_cast<std::size_t>(problem_.num_experts),
                          ExpertWeights{.gate = gate_up, .up = gate_up, .down = down});
    return source;
  }

  Status bind_calls(const Plan& plan, const PackedExperts& packed) {
    workspace_.resize(static_cast<std::size_t>(plan.workspace_bytes()) + kWorkspaceAlignment);
    const auto address = reinterpret_cast<std::uintptr_t>(workspace_.data());
    const std::span<std::byte> workspace =
        std::span(workspace_).subspan(kWorkspaceAlignment - address % kWorkspaceAlignment);
    const auto elems = static_cast<std::size_t>(tokens_ * problem_.hidden_size);
    std::mt19937 random(2);
    x_.resize(elems);
    for (auto& value : x_) {
      value = static_cast<std::uint16_t>(0x3F00U + random() % 256U);
    }
    out_.resize(elems);
    weights_.assign(static_cast<std::size_t>(tokens_ * problem_.top_k), 0.125F);
    ids_.resize(kCalls);
    std::int64_t distinct = 0;
    for (std::vector<std::int32_t>& ids : ids_) {
      distinct += draw_ids(random, ids);
      RunArguments arguments;
      arguments.x =
          matrix_view(std::as_const(x_).data(), DType::kBf16, tokens_, problem_.hidden_size);
      arguments.topk_ids =
          matrix_view(std::as_const(ids).data(), DType::kI32, tokens_, problem_.top_k);
      arguments.topk_weights =
          matrix_view(std::as_const(weights_).data(), DType::kF32, tokens_, problem_.top_k);
      arguments.out = matrix_view(out_.data(), DType::kBf16, tokens_, problem_.hidden_size);
      MOEKIT_ASSIGN_OR_RETURN(const Binding binding,
                              moekit::bind(runtime_.front(), plan, packed, workspace, arguments));
      bindings_.push_back(binding);
    }
    active_bytes_ = static_cast<double>(distinct) / kCalls *
                    static_cast<double>(plan->prepare.packed_bytes) /
                    static_cast<double>(problem_.num_experts);
    return {};
  }

  // Distinct experts per token; returns how many experts the call touches.
  std::int64_t draw_ids(std::mt19937& random, std::vector<std::int32_t>& ids) const {
    std::vector<bool> touched(static_cast<std::size_t>(problem_.num_experts));
    for (std::int64_t token = 0; token < tokens_; ++token) {
      std::vector<bool> taken(touched.size());
      for (std::int64_t slot = 0; slot < problem_.top_k;) {
        const std::size_t id = random() % touched.size();
        if (!taken[id]) {
          taken[id] = true;
          touched[id] = true;
          ids.push_back(static_cast<std::int32_t>(id));
          ++slot;
        }
      }
    }
    std::int64_t count = 0;
    for (const bool is_touched : touched) {
      count += is_touched ? 1 : 0;
    }
    return count;
  }

  Problem problem_;
  std::int64_t tokens_;
  std::vector<Runtime> runtime_;  // one; a Runtime has no empty state
  std::vector<std::uint8_t> codes_;
  std::vector<std::uint8_t> scales_;
  std::vector<std::uint16_t> x_;
  std::vector<std::uint16_t> out_;
  std::vector<float> weights_;
  std::vector<std::vector<std::int32_t>> ids_;
  std::vector<std::byte> workspace_;
  std::vector<Binding> bindings_;
  std::size_t next_ = 0;
  double active_bytes_ = 0.0;
};

}  // namespace moekit::panels
