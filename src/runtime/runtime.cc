// SPDX-License-Identifier: Apache-2.0
#include "moekit/runtime.h"

#include <new>

#include "base/border.h"
#include "base/config.h"
#include "base/cpu_info.h"
#include "base/text.h"
#include "cpu/execute.h"
#include "kernels/catalog.h"
#include "plan/plan_json.h"
#include "plan/validate_device.h"
#include "runtime/state.h"

namespace moekit {

Result<Runtime> Runtime::create(const RuntimeOptions& options) noexcept {
  return base::at_border([&]() -> Result<Runtime> {
    if (options.num_threads < 0) {
      return invalid_argument(
          base::cat("num_threads ", options.num_threads, ", expected 0 or more"));
    }
    auto state = std::make_shared<State>();
    state->options = options;
    if (options.log) {
      state->log = base::Log(options.log);
    } else if (base::environment_config().log_level) {
      state->log = base::Log(base::stderr_sink(*base::environment_config().log_level));
    }
    for (const std::string& problem : base::environment_config().problems) {
      state->log.warn(base::cat("environment.unknown ", problem));
    }
    int threads = options.num_threads;
    if (threads == 0) {
      threads = base::environment_config().num_threads;
    }
    if (threads == 0) {
      threads = base::detect_cpu().threads;
    }
    MOEKIT_ASSIGN_OR_RETURN(state->pool, base::ThreadPool::create(threads));
    state->host_isa = host_cpu().isa;
    return Runtime(std::move(state));
  });
}

Result<CudaRuntime*> Runtime::State::cuda_runtime() {
  const std::lock_guard lock(cuda_mutex);
  if (cuda == nullptr) {
    MOEKIT_ASSIGN_OR_RETURN(cuda, CudaRuntime::open(options.cuda_device, log));
  }
  return cuda.get();
}

int Runtime::num_threads() const noexcept {
  return state_->pool->num_threads();
}

Result<Plan> make_plan(const Problem& problem,
                       const DeviceDescriptor& device,
                       const PlanOverrides& overrides) noexcept {
  return base::at_border([&]() -> Result<Plan> {
    MOEKIT_RETURN_IF_ERROR(validate_problem(problem));
    MOEKIT_RETURN_IF_ERROR(plan::validate_device(device));
    return plan::choose(problem, device, overrides, kernels::catalog());
  });
}

Result<Plan> Plan::from_json(std::string_view json_text) noexcept {
  return base::at_border([&]() -> Result<Plan> {
    MOEKIT_ASSIGN_OR_RETURN(const Plan read, plan::read_plan_json(json_text));
    MOEKIT_ASSIGN_OR_RETURN(Plan planned, make_plan(read->problem, read->device, read->overrides));
    if (!(read == planned)) {
      return invalid_argument(
          base::cat("plan JSON differs from what this library plans for its problem (workspace ",
                    read.workspace_bytes(),
                    " bytes, planned ",
                    planned.workspace_bytes(),
                    "): made by another version, or edited"));
    }
    return planned;
  });
}

Result<std::int64_t> required_bytes(const Problem& problem,
                                    const DeviceDescriptor& device,
                                    const PlanOverrides& overrides) noexcept {
  MOEKIT_ASSIGN_OR_RETURN(const Plan plan, make_plan(problem, device, overrides));
  return plan.workspace_bytes();
}

std::vector<DeviceDescriptor> list_devices() noexcept {
  std::vector<DeviceDescriptor> devices;
  static_cast<void>(base::at_border([&]() -> Status {
    devices.push_back(host_cpu());
    MOEKIT_ASSIGN_OR_RETURN(const cuda::DriverTable driver,
                            cuda::open_driver(base::environment_config().cuda_library));
    for (DeviceDescriptor& device : cuda::describe_devices(driver)) {
      devices.push_back(std::move(device));
    }
    return {};
  }));  // without a driver the CPU is the list
  return devices;
}

}  // namespace moekit
