// SPDX-License-Identifier: Apache-2.0
// moekit bench: time of a whole layer, after its output was checked, beside a linear read of as
// many bytes and the rate of dot products in registers.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "moekit/moekit.h"

#include "cli/aligned_buffer.h"
#include "cli/bench_case.h"
#include "cli/bench_probe.h"
#include "cli/bench_requests.h"
#include "cli/layer_call.h"
#include "cli/options.h"
#include "cli/random_inputs.h"
#include "cli/reports.h"
#include "cli/subject.h"
#include "cli/verbs.h"

namespace moekit::cli {
namespace {

/// Calls and probes alternate in blocks: a probe beside every timing, without a cold thread pool
/// before every call.
constexpr int kBlock = 5;
constexpr int kMinCalls = 10;
constexpr int kMaxCalls = 5000;
constexpr std::size_t kMinInputs = 8;  // distinct routings, rotated with the weight copies
constexpr std::size_t kMaxInputs = 512;

/// Weights of one layer, packed several times over, and everything that outlives a case.
struct BenchLayer {
  Subject subject;
  std::vector<DeviceDescriptor> devices;  // one for each instruction set that takes a turn
  std::optional<RandomExperts> random_experts{};
  std::vector<PackedExperts> copies{};
  Runtime runtime;
  BenchProbe probe;

  [[nodiscard]] const ExpertsSource& source() const {
    return subject.layer ? subject.layer->source : random_experts->source();
  }
};

/// Tensors of one call.
struct BenchInput {
  RandomCall call;
  double active_bytes = 0.0;
};

std::int64_t last_level_cache_bytes() {
  constexpr std::int64_t kFallback = 64LL << 20U;
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  std::int64_t kib = 0;
  return file >> kib ? kib * 1024 : kFallback;
}

/// Weight bytes between two uses of one byte, so that every call finds its weights in memory.
std::int64_t cold_bytes() {
  return std::max<std::int64_t>(256LL << 20U, 4 * last_level_cache_bytes());
}

/// Layers of a few kilobytes stay in the cache; their rows say how many copies there were.
std::int64_t copies_wanted(std::int64_t packed_bytes) {
  constexpr std::int64_t kMaxCopies = 512;
  const std::int64_t one = std::max<std::int64_t>(1, packed_bytes);
  return std::clamp<std::int64_t>((cold_bytes() + one - 1) / one, 1, kMaxCopies);
}

/// Copies alone are not enough: at M = 1 eight routings read a fraction of them, again and again.
std::size_t inputs_wanted(double active_bytes) {
  const double wanted = std::ceil(static_cast<double>(cold_bytes()) / std::max(active_bytes, 1.0));
  return static_cast<std::size_t>(
      std::clamp(wanted, static_cast<double>(kMinInputs), static_cast<double>(kMaxInputs)));
}

Result<Plan> plan_for(const Subject& subject,
                      const DeviceDescriptor& device,
                      std::int64_t num_tokens) {
  Problem problem = subject.problem;
  problem.num_tokens = num_tokens;
  problem.routing.reset();  // measured from top-k ids on
  return make_plan(problem, device, subject.overrides);
}

/// The device once for each of --isa, or as it is.
Result<std::vector<DeviceDescriptor>> devices_of(const BenchOptions& options,
                                                 const DeviceDescriptor& device) {
  std::vector<DeviceDescriptor> devices;
  for (const std::string& isa : options.isas) {
    LayerOptions layer = options.layer;
    layer.device = "cpu:" + isa;
    MOEKIT_ASSIGN_OR_RETURN(DeviceDescriptor turn, resolve_device(layer));
    devices.push_back(std::move(turn));
  }
  if (devices.empty()) {
    devices.push_back(device);
  }
  return devices;
}

Result<BenchLayer> build_layer(Console& console, const BenchOptions& options) {
  MOEKIT_ASSIGN_OR_RETURN(Subject subject, resolve_subject(options.layer));
  MOEKIT_ASSIGN_OR_RETURN(std::vector<DeviceDescriptor> devices,
                          devices_of(options, subject.device));
  // Any M and any instruction set have the same layout; bind would refuse another.
  MOEKIT_ASSIGN_OR_RETURN(const Plan plan, plan_for(subject, devices.front(), 1));
  std::optional<RandomExperts> random_experts;
  if (!subject.layer) {
    RandomBits random(options.seed);
    MOEKIT_ASSIGN_OR_RETURN(random_experts, RandomExperts::make(plan.problem(), random));
  }
  MOEKIT_ASSIGN_OR_RETURN(Runtime runtime, create_runtime(options.layer));
  MOEKIT_ASSIGN_OR_RETURN(BenchProbe probe, BenchProbe::create(runtime.num_threads()));
  BenchLayer layer{std::move(subject),
                   std::move(devices),
                   std::move(random_experts),
                   {},
                   std::move(runtime),
                   std::move(probe)};
  const std::int64_t num_copies = copies_wanted(plan->prepare.packed_bytes);
  PrepareOptions prepare_options;
  // Starting threads costs more than packing a few megabytes.
  prepare_options.num_threads = num_copies > 16 ? 1 : 0;
  for (std::int64_t i = 0; i < num_copies; ++i) {
    console.progress("packing copies", i, num_copies);
    MOEKIT_ASSIGN_OR_RETURN(PackedExperts packed, prepare(plan, layer.source(), prepare_options));
    layer.copies.push_back(std::move(packed));
  }
  return layer;
}

Result<BenchInput> make_input(const Problem& problem, std::int64_t num_tokens, RandomBits& random) {
  BenchInput input;
  MOEKIT_ASSIGN_OR_RETURN(input.call, random_call(problem, num_tokens, random));
  const std::vector<std::int32_t>& ids = input.call.routes.ids;
  const std::set<std::int32_t> active(ids.begin(), ids.end());
  input.active_bytes =
      static_cast<double>(active.size()) * static_cast<double>(expert_bytes(problem));
  return input;
}

/// One plan's calls with their bytes, one after another through inputs and weight copies.
class Rotation {
 public:
  Rotation(BenchLayer& layer, const Plan& plan, AlignedBuffer workspace)
      : layer_(layer), plan_(plan), workspace_(std::move(workspace)) {}

