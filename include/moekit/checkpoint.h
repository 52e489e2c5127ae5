// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checkpoints as files: a .safetensors or .gguf file or a Hugging Face folder, memory-mapped, and
// what a MoE layer in it means. Nothing is trusted: every length, offset, dtype and shape is
// checked against the file before use.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/dtype.h"
#include "moekit/experts.h"
#include "moekit/problem.h"
#include "moekit/routing.h"
#include "moekit/status.h"

#pragma GCC visibility push(default)

namespace moekit {

/// One tensor of an open checkpoint; `view` points into the mapping.
struct NamedTensor {
  std::string name;
  TensorView view;  // rank <= 4; higher ranks and foreign dtypes have no view (data null)
  std::int64_t bytes = 0;
  std::string file{};           // the shard it lies in
  std::string foreign_dtype{};  // a dtype without a DType as the file names it (F64), else empty
};

/// The layer's router: weight [num_experts, hidden], optional bias (gpt-oss) and correction bias, a
/// scale per expert (Gemma-4), a table of expert ids by token id (DeepSeek-V4).
struct RouterTensors {
  TensorView weight{};  // data null: no product with the layer's x gives the logits
  TensorView bias{};
  TensorView correction_bias{};
  TensorView expert_scale{};  // [num_experts] f32, bf16 or f16
  TensorView hash_table{};    // [vocabulary, top_k] i32 without gaps, every id below num_experts
};

/// What one MoE layer of a checkpoint is, with how each fact was found.
struct CheckpointLayer {
  std::int64_t layer = 0;
  std::string scheme;  // whose names and formats: `modelopt_nvfp4`, `gpt_oss_mxfp4`, `gguf_mxfp4`,
                       // `bf16`, …; docs/checkpoints.md lists them
  std::string prefix;  // tensor prefix of the layer's experts
  Problem problem{};   // num_tokens 0; everything the files tell
  std::optional<Routing>
      routing{};           // how the checkpoint's own router selects; nullopt without a router
  RouterTensors router{};  // data null: the file has none
  ExpertsSource source{};  // views into the mapping and `storage`
  std::shared_ptr<const void>
      storage{};  // weights whose order in the file is not moekit's (GGUF blocks, AWQ, GPTQ)
  std::vector<float>
      input_scales_gate{};  // [E] activation scales where the checkpoint carries them
  std::vector<float> input_scales_up{};
  std::vector<float> input_scales_down{};
  std::vector<std::string>
      inferred{};  // one line per fact: `activation=silu from config.json hidden_act`
};

struct CheckpointSummary {
  std::string path;
  std::string model_type{};    // config.json model_type, architectures[0]
  std::string quantization{};  // quant method and algorithm, empty without
  std::int64_t num_tensors = 0;
  std::int64_t num_files = 0;
  std::int64_t total_bytes = 0;
  std::vector<std::int64_t> moe_layers{};
  std::vector<std::string> ignored_fields{};  // JSON fields nobody read
};

class Checkpoint {
 public:
  /// Maps the file or every shard of the folder and reads the configurations beside it.
  ///
  /// Errors  kIo               a path that cannot be opened or mapped
  ///         kInvalidArgument  a malformed or hostile header or configuration, a missing shard
  [[nodiscard]] static Result<Checkpoint> open(std::string_view path) noexcept;

  [[nodiscard]] const CheckpointSummary& summary() const noexcept;
  [[nodiscard]] const std::map<std::string, NamedTensor, std::less<>>& tensors() const noexcept;

  /// Null where there is none of that name.
  [[nodiscard]] const NamedTensor* find(std::string_view name) const noexcept;

  /// Everything about one MoE layer.
  ///
  /// Errors  kInvalidArgument  no such MoE layer (the message lists them), missing tensors, shapes
  ///                           that do not fit the configuration, mixed formats among the routed
  ///                           experts, a reciprocal global of 0
  ///         kUnsupported      a quantisation moekit has no format for, naming the nearest
  [[nodiscard]] Result<CheckpointLayer> layer(std::int64_t layer) const noexcept;

  struct State;

  explicit Checkpoint(std::shared_ptr<const State> state) noexcept : state_(std::move(state)) {}

  [[nodiscard]] const State* state() const noexcept { return state_.get(); }

 private:
  std::shared_ptr<const State> state_;
};

/// A tensor to be written.
struct TensorToWrite {
  std::string name;
  TensorView view;  // row-major without gaps
};

/// Writes a .safetensors file: temporary file beside it, fsync, rename. On error no file is left.
///
/// Errors  kIo               the folder or disk refused
///         kInvalidArgument  duplicate names, strided views
[[nodiscard]] Status write_safetensors(
    std::string_view path,
    const std::vector<TensorToWrite>& tensors,
    const std::map<std::string, std::string>& metadata = {}) noexcept;

/// Whose tensor names and configuration a quantised checkpoint gets.
enum class QuantizedNaming : std::uint8_t { kModelopt, kCompressedTensors };

struct QuantizeProgress {
  std::int64_t matrices_done = 0;
  std::int64_t num_matrices = 0;
};

struct QuantizeOptions {
  Format format = Format::kNvfp4;  // kNvfp4 or kMxfp4
  QuantizedNaming naming = QuantizedNaming::kModelopt;
  /// Called between files; returning false cancels with kFailedPrecondition. Files that are whole
  /// stay, and another call goes on behind them.
  std::function<bool(const QuantizeProgress&)> progress{};
  int num_threads = 0;  // 0: all
};

/// What became of the expert weights. Errors are those of the values as a reader decodes them.
struct QuantizeReport {
  std::int64_t num_layers = 0;
  std::int64_t num_matrices = 0;
  std::int64_t files_written = 0;
  std::int64_t files_kept = 0;      // whole since an earlier, interrupted call
  double relative_rms = 0.0;        // rms error of all weights / their rms
  double worst_relative_rms = 0.0;  // of one matrix
  std::string worst_matrix{};       // its tensor prefix
};

/// Writes `source` again with the routed experts of every MoE layer quantised, file by file under
/// the same names; all other tensors are copied, whatever their dtype. Each file is written under a
/// temporary name and renamed; index and configuration come last, so that an interrupted folder is
/// no checkpoint yet. Holds the quantised tensors of one file in memory.
///
/// Errors  kUnsupported      experts that are not bf16, a format without an encoder here
///         kInvalidArgument  no MoE layer, weights that are not finite, files in `folder` that a
///                           call with this source and these options does not write, `folder` the
///                           source's own
///         kIo               the folder or disk refused
[[nodiscard]] Result<QuantizeReport> quantize_checkpoint(const Checkpoint& source,
                                                         std::string_view folder,
                                                         const QuantizeOptions& options) noexcept;

}  // namespace moekit

#pragma GCC visibility pop
