// SPDX-License-Identifier: Apache-2.0

// Memory that runs out at any allocation of a public call, and stays out: each says kOutOfMemory,
// and the process goes on.

#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "moekit/moekit.h"

#include "jit/bundle.h"
#include "jit/entry.h"
#include "jit/test_folder.h"
#include "runtime/test_layer.h"

namespace moekit {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

/// Calls again and again with room for one more allocation until the outcome is `expected`; every
/// outcome before it must be kOutOfMemory. Beyond `fineness` allocations the room grows by a share.
/// Returns how many allocations the last call was granted.
template <typename Call>
std::int64_t exhaust(const std::string& name,
                     StatusCode expected,
                     const Call& call,
                     std::int64_t fineness = 64) {
  constexpr std::int64_t kMostAllocations = 100000;
  for (std::int64_t granted = 0; granted < kMostAllocations; granted += 1 + granted / fineness) {
    HeapCount::allowed = granted;
    const Status status = call();
    HeapCount::allowed = kUnlimited;
    if (status.code() == expected) {
      return granted;
    }
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory)
        << name << " with " << granted << " allocations: " << status.to_string();
    EXPECT_FALSE(status.message().empty()) << name;
    if (testing::Test::HasFailure()) {
      return -1;
    }
  }
  ADD_FAILURE() << name << " never ended";
  return -1;
}

/// Exhausts calls and counts them. What a call returns with memory is what it must end with.
class Judge {
 public:
  template <typename Call>
  void operator()(const std::string& name, const Call& call) {
    (*this)(name, Status(call()).code(), call);
  }

  template <typename Call>
  void operator()(const std::string& name, StatusCode expected, const Call& call) {
    allocations_ += exhaust(name, expected, call);
    ++calls_;
  }

  [[nodiscard]] std::int64_t allocations() const { return allocations_; }

  [[nodiscard]] int calls() const { return calls_; }

 private:
  std::int64_t allocations_ = 0;
  int calls_ = 0;
};

TEST(Exhaustion, EveryPublicCallSaysOutOfMemoryAndLives) {
  const Problem problem = small_problem();
  const TestLayer layer(problem);
  const Plan plan = *make_plan(problem, host_cpu());
  const PackedExperts experts = *prepare(plan, layer.source);
  const Runtime runtime = *Runtime::create({2, {}});
  const std::string path = testing::TempDir() + "exhaustion.packed";
  const AlignedBytes workspace(plan.workspace_bytes());
  std::vector<std::uint16_t> x(std::size_t{2} * 48, 0x3F80);
  std::vector<std::uint16_t> out(x.size());
  const std::vector<std::int32_t> ids{0, 1, 2, 3};
  const std::vector<float> weights(4, 0.5F);
  RunArguments arguments;
  arguments.x = matrix_view(std::as_const(x).data(), DType::kBf16, 2, 48);
  arguments.topk_ids = matrix_view(ids.data(), DType::kI32, 2, 2);
  arguments.topk_weights = matrix_view(weights.data(), DType::kF32, 2, 2);
  arguments.out = matrix_view(out.data(), DType::kBf16, 2, 48);
  const Binding binding = *moekit::bind(runtime, plan, experts, workspace.span(), arguments);
  ASSERT_TRUE(run(runtime, binding).ok());
  RunArguments wrong = arguments;
  wrong.x.shape[1] = 56;
  Problem odd = problem;
  odd.hidden_size = 47;
  Routing routing;
  routing.num_experts = 0;

  constexpr StatusCode kOk = StatusCode::kOk;
  constexpr StatusCode kBad = StatusCode::kInvalidArgument;
  Judge judge;
  judge("device_from_name", kOk, [] { return device_from_name("cpu").status(); });
  judge("device_from_name of a GPU", kOk, [] { return device_from_name("sm_90").status(); });
  judge("device_from_name unknown", kBad, [] { return device_from_name("cpu:mmx2").status(); });
  judge("validate_problem", kBad, [&] { return validate_problem(odd); });
  judge("validate_routing", kBad, [&] { return validate_routing(routing); });
  judge("make_plan", kOk, [&] { return make_plan(problem, plan->device).status(); });
  judge("make_plan refused", kBad, [&] { return make_plan(odd, plan->device).status(); });
  judge("required_bytes", kOk, [&] { return required_bytes(problem, plan->device).status(); });
  judge("Runtime::create", kOk, [] { return Runtime::create({2, {}}).status(); });
  judge("Runtime::create wrong", kBad, [] { return Runtime::create({-1, {}}).status(); });
  judge("prepare", kOk, [&] { return prepare(plan, layer.source).status(); });
  judge("prepare of nothing", kBad, [&] { return prepare(plan, ExpertsSource{}).status(); });
  judge("bind", kOk, [&] {
    return moekit::bind(runtime, plan, experts, workspace.span(), arguments).status();
  });
  judge("bind refused", kBad, [&] {
    return moekit::bind(runtime, plan, experts, workspace.span(), wrong).status();
  });
  judge("run", kOk, [&] { return run(runtime, binding); });
  judge("run_host_tensors", kOk, [&] {
    return run_host_tensors(runtime, plan, experts, workspace.span(), arguments);
  });
  judge("verify_call", kOk, [&] {
    return verify_call(plan, layer.source, arguments, workspace.span()).status();
  });
  judge("run_verify_case", kOk, [&] {
    VerifyCase verify_case;
    verify_case.problem = problem;
    verify_case.num_tokens = 2;
    verify_case.quirk = "none";
    return run_verify_case(runtime, verify_case, plan->device).status();
  });
  judge("unpack_expert", kOk, [&] {
    std::vector<std::byte> storage;
    return unpack_expert(experts, 0, storage).status();
  });
  judge("save_packed_experts", kOk, [&] { return save_packed_experts(experts, path); });
  judge("map_packed_experts", kOk, [&] { return map_packed_experts(plan, path).status(); });
  judge("Checkpoint::open of nothing", StatusCode::kIo, [] {
    return Checkpoint::open("/nowhere/at/all.safetensors").status();
  });
  std::filesystem::remove(path);
  EXPECT_EQ(judge.calls(), 22);
  EXPECT_GE(judge.allocations(), 300);
}

