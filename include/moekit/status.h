// SPDX-License-Identifier: Apache-2.0
#pragma once

// Errors as values. Nothing in moekit throws across its border: every fallible call returns a
// Status or a Result<T>, cheap when all went well, with a message that names the values, the rule
// and the place.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#pragma GCC visibility push(default)

namespace moekit {

/// Weight of an event that is told to a log sink (runtime.h).
enum class LogLevel : std::uint8_t { kError, kWarn, kInfo, kDebug };

enum class StatusCode : int {
  kOk = 0,
  /// The caller passed something wrong. Not for a correct request that moekit cannot serve.
  kInvalidArgument = 1,
  /// A correct request that no kernel, format or planner serves. Not for malformed input.
  kUnsupported = 2,
  /// The call is right but came at the wrong time (capture, frozen, not prepared). Not for bad
  /// values.
  kFailedPrecondition = 3,
  /// Memory could not be had. Not for a workspace that is too small (kInvalidArgument).
  kOutOfMemory = 4,
  /// Reading or writing a file failed. Not for a readable file with wrong content
  /// (kInvalidArgument).
  kIo = 5,
  /// The device or its driver reported a fault. Not for a missing device (kUnsupported).
  kDevice = 6,
  /// A broken invariant of moekit itself. Never for anything an input can cause.
  kInternal = 7,
};

[[nodiscard]] std::string_view status_code_name(StatusCode code) noexcept;

/// Outcome of an operation: one pointer, null when ok. Copyable and comparable by code and message.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;

  /// Without memory for it: the library's one kOutOfMemory, as for every call.
  Status(StatusCode code, std::string message) noexcept;

  [[nodiscard]] bool ok() const noexcept { return error_ == nullptr; }

  [[nodiscard]] StatusCode code() const noexcept { return ok() ? StatusCode::kOk : error_->code; }

  [[nodiscard]] std::string_view message() const noexcept {
    return ok() ? std::string_view() : std::string_view(error_->message);
  }

  /// The same error with `context: ` before its message, where there is memory for it; ok stays ok.
  [[nodiscard]] Status with_context(std::string_view context) const noexcept;

  /// `invalid_argument: message`, or `ok`; `out_of_memory` where there is none for that text.
  [[nodiscard]] std::string to_string() const noexcept;

  friend bool operator==(const Status& left, const Status& right) noexcept {
    return left.code() == right.code() && left.message() == right.message();
  }

 private:
  struct Error {
    StatusCode code;
    std::string message;
  };

  std::shared_ptr<const Error> error_;
};

[[nodiscard]] Status invalid_argument(std::string message) noexcept;
[[nodiscard]] Status unsupported(std::string message) noexcept;
[[nodiscard]] Status failed_precondition(std::string message) noexcept;
[[nodiscard]] Status out_of_memory(std::string message) noexcept;
[[nodiscard]] Status io_error(std::string message) noexcept;
[[nodiscard]] Status device_error(std::string message) noexcept;
[[nodiscard]] Status internal_error(std::string message) noexcept;

/// A value or the Status that explains why there is none. Member names are those of std::expected.
template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(T value) noexcept(std::is_nothrow_move_constructible_v<T>)
      : state_(std::in_place_index<0>, std::move(value)) {}

  /// `status` must be an error; an ok Status becomes kInternal, so that a mistake is never silent.
  /// The message is within what a string holds in itself.
  Result(Status status) noexcept  // NOLINT(google-explicit-constructor)
      : state_(std::in_place_index<1>,
               status.ok() ? Status(StatusCode::kInternal, "ok is no error") : std::move(status)) {}

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }

  explicit operator bool() const noexcept { return has_value(); }

  [[nodiscard]] T& value() & noexcept { return *std::get_if<0>(&state_); }

  [[nodiscard]] const T& value() const& noexcept { return *std::get_if<0>(&state_); }

  [[nodiscard]] T&& value() && noexcept { return std::move(*std::get_if<0>(&state_)); }

  [[nodiscard]] T& operator*() & noexcept { return value(); }

  [[nodiscard]] const T& operator*() const& noexcept { return value(); }

  [[nodiscard]] T&& operator*() && noexcept { return std::move(*this).value(); }

  [[nodiscard]] T* operator->() noexcept { return std::get_if<0>(&state_); }

  [[nodiscard]] const T* operator->() const noexcept { return std::get_if<0>(&state_); }

  template <typename U>
  [[nodiscard]] T value_or(U&& fallback) const& {
    return has_value() ? value() : static_cast<T>(std::forward<U>(fallback));
  }

  /// The error; an ok Status when there is a value.
  [[nodiscard]] Status status() const noexcept {
    return has_value() ? Status() : *std::get_if<1>(&state_);
  }

  [[nodiscard]] Status error() const noexcept { return status(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace moekit

#pragma GCC visibility pop

#define MOEKIT_CONCAT_INNER(a, b) a##b
#define MOEKIT_CONCAT(a, b) MOEKIT_CONCAT_INNER(a, b)

/// Leaves the enclosing function with the error of `expression`, if it is one.
#define MOEKIT_RETURN_IF_ERROR(expression)                                    \
  do {                                                                        \
    if (::moekit::Status moekit_status = (expression); !moekit_status.ok()) { \
      return moekit_status;                                                   \
    }                                                                         \
  } while (false)

/// `MOEKIT_ASSIGN_OR_RETURN(auto plan, make_plan(...));` assigns the value or leaves with the
/// error.
#define MOEKIT_ASSIGN_OR_RETURN(target, expression) \
  MOEKIT_ASSIGN_OR_RETURN_INNER(MOEKIT_CONCAT(moekit_result_, __LINE__), target, expression)

#define MOEKIT_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                     \
  if (!result.has_value()) {                                      \
    return result.status();                                       \
  }                                                               \
  target = std::move(result).value()
