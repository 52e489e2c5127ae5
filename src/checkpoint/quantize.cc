// SPDX-License-Identifier: Apache-2.0
// A checkpoint written again with its routed experts quantised.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/border.h"
#include "base/cpu_info.h"
#include "base/hash.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "checkpoint/json_text.h"
#include "checkpoint/quantize_config.h"
#include "checkpoint/quantize_plan.h"

namespace moekit::checkpoint {
namespace {

using base::cat;
namespace fs = std::filesystem;

constexpr const char* kMarkKey = "moekit.quantize";
constexpr const char* kFiguresKey = "moekit.quantize.figures";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

/// One matrix quantised, and how far its values are from the source's.
struct Encoded {
  std::vector<std::byte> codes{};
  std::vector<std::byte> scales{};
  float global = 1.0F;  // as stored
  double error_squares = 0.0;
  double squares = 0.0;
  Status status{};
};

/// Sums of one file, kept in its metadata so that a resumed call reports the whole.
struct Figures {
  double error_squares = 0.0;
  double squares = 0.0;
  double worst = 0.0;
  std::string worst_matrix{};
};

/// Owns what entries of one file view; a deque does not move its elements.
struct FileContent {
  std::vector<TensorEntry> entries{};
  std::deque<Encoded> encoded{};
  std::deque<std::vector<std::byte>> biases{};
  Figures figures{};
  std::int64_t num_matrices = 0;
};

const ContainerDType* container(std::string_view name) {
  for (const ContainerDType& row : kContainerDTypes) {
    if (row.name == name) {
      return &row;
    }
  }
  return nullptr;
}

/// The global as it is stored, and as a reader then computes it.
struct StoredGlobal {
  float stored;
  float effective;
};

StoredGlobal store_global(float global, const QuantizeOptions& options) {
  if (options.format != Format::kNvfp4) {
    return {1.0F, 1.0F};
  }
  if (options.naming == QuantizedNaming::kModelopt) {
    return {global, global};
  }
  // A reciprocal of 0 has no f32; block scales of a zero matrix are 0 whatever stands here.
  const float stored = global == 0.0F ? 1.0F : 1.0F / global;
  return {stored, 1.0F / stored};
}

Status decode_matrix(const WeightMatrix& matrix, std::vector<float>& values) {
  values.resize(static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    MOEKIT_RETURN_IF_ERROR(
        decode_row(matrix,
                   row,
                   std::span(values).subspan(static_cast<std::size_t>(row * matrix.cols),
                                             static_cast<std::size_t>(matrix.cols))));
  }
  return {};
}

Status encode(const MatrixToQuantize& source, const QuantizeOptions& options, Encoded& encoded) {
  std::vector<float> values;
  MOEKIT_RETURN_IF_ERROR(decode_matrix(source.matrix, values));
  WeightMatrix made;
  made.format = options.format;
  made.rows = source.matrix.rows;
  made.cols = source.matrix.cols;
  made.row_stride_bytes = code_row_bytes(made.format, made.cols);
  made.scale_row_stride_bytes = num_scale_cols(made);
  encoded.codes.resize(static_cast<std::size_t>(made.rows * made.row_stride_bytes));
  encoded.scales.resize(static_cast<std::size_t>(made.rows * made.scale_row_stride_bytes));
  EncodedWeights written{.codes = encoded.codes, .scales = encoded.scales};
  MOEKIT_RETURN_IF_ERROR(encode_weights(options.format, values, made.rows, written));
  const StoredGlobal global = store_global(written.global_scale, options);
  encoded.global = global.stored;
  made.codes = encoded.codes.data();
  made.scales = encoded.scales.data();
  std::vector<float> row(static_cast<std::size_t>(made.cols));
  for (std::int64_t r = 0; r < made.rows; ++r) {
    MOEKIT_RETURN_IF_ERROR(decode_row(made, r, row));
    for (std::int64_t k = 0; k < made.cols; ++k) {
      const auto want = static_cast<double>(values[static_cast<std::size_t>(r * made.cols + k)]);
      const double have = static_cast<double>(row[static_cast<std::size_t>(k)]) *
                          static_cast<double>(global.effective);
      encoded.error_squares += (have - want) * (have - want);
      encoded.squares += want * want;
    }
  }
  return {};
}

void add_entries(const MatrixToQuantize& source,
                 const Encoded& encoded,
                 const QuantizeOptions& options,
                 std::vector<TensorEntry>& entries) {
  const bool modelopt = options.naming == QuantizedNaming::kModelopt;
  const bool nvfp4 = options.format == Format::kNvfp4;
  const std::int64_t rows = source.matrix.rows;
  const auto columns = [rows](const std::vector<std::byte>& bytes) {
    return rows == 0 ? std::int64_t{0} : static_cast<std::int64_t>(bytes.size()) / rows;
  };
  entries.push_back({.name = source.base + (modelopt ? "weight" : "weight_packed"),
                     .dtype = container("U8"),
                     .shape = {rows, columns(encoded.codes)},
                     .bytes = encoded.codes});
  entries.push_back({.name = source.base + "weight_scale",
                     .dtype = container(nvfp4 ? "F8_E4M3" : "U8"),
                     .shape = {rows, columns(encoded.scales)},
                     .bytes = encoded.scales});
  if (nvfp4) {
    entries.push_back(
        {.name = source.base + (modelopt ? "weight_scale_2" : "weight_global_scale"),
         .dtype = container("F32"),
         .shape = modelopt ? std::vector<std::int64_t>() : std::vector<std::int64_t>{1},
         .bytes = std::as_bytes(std::span(&encoded.global, 1))});
  }
}

Status add_bias(const BiasToSplit& bias, FileContent& content) {
  const auto width = static_cast<std::size_t>(dtype_bits(bias.bias.dtype)) / 8;
  std::vector<std::byte>& bytes = content.biases.emplace_back();
  bytes.resize(static_cast<std::size_t>(bias.bias.size) * width);
  for (std::int64_t i = 0; i < bias.bias.size; ++i) {
    const auto from = static_cast<std::size_t>(i * bias.bias.stride) * width;
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * width,
                static_cast<const std::byte*>(bias.bias.data) + from,
                width);
  }
  const char* name = bias.bias.dtype == DType::kF32   ? "F32"
                     : bias.bias.dtype == DType::kF16 ? "F16"
                                                      : "BF16";
  content.entries.push_back(
      {.name = bias.name, .dtype = container(name), .shape = {bias.bias.size}, .bytes = bytes});
  return {};
}

Status quantize_matrices(const std::vector<const MatrixToQuantize*>& matrices,
                         const QuantizeOptions& options,
                         base::ThreadPool& pool,
                         FileContent& content) {
  content.encoded.resize(matrices.size());
  pool.parallel([&](int worker, int num_workers) {
    for (auto i = static_cast<std::size_t>(worker); i < matrices.size();
         i += static_cast<std::size_t>(num_workers)) {
      try {
        content.encoded[i].status = encode(*matrices[i], options, content.encoded[i]);
      } catch (const std::bad_alloc&) {
        content.encoded[i].status = out_of_memory("host memory allocation failed");
      }
    }
  });
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const Encoded& encoded = content.encoded[i];
    if (!encoded.status.ok()) {
      return encoded.status.with_context(printable(matrices[i]->base));
    }
    add_entries(*matrices[i], encoded, options, content.entries);
    content.figures.error_squares += encoded.error_squares;
    content.figures.squares += encoded.squares;
    const double relative =
        encoded.squares > 0.0 ? std::sqrt(encoded.error_squares / encoded.squares) : 0.0;
    if (relative >= content.figures.worst) {
      content.figures.worst = relative;
      content.figures.worst_matrix = matrices[i]->base;
    }
  }
  return {};
}