TEST(Exhaustion, PlansAndCasesAsText) {
  const Problem problem = small_problem();
  const Plan plan = *make_plan(problem, host_cpu());
  const std::string json = *plan.to_json(1);
  VerifyCase verify_case;
  verify_case.problem = problem;
  verify_case.num_tokens = 2;
  verify_case.quirk = "none";
  const std::string line = *verify_case_line(verify_case);
  std::string deep = json;
  deep.replace(deep.find('['), 1, "[{\"a\": [1, [2, {\"b\": 3}]]}, ");
  const std::string_view half = std::string_view(json).substr(0, 900);
  const std::string more = line + " x=1";
  Judge judge;
  judge("to_json", [&] { return plan.to_json(1).status(); });
  judge("to_text", [&] { return plan.to_text(1).status(); });
  judge("from_json", [&] { return Plan::from_json(json).status(); });
  judge("from_json of another", [&] { return Plan::from_json(deep).status(); });
  judge("from_json of no JSON", [&] { return Plan::from_json(half).status(); });
  judge("verify_case_line", [&] { return verify_case_line(verify_case).status(); });
  judge("parse_verify_case", [&] { return parse_verify_case(line).status(); });
  judge("parse_verify_case refused", [&] { return parse_verify_case(more).status(); });
  judge("verify_suite", [&] { return verify_suite(VerifySuite::kQuick).status(); });
  EXPECT_EQ(judge.calls(), 9);
  EXPECT_GE(judge.allocations(), 300);

  const std::uint64_t hash = plan.hash();
  HeapCount::allowed = 0;
  const std::uint64_t without_memory = plan.hash();
  HeapCount::allowed = kUnlimited;
  EXPECT_EQ(without_memory, hash);
}

TEST(Exhaustion, CheckpointsAreReadAndWritten) {
  const std::string data = MOEKIT_SOURCE_DIR "/testdata/checkpoints/";
  Judge judge;
  for (const char* name : {"modelopt_nvfp4_qwen3_moe",
                           "mixtral_bf16_sharded",
                           "gpt_oss_mxfp4",
                           "gptq_qwen3_moe",
                           "gguf_mxfp4_gpt_oss"}) {
    const std::string path = data + name;
    judge(path, [&] { return Checkpoint::open(path).status(); });
    const Checkpoint checkpoint = *Checkpoint::open(path);
    const std::int64_t moe = checkpoint.summary().moe_layers.at(0);
    judge(path + " layer", [&] { return checkpoint.layer(moe).status(); });
    judge(path + " no layer", [&] { return checkpoint.layer(1000).status(); });
  }
  const jit::TestFolder folder;
  const std::vector<float> values(8, 1.0F);
  const std::vector<TensorToWrite> tensors{{"a", matrix_view(values.data(), DType::kF32, 2, 4)}};
  const std::string file = folder.path() + "/a.safetensors";
  const std::map<std::string, std::string> metadata{{"key", "value"}};
  judge("write_safetensors", StatusCode::kOk, [&] {
    return write_safetensors(file, tensors, metadata);
  });
  const Checkpoint source = *Checkpoint::open(data + "qwen3_moe_bf16");
  for (const QuantizedNaming naming :
       {QuantizedNaming::kModelopt, QuantizedNaming::kCompressedTensors}) {
    QuantizeOptions options;
    options.naming = naming;
    options.num_threads = 1;
    const std::string out = folder.path() + "/quantized";
    judge("quantize_checkpoint", StatusCode::kOk, [&] {
      const std::int64_t granted = HeapCount::allowed.exchange(kUnlimited);
      std::filesystem::remove_all(out);
      HeapCount::allowed = granted;
      return quantize_checkpoint(source, out, options).status();
    });
  }
  EXPECT_EQ(judge.calls(), 18);
  EXPECT_GE(judge.allocations(), 1000);
}

