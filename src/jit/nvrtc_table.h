// SPDX-License-Identifier: Apache-2.0
#pragma once

// The run-time compiler as a struct of pointers, filled by dlopen. Tests fill it with fakes. The
// few declarations we need are ours: no toolkit header is read.

#include <cstddef>
#include <string>
#include <vector>

#include "moekit/status.h"

namespace moekit::jit {

using NvrtcProgram = void*;
using NvrtcResult = int;  // 0: success

struct NvrtcTable {
  NvrtcResult (*version)(int* major, int* minor) = nullptr;
  NvrtcResult (*create_program)(NvrtcProgram* program,
                                const char* source,
                                const char* name,
                                int num_headers,
                                const char* const* headers,
                                const char* const* include_names) = nullptr;
  NvrtcResult (*destroy_program)(NvrtcProgram* program) = nullptr;
  NvrtcResult (*compile_program)(NvrtcProgram program,
                                 int num_options,
                                 const char* const* options) = nullptr;
  NvrtcResult (*get_cubin_size)(NvrtcProgram program, std::size_t* size) = nullptr;
  NvrtcResult (*get_cubin)(NvrtcProgram program, char* cubin) = nullptr;
  NvrtcResult (*get_log_size)(NvrtcProgram program, std::size_t* size) = nullptr;
  NvrtcResult (*get_log)(NvrtcProgram program, char* log) = nullptr;
  const char* (*get_error_string)(NvrtcResult result) = nullptr;
  int major = 0;  // of the compiler, as `version` said
  int minor = 0;
  std::string path{};  // what was opened

  /// `13.0`
  [[nodiscard]] std::string version_text() const;
};

struct NvrtcSearch {
  std::string library{};         // only this file; `none`: nothing; empty: the search below
  std::string toolkit_folder{};  // CUDA_HOME
};

/// File names in the order in which they are tried: the loader's own search, newest first, then
/// toolkit_folder, then the customary toolkit folders.
[[nodiscard]] std::vector<std::string> nvrtc_candidates(const NvrtcSearch& search);

/// Errors  kUnsupported  no library, or one without the functions we call (naming the first), or
///                       older than 12.0, which does not know -std=c++20
[[nodiscard]] Result<NvrtcTable> open_nvrtc(const NvrtcSearch& search);

}  // namespace moekit::jit
