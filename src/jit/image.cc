// SPDX-License-Identifier: Apache-2.0
#include "jit/image.h"

#include <array>

#include "base/hash.h"
#include "base/text.h"

namespace moekit::jit {
namespace {

// fmad off: quantisers and elementary functions have the same bits on every backend only without
// contraction; where a kernel wants fused multiply-add it says so. The next three are the
// compiler's defaults, said so that no default can change under us. -v: registers and spills come
// back in the log.
constexpr std::array<std::string_view, 7> kBaseOptions = {"-std=c++20",
                                                          "--device-as-default-execution-space",
                                                          "--fmad=false",
                                                          "--ftz=false",
                                                          "--prec-div=true",
                                                          "--prec-sqrt=true",
                                                          "--ptxas-options=-v"};

// 128 bits of the key: no two of any number of images that exist will meet.
constexpr std::size_t kNameDigits = 32;

}  // namespace

std::span<const std::string_view> base_options() noexcept {
  return kBaseOptions;
}

std::vector<std::string> compile_options(const ImageRequest& request) {
  std::vector<std::string> options(kBaseOptions.begin(), kBaseOptions.end());
  options.push_back(base::cat("--gpu-architecture=", request.arch));
  options.insert(options.end(), request.options.begin(), request.options.end());
  return options;
}

Result<ResolvedRequest> resolve_request(const ImageRequest& request,
                                        std::span<const SourceFile> sources) {
  ResolvedRequest resolved{.request = request};
  MOEKIT_ASSIGN_OR_RETURN(resolved.sources, reached_sources(request.prelude, sources));
  base::Sha256 hash;
  hash.update_field(base::cat("moekit image ", kImageSchema));
  hash.update_field(request.arch);
  for (const std::string& option : compile_options(request)) {
    hash.update_field(option);
  }
  hash.update_field("prelude");
  hash.update_field(request.entry);
  hash.update_field(request.prelude);
  for (const SourceFile& file : resolved.sources) {
    hash.update_field(file.name);
    hash.update_field(file.text);
  }
  resolved.image_id = hash.finish_hex();
  return resolved;
}

std::string cache_key(std::string_view image_id, std::string_view nvrtc_version) {
  base::Sha256 hash;
  hash.update_field(image_id);
  hash.update_field(nvrtc_version);
  return hash.finish_hex();
}

std::string entry_name(std::string_view kernel, std::string_view key) {
  return base::cat(kernel, "-", key.substr(0, kNameDigits));
}

}  // namespace moekit::jit
