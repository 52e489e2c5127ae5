// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUDA kernel images: compiling them ahead of time into a bundle, looking after bundle and cache,
// loading them before serving. None of it is needed on a CPU.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/device.h"
#include "moekit/plan.h"
#include "moekit/runtime.h"
#include "moekit/status.h"

#pragma GCC visibility push(default)

namespace moekit {

/// One compiled kernel, as its entry on disk describes it.
struct KernelImage {
  std::string kernel{};  // `<family>.<recipe>.<role>_<tile>.<arch>`
  std::string arch{};
  std::string image_id{};  // what was compiled: schema, arch, options, prelude, sources
  std::string nvrtc{};     // the compiler's version
  int min_driver = 0;      // 13000: driver of CUDA 13.0
  std::int64_t registers = 0;
  std::int64_t smem_bytes = 0;  // static
  std::int64_t stack_bytes = 0;
  std::int64_t spill_bytes = 0;  // stores and loads
  std::int64_t cubin_bytes = 0;
  std::int64_t compile_ms = 0;
  bool current = false;  // this library would use it
};

/// Where images are looked for and kept; empty where there is no such place.
struct KernelFolders {
  std::string bundle{};
  std::string cache{};
};

/// Those of this process: MOEKIT_BUNDLE and MOEKIT_CACHE, or their defaults.
[[nodiscard]] KernelFolders kernel_folders() noexcept;

struct BuildProgress {
  std::int64_t kernels_done = 0;
  std::int64_t num_kernels = 0;
  std::string_view kernel{};  // the one just done
};

struct BuildKernelsOptions {
  std::vector<Arch> archs{};
  std::string output{};  // folder of the bundle, made when it is not there
  int num_threads = 0;   // 0: all available to the process
  /// Called after each kernel, one call at a time; returning false cancels.
  std::function<bool(const BuildProgress&)> progress{};
};

/// Compiles every kernel of the catalogue for `archs` into a bundle. Entries that are there and
/// whole are kept; a bad one is replaced. Needs the run-time compiler and no GPU.
///
/// Errors  kInvalidArgument    no arch, or one that is not a GPU's
///         kUnsupported        no run-time compiler, or one that does not know the arch
///         kFailedPrecondition cancelled
///         kIo                 `output` cannot be written
[[nodiscard]] Result<std::vector<KernelImage>> build_kernels(
    const BuildKernelsOptions& options) noexcept;

/// An entry that is not what it says.
struct KernelProblem {
  std::string entry{};
  std::string reason{};
};

struct KernelListing {
  std::vector<KernelImage> images{};
  std::vector<KernelProblem> problems{};
  /// Kernels of the catalogue, for the archs that the folder holds, that it does not hold.
  std::vector<std::string> missing{};
};

/// Reads every entry of a bundle or cache folder and checks length, checksums and key of every
/// file. A folder that does not exist is empty.
///
/// Errors  kIo  the folder cannot be read
[[nodiscard]] Result<KernelListing> list_kernels(const std::string& folder) noexcept;

/// Removes what is of no use: bad entries, those this library would not ask for, and what
/// interrupted writers left more than an hour ago. Returns the names removed.
///
/// Errors  kInvalidArgument  `folder` is empty
///         kIo               something cannot be removed
[[nodiscard]] Result<std::vector<std::string>> prune_kernels(const std::string& folder) noexcept;

/// Removes every entry. Folders that are no entries stay.
///
/// Errors  as prune_kernels
[[nodiscard]] Result<std::vector<std::string>> clear_kernels(const std::string& folder) noexcept;

/// Loads every kernel of a plan on the runtime's GPU and tests each once with a known answer, so
/// that later runs only launch. Nothing to do for a CPU plan. Not while a stream of the calling
/// thread captures.
///
/// Errors  kUnsupported  no driver, no image and no compiler, or a driver older than an image
///         kDevice       a kernel computes something else than it must, or the driver's reason
[[nodiscard]] Status prewarm(const Runtime& runtime, const Plan& plan) noexcept;

/// From now on, in the whole process, a kernel that is not loaded is kFailedPrecondition in run,
/// with `reason` in the message, and never a compilation. prewarm stays allowed.
void freeze_kernels(std::string_view reason) noexcept;

/// Ends that, however often it was frozen.
void unfreeze_kernels(std::string_view reason) noexcept;

}  // namespace moekit

#pragma GCC visibility pop