/// What one output file is made of: formats, names and the source's header, size and samples of its
/// bytes. Hashing every byte would cost more than quantising.
std::string mark_of(std::span<const std::byte> file,
                    const std::string& name,
                    const QuantizeOptions& options) {
  constexpr std::size_t kSamples = 64;
  constexpr std::size_t kSampleBytes = 4096;
  base::Sha256 hash;
  hash.update_field(
      cat("1 ", format_info(options.format).name, " ", static_cast<int>(options.naming)));
  hash.update_field(name);
  hash.update_field(cat(file.size()));
  const std::size_t step = std::max(kSampleBytes, file.size() / kSamples);
  for (std::size_t at = 0; at < file.size(); at += step) {
    hash.update(file.subspan(at, std::min(kSampleBytes, file.size() - at)));
  }
  return hash.finish_hex();
}

std::string figures_text(const Figures& figures) {
  return nlohmann::json{{"error_squares", figures.error_squares},
                        {"squares", figures.squares},
                        {"worst", figures.worst},
                        {"worst_matrix", figures.worst_matrix}}
      .dump();
}

Figures read_figures(const std::string& text) {
  Figures figures;
  const Result<nlohmann::json> read = parse_json(text);
  if (read.has_value() && read->is_object()) {
    const auto number = [&](const char* key) {
      return read->contains(key) && (*read)[key].is_number() ? (*read)[key].get<double>() : 0.0;
    };
    figures = {number("error_squares"), number("squares"), number("worst"), ""};
    if (read->contains("worst_matrix") && (*read)["worst_matrix"].is_string()) {
      figures.worst_matrix = (*read)["worst_matrix"].get<std::string>();
    }
  }
  return figures;
}

