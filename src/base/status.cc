// SPDX-License-Identifier: Apache-2.0
#include "moekit/status.h"

#include <exception>
#include <new>

#include "base/border.h"
#include "base/text.h"

namespace moekit {

std::string_view status_code_name(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid_argument";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kFailedPrecondition:
      return "failed_precondition";
    case StatusCode::kOutOfMemory:
      return "out_of_memory";
    case StatusCode::kIo:
      return "io";
    case StatusCode::kDevice:
      return "device";
    case StatusCode::kInternal:
      return "internal";
  }
  return "unknown";
}

Status::Status(StatusCode code, std::string message) noexcept {
  if (code == StatusCode::kOk) {
    return;
  }
  try {
    error_ = std::make_shared<const Error>(Error{code, std::move(message)});
  } catch (...) {
    *this = base::host_memory_exhausted();
  }
}

Status Status::with_context(std::string_view context) const noexcept {
  try {
    return ok() ? Status() : Status(code(), base::cat(context, ": ", message()));
  } catch (...) {
    return *this;
  }
}

std::string Status::to_string() const noexcept {
  try {
    return ok() ? "ok" : base::cat(status_code_name(code()), ": ", message());
  } catch (...) {
    return "out_of_memory";  // within what a string holds in itself
  }
}

Status invalid_argument(std::string message) noexcept {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

Status unsupported(std::string message) noexcept {
  return {StatusCode::kUnsupported, std::move(message)};
}

Status failed_precondition(std::string message) noexcept {
  return {StatusCode::kFailedPrecondition, std::move(message)};
}

Status out_of_memory(std::string message) noexcept {
  return {StatusCode::kOutOfMemory, std::move(message)};
}

Status io_error(std::string message) noexcept {
  return {StatusCode::kIo, std::move(message)};
}

Status device_error(std::string message) noexcept {
  return {StatusCode::kDevice, std::move(message)};
}

Status internal_error(std::string message) noexcept {
  return {StatusCode::kInternal, std::move(message)};
}

namespace base {
namespace {

// Made while there is memory: to say that there is none, none is left.
const Status kHostMemoryExhausted = out_of_memory("host memory allocation failed");

}  // namespace

Status host_memory_exhausted() noexcept {
  return kHostMemoryExhausted;
}

Status status_of_exception() noexcept {
  try {
    try {
      std::rethrow_exception(std::current_exception());
    } catch (const std::bad_alloc&) {
      return host_memory_exhausted();
    } catch (const std::exception& error) {
      return internal_error(cat("unexpected exception: ", error.what()));
    } catch (...) {  // a caller's callback may throw anything
      return internal_error("unexpected exception of a type that is no std::exception");
    }
  } catch (...) {  // no room for the message
    return host_memory_exhausted();
  }
}

}  // namespace base

}  // namespace moekit
