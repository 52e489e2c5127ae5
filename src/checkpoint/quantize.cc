// SPDX-License-Identifier: Apache-2.0
// A checkpoint written again with its routed experts quantised.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/border.h"
#include "base/cpu_info.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "checkpoint/json_text.h"
#include "checkpoint/quantize_config.h"
#include "checkpoint/quantize_folder.h"
#include "checkpoint/quantize_plan.h"

namespace moekit::checkpoint {
namespace {

using base::cat;
namespace fs = std::filesystem;

constexpr const char* kFiguresKey = "moekit.quantize.figures";

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

/// Names of what a matrix becomes; no global where the format has none.
struct EncodedNames {
  std::string codes;
  std::string scales;
  std::string global;
};

EncodedNames encoded_names(const std::string& base, const QuantizeOptions& options) {
  const bool modelopt = options.naming == QuantizedNaming::kModelopt;
  EncodedNames names{base + (modelopt ? "weight" : "weight_packed"), base + "weight_scale", ""};
  if (options.format == Format::kNvfp4) {
    names.global = base + (modelopt ? "weight_scale_2" : "weight_global_scale");
  }
  return names;
}

void add_entries(const MatrixToQuantize& source,
                 const Encoded& encoded,
                 const QuantizeOptions& options,
                 std::vector<TensorEntry>& entries) {
  const EncodedNames names = encoded_names(source.base, options);
  const bool scalar_global = options.naming == QuantizedNaming::kModelopt;
  const std::int64_t rows = source.matrix.rows;
  const auto columns = [rows](const std::vector<std::byte>& bytes) {
    return rows == 0 ? std::int64_t{0} : static_cast<std::int64_t>(bytes.size()) / rows;
  };
  entries.push_back({.name = names.codes,
                     .dtype = container("U8"),
                     .shape = {rows, columns(encoded.codes)},
                     .bytes = encoded.codes});
  entries.push_back({.name = names.scales,
                     .dtype = container(names.global.empty() ? "U8" : "F8_E4M3"),
                     .shape = {rows, columns(encoded.scales)},
                     .bytes = encoded.scales});
  if (!names.global.empty()) {
    entries.push_back(
        {.name = names.global,
         .dtype = container("F32"),
         .shape = scalar_global ? std::vector<std::int64_t>() : std::vector<std::int64_t>{1},
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
      // An exception must not leave a worker.
      content.encoded[i].status =
          base::at_border([&] { return encode(*matrices[i], options, content.encoded[i]); });
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

std::string figures_text(const Figures& figures) {
  Document text;
  base::set_member(*text, "error_squares", figures.error_squares);
  base::set_member(*text, "squares", figures.squares);
  base::set_member(*text, "worst", figures.worst);
  base::set_member(*text, "worst_matrix", figures.worst_matrix);
  return text->dump();
}

Figures read_figures(const std::string& text) {
  Figures figures;
  const Result<Document> document = parse_json(text);
  if (document.has_value() && (*document)->is_object()) {
    const nlohmann::json& read = **document;
    const auto number = [&](const char* key) {
      return read.contains(key) && read[key].is_number() ? read[key].get<double>() : 0.0;
    };
    figures = {number("error_squares"), number("squares"), number("worst"), ""};
    if (read.contains("worst_matrix") && read["worst_matrix"].is_string()) {
      figures.worst_matrix = read["worst_matrix"].get<std::string>();
    }
  }
  return figures;
}

/// One weight file of the source and what takes the place of its tensors.
struct FileWork {
  SafetensorsContent source{};
  std::vector<const TensorEntry*> kept{};
  std::vector<const MatrixToQuantize*> matrices{};
  std::vector<const BiasToSplit*> biases{};
};

class Quantizer {
 public:
  Quantizer(const Checkpoint::State& state, std::string folder, const QuantizeOptions& options)
      : state_(&state), options_(&options) {
    out_.folder = std::move(folder);
    const std::string& path = state.summary.path;
    out_.source_folder = base::is_folder(path) ? path : base::parent_folder(path);
  }

  Result<QuantizeReport> run() {
    MOEKIT_ASSIGN_OR_RETURN(plan_, plan_quantization(*state_));
    for (std::size_t file = 0; file < state_->files.size(); ++file) {
      MOEKIT_RETURN_IF_ERROR(plan_file(file));
    }
    MOEKIT_RETURN_IF_ERROR(plan_texts());
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
                                       out_.folder));
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
  Status open_folder() {
    std::error_code error;
    fs::create_directories(out_.folder, error);
    if (error || !base::is_folder(out_.folder)) {
      return io_error(cat("cannot make folder ", out_.folder, ": ", error.message()));
    }
    if (fs::equivalent(out_.folder, out_.source_folder, error)) {
      return invalid_argument(cat(out_.folder, " is the source's own folder"));
    }
    MOEKIT_RETURN_IF_ERROR(check_destination(out_));
    return base::remove_abandoned_files(out_.folder);
  }

  Status plan_file(std::size_t file) {
    const std::string& name = state_->file_names[file];
    const std::span<const std::byte> bytes = state_->files[file].bytes();
    out_.marks[name] = mark_of(bytes, name, *options_);
    FileWork& work = work_.emplace_back();
    MOEKIT_ASSIGN_OR_RETURN(work.source, parse_safetensors(bytes));
    for (const TensorEntry& entry : work.source.tensors) {
      const auto placed = state_->tensors.find(entry.name);
      if (placed == state_->tensors.end() || placed->second.file != name) {
        continue;  // the index places it in another file
      }
      const auto replaced = plan_.replacements.find(entry.name);
      if (replaced == plan_.replacements.end()) {
        work.kept.push_back(&entry);
        out_.weight_map[entry.name] = name;
        continue;
      }
      for (const MatrixToQuantize& matrix : replaced->second.matrices) {
        work.matrices.push_back(&matrix);
        const EncodedNames names = encoded_names(matrix.base, *options_);
        for (const std::string& made : {names.codes, names.scales, names.global}) {
          out_.weight_map[made] = name;
        }
      }
      for (const BiasToSplit& bias : replaced->second.biases) {
        work.biases.push_back(&bias);
        out_.weight_map[bias.name] = name;
      }
    }
    out_.weight_map.erase("");  // of a format without a global
    return {};
  }

  Status plan_texts() {
    if (base::is_folder(state_->summary.path)) {
      MOEKIT_ASSIGN_OR_RETURN(out_.copies, files_to_copy(out_.source_folder));
    }
    MOEKIT_ASSIGN_OR_RETURN(const bool has_index,
                            base::has_file(cat(out_.source_folder, "/", kIndexFile)));
    out_.has_index = state_->files.size() > 1 || has_index;
    if (std::string text = quantized_hf_config(*options_); !text.empty()) {
      out_.texts["hf_quant_config.json"] = std::move(text);
    }
    const std::string config_path = cat(out_.source_folder, "/config.json");
    std::string config;
    MOEKIT_ASSIGN_OR_RETURN(const bool has_config, base::has_file(config_path));
    if (has_config) {
      MOEKIT_ASSIGN_OR_RETURN(config, base::read_text_file(config_path, kMaxConfigBytes));
    }
    MOEKIT_ASSIGN_OR_RETURN(out_.texts["config.json"], quantized_config(config, *options_));
    return {};
  }

  /// True when the file there is whole; check_destination has seen whose it is.
  Result<bool> is_kept(const std::string& path) {
    if (!base::is_regular_file(path)) {
      return false;
    }
    MOEKIT_ASSIGN_OR_RETURN(const base::MappedFile file, base::MappedFile::open(path));
    MOEKIT_ASSIGN_OR_RETURN(const SafetensorsContent content, parse_safetensors(file.bytes()));
    const auto figures = content.metadata.find(kFiguresKey);
    add_figures(read_figures(figures == content.metadata.end() ? "" : figures->second));
    add_bytes(content.tensors);
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

  void add_bytes(const std::vector<TensorEntry>& entries) {
    for (const TensorEntry& entry : entries) {
      total_bytes_ += static_cast<std::int64_t>(entry.bytes.size());
    }
  }

  Status write_file(std::size_t file, base::ThreadPool& pool) {
    const std::string& name = state_->file_names[file];
    const std::string path = cat(out_.folder, "/", name);
    const FileWork& work = work_[file];
    matrices_done_ += static_cast<std::int64_t>(work.matrices.size());
    MOEKIT_ASSIGN_OR_RETURN(const bool kept, is_kept(path));
    if (kept) {
      ++report_.files_kept;
      return {};
    }
    FileContent content;
    for (const TensorEntry* entry : work.kept) {
      content.entries.push_back(*entry);
    }
    for (const BiasToSplit* bias : work.biases) {
      MOEKIT_RETURN_IF_ERROR(add_bias(*bias, content));
    }
    MOEKIT_RETURN_IF_ERROR(quantize_matrices(work.matrices, *options_, pool, content));
    std::map<std::string, std::string> metadata = work.source.metadata;
    metadata[kMarkKey] = out_.marks.at(name);
    metadata[kFiguresKey] = figures_text(content.figures);
    MOEKIT_RETURN_IF_ERROR(write_entries(path, content.entries, metadata));
    ++report_.files_written;
    add_figures(content.figures);
    add_bytes(content.entries);
    return {};
  }

  Status write_texts() {
    MOEKIT_RETURN_IF_ERROR(copy_files(out_));
    if (out_.has_index) {
      Document index;
      base::set_member(base::member(*index, "metadata"), "total_size", total_bytes_);
      base::set_member(*index, "weight_map", out_.weight_map);
      MOEKIT_RETURN_IF_ERROR(write_text(out_.folder, kIndexFile, index->dump(2) + "\n"));
    }
    for (const char* name : {"hf_quant_config.json", "config.json"}) {
      if (const auto text = out_.texts.find(name); text != out_.texts.end()) {
        MOEKIT_RETURN_IF_ERROR(write_text(out_.folder, name, text->second));
      }
    }
    return {};
  }

  const Checkpoint::State* state_;
  const QuantizeOptions* options_;
  FolderPlan out_{};
  QuantizePlan plan_{};
  std::vector<FileWork> work_{};
  QuantizeReport report_{};
  Figures total_{};
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
