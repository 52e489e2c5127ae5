// SPDX-License-Identifier: Apache-2.0
#pragma once

// The CUDA driver as a struct of pointers, filled by dlopen, replaced by fakes in tests. Types and
// constants are declared here, as few as we call with: no toolkit header is read. Values are those
// of the driver's ABI (CUDA driver API reference), which never change once released.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moekit/status.h"

namespace moekit::cuda {

using CuResult = int;
using CuDevice = int;
using CuDevicePointer = std::uint64_t;
using CuContext = struct CuContextOpaque*;
using CuStream = struct CuStreamOpaque*;
using CuEvent = struct CuEventOpaque*;
using CuModule = struct CuModuleOpaque*;
using CuFunction = struct CuFunctionOpaque*;
using CuGraph = struct CuGraphOpaque*;
using CuGraphExec = struct CuGraphExecOpaque*;

inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuOutOfMemory = 2;
inline constexpr CuResult kCuNoDevice = 100;
inline constexpr CuResult kCuInvalidContext = 201;
inline constexpr CuResult kCuInvalidHandle = 400;

// Device attributes.
inline constexpr int kCuMultiprocessorCount = 16;
inline constexpr int kCuL2CacheSize = 38;
inline constexpr int kCuComputeCapabilityMajor = 75;
inline constexpr int kCuComputeCapabilityMinor = 76;
inline constexpr int kCuSharedMemoryPerBlockOptin = 97;

// Function attributes.
inline constexpr int kCuMaxThreadsPerBlock = 0;
inline constexpr int kCuMaxSharedMemoryBytes = 8;           // of extern __shared__
inline constexpr int kCuPreferredSharedMemoryCarveout = 9;  // percent of what an SM can have

// Pointer attributes and memory types.
inline constexpr int kCuPointerMemoryType = 2;
inline constexpr int kCuPointerDeviceOrdinal = 9;
inline constexpr unsigned kCuMemoryDevice = 2;
inline constexpr unsigned kCuMemoryUnified = 4;

// Streams, events, capture.
inline constexpr unsigned kCuStreamNonBlocking = 1;
inline constexpr unsigned kCuEventTiming = 0;
inline constexpr int kCuCaptureNone = 0;
inline constexpr int kCuCaptureActive = 1;
inline constexpr int kCuCaptureInvalidated = 2;
inline constexpr int kCuCaptureModeThreadLocal = 1;
inline constexpr int kCuCaptureModeRelaxed = 2;

// Launch attributes.
inline constexpr int kCuLaunchCooperative = 2;
inline constexpr int kCuLaunchClusterDimension = 4;
inline constexpr int kCuLaunchProgrammaticSerialization = 6;

struct CuLaunchAttribute {
  int id = 0;
  int padding = 0;

  union Value {
    std::array<char, 64> bytes;
    int flag;
    std::array<unsigned, 3> dimensions;
  } value{};
};

static_assert(sizeof(CuLaunchAttribute) == 72);

struct CuLaunchConfig {
  unsigned grid_x = 1;
  unsigned grid_y = 1;
  unsigned grid_z = 1;
  unsigned block_x = 1;
  unsigned block_y = 1;
  unsigned block_z = 1;
  unsigned smem_bytes = 0;
  CuStream stream = nullptr;
  CuLaunchAttribute* attributes = nullptr;
  unsigned num_attributes = 0;
};

static_assert(sizeof(CuLaunchConfig) == 56 && offsetof(CuLaunchConfig, stream) == 32);

struct alignas(64) CuTensorMap {
  std::array<std::uint64_t, 16> opaque{};
};

static_assert(sizeof(CuTensorMap) == 128);

// Memory mapped by hand: CUmemAllocationProp and CUmemAccessDesc.
inline constexpr int kCuMemoryPinned = 1;
inline constexpr int kCuLocationDevice = 1;
inline constexpr int kCuAccessReadWrite = 3;
using CuMemoryHandle = unsigned long long;

struct CuMemoryLocation {
  int type = kCuLocationDevice;
  int id = 0;
};

struct CuAllocationProperties {
  int type = kCuMemoryPinned;
  int handle_types = 0;
  CuMemoryLocation location{};
  void* windows_attributes = nullptr;
  std::array<unsigned char, 8> flags{};
};

static_assert(sizeof(CuAllocationProperties) == 32);

struct CuAccessDescription {
  CuMemoryLocation location{};
  int flags = kCuAccessReadWrite;
};

static_assert(sizeof(CuAccessDescription) == 12);

struct DriverTable {
  CuResult (*init)(unsigned flags) = nullptr;
  CuResult (*driver_get_version)(int* version) = nullptr;
  CuResult (*get_error_name)(CuResult result, const char** name) = nullptr;
  CuResult (*get_error_string)(CuResult result, const char** text) = nullptr;

  CuResult (*device_get_count)(int* count) = nullptr;
  CuResult (*device_get)(CuDevice* device, int ordinal) = nullptr;
  CuResult (*device_get_name)(char* name, int length, CuDevice device) = nullptr;
  CuResult (*device_get_attribute)(int* value, int attribute, CuDevice device) = nullptr;

  CuResult (*primary_context_retain)(CuContext* context, CuDevice device) = nullptr;
  CuResult (*primary_context_release)(CuDevice device) = nullptr;
  CuResult (*context_push)(CuContext context) = nullptr;
  CuResult (*context_pop)(CuContext* context) = nullptr;

