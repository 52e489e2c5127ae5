// SPDX-License-Identifier: Apache-2.0

// Every way in which bind and prepare can be given something wrong, and that nothing is allocated
// where nothing may be.

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <string>

#include <gtest/gtest.h>

#include "runtime/test_layer.h"

namespace {
std::atomic<std::int64_t> num_allocations{0};
}  // namespace

// glibc's, declared by a header of its own.
extern "C" std::size_t malloc_usable_size(void* memory) noexcept;

// The pair below is malloc and free on both sides; the compiler sees only one of them inlined.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

void* operator new(std::size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (moekit::HeapCount::allowed.fetch_sub(1, std::memory_order_relaxed) <= 0) {
    throw std::bad_alloc();
  }
  if (void* memory = std::malloc(size == 0 ? 1 : size); memory != nullptr) {
    using moekit::HeapCount;
    const auto bytes = static_cast<std::int64_t>(::malloc_usable_size(memory));
    const std::int64_t live = HeapCount::live.fetch_add(bytes) + bytes;
    std::int64_t most = HeapCount::most.load();
    while (live > most && !HeapCount::most.compare_exchange_weak(most, live)) {
    }
    return memory;
  }
  throw std::bad_alloc();
}

// Sorting asks for its buffer so. The library's own form calls the one above; a sanitizer's does
// not.
void* operator new(std::size_t size, const std::nothrow_t& /*no_throw*/) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void operator delete(void* memory) noexcept {
  moekit::HeapCount::live.fetch_sub(static_cast<std::int64_t>(::malloc_usable_size(memory)));
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

namespace moekit {
namespace {

// Everything one call needs, ready to be spoiled.
struct Call {
  explicit Call(const Problem& problem = small_problem(), std::int64_t num_tokens = 3)
      : layer(problem),
        plan(*make_plan(problem, host_cpu())),
        experts(*prepare(plan, layer.source)),
        workspace(plan.workspace_bytes()),
        x(static_cast<std::size_t>(num_tokens * problem.hidden_size), 0x3F80),
        ids(static_cast<std::size_t>(num_tokens * problem.top_k), 1),
        weights(static_cast<std::size_t>(num_tokens * problem.top_k), 0.5F),
        out(static_cast<std::size_t>(num_tokens * problem.hidden_size), 0x7FC1) {
    arguments.x =
        matrix_view(std::as_const(x).data(), DType::kBf16, num_tokens, problem.hidden_size);
    arguments.topk_ids =
        matrix_view(std::as_const(ids).data(), DType::kI32, num_tokens, problem.top_k);
    arguments.topk_weights =
        matrix_view(std::as_const(weights).data(), DType::kF32, num_tokens, problem.top_k);
    arguments.out = matrix_view(out.data(), DType::kBf16, num_tokens, problem.hidden_size);
  }

  Result<Binding> bound() {
    return moekit::bind(runtime, plan, experts, workspace_span, arguments);
  }

  Runtime runtime = *Runtime::create({2, {}});
  TestLayer layer;
  Plan plan;
  PackedExperts experts;
  AlignedBytes workspace;
  std::vector<std::uint16_t> x;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::vector<std::uint16_t> out;
  RunArguments arguments{};
  std::span<std::byte> workspace_span = workspace.span();
};

TEST(Bind, GoodCallRuns) {
  Call call;
  const Result<Binding> binding = call.bound();
  ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
  ASSERT_TRUE(run(call.runtime, *binding).ok());
  for (const std::uint16_t value : call.out) {
    EXPECT_NE(value, 0x7FC1);  // every element was written
  }
}

TEST(Bind, AMovedFromRuntimeIsAnError) {
  Call call;
  const Binding binding = *call.bound();
  const Runtime other = std::move(call.runtime);
  EXPECT_EQ(run(call.runtime, binding).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(call.bound().status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(run(other, binding).ok());
}

// Ignored, the caller would take the output for ordered behind the work on that stream.
TEST(Bind, AStreamForACpuPlanIsRefused) {
  Call call;
  const Binding binding = *call.bound();
  const Status refused = run(call.runtime, binding, {reinterpret_cast<void*>(1792)});
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "stream 1792 is given, but a plan for cpu runs on none");
  EXPECT_EQ(call.out.front(), 0x7FC1);  // nothing ran
  EXPECT_TRUE(run(call.runtime, binding, {}).ok());
}

// The first run of a process too.
TEST(Bind, AllocatesNothingAndNeitherDoesRun) {
  Call call;
  const Binding first = *call.bound();
  const std::int64_t before = num_allocations.load();
  ASSERT_TRUE(run(call.runtime, first).ok());
  for (int i = 0; i < 10; ++i) {
    const Result<Binding> binding =
        moekit::bind(call.runtime, call.plan, call.experts, call.workspace_span, call.arguments);
    ASSERT_TRUE(run(call.runtime, *binding).ok());
  }
  EXPECT_EQ(num_allocations.load(), before);
}

TEST(Bind, NoTokensTouchesNothing) {
  Call call;
  call.arguments.x = matrix_view(static_cast<const void*>(nullptr), DType::kBf16, 0, 48);
  call.arguments.topk_ids = matrix_view(static_cast<const void*>(nullptr), DType::kI64, 0, 2);
  call.arguments.topk_weights = matrix_view(static_cast<const void*>(nullptr), DType::kF32, 0, 2);
  call.arguments.out = matrix_view(static_cast<void*>(nullptr), DType::kBf16, 0, 48);
  const Result<Binding> binding = call.bound();
  ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
  EXPECT_TRUE(run(call.runtime, *binding).ok());
}

template <typename AnyCall>
struct Spoiled {
  std::string what;
  std::function<void(AnyCall&)> spoil;
  std::string expected_text;
};

template <typename AnyCall>
void expect_each_is_named(const std::vector<Spoiled<AnyCall>>& spoiled) {
  for (const Spoiled<AnyCall>& bad : spoiled) {
    AnyCall call;
    bad.spoil(call);
    const Result<Binding> binding = call.bound();
    ASSERT_FALSE(binding.has_value()) << bad.what;
    EXPECT_EQ(binding.status().code(), StatusCode::kInvalidArgument) << bad.what;
    EXPECT_NE(binding.status().message().find(bad.expected_text), std::string_view::npos)
        << bad.what << ": " << binding.status().to_string();
  }
}

std::array<std::int32_t, 4> spoiled_map{0, 1, 2, 3};

const std::vector<Spoiled<Call>> kBadCalls = {
    {"hidden",
     [](Call& c) { c.arguments.x.shape[1] = 40; },
     "x has shape [3, 40], expected [3, 48]"},
    {"rank", [](Call& c) { c.arguments.x.rank = 1; }, "tokens"},
    {"capacity",
     [](Call& c) { c.arguments.x.shape[0] = 6; },
     "x has 6 tokens, the plan's capacity is 5"},
    {"x dtype",
     [](Call& c) { c.arguments.x.dtype = DType::kF16; },
     "x has dtype f16, expected bf16"},
    {"x null", [](Call& c) { c.arguments.x.data = nullptr; }, "x is null"},
    {"x unaligned",
     [](Call& c) { c.arguments.x.data = reinterpret_cast<const std::byte*>(c.x.data()) + 1; },
     "x is not aligned to 2 bytes"},
    {"column stride", [](Call& c) { c.arguments.x.strides[1] = 2; }, "x has strides [48, 2]"},
    {"rows too near", [](Call& c) { c.arguments.x.strides[0] = 40; }, "x has strides [40, 1]"},
    {"ids dtype",
     [](Call& c) { c.arguments.topk_ids.dtype = DType::kF32; },
     "topk_ids have dtype f32, expected i32 or i64"},
    {"ids shape",
     [](Call& c) { c.arguments.topk_ids.shape[1] = 1; },
     "topk_ids has shape [3, 1], expected [3, 2]"},
    {"weights dtype",
     [](Call& c) { c.arguments.topk_weights.dtype = DType::kBf16; },
     "topk_weights has dtype bf16, expected f32"},
    {"out dtype", [](Call& c) { c.arguments.out.dtype = DType::kF32; }, "out has dtype f32"},
    {"out rows", [](Call& c) { c.arguments.out.shape[0] = 2; }, "out has shape [2, 48]"},
    {"out is x", [](Call& c) { c.arguments.out.data = c.x.data(); }, "out overlaps x"},
    {"out in weights",
     [](Call& c) { c.arguments.out.data = c.weights.data(); },
     "out overlaps topk_weights"},
    {"out in workspace",
     [](Call& c) { c.arguments.out.data = c.workspace_span.data(); },
     "out overlaps workspace"},
    {"out in experts",
     [](Call& c) { c.arguments.out.data = const_cast<std::byte*>(c.experts.bytes().data()); },
     "out overlaps the packed experts"},
    {"experts in workspace",
     [](Call& c) {
       static AlignedBytes memory(1 << 16);
       c.experts = *prepare(c.plan, c.layer.source, {.destination = memory.span()});
       c.workspace_span = memory.span();
     },
     "workspace overlaps the packed experts"},
    {"rows too far",
     [](Call& c) { c.arguments.x.strides[0] = std::int64_t{1} << 61; },
     "x has strides [2305843009213693952, 1]"},
    {"x in workspace",
     [](Call& c) { c.arguments.x.data = c.workspace_span.data(); },
     "workspace overlaps x"},
    {"workspace short",
     [](Call& c) { c.workspace_span = c.workspace_span.first(c.workspace_span.size() - 1); },
     "the plan needs"},
    {"workspace null",
     [](Call& c) {
       c.workspace_span = {static_cast<std::byte*>(nullptr), c.workspace_span.size()};
     },
     "workspace is null"},
    {"logits unasked",
     [](Call& c) {
       c.arguments.router_logits = matrix_view(std::as_const(c.weights).data(), DType::kF32, 3, 2);
     },
     "router_logits or correction_bias given"},
    {"ids missing", [](Call& c) { c.arguments.topk_ids = {}; }, "topk_ids are missing"},
    {"workspace unaligned",
     [](Call& c) {
       c.workspace_span = {c.workspace_span.data() + 16, c.workspace_span.size()};
     },
     "workspace is not aligned to 256"},
    {"map unasked",
     [](Call& c) { c.arguments.expert_map = spoiled_map.data(); },
     "the problem names none"},
    {"shared unasked",
     [](Call& c) {
       c.arguments.shared = matrix_view(std::as_const(c.x).data(), DType::kBf16, 3, 48);
     },
     "shared given"},
    {"no experts", [](Call& c) { c.experts = PackedExperts(); }, "experts were not prepared"},
    {"other layout",
     [](Call& c) {
       Problem other = small_problem();
       other.hidden_size = 56;
       const TestLayer layer(other);
       c.experts = *prepare(*make_plan(other, host_cpu()), layer.source);
     },
     "h56"},
    {"other expert count",
     [](Call& c) {
       Problem other = small_problem();
       other.num_experts = 5;
       const TestLayer layer(other);
       c.experts = *prepare(*make_plan(other, host_cpu()), layer.source);
     },
     "experts hold 5 experts, the plan needs 4"},
};

TEST(Bind, EveryMistakeIsNamedWithItsValues) {
  ASSERT_GE(kBadCalls.size(), 27U);
  expect_each_is_named(kBadCalls);
}

// A layer that routes by token id with a scale per expert, ready to be spoiled.
struct RoutedCall : Call {
  static Problem problem() {
    Problem problem = small_problem();
    problem.routing.emplace();
    problem.routing->scoring = Scoring::kSqrtSoftplus;
    problem.routing->num_experts = problem.num_experts;
    problem.routing->top_k = problem.top_k;
    problem.routing->expert_scale = true;
    problem.routing->hash_table = true;
    return problem;
  }

  RoutedCall() : Call(problem()) {
    arguments.topk_ids = {};
    arguments.topk_weights = {};
    arguments.router_logits = matrix_view(std::as_const(logits).data(), DType::kF32, 3, 4);
    arguments.router_expert_scale = scales.data();
    arguments.router_hash_table = {table.data(), 2, {token_ids.data(), DType::kI64, 1, {3}, {1}}};
  }

  std::array<float, 12> logits{};
  std::array<float, 4> scales{1.0F, 2.0F, 3.0F, 4.0F};
  std::array<std::int32_t, 4> table{0, 1, 2, 3};
  std::array<std::int64_t, 6> token_ids{0, 1, 0, 1, 1, 1};
};

const std::vector<Spoiled<RoutedCall>> kBadRoutedCalls = {
    {"logits null", [](RoutedCall& c) { c.arguments.router_logits.data = nullptr; }, "is null"},
    {"logits dtype",
     [](RoutedCall& c) { c.arguments.router_logits.dtype = DType::kE4m3; },
     "router_logits have dtype e4m3"},
    {"logits shape",
     [](RoutedCall& c) { c.arguments.router_logits.shape[1] = 3; },
     "router_logits has shape [3, 3], expected [3, 4]"},
    {"no scale",
     [](RoutedCall& c) { c.arguments.router_expert_scale = nullptr; },
     "router_expert_scale is null"},
    {"bias unasked",
     [](RoutedCall& c) { c.arguments.correction_bias = c.scales.data(); },
     "correction_bias given, but the routing asks for none"},
    {"no table",
     [](RoutedCall& c) { c.arguments.router_hash_table.expert_ids = nullptr; },
     "router_hash_table is null"},
    {"table without rows",
     [](RoutedCall& c) { c.arguments.router_hash_table.num_rows = 0; },
     "router_hash_table has 0 rows"},
    {"ids dtype",
     [](RoutedCall& c) { c.arguments.router_hash_table.token_ids.dtype = DType::kF32; },
     "token_ids of f32"},
    {"ids rank",
     [](RoutedCall& c) { c.arguments.router_hash_table.token_ids.rank = 2; },
     "with rank 2"},
    {"ids count",
     [](RoutedCall& c) { c.arguments.router_hash_table.token_ids.shape[0] = 2; },
     "and 2 elements, expected a table and i32 or i64 [3]"},
    {"ids null",
     [](RoutedCall& c) { c.arguments.router_hash_table.token_ids.data = nullptr; },
     "token_ids is null"},
    {"ids unaligned",
     [](RoutedCall& c) {
       c.arguments.router_hash_table.token_ids.data =
           reinterpret_cast<const std::byte*>(c.token_ids.data()) + 4;
     },
     "token_ids is not aligned to 8 bytes"},
    {"ids backwards",
     [](RoutedCall& c) { c.arguments.router_hash_table.token_ids.strides[0] = -1; },
     "token_ids has strides [-1, 1]"},
    {"out in scales",
     [](RoutedCall& c) {
       c.arguments.router_expert_scale = reinterpret_cast<const float*>(c.out.data());
     },
     "out overlaps router_expert_scale"},
    {"out in table",
     [](RoutedCall& c) {
       c.arguments.router_hash_table.expert_ids =
           reinterpret_cast<const std::int32_t*>(c.out.data());
     },
     "out overlaps router_hash_table"},
    {"table without end",
     [](RoutedCall& c) { c.arguments.router_hash_table.num_rows = std::int64_t{1} << 62; },
     "router_hash_table has 4611686018427387904 rows"},
    {"out in ids",
     [](RoutedCall& c) { c.arguments.router_hash_table.token_ids.data = c.out.data(); },
     "out overlaps token_ids"},
};

TEST(Bind, EveryMistakeOfARoutedCallIsNamed) {
  ASSERT_GE(kBadRoutedCalls.size(), 17U);
  expect_each_is_named(kBadRoutedCalls);
  // Token ids may stand apart; the call itself is good.
  RoutedCall good;
  const Result<Binding> binding = good.bound();
  ASSERT_TRUE(binding.has_value()) << binding.status().to_string();
  EXPECT_TRUE(run(good.runtime, *binding).ok());
  RoutedCall strided;
  strided.token_ids = {0, 7, 1, 7, 0, 7};
  strided.arguments.router_hash_table.token_ids.strides[0] = 2;
  ASSERT_TRUE(run(strided.runtime, *strided.bound()).ok());
  EXPECT_EQ(strided.out, good.out);
  Call unrouted;
  unrouted.arguments.router_expert_scale = good.scales.data();
  EXPECT_NE(unrouted.bound().status().message().find("no routing"), std::string_view::npos);
}

TEST(Bind, RefusesAnInstructionSetThatThisMachineLacks) {
  const Isa host = host_cpu().isa;
  Call call;
  int refused = 0;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    DeviceDescriptor device = host_cpu();
    device.isa = isa;
    call.plan = *make_plan(small_problem(), device);  // planning needs no such machine
    AlignedBytes workspace(call.plan.workspace_bytes());
    call.workspace_span = workspace.span();
    const Result<Binding> binding = call.bound();
    EXPECT_EQ(binding.has_value(), isa <= host) << binding.status().to_string();
    if (!binding.has_value()) {
      EXPECT_EQ(binding.status().code(), StatusCode::kUnsupported);
      EXPECT_NE(binding.status().message().find(isa_name(host)), std::string_view::npos);
      ++refused;
    }
  }
  EXPECT_EQ(refused, static_cast<int>(Isa::kAmx) - static_cast<int>(host));
}

TEST(PlanJson, AnEditedPlanIsRefused) {
  const Plan plan = *make_plan(small_problem(), host_cpu());
  const std::string json = *plan.to_json(1);
  ASSERT_TRUE(Plan::from_json(json).has_value());
  EXPECT_TRUE(*Plan::from_json(json) == plan);
  std::string edited = json;
  const std::string key = "\"workspace_bytes\": ";
  const std::size_t at = edited.find(key) + key.size();
  edited.replace(at, edited.find(',', at) - at, "256");
  const Result<Plan> read = Plan::from_json(edited);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(read.status().message().find("differs from what this library plans"),
            std::string_view::npos);
}

TEST(Bind, ExpertMapMustBeABijectionOntoTheLocals) {
  Problem problem = small_problem();
  problem.expert_map = true;
  problem.router_experts = 6;
  const std::pair<std::array<std::int32_t, 6>, std::string> cases[] = {
      {{0, 1, 2, 3, -1, -1}, ""},
      {{-1, 3, 2, -1, 1, 0}, ""},
      {{0, 1, 2, 2, -1, -1}, "expert_map[3] is 2, a local id that an earlier entry has"},
      {{0, 1, 2, 4, -1, -1}, "expert_map[3] is 4, expected -1 or a local id below 4"},
      {{0, 1, 2, -2, 3, -1}, "expert_map[3] is -2"},
      {{0, 1, 2, -1, -1, -1}, "expert_map reaches 3 of 4 local experts"},
  };
  Call call(problem);
  for (const auto& [map, expected] : cases) {
    call.arguments.expert_map = map.data();
    EXPECT_EQ(call.bound().has_value(), expected.empty()) << expected;
    EXPECT_NE(call.bound().status().message().find(expected), std::string_view::npos) << expected;
  }
  call.arguments.expert_map = reinterpret_cast<const std::int32_t*>(call.out.data());
  std::copy_n(cases[0].first.data(), 6, reinterpret_cast<std::int32_t*>(call.out.data()));
  EXPECT_EQ(call.bound().status().message(), "out overlaps expert_map");
  call.arguments.expert_map = nullptr;
  EXPECT_EQ(call.bound().status().message(), "expert_map is null, but the problem names one");
}

struct BadSource {
  std::string what;
  std::function<void(ExpertsSource&)> spoil;
  std::string expected_text;
};

TEST(Prepare, EveryMistakeIsNamedWithExpertAndProjection) {
  static std::array<float, 64> bias{};
  const std::vector<BadSource> cases = {
      {"count",
       [](ExpertsSource& s) { s.experts.pop_back(); },
       "source has 3 experts, the plan needs 4"},
      {"format",
       [](ExpertsSource& s) { s.experts[2].up.format = Format::kMxfp4; },
       "expert 2: up is mxfp4, recipe w4a16_nvfp4 needs nvfp4"},
      {"shape",
       [](ExpertsSource& s) { s.experts[1].down.rows = 40; },
       "expert 1: down has shape [40, 40], expected [48, 40]"},
      {"null", [](ExpertsSource& s) { s.experts[0].gate.codes = nullptr; }, "expert 0: gate"},
      {"nan global",
       [](ExpertsSource& s) {
         s.experts[3].down.global_scale = std::numeric_limits<float>::quiet_NaN();
       },
       "expert 3: down: global scale nan"},
      {"bias unasked",
       [](ExpertsSource& s) {
         s.experts[1].up_bias = {bias.data(), DType::kF32, 40, 1};
       },
       "expert 1: up bias given"},
  };
  const TestLayer layer(small_problem());
  const Plan plan = *make_plan(small_problem(), host_cpu());
  for (const BadSource& bad : cases) {
    ExpertsSource source = layer.source;
    bad.spoil(source);
    const Result<PackedExperts> packed = prepare(plan, source);
    ASSERT_FALSE(packed.has_value()) << bad.what;
    EXPECT_EQ(packed.status().code(), StatusCode::kInvalidArgument) << bad.what;
    EXPECT_NE(packed.status().message().find(bad.expected_text), std::string_view::npos)
        << bad.what << ": " << packed.status().to_string();
  }
}

TEST(Prepare, BadScaleIsNamedToItsGroup) {
  TestLayer layer(small_problem());
  const WeightMatrix& down = layer.source.experts[2].down;
  auto* scales = static_cast<std::uint8_t*>(const_cast<void*>(down.scales));
  scales[5 * down.scale_row_stride_bytes + 1] = 0x7F;
  const Result<PackedExperts> packed =
      prepare(*make_plan(small_problem(), host_cpu()), layer.source);
  ASSERT_FALSE(packed.has_value());
  for (const char* part : {"expert 2", "down", "row 5", "group 1", "NaN"}) {
    EXPECT_NE(packed.status().message().find(part), std::string_view::npos)
        << part << ": " << packed.status().to_string();
  }
}

TEST(Prepare, DestinationProgressAndCancellation) {
  const TestLayer layer(small_problem());
  const Plan plan = *make_plan(small_problem(), host_cpu());
  const AlignedBytes room(plan->prepare.packed_bytes, std::byte{0xA5});
  PrepareOptions options;
  options.destination = room.span();
  std::int64_t calls = 0;
  options.progress = [&](const PrepareProgress& progress) {
    EXPECT_EQ(progress.experts_done, ++calls);
    EXPECT_EQ(progress.num_experts, 4);
    return true;
  };
  const Result<PackedExperts> packed = prepare(plan, layer.source, options);
  ASSERT_TRUE(packed.has_value()) << packed.status().to_string();
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(packed->bytes().data(), room.span().data());
  // Every byte is defined by the weights alone, whatever the destination held.
  const PackedExperts owned = *prepare(plan, layer.source);
  EXPECT_TRUE(std::equal(owned.bytes().begin(), owned.bytes().end(), packed->bytes().begin()));

  options.progress = [](const PrepareProgress& progress) { return progress.experts_done < 2; };
  const Result<PackedExperts> cancelled = prepare(plan, layer.source, options);
  ASSERT_FALSE(cancelled.has_value());
  EXPECT_EQ(cancelled.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cancelled.status().message(), "prepare cancelled after 2 of 4 experts");

  options.destination = room.span().first(room.span().size() - 1);
  EXPECT_NE(prepare(plan, layer.source, options).status().message().find("packed experts need"),
            std::string_view::npos);
  options.destination = {room.span().data() + 8, room.span().size()};
  EXPECT_EQ(prepare(plan, layer.source, options).status().message(),
            "destination is not aligned to 256 bytes");
}

TEST(Prepare, UnpackIsItsInverse) {
  int matrices = 0;
  for (const Recipe recipe : {Recipe::kW4a16Nvfp4, Recipe::kW4a16Mxfp4, Recipe::kW16a16}) {
    Problem problem = small_problem();
    problem.recipe = recipe;
    problem.activation.kind = ActivationKind::kSilu;
    const TestLayer layer(problem);
    const PackedExperts packed = *prepare(*make_plan(problem, host_cpu()), layer.source);
    for (std::int64_t e = 0; e < problem.num_experts; ++e) {
      std::vector<std::byte> storage;
      const Result<ExpertWeights> back = unpack_expert(packed, e, storage);
      ASSERT_TRUE(back.has_value()) << back.status().to_string();
      const ExpertWeights& want = layer.source.experts[static_cast<std::size_t>(e)];
      for (const auto& [left, right] : {std::pair(&want.gate, &back->gate),
                                        std::pair(&want.up, &back->up),
                                        std::pair(&want.down, &back->down)}) {
        EXPECT_EQ(left->global_scale, right->global_scale);
        const auto code_bytes = static_cast<std::size_t>(left->rows * left->row_stride_bytes);
        const auto scale_bytes =
            static_cast<std::size_t>(left->rows * left->scale_row_stride_bytes);
        EXPECT_EQ(std::memcmp(left->codes, right->codes, code_bytes), 0);
        EXPECT_TRUE(scale_bytes == 0 || std::memcmp(left->scales, right->scales, scale_bytes) == 0);
        ++matrices;
      }
    }
    EXPECT_FALSE(unpack_expert(packed, 4, *std::make_unique<std::vector<std::byte>>()).has_value());
  }
  EXPECT_EQ(matrices, 36);
}

TEST(Prepare, ZeroGlobalWithNanScalesIsADormantExpert) {
  TestLayer layer(small_problem());
  WeightMatrix& gate = layer.source.experts[1].gate;
  gate.global_scale = 0.0F;
  std::memset(const_cast<void*>(gate.scales),
              0xFF,
              static_cast<std::size_t>(gate.rows * gate.scale_row_stride_bytes));
  Call call;
  call.experts = *prepare(call.plan, layer.source);
  ASSERT_TRUE(run(call.runtime, *call.bound()).ok());
  // Every route goes to expert 1, whose gate is 0: silu(0) * up = 0.
  for (const std::uint16_t value : call.out) {
    EXPECT_EQ(value & 0x7FFF, 0);
  }
}

TEST(SplitFused, GlobalsAreNeverGuessed) {
  const Problem problem = small_problem();
  std::vector<std::byte> bytes(1 << 16);
  FusedExperts fused;
  fused.format = Format::kNvfp4;
  fused.gate_up_codes = fused.gate_up_scales = fused.down_codes = fused.down_scales = bytes.data();
  const std::array<float, 4> globals{1.0F, 2.0F, 3.0F, 4.0F};
  fused.up_globals = fused.down_globals = globals;
  const Result<ExpertsSource> source = split_fused(problem, fused);
  ASSERT_FALSE(source.has_value());
  EXPECT_EQ(source.status().message(),
            "gate_globals has 0 values, expected 4: format nvfp4 needs one per expert");
  fused.gate_globals = globals;
  EXPECT_TRUE(split_fused(problem, fused).has_value());
}

TEST(SplitFused, RowOrdersBecomeViews) {
  Problem problem = small_problem();
  problem.recipe = Recipe::kW16a16;
  std::vector<std::uint16_t> gate_up(static_cast<std::size_t>(4 * 80 * 48));
  for (std::size_t i = 0; i < gate_up.size(); ++i) {
    gate_up[i] = static_cast<std::uint16_t>(i / 48 % 80);  // each row holds its number
  }
  const std::vector<std::uint16_t> down(static_cast<std::size_t>(4 * 48 * 40));
  FusedExperts fused;
  fused.gate_up_codes = gate_up.data();
  fused.down_codes = down.data();
  const auto first_of = [](const WeightMatrix& matrix, std::int64_t row) {
    return *reinterpret_cast<const std::uint16_t*>(static_cast<const std::byte*>(matrix.codes) +
                                                   row * matrix.row_stride_bytes);
  };
  const std::tuple<RowOrder, int, int> cases[] = {
      {RowOrder::kGateUp, 7, 47}, {RowOrder::kUpGate, 47, 7}, {RowOrder::kInterleaved, 14, 15}};
  for (const auto& [order, gate, up] : cases) {
    problem.row_order = order;
    const Result<ExpertsSource> source = split_fused(problem, fused);
    ASSERT_TRUE(source.has_value()) << source.status().to_string();
    EXPECT_EQ(first_of(source->experts[3].gate, 7), gate);
    EXPECT_EQ(first_of(source->experts[3].up, 7), up);
  }
}

}  // namespace
}  // namespace moekit