  [[nodiscard]] BenchResult& result() { return result_; }

  [[nodiscard]] const Plan& plan() const { return plan_; }

  [[nodiscard]] std::span<std::byte> workspace() const { return workspace_.span(); }

  Status add(const BenchInput& input) {
    const PackedExperts& experts = layer_.copies[bindings_.size() % layer_.copies.size()];
    MOEKIT_ASSIGN_OR_RETURN(
        Binding binding,
        moekit::bind(layer_.runtime, plan_, experts, workspace(), input.call.arguments));
    bindings_.push_back(std::move(binding));
    active_bytes_.push_back(input.active_bytes);
    return {};
  }

  /// Runs the next binding once; the time, in microseconds.
  Result<double> call() {
    const Binding& binding = bindings_[next_call_ % bindings_.size()];
    const auto start = std::chrono::steady_clock::now();
    MOEKIT_RETURN_IF_ERROR(run(layer_.runtime, binding));
    const auto end = std::chrono::steady_clock::now();
    last_active_bytes_ = active_bytes_[next_call_++ % bindings_.size()];
    return std::chrono::duration<double, std::micro>(end - start).count();
  }

  /// Timed calls, then as many linear reads of as many bytes, a block at most, then dot products.
  Status measure(int num_calls) {
    for (int i = 0; i < num_calls; ++i) {
      MOEKIT_ASSIGN_OR_RETURN(const double us, call());
      result_.time_us.push_back(us);
      result_.active_bytes.push_back(last_active_bytes_);
    }
    for (int i = 0; i < std::min(num_calls, kBlock); ++i) {
      result_.probe_gbps.push_back(layer_.probe.gbps(next_probe_bytes()));
    }
    probe_peak(PeakKind::kDot, result_.probe_gflops);
    probe_peak(PeakKind::kMultiplyAdd, result_.probe_fma_gflops);
    probe_peak(PeakKind::kTile, result_.probe_tile_gflops);
    probe_peak(PeakKind::kByteDot, result_.probe_int8_gops);
    return {};
  }

 private:
  void probe_peak(PeakKind kind, std::vector<double>& samples) {
    const PeakRound round{plan_->device.isa, kind};
    if (peak_round_flops(round) > 0) {
      samples.push_back(layer_.probe.gflops(round));
    }
  }

  /// Moves on through the packed copies, so that the read comes from memory as the weights do.
  std::span<const std::byte> next_probe_bytes() {
    const std::span<const std::byte> copy =
        layer_.copies[next_probe_ % layer_.copies.size()].bytes();
    const std::size_t size =
        std::min(copy.size(), static_cast<std::size_t>(std::max(last_active_bytes_, 1.0)));
    const std::size_t last_start = copy.size() - size;
    const std::size_t start = last_start == 0 ? 0 : (next_probe_ * size) % last_start;
    ++next_probe_;
    return copy.subspan(start, size);
  }