TEST(Exhaustion, WeightsShardsAndRouting) {
  const Problem problem = small_problem();
  const TestLayer layer(problem);
  WeightMatrix odd = layer.source.experts[0].up;
  odd.cols = 47;
  std::vector<float> row(47);
  std::vector<float> values(64, std::numeric_limits<float>::infinity());
  std::vector<std::byte> bytes(64);
  Shard wrong;
  wrong.tp_rank = 3;
  wrong.tp_size = 2;
  Shard half;
  half.ep_size = 2;
  Routing routing;
  routing.num_experts = 8;
  routing.top_k = 2;
  const std::vector<float> logits(16, 1.0F);
  std::vector<std::int32_t> ids(4);
  std::vector<float> weights(4);
  RouteArguments arguments;
  arguments.logits = matrix_view(logits.data(), DType::kF32, 2, 8);
  arguments.topk_ids = matrix_view(ids.data(), DType::kI32, 2, 2);
  arguments.topk_weights = matrix_view(weights.data(), DType::kF32, 2, 2);
  RouteArguments bad = arguments;
  bad.logits.shape[1] = 7;
  const std::vector<std::byte> zeros(std::size_t{4} * 80 * 24);
  const std::vector<float> globals(4, 1.0F);
  FusedExperts fused;
  fused.format = Format::kNvfp4;
  fused.gate_up_codes = fused.gate_up_scales = zeros.data();
  fused.down_codes = fused.down_scales = zeros.data();
  fused.gate_globals = fused.up_globals = fused.down_globals = globals;
  const std::vector<float> ones(64, 1.0F);
  std::vector<float> routed(8);
  std::vector<float> row_of_matrix(48);

  Judge judge;
  judge("validate_weights", [&] { return validate_weights(odd); });
  judge("decode_row", [&] { return decode_row(odd, 0, row); });
  judge("encode_weights", [&] {
    EncodedWeights encoded{bytes, {}, 1.0F};
    return encode_weights(Format::kNvfp4, values, 1, encoded);
  });
  judge("decode_row of a matrix", StatusCode::kOk, [&] {
    return decode_row(layer.source.experts[0].up, 0, row_of_matrix);
  });
  judge("encode_weights of numbers", StatusCode::kOk, [&] {
    EncodedWeights encoded{bytes, std::span(bytes).subspan(32), 1.0F};
    encoded.codes = encoded.codes.first(32);
    encoded.scales = encoded.scales.first(4);
    return encode_weights(Format::kNvfp4, ones, 1, encoded);
  });
  judge("split_fused of tensors", StatusCode::kOk, [&] {
    return split_fused(problem, fused).status();
  });
  judge("router_logits of tensors", StatusCode::kOk, [&] {
    const float* const at = logits.data();
    return router_logits(matrix_view(at, DType::kF32, 2, 4),
                         matrix_view(at, DType::kF32, 4, 4),
                         nullptr,
                         matrix_view(routed.data(), DType::kF32, 2, 4));
  });
  judge("split_fused", [&] { return split_fused(problem, {}).status(); });
  judge("shard_source", [&] { return shard_source(problem, half, layer.source).status(); });
  judge("shard_columns", [&] { return shard_columns(problem, wrong).status(); });
  judge("shard_experts", [&] { return shard_experts(problem, half).status(); });
  judge("shard_expert_map", [&] { return shard_expert_map(problem, half).status(); });
  judge("local_problem", [&] { return local_problem(problem, half).status(); });
  judge("route", [&] { return route(routing, arguments); });
  judge("route refused", [&] { return route(routing, bad); });
  judge("router_logits", [&] { return router_logits({}, {}, nullptr, {}); });
  EXPECT_EQ(judge.calls(), 16);
  EXPECT_GE(judge.allocations(), 16);
}

