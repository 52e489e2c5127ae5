// SPDX-License-Identifier: Apache-2.0
#pragma once

// bind and run. A Runtime owns what outlives a call (the thread pool); a Binding is a plan joined
// to weights, workspace and tensors: views only. `run` is dumb: it never plans, compiles,
// allocates, reads the environment or logs.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/dtype.h"
#include "moekit/experts.h"
#include "moekit/plan.h"
#include "moekit/status.h"

#pragma GCC visibility push(default)

namespace moekit {

struct RuntimeOptions {
  int num_threads = 0;  // 0: MOEKIT_THREADS, else all cores available to the process
  int cuda_device = 0;  // the driver's number of the GPU that CUDA plans run on
  std::function<void(LogLevel, std::string_view)>
      log{};  // one line per event, key=value; none by default
};

/// Threads, and where CUDA plans are run the GPU's context and kernels. Cheap to copy: copies share
/// them. One serves any number of plans and layers.
class Runtime {
 public:
  /// Errors  kInvalidArgument  num_threads below 0 or beyond what a pool has
  ///         kOutOfMemory      threads that cannot be started
  /// Effects touches no driver: the first call for a CUDA plan does
  [[nodiscard]] static Result<Runtime> create(const RuntimeOptions& options = {}) noexcept;

  [[nodiscard]] int num_threads() const noexcept;

  struct State;

  explicit Runtime(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  [[nodiscard]] State* state() const noexcept { return state_.get(); }

 private:
  std::shared_ptr<State> state_;
};

/// The tensors of one call: host memory for a CPU plan, memory of the runtime's GPU for a CUDA
/// plan. Row strides are free, the last stride is 1, data is aligned to its elements. What the
/// problem does not ask for stays empty: bind refuses it.
struct RunArguments {
  TensorView x;                // [num_tokens, hidden] of problem.io_dtype
  TensorView topk_ids{};       // [num_tokens, top_k] i32 or i64; unused with problem.routing
  TensorView topk_weights{};   // [num_tokens, top_k] f32; unused with problem.routing
  TensorView router_logits{};  // [num_tokens, router_experts] with problem.routing
  const float* correction_bias = nullptr;      // [router_experts] where problem.routing asks for it
  const float* router_expert_scale = nullptr;  // [router_experts] where problem.routing asks for it
  HashTable router_hash_table{};               // where problem.routing asks for it
  const std::int32_t* expert_map =
      nullptr;              // [router_experts] with problem.expert_map: local id or -1
  TensorView shared{};      // [num_tokens, hidden] where problem.shared asks for it
  MutableTensorView out{};  // [num_tokens, hidden] of output_dtype(problem); overlaps no input
};

/// A plan joined to weights, workspace and tensors: views only, held by value, so that bind
/// allocates nothing. Keeps the plan and the PackedExperts alive, not the tensors.
class Binding {
 public:
  [[nodiscard]] const Plan& plan() const noexcept { return plan_; }

  [[nodiscard]] std::int64_t num_tokens() const noexcept { return num_tokens_; }

 private:
  friend struct BindingAccess;
  static constexpr std::size_t kMaxSteps = 8;
  static constexpr std::size_t kMaxSlices = 16;

  Binding(const Plan& plan, const PackedExperts& experts) noexcept
      : plan_(plan), experts_(experts) {}

  Plan plan_;
  PackedExperts experts_;
  RunArguments arguments_{};
  std::int64_t num_tokens_ = 0;
  const Rung* rung_ = nullptr;
  std::array<void (*)(), kMaxSteps> kernels_{};  // CPU: one body per step of the rung

  /// CUDA: a step's family, and its kernel where that is loaded.
  struct CudaStep {
    const void* family = nullptr;
    const void* kernel = nullptr;
  };

