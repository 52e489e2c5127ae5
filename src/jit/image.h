// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a kernel image is and how it is named. The image id depends on what goes into the compiler
// and on nothing else: not on mtime, driver, process or machine.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/status.h"

#include "jit/sources.h"

namespace moekit::jit {

/// Changes when the meaning of an entry changes; part of every image id.
inline constexpr int kImageSchema = 1;

struct ImageRequest {
  std::string kernel{};   // dotted name, for folders, logs and messages
  std::string entry{};    // extern "C" symbol
  std::string arch{};     // `sm_90a`
  std::string prelude{};  // the text that is compiled; reaches sources through its includes
  std::vector<std::string> options{};  // beyond base_options()
};

/// Options that every image gets.
[[nodiscard]] std::span<const std::string_view> base_options() noexcept;

/// All options of a request, `--gpu-architecture` included, in the order the compiler gets them.
[[nodiscard]] std::vector<std::string> compile_options(const ImageRequest& request);

/// A request joined to the sources it reaches and named.
struct ResolvedRequest {
  ImageRequest request{};
  std::vector<SourceFile> sources{};
  std::string image_id{};  // 64 hex digits
};

/// Errors  kInternal  reached_sources
[[nodiscard]] Result<ResolvedRequest> resolve_request(const ImageRequest& request,
                                                      std::span<const SourceFile> sources);

/// The user cache's key: what the compiler is enters, so that a new one compiles anew.
[[nodiscard]] std::string cache_key(std::string_view image_id, std::string_view nvrtc_version);

/// Folder of an entry: the dotted name, then enough of the key to be unique.
[[nodiscard]] std::string entry_name(std::string_view kernel, std::string_view key);

/// What is known of an image without loading it.
struct ImageFacts {
  std::string kernel{};
  std::string entry{};
  std::string arch{};
  std::string image_id{};
  std::string nvrtc_version{};
  std::vector<std::string> options{};
  int min_driver = 0;  // as the driver counts: 13000
  std::int64_t registers = 0;
  std::int64_t smem_bytes = 0;  // static
  std::int64_t stack_bytes = 0;
  std::int64_t spill_store_bytes = 0;
  std::int64_t spill_load_bytes = 0;
  std::int64_t compile_ms = 0;

  friend bool operator==(const ImageFacts&, const ImageFacts&) = default;
};

struct Image {
  ImageFacts facts{};
  std::string cubin{};   // bytes
  std::string source{};  // what was compiled: every source under its name, the prelude last
};

}  // namespace moekit::jit
