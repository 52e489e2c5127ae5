// SPDX-License-Identifier: Apache-2.0

// Bundles and caches of kernel images: build, list, prune, clear.

#include "moekit/kernels.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/border.h"
#include "base/config.h"
#include "base/cpu_info.h"
#include "base/shared_object.h"
#include "base/text.h"
#include "cuda/kernel_table.h"
#include "jit/bundle.h"
#include "jit/compile.h"
#include "kernels/catalog.h"
#include "runtime/kernel_folders.h"

namespace moekit {
namespace {

using base::cat;

KernelImage image_of(const jit::ImageFacts& facts, std::int64_t cubin_bytes, bool current) {
  return {.kernel = facts.kernel,
          .arch = facts.arch,
          .image_id = facts.image_id,
          .nvrtc = facts.nvrtc_version,
          .min_driver = facts.min_driver,
          .registers = facts.registers,
          .smem_bytes = facts.smem_bytes,
          .stack_bytes = facts.stack_bytes,
          .spill_bytes = facts.spill_store_bytes + facts.spill_load_bytes,
          .cubin_bytes = cubin_bytes,
          .compile_ms = facts.compile_ms,
          .current = current};
}

/// Every kernel of the catalogue for an arch, with its sources and image id.
Result<std::vector<jit::ResolvedRequest>> catalog_requests(Arch arch) {
  std::vector<jit::ResolvedRequest> requests;
  for (const kernels::CudaEntry& entry : kernels::cuda_catalog()) {
    for (const plan::KernelSource& source : entry.cuda->catalog(arch)) {
      MOEKIT_ASSIGN_OR_RETURN(
          jit::ResolvedRequest resolved,
          jit::resolve_request(cuda::image_request(source), jit::embedded_sources()));
      requests.push_back(std::move(resolved));
    }
  }
  return requests;
}

/// Image ids that this library would ask for, with their kernels' names.
Result<std::map<std::string, std::string>> current_images() {
  std::map<std::string, std::string> images;
  for (const Arch arch : plan::kCudaArchs) {
    MOEKIT_ASSIGN_OR_RETURN(const std::vector<jit::ResolvedRequest> requests,
                            catalog_requests(arch));
    for (const jit::ResolvedRequest& request : requests) {
      images.emplace(request.image_id, request.request.kernel);
    }
  }
  return images;
}

/// Threads that take one request after another until all are done or one fails.
class BundleBuild {
 public:
  BundleBuild(const BuildKernelsOptions& options,
              const jit::NvrtcTable& nvrtc,
              std::vector<jit::ResolvedRequest> requests)
      : options_(options), nvrtc_(nvrtc), requests_(std::move(requests)) {
    images_.resize(requests_.size());
  }

  Result<std::vector<KernelImage>> run(int num_threads) {
    {
      std::vector<std::jthread> threads;
      for (int i = 1; i < num_threads; ++i) {
        threads.emplace_back([this] { work(); });
      }
      work();
    }
    if (!status_.ok()) {
      return status_;
    }
    return std::move(images_);
  }

 private:
  void work() {
    for (;;) {
      const std::size_t index = next_.fetch_add(1);
      if (index >= requests_.size() || failed_.load()) {
        return;
      }
      Result<KernelImage> image = base::at_border([&] { return build(requests_[index]); });
      const std::lock_guard lock(mutex_);
      if (!image) {
        fail(image.status());
        return;
      }
      images_[index] = *std::move(image);
      done_ += 1;
      const BuildProgress progress = {.kernels_done = done_,
                                      .num_kernels = static_cast<std::int64_t>(requests_.size()),
                                      .kernel = images_[index].kernel};
      if (!failed_.load() && options_.progress && !options_.progress(progress)) {
        fail(failed_precondition(
            cat("cancelled after ", done_, " of ", requests_.size(), " kernels")));
        return;
      }
    }
  }

  void fail(Status status) {
    if (status_.ok()) {
      status_ = std::move(status);
    }
    failed_.store(true);
  }

  Result<KernelImage> build(const jit::ResolvedRequest& resolved) {
    jit::Files files;
    const std::string name = jit::entry_name(resolved.request.kernel, resolved.image_id);
    MOEKIT_ASSIGN_OR_RETURN(std::optional<jit::EntryContents> contents,
                            files.read_entry(options_.output, name));
    const bool exists = contents.has_value();
    if (exists) {
      Result<jit::Image> kept = jit::decode_entry(*std::move(contents), resolved.image_id);
      // Whole and by this compiler: nothing would change.
      if (kept && kept->facts.nvrtc_version == nvrtc_.version_text()) {
        return image_of(kept->facts, static_cast<std::int64_t>(kept->cubin.size()), true);
      }
    }
    MOEKIT_ASSIGN_OR_RETURN(const jit::Image image, jit::compile_image(nvrtc_, resolved));
    MOEKIT_RETURN_IF_ERROR(
        files.publish(options_.output, name, jit::encode_entry(image, resolved.image_id), exists));
    return image_of(image.facts, static_cast<std::int64_t>(image.cubin.size()), true);
  }