TEST(Exhaustion, KernelImagesAndGpus) {
  const jit::TestFolder folder;
  const jit::Image image{.facts = {.kernel = "f.r.t.sm90a",
                                   .entry = "f_r_t_sm90a",
                                   .arch = "sm_90a",
                                   .image_id = std::string(64, 'a'),
                                   .nvrtc_version = "13.0",
                                   .options = {"-O3", "--std=c++20"}},
                         .cubin = "cubin",
                         .source = "source"};
  const std::string entry = folder.path() + "/" + jit::bundle_entry_name(image.facts);
  const jit::EntryContents contents = jit::encode_entry(image, "key");
  std::filesystem::create_directories(entry);
  for (std::size_t i = 0; i < contents.size(); ++i) {
    jit::TestFolder::write(entry + "/" + std::string(jit::kEntryFiles[i]), contents[i]);
  }
  const Plan plan = *make_plan(small_problem(), *device_from_name("sm_90a"));
  const Runtime runtime = *Runtime::create({1, {}});
  const PackedExperts none;
  const BuildKernelsOptions for_cpus{.archs = {Arch::kCpu}, .output = folder.path()};
  const std::string nowhere = folder.path() + "/none";
  Judge judge;
  judge("build_kernels", [&] { return build_kernels(for_cpus).status(); });
  judge("prune_kernels", [] { return prune_kernels("").status(); });
  judge("clear_kernels", [&] { return clear_kernels(nowhere).status(); });
  const Runtime of_no_gpu = *Runtime::create({.num_threads = 1, .cuda_device = 4711});
  const Plan for_cpu = *make_plan(small_problem(), host_cpu());
  judge("prewarm", [&] { return prewarm(of_no_gpu, plan); });
  judge("prewarm of a CPU's plan", StatusCode::kOk, [&] { return prewarm(runtime, for_cpu); });
  judge("upload", [&] { return upload(runtime, none).status(); });
  judge("time_on_device", [&] { return time_on_device(runtime, plan, {}, {}).status(); });
  EXPECT_EQ(list_kernels(folder.path())->images.size(), 1U);
  EXPECT_EQ(judge.calls(), 7);
  // Hashes every source of every kernel: 30 ms a call.
  const auto list = [&] { return list_kernels(folder.path()).status(); };
  EXPECT_GE(exhaust("list_kernels", StatusCode::kOk, list, 8), 100);

  HeapCount::allowed = 0;
  const KernelFolders folders = kernel_folders();
  freeze_kernels("a reason that is longer than a string holds in itself");
  unfreeze_kernels("another reason that is longer than a string holds in itself");
  HeapCount::allowed = kUnlimited;
  EXPECT_LE(folders.bundle.size(), kernel_folders().bundle.size());
}

TEST(Exhaustion, AStatusIsMadeWithoutMemory) {
  const Status full = invalid_argument("a message that is longer than a string holds in itself");
  std::string message = "another message that is longer than a string holds in itself";
  HeapCount::allowed = 0;
  const Status made = unsupported(std::move(message));
  const Status in_context = full.with_context("somewhere");
  const std::string text = full.to_string();
  HeapCount::allowed = kUnlimited;
  EXPECT_EQ(made.code(), StatusCode::kOutOfMemory);
  EXPECT_FALSE(made.message().empty());
  EXPECT_EQ(in_context, full);
  EXPECT_EQ(text, "out_of_memory");
}

// Nothing of the API's own is left that could throw where a caller hands it what it made.
TEST(Exhaustion, PlansAndResultsAreMadeOfWhatIsThere) {
  static_assert(std::is_nothrow_constructible_v<Plan, std::shared_ptr<const PlanData>>);
  static_assert(!std::is_constructible_v<Plan, PlanData>);
  static_assert(std::is_nothrow_constructible_v<Result<Plan>, Plan>);
  static_assert(std::is_nothrow_constructible_v<Result<Plan>, Status>);
  const Plan plan = *make_plan(small_problem(), host_cpu());
  const auto content = std::make_shared<const PlanData>(*plan);
  const Status full = invalid_argument("a message that is longer than a string holds in itself");
  HeapCount::allowed = 0;
  const Plan made(content);
  const Result<Plan> result(made);
  const Result<Plan> error(full);
  const Result<Plan> mistake{Status()};
  const Status status = mistake.status();
  HeapCount::allowed = kUnlimited;
  EXPECT_EQ(made, plan);
  EXPECT_EQ(*result, plan);
  EXPECT_EQ(error.status(), full);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << "no memory to say kInternal in";
}

TEST(Exhaustion, DevicesAreListedWithoutMemoryForTheirNames) {
  int named = 0;
  for (const std::int64_t granted : {0, 1, 2, 3, 5, 8, 13, 21, 200}) {
    HeapCount::allowed = granted;
    const DeviceDescriptor host = host_cpu();
    const std::vector<DeviceDescriptor> devices = list_devices();
    HeapCount::allowed = kUnlimited;
    EXPECT_GE(host.num_threads, 1);
    EXPECT_EQ(host.isa, host_cpu().isa);
    EXPECT_LE(devices.size(), list_devices().size());
    named += host.name == host_cpu().name ? 1 : 0;
  }
  EXPECT_GE(named, 1);
}

}  // namespace
}  // namespace moekit