class Quantizer {
 public:
  Quantizer(const Checkpoint::State& state, std::string folder, const QuantizeOptions& options)
      : state_(&state), folder_(std::move(folder)), options_(&options) {}

  Result<QuantizeReport> run() {
    MOEKIT_ASSIGN_OR_RETURN(plan_, plan_quantization(*state_));
    MOEKIT_RETURN_IF_ERROR(open_folder());
    const int threads =
        options_->num_threads > 0 ? options_->num_threads : base::detect_cpu().threads;
    MOEKIT_ASSIGN_OR_RETURN(const auto pool, base::ThreadPool::create(threads));
    for (std::size_t file = 0; file < state_->files.size(); ++file) {
      MOEKIT_RETURN_IF_ERROR(write_file(file, *pool));
      if (options_->progress && !options_->progress({matrices_done_, plan_.num_matrices})) {
        return failed_precondition(cat("quantize cancelled after ",
                                       matrices_done_,
                                       " of ",
                                       plan_.num_matrices,
                                       " matrices; files that are whole stay in ",
                                       folder_));
      }
    }
    MOEKIT_RETURN_IF_ERROR(write_texts());
    report_.num_layers = plan_.num_layers;
    report_.num_matrices = plan_.num_matrices;
    report_.relative_rms =
        total_.squares > 0.0 ? std::sqrt(total_.error_squares / total_.squares) : 0.0;
    report_.worst_relative_rms = total_.worst;
    report_.worst_matrix = total_.worst_matrix;
    return report_;
  }

 private:
  [[nodiscard]] std::string source_folder() const {
    const std::string& path = state_->summary.path;
    return base::is_folder(path) ? path : base::parent_folder(path);
  }

