// SPDX-License-Identifier: Apache-2.0
// moekit kernels: images compiled ahead of time, and the folders that hold images.

#include "moekit/kernels.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "cli/reports.h"
#include "cli/verbs.h"

namespace moekit::cli {
namespace {

using Json = nlohmann::ordered_json;

Json image_json(const KernelImage& image) {
  return {{"kernel", image.kernel},
          {"arch", image.arch},
          {"registers", image.registers},
          {"smem_bytes", image.smem_bytes},
          {"stack_bytes", image.stack_bytes},
          {"spill_bytes", image.spill_bytes},
          {"cubin_bytes", image.cubin_bytes},
          {"compile_ms", image.compile_ms},
          {"nvrtc", image.nvrtc},
          {"min_driver", image.min_driver},
          {"current", image.current},
          {"image_id", image.image_id}};
}

std::string image_line(const KernelImage& image) {
  return fmt::format("{:<58} {:>4} registers {:>6} B smem {:>4} B spilled {:>7} B{}\n",
                     image.kernel,
                     image.registers,
                     image.smem_bytes,
                     image.spill_bytes,
                     image.cubin_bytes,
                     image.current ? "" : "  not current");
}

Result<ExitCode> build_verb(Console& console, const KernelsOptions& options) {
  BuildKernelsOptions build;
  build.output = options.output;
  build.num_threads = options.threads;
  for (const std::string& name : options.archs) {
    MOEKIT_ASSIGN_OR_RETURN(const DeviceDescriptor device, device_from_name(name));
    build.archs.push_back(device.arch);
  }
  build.progress = [&console](const BuildProgress& progress) {
    console.progress("compiling kernels", progress.kernels_done, progress.num_kernels);
    return true;
  };
  const Result<std::vector<KernelImage>> built = build_kernels(build);
  console.clear_progress();
  if (!built && built.status().code() == StatusCode::kIo) {
    console.error(built.status());
    return ExitCode::kFailed;  // an output, not an input
  }
  MOEKIT_RETURN_IF_ERROR(built.status());
  Json rows = Json::array();
  std::string text;
  for (const KernelImage& image : *built) {
    rows.push_back(image_json(image));
    text += image_line(image);
  }
  text += fmt::format("{} images in {}\n", built->size(), options.output);
  console.report(options.json ? json_text({{"output", options.output}, {"images", rows}}) : text);
  return ExitCode::kOk;
}

/// Those named, or the bundle and the cache of this machine.
std::vector<std::string> folders_of(const KernelsOptions& options) {
  if (!options.folder.empty()) {
    return {options.folder};
  }
  const KernelFolders known = kernel_folders();
  std::vector<std::string> folders;
  for (const std::string& folder : {known.bundle, known.cache}) {
    if (!folder.empty()) {
      folders.push_back(folder);
    }
  }
  return folders;
}

/// list, and verify, which also says whether all is well.
Result<ExitCode> list_verb(Console& console, const KernelsOptions& options) {
  const bool verify = options.action == "verify";
  Json rows = Json::array();
  std::string text;
  std::size_t images = 0;
  std::size_t bad = 0;
  for (const std::string& folder : folders_of(options)) {
    MOEKIT_ASSIGN_OR_RETURN(const KernelListing listing, list_kernels(folder));
    Json row = {{"folder", folder},
                {"images", Json::array()},
                {"problems", Json::array()},
                {"missing", listing.missing}};
    text += fmt::format("{}: {} images\n", folder, listing.images.size());
    for (const KernelImage& image : listing.images) {
      row["images"].push_back(image_json(image));
      text += verify ? "" : "  " + image_line(image);
    }
    for (const KernelProblem& problem : listing.problems) {
      row["problems"].push_back({{"entry", problem.entry}, {"reason", problem.reason}});
      text += fmt::format("  bad: {}: {}\n", problem.entry, problem.reason);
    }
    for (const std::string& kernel : listing.missing) {
      text += fmt::format("  missing: {}\n", kernel);
    }
    images += listing.images.size();
    bad += listing.problems.size();
    // A cache holds what was asked for; a bundle is to hold everything.
    bad += folder == kernel_folders().cache ? 0 : listing.missing.size();
    rows.push_back(row);
  }
  const bool passed = bad == 0 && images > 0;
  if (verify) {
    text += images == 0 ? "FAILED: there is no image to verify\n"
            : passed    ? fmt::format("OK: every byte of {} images\n", images)
                        : fmt::format("FAILED: {} bad or missing\n", bad);
  }
  Json report = {{"folders", rows}};
  if (verify) {
    report["passed"] = passed;
  }
  console.report(options.json ? json_text(report) : text);
  return verify && !passed ? ExitCode::kCheckFailed : ExitCode::kOk;
}

/// prune and clear, of the cache unless a folder is named.
Result<ExitCode> remove_verb(Console& console, const KernelsOptions& options) {
  const std::string folder = options.folder.empty() ? kernel_folders().cache : options.folder;
  const Result<std::vector<std::string>> removed =
      options.action == "prune" ? prune_kernels(folder) : clear_kernels(folder);
  if (!removed && removed.status().code() == StatusCode::kIo) {
    console.error(removed.status());
    return ExitCode::kFailed;
  }
  MOEKIT_RETURN_IF_ERROR(removed.status());
  std::string text;
  for (const std::string& name : *removed) {
    text += fmt::format("removed {}\n", name);
  }
  text += fmt::format("{} entries removed from {}\n", removed->size(), folder);
  console.report(options.json ? json_text({{"folder", folder}, {"removed", *removed}}) : text);
  return ExitCode::kOk;
}

}  // namespace

Result<ExitCode> kernels_verb(Console& console, const KernelsOptions& options) {
  if (options.action == "build") {
    if (options.archs.empty() || options.output.empty()) {
      return invalid_argument("kernels build needs --arch A[,A...] and --output DIR");
    }
    return build_verb(console, options);
  }
  if (!options.archs.empty() || !options.output.empty()) {
    return invalid_argument("--arch and --output belong to kernels build");
  }
  return options.action == "list" || options.action == "verify" ? list_verb(console, options)
                                                                : remove_verb(console, options);
}

}  // namespace moekit::cli
