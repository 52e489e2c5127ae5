// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda_runtime.h"

#include <algorithm>

#include "moekit/kernels.h"

#include "base/border.h"
#include "base/config.h"
#include "base/text.h"
#include "kernels/catalog.h"
#include "runtime/kernel_folders.h"
#include "runtime/state.h"

namespace moekit {
namespace {

using base::cat;

Status check_allowed(int ordinal) {
  const std::optional<std::vector<int>>& allowed = base::environment_config().devices;
  if (allowed && std::find(allowed->begin(), allowed->end(), ordinal) == allowed->end()) {
    return unsupported(cat("cuda:",
                           ordinal,
                           " is not among MOEKIT_DEVICES=",
                           allowed->empty() ? std::string("none") : base::join(*allowed, ",")));
  }
  return {};
}

}  // namespace

const plan::CudaFamily* cuda_family(std::string_view name) noexcept {
  for (const kernels::CudaEntry& entry : kernels::cuda_catalog()) {
    if (entry.family == name) {
      return entry.cuda;
    }
  }
  return nullptr;
}

jit::FreezeGate& freeze_gate() noexcept {
  // One for the process: that is what is frozen.
  static jit::FreezeGate gate;
  return gate;
}

Result<std::unique_ptr<CudaRuntime>> CudaRuntime::open(int ordinal, base::Log log) {
  MOEKIT_RETURN_IF_ERROR(check_allowed(ordinal));
  const base::Config& config = base::environment_config();
  const KernelFolders folders = environment_folders();
  MOEKIT_ASSIGN_OR_RETURN(const cuda::DriverTable driver, cuda::open_driver(config.cuda_library));
  CudaRuntimeOptions options;
  options.ordinal = ordinal;
  options.log = log;
  options.store = {.bundle_folder = folders.bundle,
                   .cache_folder = folders.cache,
                   .cache_mode = config.cache_mode,
                   .open_compiler = open_environment_nvrtc,
                   .sources = jit::embedded_sources(),
                   .log = log};
  return create(driver, options);
}

Result<std::unique_ptr<CudaRuntime>> CudaRuntime::create(const cuda::DriverTable& driver,
                                                         const CudaRuntimeOptions& options) {
  std::unique_ptr<CudaRuntime> runtime(new CudaRuntime(driver, options));
  MOEKIT_ASSIGN_OR_RETURN(runtime->device_, cuda::Device::open(runtime->driver_, options.ordinal));
  runtime->kernels_ = std::make_unique<cuda::KernelTable>(
      runtime->device_, runtime->store_, freeze_gate(), options.log);
  return runtime;
}

Status CudaRuntime::prewarm(const Plan& plan) {
  const Arch arch = device_->descriptor().arch;
  if (plan->device.arch != arch) {
    return invalid_argument(cat("the plan is for ",
                                arch_name(plan->device.arch),
                                ", cuda:",
                                device_->ordinal(),
                                " is ",
                                arch_name(arch)));
  }
  for (const Rung& rung : plan->ladder) {
    for (const Step& step : rung.steps) {
      if (step.status == StepStatus::kPlanned) {
        continue;  // bind refuses the rung
      }
      const plan::CudaFamily* family = cuda_family(step.family);
      if (family == nullptr) {
        return unsupported(
            cat("step ", step.kernel, ": family ", step.family, " has no CUDA kernels"));
      }
      MOEKIT_RETURN_IF_ERROR(kernels_->prewarm(*family, step.kernel));
    }
  }
  return {};
}

Status prewarm(const Runtime& runtime, const Plan& plan) noexcept {
  return base::at_border([&]() -> Status {
    if (plan->device.arch == Arch::kCpu) {
      return {};
    }
    MOEKIT_ASSIGN_OR_RETURN(CudaRuntime* const cuda, runtime.state()->cuda_runtime());
    return cuda->prewarm(plan);
  });
}

void freeze_kernels(std::string_view reason) noexcept {
  static_cast<void>(base::at_border([&] {
    freeze_gate().freeze(reason);
    return Status();
  }));
}

void unfreeze_kernels(std::string_view reason) noexcept {
  static_cast<void>(base::at_border([&] {
    freeze_gate().unfreeze(reason);
    return Status();
  }));
}

}  // namespace moekit