  CuResult (*memory_alloc)(CuDevicePointer* pointer, std::size_t bytes) = nullptr;
  CuResult (*memory_free)(CuDevicePointer pointer) = nullptr;
  CuResult (*memory_get_info)(std::size_t* free_bytes, std::size_t* total_bytes) = nullptr;
  CuResult (*address_reserve)(CuDevicePointer* pointer,
                              std::size_t bytes,
                              std::size_t alignment,
                              CuDevicePointer wanted,
                              unsigned long long flags) = nullptr;
  CuResult (*address_free)(CuDevicePointer pointer, std::size_t bytes) = nullptr;
  CuResult (*memory_granularity)(std::size_t* bytes,
                                 const CuAllocationProperties* properties,
                                 int option) = nullptr;
  CuResult (*memory_create)(CuMemoryHandle* handle,
                            std::size_t bytes,
                            const CuAllocationProperties* properties,
                            unsigned long long flags) = nullptr;
  CuResult (*memory_release)(CuMemoryHandle handle) = nullptr;
  CuResult (*memory_map)(CuDevicePointer pointer,
                         std::size_t bytes,
                         std::size_t offset,
                         CuMemoryHandle handle,
                         unsigned long long flags) = nullptr;
  CuResult (*memory_unmap)(CuDevicePointer pointer, std::size_t bytes) = nullptr;
  CuResult (*memory_set_access)(CuDevicePointer pointer,
                                std::size_t bytes,
                                const CuAccessDescription* description,
                                std::size_t count) = nullptr;
  CuResult (*host_alloc)(void** pointer, std::size_t bytes, unsigned flags) = nullptr;
  CuResult (*host_free)(void* pointer) = nullptr;
  CuResult (*copy_to_device)(CuDevicePointer to,
                             const void* from,
                             std::size_t bytes,
                             CuStream stream) = nullptr;
  CuResult (*copy_to_host)(void* to,
                           CuDevicePointer from,
                           std::size_t bytes,
                           CuStream stream) = nullptr;
  CuResult (*copy_on_device)(CuDevicePointer to,
                             CuDevicePointer from,
                             std::size_t bytes,
                             CuStream stream) = nullptr;
  CuResult (*fill_bytes)(CuDevicePointer to,
                         unsigned char value,
                         std::size_t bytes,
                         CuStream stream) = nullptr;
  CuResult (*pointer_get_attribute)(void* value, int attribute, CuDevicePointer pointer) = nullptr;

  CuResult (*stream_create)(CuStream* stream, unsigned flags) = nullptr;
  CuResult (*stream_destroy)(CuStream stream) = nullptr;
  CuResult (*stream_synchronize)(CuStream stream) = nullptr;
  CuResult (*stream_is_capturing)(CuStream stream, int* status) = nullptr;
  CuResult (*stream_get_context)(CuStream stream, CuContext* context) = nullptr;
  CuResult (*stream_wait_event)(CuStream stream, CuEvent event, unsigned flags) = nullptr;
  CuResult (*stream_begin_capture)(CuStream stream, int mode) = nullptr;
  CuResult (*stream_end_capture)(CuStream stream, CuGraph* graph) = nullptr;
  CuResult (*thread_exchange_capture_mode)(int* mode) = nullptr;

  CuResult (*event_create)(CuEvent* event, unsigned flags) = nullptr;
  CuResult (*event_record)(CuEvent event, CuStream stream) = nullptr;
  CuResult (*event_synchronize)(CuEvent event) = nullptr;
  CuResult (*event_elapsed_ms)(float* milliseconds, CuEvent begin, CuEvent end) = nullptr;
  CuResult (*event_destroy)(CuEvent event) = nullptr;

  CuResult (*graph_instantiate)(CuGraphExec* exec, CuGraph graph, std::uint64_t flags) = nullptr;
  CuResult (*graph_launch)(CuGraphExec exec, CuStream stream) = nullptr;
  CuResult (*graph_exec_destroy)(CuGraphExec exec) = nullptr;
  CuResult (*graph_destroy)(CuGraph graph) = nullptr;

  CuResult (*module_load_data)(CuModule* module, const void* image) = nullptr;
  CuResult (*module_unload)(CuModule module) = nullptr;
  CuResult (*module_get_function)(CuFunction* function,
                                  CuModule module,
                                  const char* name) = nullptr;
  CuResult (*function_get_attribute)(int* value, int attribute, CuFunction function) = nullptr;
  CuResult (*function_set_attribute)(CuFunction function, int attribute, int value) = nullptr;
  CuResult (*occupancy_blocks)(int* blocks,
                               CuFunction function,
                               int block_size,
                               std::size_t smem_bytes) = nullptr;
  CuResult (*launch)(const CuLaunchConfig* config,
                     CuFunction function,
                     void** parameters,
                     void** extra) = nullptr;
  CuResult (*tensor_map_encode)(CuTensorMap* map,
                                int element,
                                unsigned rank,
                                void* base,
                                const std::uint64_t* extent,
                                const std::uint64_t* stride_bytes,
                                const std::uint32_t* box,
                                const std::uint32_t* element_stride,
                                int interleave,
                                int swizzle,
                                int l2_promotion,
                                int fill) = nullptr;

  int version = 0;     // 13000 for 13.0
  std::string path{};  // what was opened
};

/// File names in the order in which they are tried. `library` is MOEKIT_CUDA_LIBRARY.
[[nodiscard]] std::vector<std::string> driver_candidates(const std::string& library);

/// Opens the driver and initialises it.
///
/// Errors  kUnsupported  no driver on this machine, or one without a function we call (naming it)
///         kDevice       the driver does not start, with its reason
[[nodiscard]] Result<DriverTable> open_driver(const std::string& library);

/// Ok for success; else kOutOfMemory or kDevice, `doing: CUDA_ERROR_… (text)`.
[[nodiscard]] Status driver_status(const DriverTable& driver,
                                   CuResult result,
                                   std::string_view doing);

/// True for errors after which a context is lost: every later call will report them.
[[nodiscard]] bool is_sticky(CuResult result) noexcept;

}  // namespace moekit::cuda