  Status open_folder() {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error || !base::is_folder(folder_)) {
      return io_error(cat("cannot make folder ", folder_, ": ", error.message()));
    }
    if (fs::equivalent(folder_, source_folder(), error)) {
      return invalid_argument(cat(folder_, " is the source's own folder"));
    }
    return base::remove_abandoned_files(folder_);
  }

  /// True when the file there is whole and came from the same source and options.
  Result<bool> is_kept(const std::string& path, const std::string& mark) {
    if (!base::is_regular_file(path)) {
      return false;
    }
    MOEKIT_ASSIGN_OR_RETURN(const base::MappedFile file, base::MappedFile::open(path));
    const Result<SafetensorsContent> content = parse_safetensors(file.bytes());
    const bool ours = content.has_value() && content->metadata.contains(kMarkKey);
    if (!ours) {
      return invalid_argument(cat(path, " exists and was not written by quantize"));
    }
    if (content->metadata.at(kMarkKey) != mark) {
      return false;
    }
    const auto figures = content->metadata.find(kFiguresKey);
    add_figures(read_figures(figures == content->metadata.end() ? "" : figures->second));
    for (const TensorEntry& entry : content->tensors) {
      note_tensor(entry, path);
    }
    return true;
  }

  void add_figures(const Figures& figures) {
    total_.error_squares += figures.error_squares;
    total_.squares += figures.squares;
    if (figures.worst >= total_.worst) {
      total_.worst = figures.worst;
      total_.worst_matrix = figures.worst_matrix;
    }
  }

  void note_tensor(const TensorEntry& entry, const std::string& path) {
    weight_map_[entry.name] = path.substr(path.find_last_of('/') + 1);
    total_bytes_ += static_cast<std::int64_t>(entry.bytes.size());
  }

  Status write_file(std::size_t file, base::ThreadPool& pool) {
    const std::string& name = state_->file_names[file];
    const std::span<const std::byte> bytes = state_->files[file].bytes();
    const std::string path = cat(folder_, "/", name);
    const std::string mark = mark_of(bytes, name, *options_);
    MOEKIT_ASSIGN_OR_RETURN(const SafetensorsContent source, parse_safetensors(bytes));
    FileContent content;
    std::vector<const MatrixToQuantize*> matrices;
    for (const TensorEntry& entry : source.tensors) {
      const auto placed = state_->tensors.find(entry.name);
      if (placed == state_->tensors.end() || placed->second.file != name) {
        continue;  // the index places it in another file
      }
      const auto replaced = plan_.replacements.find(entry.name);
      if (replaced == plan_.replacements.end()) {
        content.entries.push_back(entry);
        continue;
      }
      for (const MatrixToQuantize& matrix : replaced->second.matrices) {
        matrices.push_back(&matrix);
      }
      for (const BiasToSplit& bias : replaced->second.biases) {
        MOEKIT_RETURN_IF_ERROR(add_bias(bias, content));
      }
    }
    matrices_done_ += static_cast<std::int64_t>(matrices.size());
    MOEKIT_ASSIGN_OR_RETURN(const bool kept, is_kept(path, mark));
    if (kept) {
      ++report_.files_kept;
      return {};
    }
    MOEKIT_RETURN_IF_ERROR(quantize_matrices(matrices, *options_, pool, content));
    std::map<std::string, std::string> metadata = source.metadata;
    metadata[kMarkKey] = mark;
    metadata[kFiguresKey] = figures_text(content.figures);
    MOEKIT_RETURN_IF_ERROR(write_entries(path, content.entries, metadata));
    ++report_.files_written;
    add_figures(content.figures);
    for (const TensorEntry& entry : content.entries) {
      note_tensor(entry, path);
    }
    return {};
  }

  Status write_text(std::string_view name, const std::string& text) {
    MOEKIT_ASSIGN_OR_RETURN(base::PendingFile file,
                            base::PendingFile::create(cat(folder_, "/", name)));
    MOEKIT_RETURN_IF_ERROR(file.append(text));
    return file.publish();
  }

  /// Tokenizer, generation defaults and whatever else lies beside: small files, as they are.
  Status copy_other_files() {
    constexpr std::int64_t kMaxBytes = std::int64_t{256} << 20;
    MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                            base::list_folder(source_folder()));
    for (const std::string& name : names) {
      const std::string path = cat(source_folder(), "/", name);
      const bool written_here = name == "config.json" || name == "hf_quant_config.json" ||
                                name == kIndexFile || name.ends_with(".safetensors");
      std::error_code error;
      if (written_here || !base::is_regular_file(path) ||
          fs::file_size(path, error) > static_cast<std::uintmax_t>(kMaxBytes)) {
        continue;
      }
      MOEKIT_ASSIGN_OR_RETURN(const std::string text, base::read_text_file(path, kMaxBytes));
      MOEKIT_RETURN_IF_ERROR(write_text(name, text));
    }
    return {};
  }

  Status write_texts() {
    const bool whole_folder = base::is_folder(state_->summary.path);
    if (whole_folder) {
      MOEKIT_RETURN_IF_ERROR(copy_other_files());
    }
    if (state_->files.size() > 1 || base::is_regular_file(cat(source_folder(), "/", kIndexFile))) {
      const nlohmann::json index{{"metadata", {{"total_size", total_bytes_}}},
                                 {"weight_map", weight_map_}};
      MOEKIT_RETURN_IF_ERROR(write_text(kIndexFile, index.dump(2) + "\n"));
    }
    if (const std::string text = quantized_hf_config(*options_); !text.empty()) {
      MOEKIT_RETURN_IF_ERROR(write_text("hf_quant_config.json", text));
    }
    const std::string config_path = cat(source_folder(), "/config.json");
    std::string config;
    if (base::is_regular_file(config_path)) {
      MOEKIT_ASSIGN_OR_RETURN(config, base::read_text_file(config_path, kMaxConfigBytes));
    }
    MOEKIT_ASSIGN_OR_RETURN(const std::string text, quantized_config(config, *options_));
    return write_text("config.json", text);
  }

  const Checkpoint::State* state_;
  std::string folder_;
  const QuantizeOptions* options_;
  QuantizePlan plan_{};
  QuantizeReport report_{};
  Figures total_{};
  std::map<std::string, std::string> weight_map_{};
  std::int64_t total_bytes_ = 0;
  std::int64_t matrices_done_ = 0;
};

}  // namespace
}  // namespace moekit::checkpoint

namespace moekit {

Result<QuantizeReport> quantize_checkpoint(const Checkpoint& source,
                                           std::string_view folder,
                                           const QuantizeOptions& options) noexcept {
  return base::at_border([&]() -> Result<QuantizeReport> {
    if (options.format != Format::kNvfp4 && options.format != Format::kMxfp4) {
      return unsupported(base::cat(
          "quantize to ", format_info(options.format).name, ", nearest supported: nvfp4, mxfp4"));
    }
    if (folder.empty()) {
      return invalid_argument("the output folder has an empty name");
    }
    return checkpoint::Quantizer(*source.state(), std::string(folder), options).run();
  });
}

}  // namespace moekit
