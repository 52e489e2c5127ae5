// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel_folders.h"

#include <filesystem>

#include "base/config.h"
#include "base/shared_object.h"
#include "base/text.h"

namespace moekit {
namespace {

std::string default_bundle() {
  const std::string own = base::own_folder();
  if (own.empty()) {
    return {};
  }
  for (const char* relative : {"/moekit/kernels",
                               "/../lib/moekit/kernels",
                               "/../" MOEKIT_INSTALL_LIBDIR "/moekit/kernels"}) {
    std::error_code ignored;
    std::string folder = own + relative;
    if (std::filesystem::is_directory(folder, ignored)) {
      return folder;
    }
  }
  return {};
}

}  // namespace

KernelFolders environment_folders() {
  const base::Config& config = base::environment_config();
  KernelFolders folders;
  if (config.bundle_folder.empty()) {
    folders.bundle = default_bundle();
  } else if (config.bundle_folder != "none") {
    folders.bundle = config.bundle_folder;
  }
  if (config.cache_mode != base::CacheMode::kOff && !config.cache_folder.empty()) {
    folders.cache = config.cache_folder + "/kernels";
  }
  return folders;
}

Result<jit::NvrtcTable> open_environment_nvrtc() {
  const base::Config& config = base::environment_config();
  return jit::open_nvrtc(
      {.library = config.nvrtc_library, .toolkit_folder = config.toolkit_folder});
}

}  // namespace moekit
