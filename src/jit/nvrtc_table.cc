// SPDX-License-Identifier: Apache-2.0
#include "jit/nvrtc_table.h"

#include <array>

#include "base/shared_object.h"
#include "base/text.h"

namespace moekit::jit {
namespace {

// Newest first: an image compiled by a newer compiler still loads on every driver of its major.
constexpr std::array<const char*, 3> kNames = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr std::array<const char*, 2> kToolkits = {"/usr/local/cuda", "/opt/cuda"};
constexpr std::array<const char*, 2> kLibraryFolders = {"lib64", "lib"};

template <typename Function>
void fill(const base::SharedObject& library,
          const char* name,
          Function& function,
          std::string& missing) {
  void* const symbol = library.symbol(name);
  if (symbol == nullptr && missing.empty()) {
    missing = name;
  }
  function = reinterpret_cast<Function>(symbol);
}

}  // namespace

std::string NvrtcTable::version_text() const {
  return base::cat(major, ".", minor);
}

std::vector<std::string> nvrtc_candidates(const NvrtcSearch& search) {
  if (!search.library.empty()) {
    return {search.library};
  }
  std::vector<std::string> candidates(kNames.begin(), kNames.end());
  std::vector<std::string> toolkits;
  if (!search.toolkit_folder.empty()) {
    toolkits.push_back(search.toolkit_folder);
  }
  toolkits.insert(toolkits.end(), kToolkits.begin(), kToolkits.end());
  for (const std::string& toolkit : toolkits) {
    for (const char* folder : kLibraryFolders) {
      for (const char* name : kNames) {
        candidates.push_back(base::cat(toolkit, "/", folder, "/", name));
      }
    }
  }
  return candidates;
}

Result<NvrtcTable> open_nvrtc(const NvrtcSearch& search) {
  if (search.library == "none") {
    return unsupported("the run-time compiler is switched off (MOEKIT_NVRTC_LIBRARY=none)");
  }
  Result<base::SharedObject> library = base::SharedObject::open(nvrtc_candidates(search));
  if (!library) {
    return library.status().with_context("the run-time compiler NVRTC is not on this machine");
  }
  NvrtcTable table;
  std::string missing;
  fill(*library, "nvrtcVersion", table.version, missing);
  fill(*library, "nvrtcCreateProgram", table.create_program, missing);
  fill(*library, "nvrtcDestroyProgram", table.destroy_program, missing);
  fill(*library, "nvrtcCompileProgram", table.compile_program, missing);
  fill(*library, "nvrtcGetCUBINSize", table.get_cubin_size, missing);
  fill(*library, "nvrtcGetCUBIN", table.get_cubin, missing);
  fill(*library, "nvrtcGetProgramLogSize", table.get_log_size, missing);
  fill(*library, "nvrtcGetProgramLog", table.get_log, missing);
  fill(*library, "nvrtcGetErrorString", table.get_error_string, missing);
  if (!missing.empty()) {
    return unsupported(
        base::cat(library->path(), " has no ", missing, "; it is not NVRTC 12 or later"));
  }
  if (table.version(&table.major, &table.minor) != 0 || table.major < 12) {
    return unsupported(base::cat(library->path(),
                                 " is NVRTC ",
                                 table.version_text(),
                                 ", needed is 12.0 or later (device sources are C++20)"));
  }
  table.path = library->path();
  return table;
}

}  // namespace moekit::jit