  const BuildKernelsOptions& options_;
  const jit::NvrtcTable& nvrtc_;
  std::vector<jit::ResolvedRequest> requests_;
  std::vector<KernelImage> images_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards what follows, and keeps progress calls apart
  std::int64_t done_ = 0;
  Status status_{};
};

Result<std::vector<KernelImage>> build(const BuildKernelsOptions& options) {
  if (options.archs.empty() || options.output.empty()) {
    return invalid_argument(options.archs.empty() ? "no arch to build kernels for"
                                                  : "no folder to build kernels into");
  }
  std::vector<jit::ResolvedRequest> requests;
  for (const Arch arch : options.archs) {
    if (arch == Arch::kCpu) {
      return invalid_argument("cpu has no kernel images");
    }
    MOEKIT_ASSIGN_OR_RETURN(std::vector<jit::ResolvedRequest> more, catalog_requests(arch));
    std::move(more.begin(), more.end(), std::back_inserter(requests));
  }
  MOEKIT_ASSIGN_OR_RETURN(const jit::NvrtcTable nvrtc, open_environment_nvrtc());
  const int threads = options.num_threads > 0 ? options.num_threads : base::detect_cpu().threads;
  return BundleBuild(options, nvrtc, std::move(requests)).run(threads);
}

Result<KernelListing> list(const std::string& folder) {
  jit::Files files;
  MOEKIT_ASSIGN_OR_RETURN(const std::vector<jit::FolderEntry> entries,
                          jit::read_folder(files, folder));
  MOEKIT_ASSIGN_OR_RETURN(const auto current, current_images());
  KernelListing listing;
  std::set<std::string> archs;
  std::set<std::string> held;
  for (const jit::FolderEntry& entry : entries) {
    if (!entry.status.ok()) {
      listing.problems.push_back({entry.name, std::string(entry.status.message())});
      continue;
    }
    const bool is_current = current.contains(entry.facts.image_id);
    listing.images.push_back(image_of(entry.facts, entry.cubin_bytes, is_current));
    archs.insert(entry.facts.arch);
    if (is_current) {
      held.insert(entry.facts.kernel);
    }
  }
  for (const Arch arch : plan::kCudaArchs) {
    if (!archs.contains(std::string(arch_name(arch)))) {
      continue;
    }
    MOEKIT_ASSIGN_OR_RETURN(const std::vector<jit::ResolvedRequest> requests,
                            catalog_requests(arch));
    for (const jit::ResolvedRequest& request : requests) {
      if (!held.contains(request.request.kernel)) {
        listing.missing.push_back(request.request.kernel);
      }
    }
  }
  return listing;
}

template <typename Unwanted>
Result<std::vector<std::string>> remove_where(const std::string& folder, Unwanted unwanted) {
  if (folder.empty()) {
    return invalid_argument("no folder given, and this machine has no cache folder");
  }
  jit::Files files;
  std::vector<std::string> removed;
  MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, unwanted(files));
  for (const std::string& name : names) {
    MOEKIT_RETURN_IF_ERROR(files.remove(folder, name));
    removed.push_back(name);
  }
  return removed;
}

}  // namespace

KernelFolders kernel_folders() noexcept {
  try {
    return environment_folders();
  } catch (...) {
    return {};
  }
}

Result<std::vector<KernelImage>> build_kernels(const BuildKernelsOptions& options) noexcept {
  return base::at_border([&] { return build(options); });
}

Result<KernelListing> list_kernels(const std::string& folder) noexcept {
  return base::at_border([&] { return list(folder); });
}

Result<std::vector<std::string>> prune_kernels(const std::string& folder) noexcept {
  return base::at_border([&] {
    return remove_where(folder, [&](jit::Files& files) -> Result<std::vector<std::string>> {
      MOEKIT_ASSIGN_OR_RETURN(const auto current, current_images());
      MOEKIT_ASSIGN_OR_RETURN(const std::vector<jit::FolderEntry> entries,
                              jit::read_folder(files, folder));
      std::vector<std::string> names;
      for (const jit::FolderEntry& entry : entries) {
        const bool useless = !entry.status.ok() || !current.contains(entry.facts.image_id);
        if (useless && jit::looks_like_entry(entry.name)) {
          names.push_back(entry.name);
        }
      }
      MOEKIT_ASSIGN_OR_RETURN(const std::vector<std::string> all, files.list(folder));
      std::copy_if(all.begin(), all.end(), std::back_inserter(names), [&](const std::string& name) {
        return jit::is_abandoned(files, folder, name);
      });
      return names;
    });
  });
}

Result<std::vector<std::string>> clear_kernels(const std::string& folder) noexcept {
  return base::at_border([&] {
    return remove_where(folder, [&](jit::Files& files) -> Result<std::vector<std::string>> {
      MOEKIT_ASSIGN_OR_RETURN(std::vector<std::string> names, files.list(folder));
      std::erase_if(names, [&](const std::string& name) {
        return !jit::looks_like_entry(name) && !jit::is_abandoned(files, folder, name);
      });
      return names;
    });
  });
}

}  // namespace moekit
