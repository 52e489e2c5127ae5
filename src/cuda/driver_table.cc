// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver_table.h"

#include "base/shared_object.h"
#include "base/text.h"

namespace moekit::cuda {
namespace {

class Filler {
 public:
  explicit Filler(const base::SharedObject& library) : library_(library) {}

  template <typename Function>
  void operator()(Function& function, const char* name) {
    void* const symbol = library_.symbol(name);
    if (symbol == nullptr && missing_.empty()) {
      missing_ = name;
    }
    function = reinterpret_cast<Function>(symbol);
  }

  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  const base::SharedObject& library_;
  std::string missing_;
};

// The suffixed names are the current ABI of a call; the plain ones are kept for programs from
// before CUDA 4 to 11 and take other arguments.
void fill_device(DriverTable& table, Filler& fill) {
  fill(table.init, "cuInit");
  fill(table.driver_get_version, "cuDriverGetVersion");
  fill(table.get_error_name, "cuGetErrorName");
  fill(table.get_error_string, "cuGetErrorString");
  fill(table.device_get_count, "cuDeviceGetCount");
  fill(table.device_get, "cuDeviceGet");
  fill(table.device_get_name, "cuDeviceGetName");
  fill(table.device_get_attribute, "cuDeviceGetAttribute");
  fill(table.primary_context_retain, "cuDevicePrimaryCtxRetain");
  fill(table.primary_context_release, "cuDevicePrimaryCtxRelease_v2");
  fill(table.context_push, "cuCtxPushCurrent_v2");
  fill(table.context_pop, "cuCtxPopCurrent_v2");
}

void fill_memory(DriverTable& table, Filler& fill) {
  fill(table.memory_alloc, "cuMemAlloc_v2");
  fill(table.memory_free, "cuMemFree_v2");
  fill(table.memory_get_info, "cuMemGetInfo_v2");
  fill(table.address_reserve, "cuMemAddressReserve");
  fill(table.address_free, "cuMemAddressFree");
  fill(table.memory_granularity, "cuMemGetAllocationGranularity");
  fill(table.memory_create, "cuMemCreate");
  fill(table.memory_release, "cuMemRelease");
  fill(table.memory_map, "cuMemMap");
  fill(table.memory_unmap, "cuMemUnmap");
  fill(table.memory_set_access, "cuMemSetAccess");
  fill(table.host_alloc, "cuMemHostAlloc");
  fill(table.host_free, "cuMemFreeHost");
  fill(table.copy_to_device, "cuMemcpyHtoDAsync_v2");
  fill(table.copy_to_host, "cuMemcpyDtoHAsync_v2");
  fill(table.copy_on_device, "cuMemcpyDtoDAsync_v2");
  fill(table.fill_bytes, "cuMemsetD8Async");
  fill(table.pointer_get_attribute, "cuPointerGetAttribute");
}

void fill_streams(DriverTable& table, Filler& fill) {
  fill(table.stream_create, "cuStreamCreate");
  fill(table.stream_destroy, "cuStreamDestroy_v2");
  fill(table.stream_synchronize, "cuStreamSynchronize");
  fill(table.stream_is_capturing, "cuStreamIsCapturing");
  fill(table.stream_get_context, "cuStreamGetCtx");
  fill(table.stream_wait_event, "cuStreamWaitEvent");
  fill(table.stream_begin_capture, "cuStreamBeginCapture_v2");
  fill(table.stream_end_capture, "cuStreamEndCapture");
  fill(table.thread_exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  fill(table.event_create, "cuEventCreate");
  fill(table.event_record, "cuEventRecord");
  fill(table.event_synchronize, "cuEventSynchronize");
  fill(table.event_elapsed_ms, "cuEventElapsedTime");
  fill(table.event_destroy, "cuEventDestroy_v2");
  fill(table.graph_instantiate, "cuGraphInstantiateWithFlags");
  fill(table.graph_launch, "cuGraphLaunch");
  fill(table.graph_exec_destroy, "cuGraphExecDestroy");
  fill(table.graph_destroy, "cuGraphDestroy");
}

void fill_kernels(DriverTable& table, Filler& fill) {
  fill(table.module_load_data, "cuModuleLoadData");
  fill(table.module_unload, "cuModuleUnload");
  fill(table.module_get_function, "cuModuleGetFunction");
  fill(table.function_get_attribute, "cuFuncGetAttribute");
  fill(table.function_set_attribute, "cuFuncSetAttribute");
  fill(table.occupancy_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  fill(table.launch, "cuLaunchKernelEx");
  fill(table.tensor_map_encode, "cuTensorMapEncodeTiled");
}

}  // namespace

std::vector<std::string> driver_candidates(const std::string& library) {
  if (!library.empty()) {
    return {library};
  }
  // libcuda.so without a number is the toolkit's link stub on build machines: never tried.
  return {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};
}

Result<DriverTable> open_driver(const std::string& library) {
  if (library == "none") {
    return unsupported("the CUDA driver is switched off (MOEKIT_CUDA_LIBRARY=none)");
  }
  Result<base::SharedObject> opened = base::SharedObject::open(driver_candidates(library));
  if (!opened) {
    return opened.status().with_context("the CUDA driver is not on this machine");
  }
  DriverTable table;
  Filler fill(*opened);
  fill_device(table, fill);
  fill_memory(table, fill);
  fill_streams(table, fill);
  fill_kernels(table, fill);
  if (!fill.missing().empty()) {
    return unsupported(base::cat(opened->path(),
                                 " has no ",
                                 fill.missing(),
                                 "; needed is the driver of CUDA 12.0 or later"));
  }
  table.path = opened->path();
  MOEKIT_RETURN_IF_ERROR(driver_status(table, table.init(0), "starting the CUDA driver"));
  MOEKIT_RETURN_IF_ERROR(driver_status(
      table, table.driver_get_version(&table.version), "asking the CUDA driver for its version"));
  return table;
}

Status driver_status(const DriverTable& driver, CuResult result, std::string_view doing) {
  if (result == kCuSuccess) {
    return {};
  }
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.get_error_name(result, &name) != kCuSuccess || name == nullptr) {
    name = "unknown error";
  }
  if (driver.get_error_string(result, &text) != kCuSuccess || text == nullptr) {
    text = "no text";
  }
  std::string message = base::cat(doing, ": ", name, " ", result, " (", text, ")");
  return result == kCuOutOfMemory ? out_of_memory(std::move(message))
                                  : device_error(std::move(message));
}

bool is_sticky(CuResult result) noexcept {
  switch (result) {
    case 214:  // ECC_UNCORRECTABLE
    case 700:  // ILLEGAL_ADDRESS
    case 702:  // LAUNCH_TIMEOUT
    case 710:  // ASSERT
    case 714:  // HARDWARE_STACK_ERROR
    case 715:  // ILLEGAL_INSTRUCTION
    case 716:  // MISALIGNED_ADDRESS
    case 717:  // INVALID_ADDRESS_SPACE
    case 718:  // INVALID_PC
    case 719:  // LAUNCH_FAILED
      return true;
    default:
      return false;
  }
}

}  // namespace moekit::cuda
