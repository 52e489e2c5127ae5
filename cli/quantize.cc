// SPDX-License-Identifier: Apache-2.0
// moekit quantize: a BF16 checkpoint written again with its routed experts in four bits.

#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "moekit/checkpoint.h"

#include "cli/options.h"
#include "cli/reports.h"
#include "cli/subject.h"
#include "cli/verbs.h"

namespace moekit::cli {
namespace {

Result<QuantizeOptions> library_options(const QuantizeVerbOptions& options) {
  QuantizeOptions made;
  const std::optional<Format> format = format_from_name(options.format);
  if (!format) {
    return invalid_argument(fmt::format("--format {}: expected nvfp4 or mxfp4", options.format));
  }
  made.format = *format;
  made.naming = options.naming == "modelopt" ? QuantizedNaming::kModelopt
                                             : QuantizedNaming::kCompressedTensors;
  made.num_threads = options.threads.value_or(0);
  return made;
}

nlohmann::ordered_json report_json(const QuantizeVerbOptions& options,
                                   const QuantizeReport& report) {
  return {{"source", options.source},
          {"output", options.output},
          {"format", options.format},
          {"naming", options.naming},
          {"layers", report.num_layers},
          {"matrices", report.num_matrices},
          {"files_written", report.files_written},
          {"files_kept", report.files_kept},
          {"relative_rms", report.relative_rms},
          {"worst_relative_rms", report.worst_relative_rms},
          {"worst_matrix", report.worst_matrix}};
}

std::string report_text(const QuantizeVerbOptions& options, const QuantizeReport& report) {
  return fmt::format(
      "output     {}\n"
      "format     {}, names of {}\n"
      "experts    {} matrices of {} layers\n"
      "files      {} written, {} kept from an earlier call\n"
      "error      {:.4f} % of the weights' rms, worst matrix {:.4f} % ({})\n",
      options.output,
      options.format,
      options.naming,
      report.num_matrices,
      report.num_layers,
      report.files_written,
      report.files_kept,
      100.0 * report.relative_rms,
      100.0 * report.worst_relative_rms,
      report.worst_matrix);
}

}  // namespace

Result<ExitCode> quantize_verb(Console& console, const QuantizeVerbOptions& options) {
  MOEKIT_ASSIGN_OR_RETURN(QuantizeOptions made, library_options(options));
  MOEKIT_ASSIGN_OR_RETURN(const Checkpoint source, open_checkpoint(options.source));
  made.progress = [&](const QuantizeProgress& progress) {
    console.progress("quantize", progress.matrices_done, progress.num_matrices);
    return true;
  };
  const Result<QuantizeReport> report = quantize_checkpoint(source, options.output, made);
  console.clear_progress();
  if (!report) {
    // The source is open and read: what fails on a disk now is the output.
    console.error(report.status());
    return report.status().code() == StatusCode::kIo ? ExitCode::kFailed
                                                     : exit_code_of(report.status().code());
  }
  console.report(options.json ? json_text(report_json(options, *report))
                              : report_text(options, *report));
  return ExitCode::kOk;
}

}  // namespace moekit::cli