  std::array<CudaStep, kMaxSteps> cuda_steps_{};
  std::array<std::byte*, kMaxSlices> slices_{};
};

/// Checks every tensor against the plan and makes views. num_tokens = x.shape[0] picks the rung.
///
/// Errors  kInvalidArgument  a shape, dtype, stride, alignment or null pointer that does not fit; M
///                           over capacity; workspace too small or misaligned (have and need); out
///                           or workspace overlapping an input; an expert map with duplicate or
///                           out-of-range locals; another layout_id than the plan's (naming both);
///                           experts without the input scales that the recipe needs
///         kInvalidArgument  CUDA: a pointer that is not memory of the runtime's GPU; experts not
///                           uploaded; a plan for another arch
///         kUnsupported      a plan for an instruction set that this machine lacks; a step that is
///                           planned only; no driver or no such GPU
/// Effects touches no tensor content except a CPU plan's expert_map; no allocation, no stream. On a
///         GPU a map's content is not looked at: entries outside the locals are inactive
/// Call it qualified, `moekit::bind(...)`: std::span arguments make an unqualified call find
/// std::bind.
[[nodiscard]] Result<Binding> bind(const Runtime& runtime,
                                   const Plan& plan,
                                   const PackedExperts& experts,
                                   std::span<std::byte> workspace,
                                   const RunArguments& arguments) noexcept;

/// The stream that a CUDA plan runs on, a CUstream or cudaStream_t of the caller; null is the
/// default stream of the current context. A CPU plan takes none: run refuses another than null.
struct Stream {
  void* handle = nullptr;
};

/// Packed experts of a CUDA plan in the memory of the runtime's GPU, where its kernels read them.
/// `destination` is a device pointer aligned to kPackedAlignment, or empty: the library allocates.
///
/// Errors  kInvalidArgument  experts packed for a CPU or already on a device; destination too small
///                           or misaligned (have and need)
///         kOutOfMemory      the GPU has no room, naming bytes wanted and free
///         kUnsupported      no driver or no such GPU
/// Effects returns when the copy is done
[[nodiscard]] Result<PackedExperts> upload(const Runtime& runtime,
                                           const PackedExperts& experts,
                                           std::span<std::byte> destination = {}) noexcept;

/// Runs the layer once: on the CPU it returns when the output is written, on a GPU when the work is
/// submitted to `stream`.
///
/// Numerics the plan's recipe; see recipe.h and spec section 2
/// Order    bit-identical for one plan, whatever the number of threads
/// Effects  no allocation, no lock taken in the hot path, no file, no environment, no log
///          CUDA: one driver call a step once prewarmed, two for a resident one; safe under capture
/// Errors   kInvalidArgument     a moved-from runtime; CPU: a stream
///          kFailedPrecondition  CUDA: a step whose kernel is not loaded, in a capture or frozen
///          kDevice              CUDA: a launch failed, naming the step
/// Threads  concurrent runs need distinct workspaces; CPU runs of one Runtime take turns at its
///          pool
[[nodiscard]] Status run(const Runtime& runtime,
                         const Binding& binding,
                         Stream stream = {}) noexcept;

/// Runs the layer once on tensors and workspace in host memory, whatever device the plan is for. A
/// CUDA plan's inputs, workspace and output travel; experts too, where they were not uploaded. For
/// tools and checks: it allocates.
///
/// Errors  as bind, run and upload; kOutOfMemory where the GPU has no room
/// Effects returns when output and workspace are written
[[nodiscard]] Status run_host_tensors(const Runtime& runtime,
                                      const Plan& plan,
                                      const PackedExperts& experts,
                                      std::span<std::byte> workspace,
                                      const RunArguments& arguments) noexcept;

struct DeviceTimingOptions {
  int warmups = 3;   // replays before the first timed one
  int repeats = 15;  // timed replays of the layer's graph and of the floor's, in turn
};

/// One timed series on a GPU. Times are per call: a replay's divided by its number of calls.
struct DeviceTiming {
  std::string device{};
  int driver_version = 0;  // 13000: driver of CUDA 13.0
  std::int64_t calls_per_replay = 0;
  double active_bytes = 0.0;       // packed weights of a call's active experts, in the mean
  std::vector<double> layer_us{};  // one per replay: top-k ids in, summed output out
  std::vector<double> floor_us{};  // the same experts' bytes, only read: one launch, one barrier
  std::string floor_kernel{};      // the faster of the floor's kernels
};

/// Captures one graph of all `calls` (host tensors, of equal shape, with their own routing), call i
/// on weight copy i modulo copies.size(), and one graph that only reads the same experts' weights;
/// replays them in turn.
///
/// Errors  kInvalidArgument  no copies or calls, experts not uploaded, a plan that routes or has
///                           an expert map; and what bind refuses
///         kUnsupported      a GPU that the floor's kernels are not written for
[[nodiscard]] Result<DeviceTiming> time_on_device(const Runtime& runtime,
                                                  const Plan& plan,
                                                  std::span<const PackedExperts> copies,
                                                  std::span<const RunArguments> calls,
                                                  const DeviceTimingOptions& options = {}) noexcept;

}  // namespace moekit

#pragma GCC visibility pop
