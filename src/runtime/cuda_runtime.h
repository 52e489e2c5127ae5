// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a Runtime needs for one GPU: driver, images, the device and its loaded kernels. Made when a
// CUDA plan first asks for it, so that a CPU program never opens a driver.

#include <memory>

#include "moekit/plan.h"
#include "moekit/status.h"

#include "base/log.h"
#include "cuda/kernel_table.h"
#include "jit/freeze.h"
#include "jit/store.h"

namespace moekit {

/// Where freeze_kernels and every GPU of the process meet.
[[nodiscard]] jit::FreezeGate& freeze_gate() noexcept;

/// The CUDA half of a step's family; null where there is none.
[[nodiscard]] const plan::CudaFamily* cuda_family(std::string_view name) noexcept;

struct CudaRuntimeOptions {
  int ordinal = 0;
  jit::StoreOptions store{};
  base::Log log{};
};

class CudaRuntime {
 public:
  /// Driver and folders that the environment names.
  ///
  /// Errors  kUnsupported, kDevice  open_driver, Device::open; a device that MOEKIT_DEVICES leaves
  ///                                out
  [[nodiscard]] static Result<std::unique_ptr<CudaRuntime>> open(int ordinal, base::Log log);

  /// With a driver of one's own, as tests have.
  [[nodiscard]] static Result<std::unique_ptr<CudaRuntime>> create(
      const cuda::DriverTable& driver, const CudaRuntimeOptions& options);

  CudaRuntime(const CudaRuntime&) = delete;
  CudaRuntime& operator=(const CudaRuntime&) = delete;

  [[nodiscard]] const cuda::DevicePointer& device() const noexcept { return device_; }

  [[nodiscard]] cuda::KernelTable& kernels() noexcept { return *kernels_; }

  [[nodiscard]] jit::ImageStore& store() noexcept { return store_; }

  /// Every step of every rung: loaded and tested.
  [[nodiscard]] Status prewarm(const Plan& plan);

 private:
  CudaRuntime(const cuda::DriverTable& driver, const CudaRuntimeOptions& options)
      : driver_(driver), store_(options.store, files_) {}

  cuda::DriverTable driver_;
  jit::Files files_;
  jit::ImageStore store_;
  cuda::DevicePointer device_;
  std::unique_ptr<cuda::KernelTable> kernels_;
};

}  // namespace moekit
