// SPDX-License-Identifier: Apache-2.0

// Bad calls of make_plan, prepare and bind: each is an error with code and values, and leaves a
// layer behind that still runs.

#include <cmath>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "tests/edges/layer_under_test.h"

namespace moekit::tests {
namespace {

constexpr std::string_view kLine = "recipe=w4a16_nvfp4 h=64 i=32 e=6 k=2 m=5 bias=both capacity=8";

/// kLine in another recipe.
std::string line_in(const RecipeInfo& recipe) {
  std::string line(kLine);
  const std::string_view word = "w4a16_nvfp4";
  return line.replace(line.find(word), word.size(), recipe.name);
}

struct BadBind {
  const char* name;
  std::function<void(LayerUnderTest&, RunArguments&, std::span<std::byte>&)> spoil;
  std::vector<std::string> words;  // of the message
};

const BadBind kBadBinds[] = {
    {"capacity",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>&) { a.x.shape[0] = 9; },
     {"9", "capacity", "8"}},
    {"workspace too small",
     [](LayerUnderTest&, RunArguments&, std::span<std::byte>& w) { w = w.first(w.size() - 1); },
     {"workspace", "needs"}},
    {"workspace misaligned",
     [](LayerUnderTest&, RunArguments&, std::span<std::byte>& w) {
       w = {w.data() + 16, w.size()};
     },
     {"workspace", "aligned", "256"}},
    {"x dtype",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>&) { a.x.dtype = DType::kF32; },
     {"x", "f32", "bf16"}},
    {"x null",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>&) { a.x.data = nullptr; },
     {"x", "null"}},
    {"x width",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>&) { a.x.shape[1] = 56; },
     {"x", "56", "64"}},
    {"x columns apart",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>&) { a.x.strides[1] = 2; },
     {"x", "stride"}},
    {"rows overlap",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>&) { a.out.strides[0] = 32; },
     {"out", "stride", "32"}},
    {"x unaligned",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>&) {
       a.x.data = static_cast<const std::byte*>(a.x.data) + 1;
     },
     {"x", "aligned"}},
    {"ids dtype",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>&) { a.topk_ids.dtype = DType::kU8; },
     {"topk_ids", "i32", "i64"}},
    {"ids rows",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>&) { a.topk_ids.shape[0] = 4; },
     {"topk_ids", "4", "5"}},
    {"weights width",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>&) { a.topk_weights.shape[1] = 3; },
     {"topk_weights", "3", "2"}},
    {"out overlaps x",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>&) {
       a.out.data = const_cast<void*>(a.x.data);
     },
     {"out", "overlaps", "x"}},
    {"out overlaps workspace",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>& w) { a.out.data = w.data(); },
     {"workspace", "out"}},
    {"shared not asked for",
     [](LayerUnderTest&, RunArguments& a, std::span<std::byte>&) { a.shared = a.x; },
     {"shared"}},
    {"map not asked for",
     [](LayerUnderTest& l, RunArguments& a, std::span<std::byte>&) {
       l.ids.assign(6, 0);
       a.expert_map = l.ids.data();
     },
     {"expert_map"}},
};

TEST(Refusals, BindNamesWhatDoesNotFit) {
  std::size_t refused = 0;
  for (const RecipeInfo& recipe : kRecipes) {
    LayerUnderTest layer = LayerUnderTest::make(line_in(recipe));
    const std::vector<float> expected = layer.run_verified();
    for (const BadBind& bad : kBadBinds) {
      SCOPED_TRACE(std::string(recipe.name) + ", " + bad.name);
      RunArguments arguments = layer.tensors.arguments;
      std::span<std::byte> workspace = layer.workspace.bytes();
      bad.spoil(layer, arguments, workspace);
      const Result<Binding> binding =
          moekit::bind(shared_runtime(), *layer.plan, layer.packed, workspace, arguments);
      ASSERT_FALSE(binding.has_value());
      EXPECT_EQ(binding.status().code(), StatusCode::kInvalidArgument);
      for (const std::string& word : bad.words) {
        EXPECT_NE(binding.status().message().find(word), std::string_view::npos)
            << word << " in: " << binding.status().message();
      }
      ++refused;
    }
    EXPECT_TRUE(same_bits(expected, layer.run_verified())) << recipe.name;
  }
  EXPECT_EQ(refused, 16 * kRecipes.size());
}

