// SPDX-License-Identifier: Apache-2.0
#pragma once

// For the tests on a GPU: a layer of real size, calls of it, and an end for launches that hang.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/experts.h"
#include "moekit/runtime.h"
#include "moekit/verify.h"

#include "device/numerics/bf16.h"
#include "runtime/cuda_runtime.h"
#include "runtime/state.h"

namespace moekit {

/// Ends the process where a launch hangs: nothing else can.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::seconds limit)
      : thread_([this, limit](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          if (!wake_.wait_for(lock, stop, limit, [] { return false; }) && !stop.stop_requested()) {
            std::fputs("watchdog: the GPU did not finish\n", stdout);
            std::fflush(stdout);
            std::_Exit(3);
          }
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

/// A test on the first GPU, skipped where it is none that the kernels are for.
class Sm90aTest : public testing::Test {
 protected:
  void SetUp() override {
    runtime.emplace(*Runtime::create());
    Result<CudaRuntime*> opened = runtime->state()->cuda_runtime();
    if (!opened) {
      GTEST_SKIP() << opened.status().message();
    }
    cuda = *opened;
    device = cuda->device()->descriptor();
    if (device.arch != Arch::kSm90a) {
      GTEST_SKIP() << "kernels are for sm_90a, this is " << arch_name(device.arch);
    }
  }

  /// Every case on one of several runtimes; the oracle is most of the work.
  void check_all(const std::vector<VerifyCase>& cases, double least_cosine = 0.0) {
    std::atomic<std::size_t> next{0};
    std::atomic<std::size_t> passed{0};
    std::mutex mutex;
    std::size_t failures = 0;
    std::vector<std::jthread> workers;
    for (unsigned i = 0; i < std::min(12U, std::max(1U, std::thread::hardware_concurrency()));
         ++i) {
      workers.emplace_back([&] {
        const Runtime own = *Runtime::create({.num_threads = 1});
        for (std::size_t at = next++; at < cases.size(); at = next++) {
          const Result<VerifyReport> report = run_verify_case(own, cases[at], device);
          if (report.has_value() && report->passed && report->cosine >= least_cosine) {
            ++passed;
            continue;
          }
          const std::lock_guard lock(mutex);
          if (++failures <= 10) {
            ADD_FAILURE() << *verify_case_line(cases[at]) << "\n"
                          << (report.has_value() ? report->first_failure
                                                 : report.status().to_string());
          }
        }
      });
    }
    workers.clear();
    EXPECT_EQ(passed, cases.size());
    std::printf("%zu of %zu cases passed\n", passed.load(), cases.size());
  }

  /// Few cases, one after the other on the test's own runtime: what a sanitizer can watch.
  void check_in_turn(std::initializer_list<const char*> lines) {
    for (const char* line : lines) {
      const Result<VerifyCase> made = parse_verify_case(line);
      ASSERT_TRUE(made.has_value()) << made.status().to_string();
      const Result<VerifyReport> report = run_verify_case(*runtime, *made, device);
      ASSERT_TRUE(report.has_value()) << report.status().to_string();
      EXPECT_TRUE(report->passed) << line << "\n" << report->first_failure;
      EXPECT_GT(report->outputs_checked, 0) << line;
    }
  }

  std::optional<Runtime> runtime;
  CudaRuntime* cuda = nullptr;
  DeviceDescriptor device;
};

/// Host tensors of one call.
struct GpuCall {
  std::vector<std::uint16_t> x;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::vector<std::uint16_t> out;
  RunArguments arguments{};
};

/// GLM-5.2 TP8: 256 experts of 6144 x 256, made of a few sets of codes with their own globals.
class GlmTp8Layer {
 public:
  static constexpr std::int64_t kHidden = 6144;
  static constexpr std::int64_t kTopK = 8;
  static constexpr std::int64_t kExperts = 256;

  explicit GlmTp8Layer(std::int64_t capacity) {
    problem.num_tokens = capacity;
    problem.num_experts = kExperts;
    problem.top_k = kTopK;
    problem.hidden_size = kHidden;
    problem.intermediate_size = 256;
    problem.recipe = Recipe::kW4a16Nvfp4;
    make_source();
  }

  GpuCall make_call(std::int64_t tokens) {
    GpuCall call;
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < tokens * kHidden; ++i) {
      call.x.push_back(device::bf16_from_f32(normal(random)));
    }
    for (std::int64_t i = 0; i < tokens * kTopK; ++i) {
      call.ids.push_back(static_cast<std::int32_t>(random() % kExperts));
      call.weights.push_back(0.125F + static_cast<float>(random() % 64) / 1024.0F);
    }
    call.out.assign(call.x.size(), 0xFFFF);
    RunArguments& made = call.arguments;
    made.x = matrix_view(static_cast<const void*>(call.x.data()), DType::kBf16, tokens, kHidden);
    made.topk_ids =
        matrix_view(static_cast<const void*>(call.ids.data()), DType::kI32, tokens, kTopK);
    made.topk_weights =
        matrix_view(static_cast<const void*>(call.weights.data()), DType::kF32, tokens, kTopK);
    made.out = matrix_view(static_cast<void*>(call.out.data()), DType::kBf16, tokens, kHidden);
    return call;
  }

  Problem problem;
  ExpertsSource source;
  std::mt19937 random{7};

 private:
  WeightMatrix matrix(std::int64_t rows, std::int64_t cols) {
    WeightMatrix view;
    view.format = Format::kNvfp4;
    view.rows = rows;
    view.cols = cols;
    view.row_stride_bytes = cols / 2;
    view.scale_row_stride_bytes = cols / 16;
    std::vector<std::uint8_t>& codes =
        storage_.emplace_back(static_cast<std::size_t>(rows * cols / 2));
    for (std::uint8_t& code : codes) {
      code = static_cast<std::uint8_t>(random());
    }
    std::vector<std::uint8_t>& scales =
        storage_.emplace_back(static_cast<std::size_t>(rows * cols / 16));
    for (std::uint8_t& scale : scales) {
      scale = static_cast<std::uint8_t>(0x30 + random() % 16);
    }
    view.codes = codes.data();
    view.scales = scales.data();
    return view;
  }

  void make_source() {
    storage_.reserve(24);
    std::array<ExpertWeights, 4> sets;
    for (ExpertWeights& set : sets) {
      set.gate = matrix(problem.intermediate_size, kHidden);
      set.up = matrix(problem.intermediate_size, kHidden);
      set.down = matrix(kHidden, problem.intermediate_size);
    }
    for (std::int64_t expert = 0; expert < kExperts; ++expert) {
      ExpertWeights weights = sets[static_cast<std::size_t>(expert % 4)];
      const float factor = 1.0F + static_cast<float>(expert) / 256.0F;
      weights.gate.global_scale = factor / 300.0F;
      weights.up.global_scale = factor / 280.0F;
      weights.down.global_scale = factor / 60.0F;
      source.experts.push_back(weights);
    }
  }

  std::vector<std::vector<std::uint8_t>> storage_;
};

}  // namespace moekit
