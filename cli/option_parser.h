// SPDX-License-Identifier: Apache-2.0
#pragma once

// Verbs and options as rows of data, and the reading of a command line into them. It knows no word
// of the command line; option_parser.cc is the only file that sees CLI11, whose headers cost more
// to compile than everything else here.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "moekit/status.h"

namespace moekit::cli {

/// Where a value goes: a pointer and its type. Numbers are decimal and not negative.
class OptionTarget {
 public:
  enum class Kind : std::uint8_t {
    kFlag,
    kText,
    kMaybeText,
    kTexts,
    kInt,
    kMaybeInt,
    kUint64,
    kMaybeInt64,
    kDouble,
    kMaybeFloat
  };

  /// A row says which option fills which member: a conversion without a word.
  template <typename T>
  OptionTarget(T* place)  // NOLINT(google-explicit-constructor)
      : kind_(kind_of(place)), place_(place) {}

  [[nodiscard]] Kind kind() const noexcept { return kind_; }

  /// The member, whose type is that of kind().
  template <typename T>
  [[nodiscard]] T& as() const noexcept {
    return *static_cast<T*>(place_);
  }

 private:
  static Kind kind_of(const bool*) { return Kind::kFlag; }

  static Kind kind_of(const std::string*) { return Kind::kText; }

  static Kind kind_of(const std::optional<std::string>*) { return Kind::kMaybeText; }

  static Kind kind_of(const std::vector<std::string>*) { return Kind::kTexts; }

  static Kind kind_of(const int*) { return Kind::kInt; }

  static Kind kind_of(const std::optional<int>*) { return Kind::kMaybeInt; }

  static Kind kind_of(const std::uint64_t*) { return Kind::kUint64; }

  static Kind kind_of(const std::optional<std::int64_t>*) { return Kind::kMaybeInt64; }

  static Kind kind_of(const double*) { return Kind::kDouble; }

  static Kind kind_of(const std::optional<float>*) { return Kind::kMaybeFloat; }

  Kind kind_;
  void* place_;
};

/// What several mentions of an option mean. A list of texts collects them; elsewhere a second one
/// is an error unless the last counts, so that a line that reproduces a failure can append its own.
enum class Mentions : std::uint8_t { kOnce, kLastCounts };

struct OptionRow {
  const char* name;   // `--tokens`; a positional has no dashes
  const char* value;  // what stands for the value in --help; empty for a flag
  const char* help;
  OptionTarget target;
  bool required = false;
  Mentions mentions = Mentions::kOnce;
  const char* words = "";   // `nvfp4|mxfp4`: the only legal values, where there are so few
  bool comma_list = false;  // of a list: a value is several, parted by commas
  std::int64_t minimum = 0;
  std::int64_t maximum = std::numeric_limits<std::int64_t>::max();
};

struct VerbRow {
  const char* name;
  const char* description;
  std::vector<OptionRow> options;
};

struct ProgramRow {
  const char* name;
  const char* description;
  std::string version;
};

struct ParsedLine {
  std::size_t verb = 0;              // index of the verb that was typed
  std::vector<std::string> given{};  // names of the options that were typed
  std::string text{};                // help or version: to be printed, and nothing else done
};

/// Reads `words`, the command line without the program, into the targets of the verb it names.
///
/// Errors  kInvalidArgument  in one line: an option that is unknown, missing, given twice, empty or
///                           of another type, with what was expected
[[nodiscard]] Result<ParsedLine> parse_options(const ProgramRow& program,
                                               const std::vector<VerbRow>& verbs,
                                               const std::vector<std::string>& words);

}  // namespace moekit::cli