TEST(Refusals, ExpertMaps) {
  const std::pair<std::vector<std::int32_t>, const char*> maps[] = {
      {{0, 1, 2, 3, 4, 4, -1}, "earlier"},
      {{0, 1, 2, 3, 4, 6, -1}, "6"},
      {{0, 1, 2, 3, 4, -2, -1}, "-2"},
      {{0, 1, 2, 3, 4, -1, -1}, "5 of 6"},
  };
  for (const auto& [map, word] : maps) {
    LayerUnderTest layer =
        LayerUnderTest::make("recipe=w16a16 h=64 i=32 e=6 k=2 m=5 map=1 router_experts=7");
    layer.prepare();
    layer.tensors.arguments.expert_map = map.data();
    const Result<Binding> binding = moekit::bind(shared_runtime(),
                                                 *layer.plan,
                                                 layer.packed,
                                                 layer.workspace.bytes(),
                                                 layer.tensors.arguments);
    ASSERT_FALSE(binding.has_value()) << word;
    EXPECT_EQ(binding.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(binding.status().message().find(word), std::string_view::npos)
        << binding.status().message();
  }
}

TEST(Refusals, ExpertsOfAnotherLayout) {
  LayerUnderTest one = LayerUnderTest::make(kLine);
  LayerUnderTest two = LayerUnderTest::make("recipe=w4a16_nvfp4 h=64 i=40 e=6 k=2 m=5 bias=both");
  one.prepare();
  two.prepare();
  const Result<Binding> binding = moekit::bind(
      shared_runtime(), *one.plan, two.packed, one.workspace.bytes(), one.tensors.arguments);
  ASSERT_FALSE(binding.has_value());
  const std::string message(binding.status().message());
  EXPECT_NE(message.find((*one.plan)->layout_id), std::string::npos) << message;
  EXPECT_NE(message.find((*two.plan)->layout_id), std::string::npos) << message;
}

struct BadProblem {
  const char* name;
  std::function<void(Problem&)> spoil;
  StatusCode code;
  std::vector<std::string> words;
};

const BadProblem kBadProblems[] = {
    {"hidden not a multiple of 8",
     [](Problem& p) { p.hidden_size = 63; },
     StatusCode::kInvalidArgument,
     {"hidden_size", "63", "8"}},
    {"intermediate not a multiple of 8",
     [](Problem& p) { p.intermediate_size = 36; },
     StatusCode::kInvalidArgument,
     {"intermediate_size", "36"}},
    {"top_k above the experts",
     [](Problem& p) { p.top_k = 7; },
     StatusCode::kInvalidArgument,
     {"top_k", "7", "6"}},
    {"top_k above 32",
     [](Problem& p) { p.top_k = 33; },
     StatusCode::kUnsupported,
     {"top_k", "33", "32"}},
    {"experts above 1024",
     [](Problem& p) { p.num_experts = 1025; },
     StatusCode::kUnsupported,
     {"1025", "1024"}},
    {"limit of relu2",
     [](Problem& p) {
       p.activation.kind = ActivationKind::kRelu2;
       p.activation.limit = 7.0F;
     },
     StatusCode::kInvalidArgument,
     {"relu2", "limit"}},
    {"alpha of silu",
     [](Problem& p) { p.activation.alpha = 1.702F; },
     StatusCode::kInvalidArgument,
     {"silu", "alpha"}},
    {"beta of situ",
     [](Problem& p) {
       p.activation.kind = ActivationKind::kSitu;
       p.activation.beta = 1.0F;
     },
     StatusCode::kInvalidArgument,
     {"situ", "beta"}},
    {"limit zero",
     [](Problem& p) { p.activation.limit = 0.0F; },
     StatusCode::kInvalidArgument,
     {"limit", "0"}},
    {"io dtype",
     [](Problem& p) { p.io_dtype = DType::kE4m3; },
     StatusCode::kInvalidArgument,
     {"io_dtype", "e4m3"}},
    {"router namespace without a map",
     [](Problem& p) { p.router_experts = 9; },
     StatusCode::kInvalidArgument,
     {"router_experts", "9", "expert_map"}},
    {"routing of other sizes",
     [](Problem& p) {
       p.routing.emplace();
       p.routing->num_experts = 7;
       p.routing->top_k = 2;
     },
     StatusCode::kInvalidArgument,
     {"routing", "7", "6"}},
    {"workspace bound below one token",
     [](Problem& p) { p.max_workspace_bytes = 1; },
     StatusCode::kUnsupported,
     {"max_workspace_bytes", "1"}},
};

TEST(Refusals, PlansNameWhatIsWrong) {
  std::size_t refused = 0;
  for (const RecipeInfo& recipe : kRecipes) {
    for (const BadProblem& bad : kBadProblems) {
      SCOPED_TRACE(std::string(recipe.name) + ", " + bad.name);
      Problem problem = parse_verify_case(line_in(recipe))->problem;
      ASSERT_TRUE(make_plan(problem, host_cpu()).has_value());
      bad.spoil(problem);
      const Result<Plan> plan = make_plan(problem, host_cpu());
      ASSERT_FALSE(plan.has_value());
      EXPECT_EQ(plan.status().code(), bad.code) << plan.status().to_string();
      for (const std::string& word : bad.words) {
        EXPECT_NE(plan.status().message().find(word), std::string_view::npos)
            << word << " in: " << plan.status().message();
      }
      ++refused;
    }
  }
  EXPECT_EQ(refused, 13 * kRecipes.size());
}

TEST(Refusals, GpuPlansRefuseTablesAndExpertScales) {
  for (const auto& [routing, word] : {std::pair("routing=sqrt_softplus,hash", "a hash table"),
                                      std::pair("routing=softmax,expert_scale", "a scale per")}) {
    const Problem problem = parse_verify_case(std::string(kLine) + " " + routing)->problem;
    EXPECT_TRUE(make_plan(problem, host_cpu()).has_value());
    const Result<Plan> plan = make_plan(problem, *device_from_name("sm_90a"));
    ASSERT_FALSE(plan.has_value()) << routing;
    EXPECT_EQ(plan.status().code(), StatusCode::kUnsupported);
    for (const char* const part : {word, "sm_90a", "route() on the host"}) {
      EXPECT_NE(plan.status().message().find(part), std::string_view::npos)
          << part << " in: " << plan.status().message();
    }
  }
}

TEST(Refusals, PrepareNamesExpertProjectionAndRule) {
  struct Bad {
    std::function<void(ExpertsSource&)> spoil;
    std::vector<std::string> words;
  };

  const Bad bads[] = {
      {[](ExpertsSource& s) { s.experts.pop_back(); }, {"5", "6"}},
      {[](ExpertsSource& s) { s.experts[2].up.rows = 24; }, {"expert 2", "up", "24", "32"}},
      {[](ExpertsSource& s) { s.experts[3].down.global_scale = -1.0F; },
       {"expert 3", "down", "-1"}},
      {[](ExpertsSource& s) { s.experts[1].gate.global_scale = HUGE_VALF; }, {"expert 1", "gate"}},
      {[](ExpertsSource& s) { s.experts[4].gate.format = Format::kMxfp4; },
       {"expert 4", "gate", "mxfp4", "nvfp4"}},
      {[](ExpertsSource& s) { s.experts[0].up_bias.data = nullptr; }, {"expert 0", "up bias"}},
      {[](ExpertsSource& s) { s.experts[5].down.codes = nullptr; }, {"expert 5", "down", "null"}},
  };
  LayerUnderTest layer = LayerUnderTest::make(kLine);
  layer.prepare();
  int refused = 0;
  for (const Bad& bad : bads) {
    ExpertsSource source = layer.weights.source;
    bad.spoil(source);
    const Result<PackedExperts> packed = moekit::prepare(*layer.plan, source);
    ASSERT_FALSE(packed.has_value()) << bad.words[0];
    EXPECT_EQ(packed.status().code(), StatusCode::kInvalidArgument);
    for (const std::string& word : bad.words) {
      EXPECT_NE(packed.status().message().find(word), std::string_view::npos)
          << word << " in: " << packed.status().message();
    }
    ++refused;
  }
  EXPECT_EQ(refused, 7);
}

TEST(Refusals, PrepareDestinations) {
  LayerUnderTest layer = LayerUnderTest::make(kLine);
  layer.prepare();
  verify::GuardedBuffer memory((*layer.plan)->prepare.packed_bytes);
  PrepareOptions options;
  options.destination = memory.bytes().first(memory.bytes().size() - 1);
  EXPECT_EQ(moekit::prepare(*layer.plan, layer.weights.source, options).status().code(),
            StatusCode::kInvalidArgument);
  options.destination = {memory.as<std::byte>() + 64, memory.bytes().size()};
  EXPECT_EQ(moekit::prepare(*layer.plan, layer.weights.source, options).status().code(),
            StatusCode::kInvalidArgument);
  options.destination = memory.bytes();
  int calls = 0;
  options.progress = [&calls](const PrepareProgress& progress) {
    ++calls;
    EXPECT_EQ(progress.num_experts, 6);
    return progress.experts_done < 3;
  };
  const Status cancelled = moekit::prepare(*layer.plan, layer.weights.source, options).status();
  EXPECT_EQ(cancelled.code(), StatusCode::kFailedPrecondition) << cancelled.to_string();
  EXPECT_EQ(calls, 3);
  options.progress = {};
  const Result<PackedExperts> packed = moekit::prepare(*layer.plan, layer.weights.source, options);
  ASSERT_TRUE(packed.has_value());
  EXPECT_EQ(packed->bytes().data(), memory.bytes().data());
  EXPECT_TRUE(memory.intact());
}

}  // namespace
}  // namespace moekit::tests
