// SPDX-License-Identifier: Apache-2.0

// Index products past 2^31 and layers past 4 GiB. Memory is reserved sparsely: only the pages that
// a call touches become real, so these tests need address space and, for the packed layer, 5 GiB.

#include <cmath>
#include <cstring>
#include <deque>
#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "device/numerics/bf16.h"
#include "tests/edges/layer_under_test.h"

namespace moekit::tests {
namespace {

// Zero pages without reservation.
class SparseMapping {
 public:
  explicit SparseMapping(std::int64_t bytes)
      : size_(static_cast<std::size_t>(bytes)),
        base_(mmap(nullptr,
                   size_,
                   PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1,
                   0)) {
    EXPECT_NE(base_, MAP_FAILED);
  }

  SparseMapping(const SparseMapping&) = delete;
  SparseMapping& operator=(const SparseMapping&) = delete;

  ~SparseMapping() { munmap(base_, size_); }

  template <typename T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(base_);
  }

  [[nodiscard]] std::span<std::byte> bytes() const { return {as<std::byte>(), size_}; }

 private:
  std::size_t size_;
  void* base_;
};

std::int64_t available_memory() {
  return static_cast<std::int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

// Nine tokens whose rows stand 2^29 elements apart: the last row of x, ids, weights, shared and out
// begins at element 2^32.
void rows_past_two_to_the_thirty_two(const std::string& line) {
  constexpr std::int64_t kStride = std::int64_t{1} << 29;
  LayerUnderTest layer = LayerUnderTest::make(line);
  const std::vector<float> expected = layer.run_verified();
  RunArguments& arguments = layer.tensors.arguments;
  std::deque<SparseMapping> mappings;
  for (TensorView* view :
       {&arguments.x, &arguments.topk_ids, &arguments.topk_weights, &arguments.shared}) {
    const std::int64_t width = dtype_bits(view->dtype) / 8;
    const SparseMapping& mapping = mappings.emplace_back((8 * kStride + 4096) * width);
    for (std::int64_t t = 0; t < 9; ++t) {
      std::memcpy(mapping.as<std::byte>() + t * kStride * width,
                  static_cast<const std::byte*>(view->data) + t * view->strides[0] * width,
                  static_cast<std::size_t>(view->shape[1] * width));
    }
    view->data = mapping.as<std::byte>();
    view->strides[0] = kStride;
  }
  const SparseMapping& out = mappings.emplace_back((8 * kStride + 4096) * 2);
  arguments.out.data = out.as<std::byte>();
  arguments.out.strides[0] = kStride;
  EXPECT_TRUE(same_bits(expected, layer.run_verified())) << line;
}

TEST(LargeIndex, RowsOfTensorsPastTwoToTheThirtyTwo) {
  std::size_t layers = 0;
  for (const RecipeInfo& info : kRecipes) {
    for (const char* const family : {"direct", "grouped"}) {
      rows_past_two_to_the_thirty_two(
          "h=64 i=32 e=6 k=2 m=9 shared=io recipe=" + std::string(info.name) + " family=" + family);
      ++layers;
    }
  }
  EXPECT_EQ(layers, 2 * kRecipes.size());
}

// 2^20 tokens of 32 slots with I = 72: the last route's intermediate begins past element 2^31, the
// slice is 4.5 GiB of which one page is written. The map sends every id but one away.
TEST(LargeIndex, IntermediatePastTwoToTheThirtyOne) {
  constexpr std::int64_t kTokens = std::int64_t{1} << 20;
  constexpr std::int64_t kTopK = 32;
  LayerUnderTest layer = LayerUnderTest::make(
      "recipe=w4a16_nvfp4 h=8 i=72 e=1 k=32 m=1 map=1 router_experts=32 capacity=1048576");
  const SparseMapping x(kTokens * 8 * 2);
  const SparseMapping ids(kTokens * kTopK * 4);  // router id 0 everywhere: not here
  const SparseMapping weights(kTokens * kTopK * 4);
  const SparseMapping out(kTokens * 8 * 2);
  std::vector<std::int32_t> map(32, -1);
  map[5] = 0;
  RunArguments& arguments = layer.tensors.arguments;
  const auto point = [](TensorView& view, const SparseMapping& mapping) {
    view.data = mapping.as<std::byte>();
    view.shape[0] = kTokens;
  };
  for (std::int64_t n = 0; n < 8; ++n) {
    x.as<std::uint16_t>()[(kTokens - 1) * 8 + n] =
        device::bf16_from_f32(1.0F + static_cast<float>(n));
  }
  ids.as<std::int32_t>()[kTokens * kTopK - 1] = 5;
  weights.as<float>()[kTokens * kTopK - 1] = 1.5F;
  point(arguments.x, x);
  point(arguments.topk_ids, ids);
  point(arguments.topk_weights, weights);
  arguments.expert_map = map.data();
  arguments.out.data = out.as<std::byte>();
  arguments.out.shape[0] = kTokens;
  layer.verify_case.num_tokens = kTokens;
  const Plan plan = make_plan(layer.problem(), host_cpu()).value();
  const Result<PackedExperts> packed = moekit::prepare(plan, layer.weights.prepared);
  ASSERT_TRUE(packed.has_value()) << packed.status().to_string();
  std::int64_t intermediate_elems = 0;
  for (const WorkspaceSlice& slice : plan->workspace) {
    intermediate_elems = slice.name == "intermediate" ? slice.bytes / 2 : intermediate_elems;
  }
  ASSERT_GT(intermediate_elems, std::int64_t{1} << 31);
  const SparseMapping workspace(plan.workspace_bytes());
  const Result<Binding> binding =
      moekit::bind(shared_runtime(), plan, *packed, workspace.bytes(), arguments);
  ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
  ASSERT_TRUE(moekit::run(shared_runtime(), *binding).ok());
  const Result<VerifyReport> report =
      verify_call(plan, layer.weights.source, arguments, workspace.bytes());
  ASSERT_TRUE(report.has_value()) << report.status().to_string();
  EXPECT_TRUE(report->passed) << report->first_failure;
  EXPECT_EQ(report->routes_checked, 1);
  EXPECT_EQ(report->intermediates_checked, 72);
  float magnitude = 0.0F;
  for (std::int64_t n = 0; n < 8; ++n) {
    magnitude += std::fabs(device::bf16_to_f32(out.as<std::uint16_t>()[(kTokens - 1) * 8 + n]));
  }
  EXPECT_GT(magnitude, 0.0F);
}

// Eight bf16 experts of H 8192 and I 11264 are 4.1 GiB. Sparse zeros, but for the last rows of the
// last expert, whose elements lie past 2^31.
TEST(LargeIndex, LayerAboveFourGiB) {
  constexpr std::int64_t kHidden = 8192;
  constexpr std::int64_t kInner = 11264;
  constexpr std::int64_t kExperts = 8;
  constexpr std::int64_t kMatrix = kHidden * kInner;
  static_assert(kExperts * 3 * kMatrix * 2 > (std::int64_t{4} << 30));
  if (available_memory() < (std::int64_t{6} << 30)) {
    GTEST_SKIP() << "needs 6 GiB of free memory, has " << (available_memory() >> 20) << " MiB";
  }
  LayerUnderTest layer;
  layer.verify_case = parse_verify_case("recipe=w16a16 h=8192 i=11264 e=8 k=1 m=2 io=f32").value();
  layer.tensors = verify::make_tensors(layer.verify_case, {});
  const SparseMapping gate_up(kExperts * 2 * kMatrix * 2);
  const SparseMapping down(kExperts * kMatrix * 2);
  verify::Random random(9);
  const auto plant = [&random](std::uint16_t* row, std::int64_t cols) {
    for (std::int64_t k = 0; k < cols; ++k) {
      row[k] = device::bf16_from_f32(random.normal() * 0.03F);
    }
  };
  auto* last_gate = gate_up.as<std::uint16_t>() + (kExperts * 2 - 2) * kMatrix;
  auto* last_up = last_gate + kMatrix;
  auto* last_down = down.as<std::uint16_t>() + (kExperts - 1) * kMatrix;
  for (const std::int64_t row : {kInner - 1, kInner - 20}) {
    plant(last_gate + row * kHidden, kHidden);
    plant(last_up + row * kHidden, kHidden);
  }
  for (const std::int64_t row : {kHidden - 1, kHidden - 50, std::int64_t{0}}) {
    plant(last_down + row * kInner, kInner);
  }
  FusedExperts fused;
  fused.gate_up_codes = gate_up.as<std::byte>();
  fused.down_codes = down.as<std::byte>();
  layer.weights.source = split_fused(layer.problem(), fused).value();
  layer.weights.prepared = layer.weights.source;
  layer.set_ids({7, 7}, {1.0F, 0.5F});
  const std::vector<float> out = layer.run_verified();
  EXPECT_GT(static_cast<std::int64_t>(layer.packed.bytes().size()), std::int64_t{4} << 30);
  for (const std::int64_t column : {kHidden - 1, kHidden - 50, std::int64_t{0}}) {
    EXPECT_NE(out[static_cast<std::size_t>(column)], 0.0F) << column;
  }
  EXPECT_EQ(out[1], 0.0F);
}

}  // namespace
}  // namespace moekit::tests
