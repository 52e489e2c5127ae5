// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests: a driver of one H200 that records every call. Device memory is host memory, so a test
// may give it a body that computes; without one, launches do nothing. State is per process, because
// the table holds plain function pointers.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/driver_table.h"

namespace moekit::cuda {

class DriverFake {
 public:
  /// What a launch does: entry symbol, configuration, the kernel's one parameter.
  using Body = std::function<void(const std::string&, const CuLaunchConfig&, const void*)>;

  /// Forgets everything and returns a table of the fake's functions.
  static DriverTable table(int version = 13000) {
    State& state = instance();
    {
      const std::lock_guard lock(state.mutex);
      state.calls.clear();
      state.capture.clear();
      state.failures.clear();
      state.body = nullptr;
      state.needs_context = false;
      state.launches.clear();
    }
    DriverTable table;
    fill(table);
    table.version = version;
    table.path = "fake";
    return table;
  }

  static std::vector<std::string> calls() {
    const std::lock_guard lock(instance().mutex);
    return instance().calls;
  }

  static void forget_calls() {
    const std::lock_guard lock(instance().mutex);
    instance().calls.clear();
  }

  /// Configurations of the launches that succeeded.
  static std::vector<CuLaunchConfig> launches() {
    const std::lock_guard lock(instance().mutex);
    return instance().launches;
  }

  static void set_body(Body body) {
    const std::lock_guard lock(instance().mutex);
    instance().body = std::move(body);
  }

  /// What stream_is_capturing says of `stream` from now on.
  static void set_capture(CuStream stream, int status) {
    const std::lock_guard lock(instance().mutex);
    instance().capture[stream] = status;
  }

  /// The next call of `name` fails with `result`; it is recorded all the same.
  static void fail_next(const std::string& name, CuResult result) {
    const std::lock_guard lock(instance().mutex);
    instance().failures[name] = result;
  }

  /// Launches outside a CurrentContext scope fail as in a thread without a context.
  static void need_context(bool needed) {
    const std::lock_guard lock(instance().mutex);
    instance().needs_context = needed;
  }

  static CuContext context() { return reinterpret_cast<CuContext>(std::uintptr_t{0x1000}); }

  static CuContext other_context() { return reinterpret_cast<CuContext>(std::uintptr_t{0x2000}); }

  /// A stream of other_context().
  static CuStream foreign_stream() { return reinterpret_cast<CuStream>(std::uintptr_t{0x5000}); }

  static std::int64_t live_allocations() {
    const std::lock_guard lock(instance().mutex);
    return static_cast<std::int64_t>(instance().allocations.size());
  }

 private:
  struct Function {
    std::string entry;
  };

  struct State {
    std::mutex mutex;
    std::vector<std::string> calls;
    std::vector<CuLaunchConfig> launches;
    std::map<CuStream, int> capture;
    std::map<std::string, CuResult> failures;
    std::map<CuDevicePointer, std::size_t> allocations;
    std::vector<std::unique_ptr<Function>> functions;
    Body body;
    bool needs_context = false;
    std::uintptr_t last_handle = 0x10000;
  };

  static State& instance() {
    static State state;
    return state;
  }

  static thread_local inline int context_depth = 0;

  /// Records and says what the call returns.
  static CuResult record(const char* name) {
    State& state = instance();
    const std::lock_guard lock(state.mutex);
    state.calls.emplace_back(name);
    const auto failure = state.failures.find(name);
    if (failure == state.failures.end()) {
      return kCuSuccess;
    }
    const CuResult result = failure->second;
    state.failures.erase(failure);
    return result;
  }

  template <typename Handle>
  static Handle make_handle() {
    const std::lock_guard lock(instance().mutex);
    instance().last_handle += 16;
    return reinterpret_cast<Handle>(instance().last_handle);
  }