  BenchLayer& layer_;
  Plan plan_;
  AlignedBuffer workspace_;
  BenchResult result_{};
  std::vector<Binding> bindings_{};
  std::vector<double> active_bytes_{};
  std::size_t next_call_ = 0;
  std::size_t next_probe_ = 0;
  double last_active_bytes_ = 0.0;
};

BenchResult describe(const BenchOptions& options, const BenchLayer& layer, const Plan& plan) {
  BenchResult result;
  result.subject = layer.subject.label.empty() ? "shape" : layer.subject.label;
  result.num_tokens = plan.problem().num_tokens;
  result.isa = plan->device.isa;
  result.num_threads = layer.runtime.num_threads();
  result.num_weight_copies = static_cast<std::int64_t>(layer.copies.size());
  for (const DeviceDescriptor& device : layer.devices) {
    result.turns.emplace_back(isa_name(device.isa));
  }
  result.flops = layer_flops(plan.problem(), result.num_tokens);
  VerifyCase verify_case;
  verify_case.problem = plan.problem();
  verify_case.num_tokens = result.num_tokens;
  verify_case.seed = options.seed;
  verify_case.quirk = "none";
  verify_case.overrides = layer.subject.overrides;
  result.case_line = text_or_throw(verify_case_line(verify_case));
  return result;
}

/// Binds the calls of one instruction set, checks the first and warms the threads. A failed check
/// is in the result.
Result<Rotation> checked_rotation(const BenchOptions& options,
                                  BenchLayer& layer,
                                  const Plan& plan,
                                  const std::vector<BenchInput>& inputs) {
  MOEKIT_ASSIGN_OR_RETURN(AlignedBuffer workspace, AlignedBuffer::allocate(plan.workspace_bytes()));
  Rotation rotation(layer, plan, std::move(workspace));
  rotation.result() = describe(options, layer, plan);
  rotation.result().num_routings = static_cast<std::int64_t>(inputs.size());
  const std::size_t num_bindings = std::max(inputs.size(), layer.copies.size());
  for (std::size_t i = 0; i < num_bindings; ++i) {
    MOEKIT_RETURN_IF_ERROR(rotation.add(inputs[i % inputs.size()]));
  }
  MOEKIT_RETURN_IF_ERROR(rotation.call().status());
  MOEKIT_ASSIGN_OR_RETURN(
      rotation.result().check,
      verify_call(plan, layer.source(), inputs.front().call.arguments, rotation.workspace()));
  MOEKIT_RETURN_IF_ERROR(rotation.call().status());  // warm threads
  return rotation;
}

/// One token count: a rotation for each instruction set over the same inputs.
struct TokenCase {
  std::vector<BenchInput> inputs{};
  std::vector<Rotation> rotations{};

