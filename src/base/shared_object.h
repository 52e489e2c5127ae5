// SPDX-License-Identifier: Apache-2.0
#pragma once

// A library that is looked for at run time. Never unloaded: function tables filled from it are
// plain pointers that live as long as the process.

#include <span>
#include <string>

#include "moekit/status.h"

namespace moekit::base {

class SharedObject {
 public:
  /// Opens the first of `candidates` (file names as the loader understands them) that loads.
  ///
  /// Errors  kUnsupported  none loads; the message lists each with the loader's reason
  [[nodiscard]] static Result<SharedObject> open(std::span<const std::string> candidates);

  /// Null where the library has no such symbol.
  [[nodiscard]] void* symbol(const char* name) const noexcept;

  /// The candidate that was opened.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  SharedObject(void* handle, std::string path) noexcept : handle_(handle), path_(std::move(path)) {}

  void* handle_ = nullptr;
  std::string path_;
};

/// The folder of the file (library or program) that this code was loaded from; empty when unknown.
[[nodiscard]] std::string own_folder();

}  // namespace moekit::base
