// SPDX-License-Identifier: Apache-2.0
#include "jit/store.h"

#include "base/text.h"

namespace moekit::jit {

ImageStore::ImageStore(StoreOptions options, Files& files)
    : options_(std::move(options)), files_(files) {}

Result<std::shared_ptr<const Image>> ImageStore::find(const ImageRequest& request,
                                                      int driver_version) {
  MOEKIT_ASSIGN_OR_RETURN(const ResolvedRequest resolved,
                          resolve_request(request, options_.sources));
  MOEKIT_ASSIGN_OR_RETURN(ImagePointer image, locate(resolved));
  const ImageFacts& facts = image->facts;
  if (driver_version != 0 && driver_version < facts.min_driver) {
    return unsupported(base::cat("kernel ",
                                 facts.kernel,
                                 " was compiled by NVRTC ",
                                 facts.nvrtc_version,
                                 " and needs driver ",
                                 facts.min_driver,
                                 " or later, the driver is ",
                                 driver_version));
  }
  return image;
}

Result<ImageStore::ImagePointer> ImageStore::locate(const ResolvedRequest& resolved) {
  if (ImagePointer image = find_in_memory(resolved.image_id)) {
    memory_hits_.fetch_add(1, std::memory_order_relaxed);
    return image;
  }
  if (ImagePointer image = find_in_bundle(resolved)) {
    return image;
  }
  return find_or_compile(resolved);
}

Result<ImageStore::ImagePointer> ImageStore::find_or_compile(const ResolvedRequest& resolved) {
  if (const Status status = compiler_status(); !status.ok()) {
    return Status(status.code(),
                  base::cat("kernel ",
                            resolved.request.kernel,
                            " is not in the bundle (",
                            options_.bundle_folder.empty() ? "none" : options_.bundle_folder,
                            ") and cannot be compiled: ",
                            status.message()));
  }
  bool bad = false;
  if (ImagePointer cached = find_in_cache(resolved, bad)) {
    return cached;
  }
  return compile_and_publish(resolved);
}

Result<ImageStore::ImagePointer> ImageStore::compile_and_publish(const ResolvedRequest& resolved) {
  const std::shared_ptr<std::mutex> mutex = key_lock(resolved.image_id);
  const std::lock_guard lock(*mutex);
  lock_count_.fetch_add(1, std::memory_order_relaxed);
  // Whoever held the lock before may have done the work.
  if (ImagePointer image = find_in_memory(resolved.image_id)) {
    memory_hits_.fetch_add(1, std::memory_order_relaxed);
    return image;
  }
  bool bad = false;
  if (ImagePointer cached = find_in_cache(resolved, bad)) {
    return cached;
  }
  compiles_.fetch_add(1, std::memory_order_relaxed);
  MOEKIT_ASSIGN_OR_RETURN(Image image, compile_image(**compiler_, resolved));
  options_.log.info(base::cat("jit.compile kernel=",
                              image.facts.kernel,
                              " ms=",
                              image.facts.compile_ms,
                              " registers=",
                              image.facts.registers,
                              " spill_bytes=",
                              image.facts.spill_store_bytes,
                              " cache=miss"));
  publish(resolved, image, bad);
  return keep(std::move(image));
}

ImageStore::ImagePointer ImageStore::find_in_memory(const std::string& image_id) {
  const std::shared_lock lock(memory_mutex_);
  const auto found = memory_.find(image_id);
  return found == memory_.end() ? nullptr : found->second;
}

ImageStore::ImagePointer ImageStore::keep(Image image) {
  image.source.clear();  // only the machine code is needed from here on
  image.source.shrink_to_fit();
  const std::unique_lock lock(memory_mutex_);
  const std::string id = image.facts.image_id;
  return memory_.try_emplace(id, std::make_shared<const Image>(std::move(image))).first->second;
}

ImageStore::ImagePointer ImageStore::read(const std::string& folder,
                                          const std::string& name,
                                          const std::string& key,
                                          bool& bad) {
  Result<std::optional<EntryContents>> contents = files_.read_entry(folder, name);
  if (contents && !contents->has_value()) {
    return nullptr;
  }
  Result<Image> image =
      contents ? decode_entry(std::move(**contents), key) : Result<Image>(contents.status());
  if (!image) {
    bad = true;
    const std::string path = base::cat(folder, "/", name);
    options_.log.warn_once(
        path,
        base::cat("jit.bad_entry entry=", path, " reason=\"", image.status().message(), "\""));
    return nullptr;
  }
  return keep(std::move(*image));
}

ImageStore::ImagePointer ImageStore::find_in_bundle(const ResolvedRequest& resolved) {
  if (options_.bundle_folder.empty()) {
    return nullptr;
  }
  bool bad = false;  // ignored: a bundle is not ours to repair
  ImagePointer image = read(options_.bundle_folder,
                            entry_name(resolved.request.kernel, resolved.image_id),
                            resolved.image_id,
                            bad);
  bundle_hits_.fetch_add(image != nullptr ? 1 : 0, std::memory_order_relaxed);
  return image;
}

ImageStore::ImagePointer ImageStore::find_in_cache(const ResolvedRequest& resolved, bool& bad) {
  if (options_.cache_folder.empty() || options_.cache_mode == base::CacheMode::kOff) {
    return nullptr;
  }
  const std::string key = cache_key(resolved.image_id, (*compiler_)->version_text());
  ImagePointer image =
      read(options_.cache_folder, entry_name(resolved.request.kernel, key), key, bad);
  cache_hits_.fetch_add(image != nullptr ? 1 : 0, std::memory_order_relaxed);
  return image;
}

Status ImageStore::compiler_status() {
  std::call_once(compiler_once_, [this] {
    compiler_.emplace(options_.open_compiler
                          ? options_.open_compiler()
                          : Result<NvrtcTable>(unsupported("no compiler was given")));
  });
  return compiler_->status();
}

void ImageStore::publish(const ResolvedRequest& resolved, const Image& image, bool replace) {
  if (options_.cache_folder.empty() || options_.cache_mode != base::CacheMode::kReadWrite) {
    return;
  }
  const std::string key = cache_key(resolved.image_id, image.facts.nvrtc_version);
  const Status status = files_.publish(options_.cache_folder,
                                       entry_name(resolved.request.kernel, key),
                                       encode_entry(image, key),
                                       replace);
  if (status.ok()) {
    published_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  // Not an error: the image is in memory. Once, whatever the number of kernels.
  options_.log.warn_once(options_.cache_folder,
                         base::cat("jit.cache_not_written folder=",
                                   options_.cache_folder,
                                   " reason=\"",
                                   status.message(),
                                   "\""));
}

std::shared_ptr<std::mutex> ImageStore::key_lock(const std::string& image_id) {
  const std::lock_guard lock(locks_mutex_);
  std::shared_ptr<std::mutex>& mutex = locks_[image_id];
  if (mutex == nullptr) {
    mutex = std::make_shared<std::mutex>();
  }
  return mutex;
}

StoreCounts ImageStore::counts() const {
  return {.memory_hits = memory_hits_.load(std::memory_order_relaxed),
          .bundle_hits = bundle_hits_.load(std::memory_order_relaxed),
          .cache_hits = cache_hits_.load(std::memory_order_relaxed),
          .locks = lock_count_.load(std::memory_order_relaxed),
          .compiles = compiles_.load(std::memory_order_relaxed),
          .published = published_.load(std::memory_order_relaxed)};
}

}  // namespace moekit::jit