  [[nodiscard]] bool passed() {
    return std::all_of(rotations.begin(), rotations.end(), [](Rotation& rotation) {
      return rotation.result().check.passed;
    });
  }
};

/// Checks each instruction set's first call.
Result<TokenCase> set_up(const BenchOptions& options, BenchLayer& layer, std::int64_t num_tokens) {
  TokenCase token_case;
  std::vector<BenchInput>& inputs = token_case.inputs;
  for (const DeviceDescriptor& device : layer.devices) {
    MOEKIT_ASSIGN_OR_RETURN(const Plan plan, plan_for(layer.subject, device, num_tokens));
    RandomBits random(options.seed + 1);
    while (inputs.empty() || inputs.size() < inputs_wanted(inputs.front().active_bytes)) {
      MOEKIT_ASSIGN_OR_RETURN(BenchInput input, make_input(plan.problem(), num_tokens, random));
      inputs.push_back(std::move(input));
    }
    MOEKIT_ASSIGN_OR_RETURN(Rotation rotation, checked_rotation(options, layer, plan, inputs));
    token_case.rotations.push_back(std::move(rotation));
  }
  return token_case;
}

/// Times the instruction sets in turns, a block each.
Status measure(const BenchOptions& options, std::vector<Rotation>& rotations) {
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const double seconds = options.seconds * static_cast<double>(rotations.size());
  const auto num_calls = [&] {
    return static_cast<int>(rotations.front().result().time_us.size());
  };
  while (num_calls() < kMinCalls || (elapsed() < seconds && num_calls() < kMaxCalls)) {
    for (Rotation& rotation : rotations) {
      MOEKIT_RETURN_IF_ERROR(rotation.measure(kBlock));
    }
  }
  return {};
}

/// A row for each instruction set that was timed, a line for each whose check failed.
ExitCode report_case(Console& console, const BenchOptions& options, TokenCase& token_case) {
  ExitCode code = ExitCode::kOk;
  for (Rotation& rotation : token_case.rotations) {
    const BenchResult& result = rotation.result();
    if (!result.check.passed) {
      console.report(failed_check_line(options.command_line, result.num_tokens, result.check));
      code = ExitCode::kCheckFailed;
    } else if (!result.time_us.empty()) {
      console.report(options.layer.json ? bench_json(result, rotation.plan(), options.command_line)
                                        : bench_text(result));
      for (const std::string& doubt : probe_doubts(result)) {
        console.warning(
            fmt::format("M {} on {}: {}", result.num_tokens, isa_name(result.isa), doubt));
      }
    }
  }
  return code;
}

/// Every token count for its seconds. After a failed check nothing is timed.
Result<ExitCode> bench_alone(Console& console,
                             const BenchOptions& options,
                             BenchLayer& layer,
                             const std::vector<std::int64_t>& tokens) {
  ExitCode code = ExitCode::kOk;
  for (const std::int64_t num_tokens : tokens) {
    MOEKIT_ASSIGN_OR_RETURN(TokenCase token_case, set_up(options, layer, num_tokens));
    if (token_case.passed()) {
      MOEKIT_RETURN_IF_ERROR(measure(options, token_case.rotations));
    }
    if (report_case(console, options, token_case) != ExitCode::kOk) {
      code = ExitCode::kCheckFailed;
    }
  }
  return code;
}

/// All token counts are set up first, then timed as the standard input asks.
Result<ExitCode> bench_on_request(Console& console,
                                  const BenchOptions& options,
                                  BenchLayer& layer,
                                  const std::vector<std::int64_t>& tokens) {
  std::map<std::int64_t, TokenCase> cases;
  for (const std::int64_t num_tokens : tokens) {
    MOEKIT_ASSIGN_OR_RETURN(cases[num_tokens], set_up(options, layer, num_tokens));
    if (!cases[num_tokens].passed()) {
      return report_case(console, options, cases[num_tokens]);
    }
  }
  const auto time_calls = [&cases](const BenchRequest& request) -> Result<std::vector<double>> {
    const auto found = cases.find(request.num_tokens);
    if (found == cases.end()) {
      return invalid_argument(
          fmt::format("--on-request: {} tokens, expected one of --tokens", request.num_tokens));
    }
    Rotation& rotation = found->second.rotations.front();
    MOEKIT_RETURN_IF_ERROR(rotation.measure(request.num_calls));
    const std::vector<double>& times = rotation.result().time_us;
    return std::vector<double>(times.end() - request.num_calls, times.end());
  };
  MOEKIT_RETURN_IF_ERROR(serve_bench_requests(console, time_calls));
  for (auto& [num_tokens, token_case] : cases) {
    report_case(console, options, token_case);
  }
  return ExitCode::kOk;
}

Status check_words(const BenchOptions& options) {
  if (!(options.seconds > 0.0 && options.seconds <= 600.0)) {
    return invalid_argument(
        fmt::format("--seconds {}: expected more than 0, at most 600", options.seconds));
  }
  if (!options.isas.empty() && options.layer.device.value_or("cpu").rfind("cpu:", 0) == 0) {
    return invalid_argument(fmt::format("--isa {} with --device {}: each names instruction sets",
                                        fmt::join(options.isas, ","),
                                        *options.layer.device));
  }
  if (options.on_request && options.isas.size() > 1) {
    return invalid_argument(
        fmt::format("--on-request with --isa {}: a request is for one instruction set",
                    fmt::join(options.isas, ",")));
  }
  return {};
}

}  // namespace

Result<ExitCode> bench_verb(Console& console, const BenchOptions& options) {
  MOEKIT_RETURN_IF_ERROR(check_words(options));
  MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::int64_t> tokens,
                          parse_token_list(options.tokens, 1));
  MOEKIT_ASSIGN_OR_RETURN(const DeviceDescriptor device, resolve_device(options.layer));
  if (device.arch != Arch::kCpu && !options.isas.empty()) {
    return invalid_argument(
        fmt::format("--isa {} with --device {}: instruction sets are of the CPU backend",
                    fmt::join(options.isas, ","),
                    options.layer.device.value_or("cpu")));
  }
  if (device.arch != Arch::kCpu && options.on_request) {
    return invalid_argument("--on-request: taken by the CPU backend only");
  }
  if (device.arch != Arch::kCpu) {
    return bench_on_device(console, options, tokens);
  }
  MOEKIT_ASSIGN_OR_RETURN(BenchLayer layer, build_layer(console, options));
  return options.on_request ? bench_on_request(console, options, layer, tokens)
                            : bench_alone(console, options, layer, tokens);
}

}  // namespace moekit::cli
