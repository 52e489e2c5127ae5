// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where images come from: memory, then the bundle beside the library, then the user's cache folder,
// then the compiler. Safe for threads of one process (one lock per key, looked for again behind it)
// and for processes (they may compile the same key twice, and never read a half).

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>

#include "moekit/status.h"

#include "base/config.h"
#include "base/log.h"
#include "jit/compile.h"
#include "jit/files.h"
#include "jit/image.h"
#include "jit/nvrtc_table.h"

namespace moekit::jit {

struct StoreOptions {
  std::string bundle_folder{};  // empty: no bundle
  std::string cache_folder{};   // empty: no cache
  base::CacheMode cache_mode = base::CacheMode::kReadWrite;
  /// Asked once, when an image is in neither memory nor bundle.
  std::function<Result<NvrtcTable>()> open_compiler{};
  std::span<const SourceFile> sources{};  // usually embedded_sources()
  base::Log log{};
};

/// What the store did so far.
struct StoreCounts {
  std::int64_t memory_hits = 0;
  std::int64_t bundle_hits = 0;
  std::int64_t cache_hits = 0;
  std::int64_t locks = 0;
  std::int64_t compiles = 0;
  std::int64_t published = 0;

  friend bool operator==(const StoreCounts&, const StoreCounts&) = default;
};

class ImageStore {
 public:
  /// `files` must outlive the store.
  ImageStore(StoreOptions options, Files& files);

  ImageStore(const ImageStore&) = delete;
  ImageStore& operator=(const ImageStore&) = delete;

  /// The image of a request. `driver_version` (13000 for 13.0) is compared with what a bundled or
  /// cached image needs; 0 compares nothing.
  ///
  /// Errors  kUnsupported  no bundle has it and there is no compiler, naming kernel, bundle and the
  ///                       compiler's reason; or the driver is older than the image needs, naming
  ///                       both
  ///         kInternal     the kernel does not compile
  [[nodiscard]] Result<std::shared_ptr<const Image>> find(const ImageRequest& request,
                                                          int driver_version);

  [[nodiscard]] StoreCounts counts() const;

 private:
  using ImagePointer = std::shared_ptr<const Image>;

  [[nodiscard]] ImagePointer find_in_memory(const std::string& image_id);
  ImagePointer keep(Image image);
  [[nodiscard]] Result<ImagePointer> locate(const ResolvedRequest& resolved);
  /// Null: not there, or there and `bad`.
  [[nodiscard]] ImagePointer read(const std::string& folder,
                                  const std::string& name,
                                  const std::string& key,
                                  bool& bad);
  [[nodiscard]] ImagePointer find_in_bundle(const ResolvedRequest& resolved);
  [[nodiscard]] ImagePointer find_in_cache(const ResolvedRequest& resolved, bool& bad);
  [[nodiscard]] Result<ImagePointer> compile_and_publish(const ResolvedRequest& resolved);
  [[nodiscard]] Result<ImagePointer> find_or_compile(const ResolvedRequest& resolved);
  [[nodiscard]] Status compiler_status();
  void publish(const ResolvedRequest& resolved, const Image& image, bool replace);
  [[nodiscard]] std::shared_ptr<std::mutex> key_lock(const std::string& image_id);

  StoreOptions options_;
  Files& files_;

  std::shared_mutex memory_mutex_;
  std::map<std::string, ImagePointer> memory_;  // by image id

  std::mutex locks_mutex_;
  std::map<std::string, std::shared_ptr<std::mutex>> locks_;

  std::once_flag compiler_once_;
  std::optional<Result<NvrtcTable>> compiler_;

  std::atomic<std::int64_t> memory_hits_{0};
  std::atomic<std::int64_t> bundle_hits_{0};
  std::atomic<std::int64_t> cache_hits_{0};
  std::atomic<std::int64_t> lock_count_{0};
  std::atomic<std::int64_t> compiles_{0};
  std::atomic<std::int64_t> published_{0};
};

}  // namespace moekit::jit
