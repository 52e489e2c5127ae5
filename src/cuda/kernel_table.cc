// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernel_table.h"

#include <functional>

#include "base/text.h"
#include "cuda/known_answer.h"

namespace moekit::cuda {
namespace {

std::uint64_t hash_of(std::string_view name) noexcept {
  return std::hash<std::string_view>{}(name);
}

std::string_view capture_name(int status) noexcept {
  return status == kCuCaptureActive ? "active" : "invalidated";
}

}  // namespace

jit::ImageRequest image_request(const plan::KernelSource& source) {
  return {.kernel = source.kernel,
          .entry = source.entry,
          .arch = std::string(arch_name(source.arch)),
          .prelude = source.prelude,
          .options = source.options};
}

KernelTable::KernelTable(DevicePointer device,
                         jit::ImageStore& store,
                         const jit::FreezeGate& gate,
                         base::Log log)
    : device_(std::move(device)), store_(store), gate_(gate), log_(std::move(log)) {}

KernelTable::~KernelTable() {
  const CurrentContext current(*device_);
  if (!current.status().ok()) {
    return;
  }
  for (const std::unique_ptr<LoadedKernel>& kernel : owned_) {
    device_->driver().module_unload(kernel->module);
  }
}

const LoadedKernel* KernelTable::find(std::string_view kernel) const noexcept {
  const std::uint64_t hash = hash_of(kernel);
  const LoadedKernel* entry = buckets_[hash % kBuckets].load(std::memory_order_acquire);
  while (entry != nullptr && (entry->hash != hash || entry->name != kernel)) {
    entry = entry->next;
  }
  return entry;
}

Result<const LoadedKernel*> KernelTable::resolve(const plan::CudaFamily& family,
                                                 std::string_view kernel,
                                                 CuStream stream) {
  if (const LoadedKernel* loaded = find(kernel)) {
    return loaded;
  }
  if (gate_.frozen()) {
    return failed_precondition(base::cat("step ",
                                         kernel,
                                         " is not loaded and kernels are frozen (",
                                         gate_.reason(),
                                         "): prewarm the plan before freezing"));
  }
  int status = kCuCaptureNone;
  MOEKIT_RETURN_IF_ERROR(device_->check(device_->driver().stream_is_capturing(stream, &status),
                                        base::cat("step ", kernel, ": asking the stream")));
  if (status != kCuCaptureNone) {
    return failed_precondition(base::cat("step ",
                                         kernel,
                                         " is not loaded and its stream is capturing (",
                                         capture_name(status),
                                         "): prewarm the plan before the capture"));
  }
  MOEKIT_ASSIGN_OR_RETURN(const LoadedKernel* const loaded, load(family, kernel));
  return loaded;
}

Status KernelTable::prewarm(const plan::CudaFamily& family, std::string_view kernel) {
  const std::lock_guard lock(mutex_);
  MOEKIT_ASSIGN_OR_RETURN(LoadedKernel* const loaded, load_locked(family, kernel));
  if (loaded->self_tested) {
    return {};
  }
  MOEKIT_ASSIGN_OR_RETURN(const plan::SelfTest test, family.self_test(kernel));
  MOEKIT_RETURN_IF_ERROR(run_self_test(device_, *loaded, test));
  loaded->self_tested = true;
  return {};
}

Result<LoadedKernel*> KernelTable::load(const plan::CudaFamily& family, std::string_view kernel) {
  const std::lock_guard lock(mutex_);
  return load_locked(family, kernel);
}

Result<LoadedKernel*> KernelTable::load_locked(const plan::CudaFamily& family,
                                               std::string_view kernel) {
  if (const LoadedKernel* loaded = find(kernel)) {
    return const_cast<LoadedKernel*>(loaded);  // ours, and the lock that guards its mark is held
  }
  MOEKIT_ASSIGN_OR_RETURN(const plan::KernelSource source, family.source(kernel));
  MOEKIT_ASSIGN_OR_RETURN(const std::shared_ptr<const jit::Image> image,
                          store_.find(image_request(source), device_->driver().version));
  MOEKIT_RETURN_IF_ERROR(check_facts(*image, source));
  auto made = std::make_unique<LoadedKernel>();
  made->name = kernel;
  made->hash = hash_of(kernel);
  made->image_id = image->facts.image_id;
  MOEKIT_RETURN_IF_ERROR(load_module(*image, source, *made));
  log_.info(base::cat("cuda.load kernel=",
                      kernel,
                      " device=",
                      device_->ordinal(),
                      " registers=",
                      image->facts.registers));
  return publish(std::move(made));
}

Status KernelTable::check_facts(const jit::Image& image, const plan::KernelSource& source) const {
  const DeviceDescriptor& device = device_->descriptor();
  if (source.arch != device.arch) {
    return invalid_argument(base::cat("step ",
                                      source.kernel,
                                      " is for ",
                                      arch_name(source.arch),
                                      ", cuda:",
                                      device_->ordinal(),
                                      " is ",
                                      arch_name(device.arch)));
  }
  if (image.facts.smem_bytes > source.smem_bytes) {
    return internal_error(base::cat("step ",
                                    source.kernel,
                                    ": the image has ",
                                    image.facts.smem_bytes,
                                    " bytes of static shared memory, the plan counts ",
                                    source.smem_bytes,
                                    " in all"));
  }
  if (source.smem_bytes > device.smem_per_block_bytes) {
    return invalid_argument(base::cat("step ",
                                      source.kernel,
                                      " needs ",
                                      source.smem_bytes,
                                      " bytes of shared memory, cuda:",
                                      device_->ordinal(),
                                      " gives a block ",
                                      device.smem_per_block_bytes));
  }
  return {};
}

Status KernelTable::load_module(const jit::Image& image,
                                const plan::KernelSource& source,
                                LoadedKernel& kernel) {
  const DriverTable& driver = device_->driver();
  const std::string step = base::cat("step ", source.kernel);
  const CurrentContext current(*device_);
  MOEKIT_RETURN_IF_ERROR(current.status());
  MOEKIT_RETURN_IF_ERROR(device_->check(driver.module_load_data(&kernel.module, image.cubin.data()),
                                        base::cat(step, ": loading image ", image.facts.image_id)));
  Status status = device_->check(
      driver.module_get_function(&kernel.function, kernel.module, source.entry.c_str()),
      base::cat(step, ": finding ", source.entry));
  const std::int64_t room = source.smem_bytes - image.facts.smem_bytes;
  if (status.ok() && room > 0) {
    status = device_->check(driver.function_set_attribute(
                                kernel.function, kCuMaxSharedMemoryBytes, static_cast<int>(room)),
                            base::cat(step, ": asking for ", room, " bytes of shared memory"));
  }
  if (status.ok() && source.shares_sm) {
    // The driver divides an SM between L1 and shared memory for the kernel that comes first; what
    // that one alone can use leaves no room for the next.
    status = device_->check(
        driver.function_set_attribute(kernel.function, kCuPreferredSharedMemoryCarveout, 100),
        base::cat(step, ": asking for an SM's shared memory"));
  }
  int max_threads = 0;
  if (status.ok()) {
    status = device_->check(
        driver.function_get_attribute(&max_threads, kCuMaxThreadsPerBlock, kernel.function),
        base::cat(step, ": asking for its threads"));
  }
  if (status.ok() && source.num_threads > max_threads) {
    status = internal_error(base::cat(step,
                                      ": a block of ",
                                      source.num_threads,
                                      " threads is planned, the image runs with ",
                                      max_threads,
                                      " at most (",
                                      image.facts.registers,
                                      " registers)"));
  }
  if (!status.ok()) {
    driver.module_unload(kernel.module);
  }
  return status;
}

LoadedKernel* KernelTable::publish(std::unique_ptr<LoadedKernel> kernel) {
  std::atomic<LoadedKernel*>& bucket = buckets_[kernel->hash % kBuckets];
  LoadedKernel* const entry = kernel.get();
  entry->next = bucket.load(std::memory_order_relaxed);
  owned_.push_back(std::move(kernel));
  bucket.store(entry, std::memory_order_release);
  size_.fetch_add(1, std::memory_order_relaxed);
  return entry;
}

}  // namespace moekit::cuda