  static void* host(CuDevicePointer pointer) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer));
  }

  static CuResult launch_body(const CuLaunchConfig* config, CuFunction function, void** arguments) {
    const CuResult result = record("launch");
    Body body;
    {
      State& state = instance();
      const std::lock_guard lock(state.mutex);
      if (result != kCuSuccess) {
        return result;
      }
      if (state.needs_context && context_depth == 0) {
        return kCuInvalidContext;
      }
      state.launches.push_back(*config);
      body = state.body;
    }
    if (body) {
      body(reinterpret_cast<const Function*>(function)->entry, *config, arguments[0]);
    }
    return kCuSuccess;
  }

  static CuResult allocate(CuDevicePointer* pointer, std::size_t bytes) {
    if (const CuResult result = record("memory_alloc"); result != kCuSuccess) {
      return result;
    }
    void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    *pointer = reinterpret_cast<std::uintptr_t>(memory);
    const std::lock_guard lock(instance().mutex);
    instance().allocations[*pointer] = bytes;
    return kCuSuccess;
  }

  static CuResult release(CuDevicePointer pointer) {
    {
      const std::lock_guard lock(instance().mutex);
      instance().allocations.erase(pointer);
    }
    std::free(host(pointer));
    return record("memory_free");
  }

  static CuResult pointer_attribute(void* value, int attribute, CuDevicePointer pointer) {
    static_cast<void>(record("pointer_get_attribute"));
    const std::lock_guard lock(instance().mutex);
    for (const auto& [begin, bytes] : instance().allocations) {
      if (pointer >= begin && pointer < begin + bytes) {
        if (attribute == kCuPointerMemoryType) {
          *static_cast<unsigned*>(value) = kCuMemoryDevice;
        } else {
          *static_cast<int*>(value) = 0;
        }
        return kCuSuccess;
      }
    }
    return 1;  // CUDA_ERROR_INVALID_VALUE, as for memory the driver never saw
  }

  static CuResult attribute(int* value, int name, CuDevice) {
    // NVIDIA H200: 132 SMs, 227 KiB of shared memory a block, 60 MiB of L2.
    const std::map<int, int> values = {{kCuMultiprocessorCount, 132},
                                       {kCuL2CacheSize, 60 << 20},
                                       {kCuComputeCapabilityMajor, 9},
                                       {kCuComputeCapabilityMinor, 0},
                                       {kCuSharedMemoryPerBlockOptin, 227 << 10}};
    *value = values.at(name);
    return record("device_get_attribute");
  }

  static CuResult get_function(CuFunction* function, CuModule, const char* name) {
    if (const CuResult result = record("module_get_function"); result != kCuSuccess) {
      return result;
    }
    const std::lock_guard lock(instance().mutex);
    instance().functions.push_back(std::make_unique<Function>(Function{name}));
    *function = reinterpret_cast<CuFunction>(instance().functions.back().get());
    return kCuSuccess;
  }

  static CuResult begin_capture(CuStream stream, int) {
    set_capture(stream, kCuCaptureActive);
    return record("stream_begin_capture");
  }

  static CuResult end_capture(CuStream stream, CuGraph* graph) {
    set_capture(stream, kCuCaptureNone);
    *graph = make_handle<CuGraph>();
    return record("stream_end_capture");
  }

  static CuResult is_capturing(CuStream stream, int* status) {
    const CuResult result = record("stream_is_capturing");
    const std::lock_guard lock(instance().mutex);
    const auto found = instance().capture.find(stream);
    *status = found == instance().capture.end() ? kCuCaptureNone : found->second;
    return result;
  }

  static void fill(DriverTable& table) {
    table.init = [](unsigned) { return record("init"); };
    table.driver_get_version = [](int* version) {
      *version = 13000;
      return record("driver_get_version");
    };
    table.get_error_name = [](CuResult, const char** name) {
      *name = "CUDA_ERROR_FAKE";
      return kCuSuccess;
    };
    table.get_error_string = [](CuResult, const char** text) {
      *text = "as the test asked";
      return kCuSuccess;
    };
    table.device_get_count = [](int* count) {
      *count = 1;
      return record("device_get_count");
    };
    table.device_get = [](CuDevice* device, int ordinal) {
      *device = ordinal;
      return record("device_get");
    };
    table.device_get_name = [](char* name, int length, CuDevice) {
      std::strncpy(name, "NVIDIA H200", static_cast<std::size_t>(length));
      return record("device_get_name");
    };
    table.device_get_attribute = attribute;
    table.primary_context_retain = [](CuContext* made, CuDevice) {
      *made = context();
      return record("primary_context_retain");
    };
    table.primary_context_release = [](CuDevice) { return record("primary_context_release"); };
    table.context_push = [](CuContext) {
      ++context_depth;
      return record("context_push");
    };
    table.context_pop = [](CuContext*) {
      --context_depth;
      return record("context_pop");
    };
    fill_memory(table);
    fill_streams(table);
    fill_kernels(table);
  }

  /// Mapped memory is host memory of 4 KiB granules; nothing beyond it faults.
  static void fill_mapping(DriverTable& table) {
    table.address_reserve = [](CuDevicePointer* pointer,
                               std::size_t bytes,
                               std::size_t,
                               CuDevicePointer,
                               unsigned long long) {
      *pointer = reinterpret_cast<std::uintptr_t>(std::aligned_alloc(4096, bytes));
      return record("address_reserve");
    };
    table.address_free = [](CuDevicePointer pointer, std::size_t) {
      std::free(host(pointer));
      return record("address_free");
    };
    table.memory_granularity = [](std::size_t* bytes, const CuAllocationProperties*, int) {
      *bytes = 4096;
      return record("memory_granularity");
    };
    table.memory_create =
        [](CuMemoryHandle* handle, std::size_t, const CuAllocationProperties*, unsigned long long) {
          *handle = 1;
          return record("memory_create");
        };
    table.memory_release = [](CuMemoryHandle) { return record("memory_release"); };
    table.memory_map = [](CuDevicePointer pointer,
                          std::size_t bytes,
                          std::size_t,
                          CuMemoryHandle,
                          unsigned long long) {
      const CuResult result = record("memory_map");
      if (result == kCuSuccess) {
        const std::lock_guard lock(instance().mutex);
        instance().allocations[pointer] = bytes;
      }
      return result;
    };
    table.memory_unmap = [](CuDevicePointer pointer, std::size_t) {
      {
        const std::lock_guard lock(instance().mutex);
        instance().allocations.erase(pointer);
      }
      return record("memory_unmap");
    };
    table.memory_set_access =
        [](CuDevicePointer, std::size_t, const CuAccessDescription*, std::size_t) {
          return record("memory_set_access");
        };
  }

  static void fill_memory(DriverTable& table) {
    table.memory_alloc = allocate;
    table.memory_free = release;
    table.memory_get_info = [](std::size_t* free_bytes, std::size_t* total_bytes) {
      *free_bytes = 1000;
      *total_bytes = 2000;
      return record("memory_get_info");
    };
    fill_mapping(table);
    table.host_alloc = [](void** pointer, std::size_t bytes, unsigned) {
      *pointer = std::malloc(bytes);
      return record("host_alloc");
    };
    table.host_free = [](void* pointer) {
      std::free(pointer);
      return record("host_free");
    };
    table.copy_to_device = [](CuDevicePointer to, const void* from, std::size_t bytes, CuStream) {
      std::memcpy(host(to), from, bytes);
      return record("copy_to_device");
    };
    table.copy_to_host = [](void* to, CuDevicePointer from, std::size_t bytes, CuStream) {
      std::memcpy(to, host(from), bytes);
      return record("copy_to_host");
    };
    table.copy_on_device =
        [](CuDevicePointer to, CuDevicePointer from, std::size_t bytes, CuStream) {
          std::memcpy(host(to), host(from), bytes);
          return record("copy_on_device");
        };
    table.fill_bytes = [](CuDevicePointer to, unsigned char value, std::size_t bytes, CuStream) {
      const CuResult result = record("fill_bytes");
      if (result == kCuSuccess && instance().needs_context && context_depth == 0) {
        return kCuInvalidContext;
      }
      if (result == kCuSuccess) {
        std::memset(host(to), value, bytes);
      }
      return result;
    };
    table.pointer_get_attribute = pointer_attribute;
  }

  static void fill_streams(DriverTable& table) {
    table.stream_create = [](CuStream* stream, unsigned) {
      *stream = make_handle<CuStream>();
      return record("stream_create");
    };
    table.stream_destroy = [](CuStream) { return record("stream_destroy"); };
    table.stream_synchronize = [](CuStream) { return record("stream_synchronize"); };
    table.stream_is_capturing = is_capturing;
    table.stream_get_context = [](CuStream stream, CuContext* owner) {
      *owner = stream == foreign_stream() ? other_context() : context();
      return record("stream_get_context");
    };
    table.stream_wait_event = [](CuStream, CuEvent, unsigned) {
      return record("stream_wait_event");
    };
    table.stream_begin_capture = begin_capture;
    table.stream_end_capture = end_capture;
    table.thread_exchange_capture_mode = [](int* mode) {
      *mode = kCuCaptureModeRelaxed;
      return record("thread_exchange_capture_mode");
    };
    table.event_create = [](CuEvent* event, unsigned) {
      *event = make_handle<CuEvent>();
      return record("event_create");
    };
    table.event_record = [](CuEvent, CuStream) { return record("event_record"); };
    table.event_synchronize = [](CuEvent) { return record("event_synchronize"); };
    table.event_elapsed_ms = [](float* milliseconds, CuEvent, CuEvent) {
      *milliseconds = 1.5F;
      return record("event_elapsed_ms");
    };
    table.event_destroy = [](CuEvent) { return record("event_destroy"); };
    // As the real driver: 201 in a thread where the context is not current.
    table.graph_instantiate = [](CuGraphExec* exec, CuGraph, std::uint64_t) {
      *exec = make_handle<CuGraphExec>();
      const CuResult result = record("graph_instantiate");
      return context_depth == 0 ? kCuInvalidContext : result;
    };
    table.graph_launch = [](CuGraphExec, CuStream) {
      const CuResult result = record("graph_launch");
      return context_depth == 0 ? kCuInvalidContext : result;
    };
    table.graph_exec_destroy = [](CuGraphExec) { return record("graph_exec_destroy"); };
    table.graph_destroy = [](CuGraph) { return record("graph_destroy"); };
  }

  static void fill_kernels(DriverTable& table) {
    table.module_load_data = [](CuModule* module, const void*) {
      *module = make_handle<CuModule>();
      return record("module_load_data");
    };
    table.module_unload = [](CuModule) { return record("module_unload"); };
    table.module_get_function = get_function;
    table.function_get_attribute = [](int* value, int, CuFunction) {
      *value = 1024;
      return record("function_get_attribute");
    };
    table.function_set_attribute = [](CuFunction, int, int) {
      return record("function_set_attribute");
    };
    table.occupancy_blocks = [](int* blocks, CuFunction, int, std::size_t) {
      *blocks = 1;
      return record("occupancy_blocks");
    };
    table.launch = [](const CuLaunchConfig* config, CuFunction function, void** arguments, void**) {
      return launch_body(config, function, arguments);
    };
    table.tensor_map_encode = [](CuTensorMap* map,
                                 int element,
                                 unsigned rank,
                                 void*,
                                 const std::uint64_t*,
                                 const std::uint64_t*,
                                 const std::uint32_t*,
                                 const std::uint32_t*,
                                 int,
                                 int,
                                 int,
                                 int) {
      map->opaque.fill(static_cast<std::uint64_t>(element) * 256 + rank);
      return record("tensor_map_encode");
    };
  }
};

}  // namespace moekit::cuda
