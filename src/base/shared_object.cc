// SPDX-License-Identifier: Apache-2.0
#include "base/shared_object.h"

#include <dlfcn.h>

#include "base/text.h"

namespace moekit::base {

Result<SharedObject> SharedObject::open(std::span<const std::string> candidates) {
  std::string reasons;
  for (const std::string& candidate : candidates) {
    // RTLD_LOCAL: a program may have brought its own version of the library; both stay apart.
    if (void* handle = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return SharedObject(handle, candidate);
    }
    const char* reason = ::dlerror();
    reasons += cat(reasons.empty() ? "" : "; ", reason != nullptr ? reason : "no reason given");
  }
  return unsupported(cat("no library could be opened: ", reasons));
}

void* SharedObject::symbol(const char* name) const noexcept {
  return ::dlsym(handle_, name);
}

std::string own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 ||
      info.dli_fname == nullptr) {
    return {};
  }
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string(".") : path.substr(0, slash);
}

}  // namespace moekit::base
