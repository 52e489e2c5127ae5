// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels that are loaded on one device, and the only way to get one: the order of spec section 8.
// Looking up a loaded kernel takes no lock, so that run may do it.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/status.h"

#include "base/log.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "jit/freeze.h"
#include "jit/store.h"
#include "plan/launch.h"

namespace moekit::cuda {

/// Immutable once it can be found, its neighbour in the table and the test mark apart.
struct LoadedKernel {
  std::string name{};
  std::uint64_t hash = 0;
  CuModule module = nullptr;
  CuFunction function = nullptr;
  std::string image_id{};
  LoadedKernel* next = nullptr;  // older kernel of the same bucket
  bool self_tested = false;      // guarded by the table's lock
};

class KernelTable {
 public:
  /// `store` and `gate` must outlive the table.
  KernelTable(DevicePointer device,
              jit::ImageStore& store,
              const jit::FreezeGate& gate,
              base::Log log = {});
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;
  ~KernelTable();

  [[nodiscard]] Device& device() const noexcept { return *device_; }

  [[nodiscard]] const DevicePointer& shared_device() const noexcept { return device_; }

  /// A loaded kernel by its dotted name; null when it is not loaded.
  ///
  /// Effects  no lock, no allocation, no driver call
  [[nodiscard]] const LoadedKernel* find(std::string_view kernel) const noexcept;

  /// What run may do for a step: find, else refuse while `stream` captures or the gate is frozen,
  /// before any look at disk, module, allocation or compiler; else load.
  ///
  /// Errors  kFailedPrecondition  refused, naming the step and why
  ///         others               jit::ImageStore::find, and the driver's, naming the step
  [[nodiscard]] Result<const LoadedKernel*> resolve(const plan::CudaFamily& family,
                                                    std::string_view kernel,
                                                    CuStream stream);

  /// Loads and, the first time, compares the kernel's known answer. Not to be called while a
  /// stream of this thread captures. A frozen gate does not stop it: it is never silent.
  ///
  /// Errors  kDevice  the kernel computes something else, naming buffer and byte
  [[nodiscard]] Status prewarm(const plan::CudaFamily& family, std::string_view kernel);

  /// Kernels loaded so far.
  [[nodiscard]] std::int64_t size() const noexcept { return size_.load(std::memory_order_relaxed); }

 private:
  // 1024 buckets of lists: a process loads a few hundred kernels, and a table that never moves
  // needs no lock to be read.
  static constexpr std::size_t kBuckets = 1024;

  [[nodiscard]] Result<LoadedKernel*> load(const plan::CudaFamily& family, std::string_view kernel);
  [[nodiscard]] Result<LoadedKernel*> load_locked(const plan::CudaFamily& family,
                                                  std::string_view kernel);
  [[nodiscard]] Status load_module(const jit::Image& image,
                                   const plan::KernelSource& source,
                                   LoadedKernel& kernel);
  [[nodiscard]] Status check_facts(const jit::Image& image, const plan::KernelSource& source) const;
  LoadedKernel* publish(std::unique_ptr<LoadedKernel> kernel);

  DevicePointer device_;
  jit::ImageStore& store_;
  const jit::FreezeGate& gate_;
  base::Log log_;
  std::mutex mutex_;  // held while loading
  std::vector<std::unique_ptr<LoadedKernel>> owned_;
  std::array<std::atomic<LoadedKernel*>, kBuckets> buckets_{};
  std::atomic<std::int64_t> size_{0};
};

/// The request behind a family's source, for the store and for images built ahead of time.
[[nodiscard]] jit::ImageRequest image_request(const plan::KernelSource& source);

}  // namespace moekit::cuda
